"""`tilewright timeline`: traces of real jobs, drawn."""

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tilewright.bench.report.timelines import read_timeline
from tilewright.hardware import machine_name

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def traced(run, small):
    """The trace `a.json` of a job with one worker."""
    assert run(*small, "--trace", "a.json")[0] == 0


def test_traces_are_drawn_below_each_other(run, traced):
    Path("b.json").write_bytes(Path("a.json").read_bytes())
    code, out, _ = run("timeline", "a.json", "b.json", "-o", "runs.svg")
    assert code == 0 and out.startswith("wrote runs.svg: 2 runs, 0.0 to ")
    text = Path("runs.svg").read_text()
    words = [element.text for element in ET.fromstring(text).iter(f"{SVG}text")]  # noqa: S314 - our own text
    assert words.count("compute") == 1 + 2 and words.count("shard") == 2 and "prefers-color-scheme: dark" in text
    assert [word.partition(" ")[0] for word in words if "records" in word and ".json" in word] == ["a.json:", "b.json:"]
    assert run("timeline", "a.json", "-o", "one.svg", "--zero", "shard", "--worker", "0")[0] == 0


def test_what_is_drawn_is_saved_for_the_report(run, traced):
    code, out, _ = run("timeline", "a.json", "--save", "one-run", "--zero", "shard")
    (path,) = Path("results").glob("*/timeline_one-run.json")
    assert code == 0 and out.startswith(f"wrote {path}: 1 run, 0.0 to ") and machine_name() in str(path)
    assert "a.json: 1 worker" in read_timeline(path).drawing


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("a.json", "neither --output nor --save is given. Give one of them, as in -o runs.svg"),
        ("a.json --save ../x", "--save is '../x'; a name has 1 to 40 characters from a-z, 0-9 and -"),
        ("a.json -o a.txt", "--output is 'a.txt'; a name that ends in .svg is wanted. Write -o a.svg"),
        ("a.json -o -", "standard output"),
        ("- -o a.svg", "the trace is standard input"),
        ("in.bin -o a.svg", "in.bin: this is no trace of a job"),
        ("none.json -o a.svg", "none.json: no such trace"),
        ("a.json -o a.svg --worker 1", "--worker 1: a.json has no such worker; it has 0"),
        ("a.json -o a.svg --from 3 --until 2", "the time axis goes from 3 to 2 ms; its end must be later"),
        ("a.json -o a.svg --until inf", "goes from 0 to inf ms"),
        ("a.json -o a.svg --from 1e9 --until 2e9", "nothing happened from 1e+09 to 2e+09 ms"),
        (" ".join(["a.json"] * 9) + " -o a.svg", "there are 9 traces; at most 8 are drawn"),
    ],
)
def test_what_cannot_be_drawn_is_refused(run, traced, options, says):
    code, _, errors = run("timeline", *options.split())
    assert code in (2, 3) and says in errors and not Path("a.svg").exists()


def test_a_figure_does_not_replace_its_trace(run, traced):
    Path("a.svg").symlink_to("a.json")
    code, _, errors = run("timeline", "a.json", "-o", "a.svg")
    assert code == 2 and "the figure would be written over its trace. Give --output another file" in errors
