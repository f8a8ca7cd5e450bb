"""Timelines: lanes of each worker on one time axis, several runs below each other."""

import re
import xml.etree.ElementTree as ET

import pytest

from tilewright.bench.report import timeline as module
from tilewright.bench.report.svg import PALETTE, standalone
from tilewright.bench.report.timeline import KINDS, LEFT, RIGHT, Run, Window, timeline
from tilewright.errors import UsageError
from tilewright.formats.traces import Lane, Process

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def run():
    """100 ms: the leading process plans and merges; worker 0 reads and computes 3 shards, and a GPU copies."""
    lead = Process(None, "", 0, {0: Lane("plan", 7, [(0, 5)]), 1: Lane("run", 7, [(5, 95)]),
                                 2: Lane("merge", 7, [(95, 100)])})  # fmt: skip
    each = [10, 40, 70]
    lanes = {
        "shard": [(a, a + 25) for a in each],
        "read": [(a, a + 5) for a in each],
        "compute, GPU": [(a + 5, a + 15) for a in each],
        "copy out, GPU": [(a + 15, a + 20) for a in each],
        "write 2": [(a + 20, a + 24) for a in each],
    }
    worker = Process(0, "GPU 0", 48, {i: Lane(name, i, spans) for i, (name, spans) in enumerate(lanes.items())})
    return Run("one.json", [lead, worker])


def drawn(svg):
    """(texts, [(class, [(x, width) of each box])]) of a figure."""
    root = ET.fromstring(svg)  # noqa: S314 - our own text
    boxes = [
        (path.get("class"), [tuple(map(float, pair)) for pair in re.findall(r"M(\S+) \S+?h(.+?)v", path.get("d"))])
        for path in root.iter(f"{SVG}path")
    ]
    return [text.text for text in root.iter(f"{SVG}text")], boxes


def test_a_lane_per_worker_and_kind_of_work(run):
    words, boxes = drawn(timeline([run], Window(0, 100)))
    assert "one.json: 1 worker, 48 records, 100 ms to the end" in words and "worker 0, GPU 0, 48 records" in words
    names = [word for word in words if word in ("plan", "run", "merge", "shard", "read", "write 2", "compute, GPU")]
    assert names == ["plan", "merge", "shard", "read", "compute, GPU", "write 2"]  # the run is all its shards
    assert [colour for colour, _ in boxes] == [
        f"fill-{name}" for name in ("faint", "faint", "ghost", "peer", "simt", "vendor", "tile")
    ]
    scale = (RIGHT - LEFT) / 100
    assert boxes[4][1] == [pytest.approx((LEFT + a * scale, 10 * scale)) for a in (15, 45, 75)]
    shares = [word for word in words if word.endswith("%")]
    assert shares == ["5%", "5%", "75%", "15%", "30%", "15%", "12%"]
    assert {"compute", KINDS["copy out"][1]} <= set(words) and KINDS["copy in"][
        1
    ] not in words  # the key: what is drawn
    assert "time, ms" in words and "100" in words and {word.partition("-")[2] for word, _ in boxes} <= PALETTE.keys()


def test_runs_share_one_axis_and_shards_can_be_aligned(run):
    late = Run("two.json", [Process(3, "", 0, {0: Lane("shard", 0, [(30, 60)]), 1: Lane("compute", 3, [(35, 60)])})])
    words, boxes = drawn(timeline([run, late], Window(0, 100)))
    assert words.index("worker 3") > words.index("two.json: 1 worker, 60 ms to the end") > words.index("write 2")
    aligned = [run.shifted(), late.shifted()]
    _, boxes = drawn(timeline(aligned, Window(0, 50)))
    first = [spans[0][0] for colour, spans in boxes if colour == "fill-ghost"]
    assert first == [LEFT, LEFT]
    with pytest.raises(UsageError, match="--zero shard: none has no shard"):
        Run("none", [Process(0, "", 0, {0: Lane("read", 1, [(1, 2)])})]).shifted()


def test_a_window_cuts_spans_and_leaves_out_idle_lanes(run):
    words, boxes = drawn(timeline([run], Window(12, 18)))
    assert "copy out, GPU" not in words and "merge" not in words and "leading process" not in words
    assert dict(boxes)["fill-ghost"] == [pytest.approx((LEFT, RIGHT - LEFT))]
    with pytest.raises(UsageError, match=r"nothing happened from 200 to 300 ms\. Choose other times"):
        timeline([run], Window(200, 300))


def test_many_short_spans_are_few_boxes():
    spans = [(i / 1000, i / 1000 + 0.0005) for i in range(100_000)]
    _, ((_, boxes),) = drawn(timeline([Run("a", [Process(0, "", 0, {0: Lane("read", 1, spans)})])], Window(0, 100)))
    assert len(boxes) == 1


def test_too_many_lanes_and_odd_names(run, monkeypatch):
    odd = Process(0, "\x1b[31m<b>\nx", 0, {0: Lane("\0read" + "y" * 500, 1, [(0, 1)])})
    words, _ = drawn(standalone(timeline([Run("<a>&\x07", [odd])], Window(0, 1))))
    assert r"worker 0, \x1b[31m<b> x" in words and r"<a>&\x07: 1 worker, 1 ms to the end" in words
    monkeypatch.setattr(module, "MOST_LANES", 6)
    with pytest.raises(UsageError, match=r"there are 7 lanes; at most 6 are drawn\. Choose some with --worker 0,1"):
        timeline([run], Window(0, 100))


@pytest.mark.parametrize("window", [(0, 1e-6), (0, 3), (0, 97), (1e12, 1e12 + 0.125), (-50, 1e9)])
def test_times_of_the_axis(window):
    begin, end = window
    process = Process(0, "", 0, {0: Lane("read", 1, [(begin, end)])})
    words, _ = drawn(timeline([Run("a", [process])], Window(begin, end)))
    assert 3 <= sum(bool(re.fullmatch(r"-?[\d,.e+-]+", word)) for word in words) <= 10
