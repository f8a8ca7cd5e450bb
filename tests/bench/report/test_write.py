"""What people read is what results/ says: written twice it is the same, and a number typed by hand does not survive."""

import re
import xml.etree.ElementTree as ET

import pytest

from tilewright.bench import results
from tilewright.bench.report import transcript
from tilewright.bench.report.pages import JOBS
from tilewright.bench.report.write import UNMEASURED, ladders, write
from tilewright.bench.results import save
from tilewright.errors import InputError

README = """# Made up

<!-- ladder:matmul -->
<!-- /ladder:matmul -->

Between, and a mention of `<!-- ladder:matmul -->` in a line.

<!-- sizes:matmul -->
old
<!-- /sizes:matmul -->
<!-- bench:sentiment -->
<!-- /bench:sentiment -->
The end.
"""


@pytest.fixture
def root(tmp_path, row, monkeypatch):
    """A checkout with results of matmul and embedding, a README, and a page about an operation."""
    monkeypatch.setattr(results, "commit", lambda: "1a2b3c4")
    rungs = [row("cpu.memory"), row("cpu.packed", gflops=43.25), row("MKL", check="peer")]
    save(tmp_path / "results", "made-up-2c", [*rungs, row("cpu.rows", op="embedding", gflops=None)])
    (tmp_path / "README.md").write_text(README)
    folder = tmp_path / "docs/learn"
    folder.mkdir(parents=True)
    (folder / "embedding.md").write_text("<!-- ladder:embedding -->\n<!-- /ladder:embedding -->\n")
    return tmp_path


def contents(root):
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_tables_figures_and_the_page_are_written(root):
    changed = {str(path.relative_to(root)) for path in write(root)}
    pages = {f"docs/results/{name}.md" for name in (*ladders(), *JOBS, "index", "experiments")}
    assert changed == pages | {
        "README.md",
        "docs/learn/embedding.md",
        "results/ladder.svg",
        "results/report.html",
        "results/made-up-2c/matmul-float32.svg",
        "results/made-up-2c/embedding-float32.svg",
        "results/made-up-2c/roofline-matmul.svg",
    }
    text = (root / "README.md").read_text()
    assert text.startswith("# Made up\n\n<!-- ladder:matmul -->\ntiny, 8x8x8, float32; made-up-2c")
    assert re.search(r"\| cpu\.packed \| operands packed .*; threads take blocks \| 43\.2 \|", text)
    assert "Between, and a mention of `<!-- ladder:matmul -->` in a line." in text
    assert "old" not in text
    assert f"<!-- bench:sentiment -->\n{UNMEASURED}\n<!-- /bench:sentiment -->\nThe end.\n" in text
    assert "| cpu.rows |" in (root / "docs/learn/embedding.md").read_text()


def test_writing_twice_changes_nothing(root):
    write(root)
    before = contents(root)
    assert write(root) == []
    assert contents(root) == before


def test_a_number_typed_by_hand_does_not_survive(root):
    write(root)
    right = (root / "README.md").read_text()
    (root / "README.md").write_text(right.replace("43.2", "99.9"))
    assert write(root) == [root / "README.md"]
    assert (root / "README.md").read_text() == right


def test_rows_of_two_sessions_are_never_in_one_table(root, row, monkeypatch):
    """A part that was measured again stays out; a workload's rows get a table for each session, in the file's order."""
    job = {"op": "sentiment", "size": "16384 sentences"}
    save(root / "results", "made-up-2c", [row("table inside", **job), row("table exists", **job, dtype="bfloat16")])
    monkeypatch.setattr(results, "commit", lambda: "5d6e7f8")
    monkeypatch.setattr(results, "session", lambda: "later")
    save(root / "results", "made-up-2c", [row("cpu.packed", gflops=12.34), row("table inside", **job)])
    write(root)
    text = (root / "README.md").read_text()
    assert "12.3" not in text and "43.2" in text and "commit 1a2b3c4 and" not in text
    captions = [line for line in text.splitlines() if line.startswith("sentiment; ")]
    assert [("1a2b3c4" in line, "5d6e7f8" in line) for line in captions] == [(False, True), (True, False)]


def test_the_page_needs_nothing_else(root):
    write(root)
    page = (root / "results" / "report.html").read_text()
    assert "cpu.packed" in page
    assert "<svg" in page
    for outside in ("<link", "<img", "@import", "url(", "src=", 'href="http', "fetch(", "import("):
        assert outside not in page


def test_pages_and_figures_without_rows_go_and_other_files_stay(root):
    """A machine's results are removed: so are its figures, and what was made for an operation that has gone."""
    write(root)
    old = root / "docs/results/oldop.md"
    old.write_text((root / "docs/results/matmul.md").read_text())
    own = [root / "docs/results/notes.md", root / "results/made-up-2c/drawing.svg"]
    for path in own:
        path.write_text("mine")
    (root / "results/made-up-2c/embedding.csv").unlink()
    removed = [path for path in write(root) if not path.exists()]
    assert removed == [old, root / "results/made-up-2c/embedding-float32.svg"]
    assert all(path.read_text() == "mine" for path in own)


