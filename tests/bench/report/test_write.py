"""What people read is what results/ says: written twice it is the same, and a number typed by hand does not survive."""

import re

import pytest

from tilewright.bench import results
from tilewright.bench.report import transcript
from tilewright.bench.report.write import UNMEASURED, write
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
    """A checkout with results of matmul and embedding, a README, and the page of an operation's ladder."""
    monkeypatch.setattr(results, "commit", lambda: "1a2b3c4")
    rungs = [row("cpu.memory"), row("cpu.packed", gflops=43.25), row("MKL", check="peer")]
    save(tmp_path / "results", "made-up-2c", [*rungs, row("cpu.rows", op="embedding", gflops=None)])
    (tmp_path / "README.md").write_text(README)
    folder = tmp_path / "docs/ladders"
    folder.mkdir(parents=True)
    (folder / "embedding.md").write_text("<!-- ladder:embedding -->\n<!-- /ladder:embedding -->\n")
    return tmp_path


def contents(root):
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_tables_figures_and_the_page_are_written(root):
    changed = {str(path.relative_to(root)) for path in write(root)}
    assert changed == {
        "README.md",
        "docs/ladders/embedding.md",
        "results/report.html",
        "results/made-up-2c/matmul-float32.svg",
        "results/made-up-2c/embedding-float32.svg",
        "results/made-up-2c/roofline-float32.svg",
    }
    text = (root / "README.md").read_text()
    assert text.startswith("# Made up\n\n<!-- ladder:matmul -->\ntiny, 8x8x8, float32; made-up-2c")
    assert re.search(r"\| cpu\.packed \| operands packed .*; threads draw blocks \| 43\.2 \|", text)
    assert "Between, and a mention of `<!-- ladder:matmul -->` in a line." in text
    assert "old" not in text
    assert f"<!-- bench:sentiment -->\n{UNMEASURED}\n<!-- /bench:sentiment -->\nThe end.\n" in text
    assert "| cpu.rows |" in (root / "docs/ladders/embedding.md").read_text()


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
    """A part that was measured again stays out; a workload's rows get a table for each session."""
    job = {"op": "sentiment", "size": "16384 sentences"}
    save(root / "results", "made-up-2c", [row("table inside", **job), row("table exists", **job, dtype="bfloat16")])
    monkeypatch.setattr(results, "commit", lambda: "5d6e7f8")
    monkeypatch.setattr(results, "session", lambda: "later")
    save(root / "results", "made-up-2c", [row("cpu.packed", gflops=12.34), row("table inside", **job)])
    write(root)
    text = (root / "README.md").read_text()
    assert "12.3" not in text and "43.2" in text and "commit 1a2b3c4 and" not in text
    captions = [line for line in text.splitlines() if line.startswith("sentiment; ")]
    assert [("1a2b3c4" in line, "5d6e7f8" in line) for line in captions] == [(True, False), (False, True)]


def test_the_page_needs_nothing_else(root):
    write(root)
    page = (root / "results" / "report.html").read_text()
    assert "cpu.packed" in page
    assert "<svg" in page
    for outside in ("<script", "<link", "<img", "@import", "url(", "src=", 'href="http'):
        assert outside not in page


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
    ],
    ids=["open", "other", "nested", "unknown"],
)
def test_a_broken_marker_is_refused_and_nothing_written(root, text, message):
    (root / "README.md").write_text(text)
    with pytest.raises(InputError, match=message):
        write(root)
    assert (root / "README.md").read_text() == text


def test_no_results_are_an_error(tmp_path):
    with pytest.raises(InputError, match="no results here"):
        write(tmp_path)


def test_the_headline_has_our_rows_of_the_first_sizes(root, row):
    job = {"op": "sentiment", "size": "16384 sentences", "rows": 100}
    rows = [row("table inside", **job, median_s=2.0, peer="PyTorch", peer_ratio=3.0)]
    rows += [row("PyTorch", **job, median_s=0.01, check="peer")]
    rows += [row("tilewright", op="volumes", size=f"size {i}", rows=8, median_s=0.0025) for i in range(3)]
    save(root / "results", "made-up-2c", rows)
    (root / "README.md").write_text("<!-- headline:jobs -->\n<!-- /headline:jobs -->\n")
    write(root)
    text = (root / "README.md").read_text()
    wanted = "| sentiment | made-up-2c | 16384 sentences | float32 | table inside | 50 sentences/s | PyTorch | 3.00 |"
    assert wanted in text
    assert "| volumes | made-up-2c | size 1 | float32 | tilewright | 2.5 ms |  |  |" in text
    assert "size 2" not in text and "10,000" not in text


def test_the_demos_output_is_what_was_kept(root):
    """Text in a block, then the pictures that are there."""
    (root / "README.md").write_text("<!-- demo:output -->\nold\n<!-- /demo:output -->\n")
    write(root)
    assert transcript.MISSING in (root / "README.md").read_text()
    kept = root / transcript.FOLDER
    kept.mkdir()
    (kept / "demo.txt").write_text("poet continues\n\n    To be\n")
    (kept / "faces.png").write_bytes(b"")
    assert write(root) == [root / "README.md"] and write(root) == []
    block = "```\n$ tilewright demo\npoet continues\n\n    To be\n```"
    picture = "![faces that portraits drew](results/demo/faces.png)"
    wanted = f"<!-- demo:output -->\n{block}\n\n{picture}\n<!-- /demo:output -->\n"
    assert (root / "README.md").read_text() == wanted
