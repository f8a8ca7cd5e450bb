"""Saved timelines: their figure is that of the traces, and the report, its pages and the writeup show it."""

import json
import re
from pathlib import Path

import pytest

from tilewright.bench import results
from tilewright.bench.report.timeline import Run, Window, timeline
from tilewright.bench.report.timelines import read_timeline, read_timelines, save_timeline
from tilewright.bench.report.write import ladders, write
from tilewright.bench.report.writeup import write_writeup
from tilewright.bench.results import save
from tilewright.errors import InputError, UsageError
from tilewright.formats.traces import Lane, Process


@pytest.fixture
def runs():
    """One run of 100,000 short reads, and one of a GPU after its leading process."""
    many = [(i / 1000, i / 1000 + 0.00025) for i in range(100_000)]
    where = {"machine": "made-up-2c", "commit": "1a2b3c4", "date": "2026-11-21"}
    lead = Process(None, "", 0, {0: Lane("plan", 7, [(0, 5)]), 1: Lane("run", 7, [(5, 150)])})
    worker = Process(
        0, "GPU 0", 48, {0: Lane("shard", 0, [(10, 60), (70, 140)]), 1: Lane("compute, GPU", 3, [(12, 50)])}, **where
    )
    return [
        Run("many.json", [Process(1, "cores 0 to 1", 9, {0: Lane("read", 1, many)}, **where)]),
        Run("b.json", [lead, worker]),
    ]


@pytest.fixture
def saved(tmp_path, runs, monkeypatch):
    monkeypatch.setattr(results, "commit", lambda: "1a2b3c4")
    return save_timeline(tmp_path / "results", "two-runs", runs, Window(0, 100))


def paths(svg):
    """Where its boxes are, to a pixel, and its texts."""
    boxes = [round(float(x)) for x in re.findall(r"M(\S+) ", svg)]
    return boxes, re.findall(r">([^<]*)</text>", svg)


def test_a_saved_timeline_has_the_figure_of_its_traces(saved, runs):
    found = read_timeline(saved)
    assert paths(found.drawing) == paths(timeline(runs, Window(0, 100)))
    assert "25%" in found.drawing and "many.json: 1 worker, 9 records, 100 ms to the end" in found.drawing
    assert "b.json: 1 worker, 48 records, 150 ms to the end" in found.drawing, "what is outside of the window counts"
    assert saved.stat().st_size < 2000 and re.fullmatch(
        r"2 runs; made-up-2c, commit 1a2b3c4, \d{4}-..-..", found.origin
    )
    assert found.figure == "made-up-2c/timeline_two-runs.svg"


def test_a_long_trace_is_a_small_file(tmp_path):
    spread = [(i, i + 0.5) for i in range(100_000)]
    one = Process(0, "", 0, {0: Lane("read", 1, spread)}, "m", "c", "2026-11-21")
    path = save_timeline(tmp_path, "long", [Run("a", [one])], Window(0, 1e5))
    assert path.stat().st_size < 40_000


def test_a_timeline_is_of_the_machine_that_ran(runs, tmp_path):
    elsewhere = runs[1].processes[1]
    elsewhere.machine, elsewhere.commit = "nvidia-h200", "9f9f9f9"
    with pytest.raises(
        UsageError, match="the runs are of made-up-2c and nvidia-h200; a saved timeline is of one machine"
    ):
        save_timeline(tmp_path, "a", runs, Window(0, 100))
    path = save_timeline(tmp_path, "a", runs[1:], Window(0, 100))
    assert (
        path == tmp_path / "nvidia-h200/timeline_a.json" and "commit 9f9f9f9, 2026-11-21" in read_timeline(path).origin
    )
    elsewhere.machine = ""
    with pytest.raises(UsageError, match=r"b\.json does not say on which machine it was recorded.* Run the job again"):
        save_timeline(tmp_path, "a", runs[1:], Window(0, 100))


def test_the_report_and_the_writeup_show_it(saved, tmp_path, row):
    save(tmp_path / "results", "made-up-2c", [row("cpu.memory"), row("MKL", check="peer")])
    (tmp_path / "README.md").write_text("")
    write(tmp_path)
    text = (tmp_path / "docs/results/timelines.md").read_text()
    assert "## Made Up, 2 cores\n\n### two-runs\n" in text and "commit 1a2b3c4" in text
    assert "](../../results/made-up-2c/timeline_two-runs.svg)" in text
    assert "[Timelines](timelines.md): Made Up, 2 cores" in (tmp_path / "docs/results/index.md").read_text()
    assert (tmp_path / "results/made-up-2c/timeline_two-runs.svg").read_text().startswith("<svg")
    assert 'id="timeline-two-runs"' in (tmp_path / "results/report.html").read_text()
    assert write(tmp_path) == []
    write_writeup(tmp_path / "results", ["made-up-2c"], tmp_path / "report", ladders())
    text = (tmp_path / "report/writeup.md").read_text()
    assert "## Timelines\n\n### two-runs" in text and "](figures/made-up-2c-timeline_two-runs.svg)" in text
    assert (tmp_path / "report/figures/made-up-2c-timeline_two-runs.svg").exists()
    assert "many.json: 1 worker" in (tmp_path / "report/writeup.html").read_text()
    saved.unlink()
    assert tmp_path / "docs/results/timelines.md" in write(tmp_path), "a page without a timeline is removed"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda t: t.update(begin=100.0), "it goes from 100 to 100 ms"),
        (lambda t: t.update(end=1e300), "a time is beyond 30 years"),
        (lambda t: t.update(commit="a | b"), "its commit or date is malformed"),
        (lambda t: t.update(runs=[]), "nothing happened from 0 to 100 ms"),
        (lambda t: lane(t).update(busy=1.5), "a share is not from 0 to 1"),
        (lambda t: lane(t).update(spans=[[5, 6], [1, 2]]), "the times of a lane are not in order"),
        (lambda t: lane(t).update(spans=[[6, 5]]), "the times of a lane are not in order"),
        (lambda t: lane(t).pop("name"), "this is no saved timeline: Object missing required field `name`"),
        (lambda t: t["runs"][0]["processes"].extend(t["runs"][0]["processes"] * 400), "at most 300 are drawn"),
    ],
)
def test_a_file_that_was_edited_is_refused(saved, change, says):
    told = json.loads(saved.read_text())
    change(told)
    saved.write_text(json.dumps(told))
    with pytest.raises(InputError, match=re.escape(says)) as error:
        read_timelines(saved.parent.parent)
    assert str(saved) in str(error.value)


def lane(told):
    return told["runs"][0]["processes"][0]["lanes"][0]


def test_another_name_is_refused(saved):
    other = Path(saved.parent, "timeline_A b.json")
    saved.rename(other)
    with pytest.raises(InputError, match=r"the name 'A b' of this timeline may contain only a-z, 0-9 and -"):
        read_timelines(saved.parent.parent)