def test_the_page_of_an_operation(root, row):
    save(root / "results", "nvidia-h100", [row("tile.limbs", threads=0, date="2026-11-25")])
    write(root)
    text = (root / "docs/results/matmul.md").read_text()
    assert text.index("## Made Up, 2 cores") < text.index("| cpu.packed |")
    assert "![matmul-float32 on Made Up, 2 cores](../../results/made-up-2c/matmul-float32.svg)" in text
    parts = text.split("\n## ")[1:]
    assert [("cpu.packed" in part, "tile.limbs |" in part) for part in parts] == [(True, False), (False, True)]
    assert "No rows from: NVIDIA H100." in (root / "docs/results/embedding.md").read_text()
    assert "* [correlate](correlate.md): not measured yet" in (root / "docs/results/index.md").read_text()
    assert "No rows from: " in (root / "docs/results/scaling.md").read_text()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "one\n<!-- ladder:matmul -->\ntwo\n",
            r"README\.md, line 2: the marker .* is not closed by <!-- /ladder:matmul -->",
        ),
        ("<!-- ladder:matmul -->\n<!-- /sizes:matmul -->\n", "line 1: .* not closed"),
        ("<!-- ladder:matmul -->\n<!-- sizes:matmul -->\n<!-- /ladder:matmul -->\n", "line 1: .* not closed"),
        ("<!-- ladder:matmull -->\n<!-- /ladder:matmull -->\n", "no operation 'matmull'; the operations are .*matmul"),
        ("<!-- headline:job -->\n<!-- /headline:job -->\n", "no section 'job'; the sections are jobs, ladder, claims"),
    ],
    ids=["open", "other", "nested", "unknown", "unknown section"],
)
def test_a_broken_marker_is_refused_and_nothing_written(root, text, message):
    (root / "README.md").write_text(text)
    with pytest.raises(InputError, match=message):
        write(root)
    assert (root / "README.md").read_text() == text


def test_no_results_are_an_error(tmp_path):
    with pytest.raises(InputError, match="no results here"):
        write(tmp_path)


def test_the_headline_is_of_the_rows_that_are_shown(root, row):
    job = {"op": "sentiment", "size": "16384 sentences", "rows": 100}
    rows = [row("table inside", **job, median_s=2.0, peer="PyTorch", peer_ratio=3.0)]
    rows += [row("PyTorch", **job, median_s=0.01, check="peer")]
    save(root / "results", "made-up-2c", rows)
    names = ("jobs", "ladder", "claims")
    (root / "README.md").write_text("".join(f"<!-- headline:{name} -->\n<!-- /headline:{name} -->\n" for name in names))
    write(root)
    text = (root / "README.md").read_text()
    assert "| `classify`: sentences/s | float32 | 50 | 3.00 x PyTorch |" in text and "10,000" not in text
    assert "](results/ladder.svg)" in text and "\n| MKL | the vendor's library | 12.5 |" in text
    assert "\n* **Fast.** The jobs below run 3.00 to 3.00 times as fast as" in text


def test_of_the_demo_are_shown_the_faces_and_what_took_time(root):
    """The picture, if it is there, then the lines of the text that have a time in a block, few and not too long."""
    (root / "README.md").write_text("<!-- demo:output -->\nold\n<!-- /demo:output -->\n")
    write(root)
    assert transcript.MISSING in (root / "README.md").read_text()
    kept = root / transcript.FOLDER
    kept.mkdir()
    poet = "poet continues a line (96 tokens in 0.26 s)"
    (kept / "demo.txt").write_text(f"tilewright on a CPU\n\n{poet}\n\n    To be (in 3 s)\ncritic reads (0.005 s): it\n")
    (kept / "faces.png").write_bytes(b"")
    assert write(root) == [root / "README.md"] and write(root) == []
    block = f"```\n$ tilewright demo\n{poet}\ncritic reads (0.005 s): it\n```"
    picture = f"![{transcript.WORDS}](results/demo/faces.png)"
    wanted = f"<!-- demo:output -->\n{picture}\n\n{block}\n<!-- /demo:output -->\n"
    assert (root / "README.md").read_text() == wanted
    (kept / "demo.txt").write_text(f"x{poet * 9}\n" * 9)
    lines = transcript.transcript(root).splitlines()
    assert len(lines) == transcript.LINES + 5 and max(map(len, lines)) == transcript.COLUMNS


def test_text_of_a_result_stays_text(root, row):
    """A name with marks of HTML begins no element: not on a page, not in a figure."""
    bad = 'a<script>"b'
    rows = [
        row("cpu.packed", label=bad, dtype=bad),
        row(bad, check="peer", dtype=bad),
        row(bad, op="sentiment", size=bad),
    ]
    save(root / "results", "made-up-2c", [*rows, row("x", op="odd <b>")])
    for path in write(root):
        text = path.read_text()
        assert "<script>" not in text.replace("<script>\n// The switch", "")
        if path.suffix == ".svg":
            ET.fromstring(text)  # noqa: S314 - our own text
    assert (root / "docs/results/odd-b-.md").exists()
