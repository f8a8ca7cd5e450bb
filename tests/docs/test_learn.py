"""The pages of docs/learn: every operation, every rung, every reference; and no figure that somebody typed."""

import importlib
import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tilewright.ops.core.ladder import operations

ROOT = Path(__file__).resolve().parents[2]
LEARN, HOOKS = ROOT / "docs/learn", ROOT / "docs/_hooks"
PAGES = sorted(LEARN.glob("*.md"))
LONGEST_QUOTE = 24  # lines; a page shows the lines of an idea, not a file
WORDS = 25  # of a sentence

MEASURED = re.compile(
    r"\d\s*(?:[GT]FLOP/s|[GTM]i?B/s|% of the roof|% (?:faster|slower)|(?:x|times) (?:as|the rung|faster|slower)"
    r"|(?:ms|us)\b)"
)


def hook(name: str):
    spec = importlib.util.spec_from_file_location(f"hook_{name}", HOOKS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


source, measured, inline = hook("source"), hook("measured"), hook("inline")


@pytest.mark.parametrize("op", operations())
def test_every_operation_has_a_page_with_a_card_for_each_rung(op):
    text = (LEARN / f"{op}.md").read_text()
    ladder = importlib.import_module(f"tilewright.ops.{op}.ladder").ladder
    cards = [match["rung"] for match in measured.CARD.finditer(text) if match["op"] == op]
    assert sorted(cards) == sorted(ladder.rungs)
    headings = re.findall(r"^### (.+)$", text, re.MULTILINE)
    assert sorted(name for heading in headings for name in heading.split(", ")) == sorted(ladder.rungs)
    assert f'"measured: {op}")' in text and f"(img/{op}" in text and f"({op}.md)" in (LEARN / "index.md").read_text()


@pytest.mark.parametrize("op", operations())
def test_the_readme_of_an_operation_leads_to_its_page(op):
    package = importlib.import_module(f"tilewright.ops.{op}")
    text = (Path(package.__file__).parent / "README.md").read_text()
    assert f"(../../../../docs/learn/{op}.md)" in text


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_every_reference_of_a_page_resolves(path):
    page = inline.with_drawings(measured.with_results(source.with_sources(path.read_text(), LEARN)), LEARN)
    quotes = re.findall(r"^```python title=.*?\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert all(0 < quote.count("\n") <= LONGEST_QUOTE for quote in quotes)
    for target in re.findall(r"\]\(([^)\s#]+)", path.read_text()):
        assert (LEARN / target).exists(), target
    assert "img/" not in page and page.count("<svg") == path.read_text().count("](img/")
    assert all((LEARN / image).exists() for image in re.findall(r"^!\[[^\]]*\]\((\S+)\)$", page, re.MULTILINE))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_nobody_types_a_measured_figure(path):
    assert typed_figures(path.read_text()) == []


def typed_figures(text: str) -> list[str]:
    return [line for line in text.splitlines() if MEASURED.search(line)]


@pytest.mark.parametrize(
    "line",
    [
        "It runs at 47 GFLOP/s.",
        "a copy, 4.1 TB/s",
        "It is 23 x as fast",
        "2.1 times faster",
        "takes 0.3 ms",
        "5 % slower",
    ],
)
def test_a_typed_figure_is_caught(line):
    assert typed_figures(line) == [line]


@pytest.mark.parametrize("line", ["a block of 64 x 256 elements, 64 KiB", "2.05 GFLOP per sentence", "it reads 206 MB"])
def test_sizes_are_no_measured_figures(line):
    assert typed_figures(line) == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_sentences_are_short(path):
    text = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    prose = [
        part for part in re.split(r"\n\s*\n|^\* |^\d\. ", text, flags=re.MULTILINE) if not part.startswith(("#", "|"))
    ]
    sentences = [sentence for part in prose for sentence in re.split(r"(?<=[.?!:;])\s", part)]
    assert [sentence for sentence in sentences if len(sentence.split()) > WORDS] == []


def test_the_drawings_are_those_that_the_program_draws(tmp_path):
    """So a constant of a kernel and its drawing agree. Words that leave their box stop the program."""
    subprocess.run([sys.executable, HOOKS / "drawings.py", tmp_path], check=True)
    drawn = {path.name: path.read_text() for path in tmp_path.glob("*.svg")}
    assert drawn == {path.name: path.read_text() for path in (LEARN / "img").glob("*.svg")}
    used = {name for path in PAGES for name in re.findall(r"\(img/([\w-]+\.svg)\)", path.read_text())}
    assert used == drawn.keys()


CODE = '''
@decorated
def outer(a):
    """What it does."""
    @inner_decorator
    def inner(b):
        """More."""
        total = 0  # a comment stays
        for i in range(b):
            total += i
        return total
    return inner

SIZES = {"a": 1}
'''


def test_a_quote_is_the_text_of_the_source():
    assert source.quoted(CODE, "outer.inner from for i to return") == "for i in range(b):\n    total += i\nreturn total"
    assert source.quoted(CODE, "inner from total =") == "total = 0  # a comment stays"
    assert source.quoted(CODE, "SIZES") == 'SIZES = {"a": 1}'
    assert source.quoted(CODE, "inner").startswith("@inner_decorator\ndef inner(b):\n    total = 0")
    assert '"""' not in source.quoted(CODE, "inner")


@pytest.mark.parametrize("words", ["missing", "outer.missing", "inner from while", "inner from return to total"])
def test_a_reference_to_nothing_stops_the_build(words):
    with pytest.raises(LookupError):
        source.quoted(CODE, words)


def test_a_broken_link_stops_the_build():
    with pytest.raises(LookupError, match="alone on its line"):
        source.with_sources('text [x](y.py "source: f")', LEARN)
    with pytest.raises(LookupError, match=r"no rung 'cpu\.none'"):
        measured.with_results('[x](../../src/tilewright/ops/matmul/ladder.py "rung: cpu.none")')
    with pytest.raises(LookupError, match="no rung, factor or ladder"):
        measured.with_results('[x](matmul.md "rung: cpu.memory")')


def test_other_pages_are_left_alone():
    """CONTRIBUTING.md shows such links as examples."""
    page = SimpleNamespace(file=SimpleNamespace(src_uri="repository/CONTRIBUTING.md", abs_src_path="x"))
    text = '[x](y.py "source: f")'
    assert all(module.on_page_markdown(text, page=page) == text for module in (source, measured, inline))


def test_a_factor_is_read_from_the_results():
    link = '[x](../../results/{}/matmul.csv "factor: cpu.reordered")'
    machine = next((row.machine for row in measured.examples("matmul", "cpu.reordered")), None)
    if machine:
        assert re.fullmatch(r"[\d.,]+", measured.with_results(link.format(machine)))
    assert measured.with_results(link.format("no-machine")) == "(not yet measured)"
