"""Sweeps: every point checked, refused ones with their reasons, rows saved, read back, shown and drawn."""

import dataclasses
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from tilewright.bench import climb, results, sweep
from tilewright.bench.climb import parts
from tilewright.bench.report.sweeps import (
    CROSS,
    Steps,
    bits,
    curves,
    of_sweeps,
    speed_ups,
    sweep_figure,
    sweep_table,
    sweeps,
)
from tilewright.bench.report.write import write
from tilewright.bench.results import read, save
from tilewright.errors import InputError, Refused
from tilewright.ops.core.ladder import Rung
from tilewright.ops.core.launch import thread_count

SVG = "{http://www.w3.org/2000/svg}"
OPTIONS = {"tile": 2, "scale": 1.0}
SWEPT = {"tile": (2, 4), "scale": (1.0,)}


def halves(x, out, *, tile, scale):
    """Softmax of float64, scaled; no tile above 4."""
    if tile > 4:
        raise Refused(f"a tile of {tile} takes too much\n  memory: it takes up to 4")
    weights = np.exp(x.astype(np.float64) - x.max(-1, keepdims=True))
    out[...] = scale * weights / weights.sum(-1, keepdims=True)
    if tile == 4:
        out[...] = np.nextafter(out, np.float32(1))


@pytest.fixture
def rung(monkeypatch) -> Rung:
    """A made-up kernel of softmax; a call is timed twice."""
    monkeypatch.setattr(sweep, "RUNS", 2)
    return Rung("cpu.halves", idea="made up", kernel=halves, options=OPTIONS, swept=SWEPT, c=4.0)


@pytest.fixture
def case():
    _, spec = parts("softmax")
    return dataclasses.replace(spec.sizes()[0], shape=(3, 8), label="tiny")


@pytest.fixture
def swept(row):
    """make(rung, point, ms, ...): a made-up row of a sweep."""

    def make(rung, point, ms=1.0, **changes):
        times = {"median_s": ms / 1e3, "low_s": 0.9 * ms / 1e3, "high_s": 1.1 * ms / 1e3}
        return row(rung, **{"op": "sweep_conv3d", "point": point, **times, **changes})

    return make


def test_a_point_per_combination_checked_and_refused_ones_with_their_reason(rung, case):
    rows = sweep.sweep("softmax", case, [rung], {"tile": (2, 4, 8), "threads": (1, 3)})
    assert [row.point for row in rows] == [f"tile={t}, threads={n}" for t in (2, 4, 8) for n in (1, 3)]
    assert [row.threads for row in rows] == [1, 3] * 3 and {row.op for row in rows} == {"sweep_softmax"}
    assert [row.runs for row in rows] == [2, 2, 2, 2, 0, 0]
    assert rows[5].check == "refused: a tile of 8 takes too much memory: it takes up to 4"
    assert all(row.check.startswith("passed 0.") for row in rows[:4])
    assert [row.check.endswith("; other bits") for row in rows[:4]] == [False, False, True, True]
    assert "Other bits" in bits(rows) and "cpu.halves at tile=4, threads=1 on tiny, 3x8" in bits(rows)
    assert bits(rows[:2]) == "All points of the same kernel and case gave the same bits."
    assert bits(rows[4:]) == "No point could run."


def test_a_wrong_point_is_not_timed(rung, case):
    with pytest.raises(InputError, match=r"cpu\.halves is wrong on softmax .*not timed"):
        sweep.sweep("softmax", case, [rung], {"scale": (1.0, 2.0)})


def test_a_slow_kernel_is_timed_on_fewer_rows_and_says_so(rung, case, monkeypatch):
    monkeypatch.setattr(climb.Subject, "few_rows", lambda self, rung: 2)
    (row,) = sweep.sweep("softmax", case, [rung], {"tile": (2,)})
    assert row.rows == 2 and row.runs == sweep.SLOW_RUNS and row.check.endswith("; 2 of 3 rows")


def test_a_call_runs_on_the_points_threads(rung, case):
    counts = []

    def counting(x, out, **options):
        counts.append(thread_count())
        halves(x, out, **options)

    sweep.sweep("softmax", case, [dataclasses.replace(rung, kernel=counting)], {"threads": (5, 7)})
    assert set(counts) == {5, 7} and counts[-6:].count(5) == counts[-6:].count(7) == 3


def test_threads_beyond_the_cores_give_the_same_bits(monkeypatch, case):
    monkeypatch.setattr(sweep, "RUNS", 2)
    ladder, _ = parts("softmax")
    rows = sweep.sweep("softmax", case, [ladder.choose(case.problem)], {"threads": (1, 9)})
    assert [row.threads for row in rows] == [1, 9] and bits(rows).startswith("All points")


def test_rows_are_saved_and_read_back_and_a_later_sweep_replaces_what_it_covers(tmp_path, swept, monkeypatch):
    monkeypatch.setattr(results, "commit", lambda: "1a2b3c4")
    first = [swept("a", f"tile={t}, block=64", ms=t) for t in (1, 2)] + [swept("a", "threads=1"), swept("b", "tile=1")]
    first.append(swept("a", "tile=8, block=64", runs=0, median_s=0.0, low_s=0.0, high_s=0.0, check="refused: no"))
    save(tmp_path, "here", first)
    found = read(tmp_path)
    assert [(row.rung, row.point) for row in found] == [(row.rung, row.point) for row in first]
    assert found[0].setting == {"tile": "1", "block": "64"} and found[-1].check == "refused: no"
    save(tmp_path, "here", [swept("a", "tile=4, block=32")])
    assert [row.point for row in read(tmp_path)] == ["threads=1", "tile=1", "tile=4, block=32"]


def test_the_table_marks_the_best_point_of_each_curve(swept):
    rows = [swept(name, f"tile={t}", ms=abs(t - best) + 1) for name, best in (("a", 2), ("b", 3)) for t in (1, 2, 3)]
    rows.append(swept("b", "tile=4", runs=0, median_s=0.0, low_s=0.0, high_s=0.0, check="refused: no"))
    table = sweep_table(rows)
    best = [line for line in table.rows if "best" in line]
    assert [(line[0], line[2]) for line in best] == [("a", "2"), ("b", "3")]
    assert "refused: no" in table.rows[-1] and "tile" in table.header and "device" in table.header
    assert [curve.best.point for curve in curves(rows)] == ["tile=2", "tile=3"]


def test_the_best_point_is_the_smallest_value_on_the_plateau(swept):
    times = {"3": 1.00, "2": 1.015, "9": 0.999, "1": 2.0}
    rows = [swept("a", f"threads={n}", ms=ms) for n, ms in times.items()]
    assert [curve.best.point for curve in curves(rows)] == ["threads=2"]
    assert list(speed_ups(rows)) == ["The speed-up ends at 2 threads."]
    rows += [swept("b", f"threads={n}", ms=10 / n) for n in (1, 2)] + [swept("c", f"threads={n}") for n in (1, 2)]
    assert list(speed_ups(rows)) == [
        "The speed-up of c on tiny, 8x8x8 ends at 1 thread.",
        "The speed-up of a on tiny, 8x8x8; b on tiny, 8x8x8 ends at 2 threads.",
    ]
    assert list(speed_ups(rows[-2:])) == ["The speed-up ends at 1 thread."]
    assert list(speed_ups(rows[-4:-2])) == ["The speed-up does not end before 2 threads."]
    assert list(speed_ups([swept("a", "tile=1")])) == []


def test_a_figure_has_a_curve_per_kernel_case_and_second_value(swept):
    rows = [
        swept(name, f"block={b}, tile={t}", ms=b / 100 + t)
        for name in ("simt.a", "simt.b")
        for t in (1, 2)
        for b in (64, 128, 256)
    ]
    rows.append(swept("simt.b", "block=512, tile=2", runs=0, check="refused: no"))
    root = ET.fromstring(sweep_figure(rows))  # noqa: S314 - our own text
    words = [element.text for element in root.iter(f"{SVG}text")]
    assert sum(word.startswith(("simt.a, tiny, 8x8x8, tile=", "simt.b, tiny, 8x8x8, tile=")) for word in words) == 4
    assert "time, ms (logarithmic)" in words and "block (logarithmic); ring: best; cross: refused" in words
    rings = [circle for circle in root.iter(f"{SVG}circle") if circle.get("r") == "7"]
    assert len(rings) == 4 and words.count(CROSS) == 1


def test_an_axis_is_logarithmic_where_values_grow_and_takes_words():
    assert Steps(("64", "128", "256"), 0, 100)("128") == pytest.approx(50)
    assert Steps(("1", "2", "3", "4", "5"), 0, 100)("2") == pytest.approx(25)
    assert Steps(("a", "b", "c"), 0, 100)("c") == 100
    assert Steps(("7",), 0, 100)("7") == 0


def test_the_report_has_a_page_and_a_figure_for_each_sweep(tmp_path, swept, monkeypatch):
    monkeypatch.setattr(results, "commit", lambda: "1a2b3c4")
    rows = [swept("a", f"threads={t}", threads=t) for t in (1, 2)] + [
        swept("a", f"tile={t}", threads=0) for t in (1, 2)
    ]
    save(tmp_path / "results", "here", rows)
    assert len(sweeps(read(tmp_path / "results"))) == 2
    write(tmp_path)
    found = read(tmp_path / "results")
    drawn = {name.split("/")[1] for name in of_sweeps(found)} | {"sides_conv3d-float32.svg"}
    assert {path.name for path in tmp_path.glob("results/here/*.svg")} == drawn
    page = (tmp_path / "docs/results/sweeps.md").read_text()
    assert page.count("../../results/here/sweep_conv3d-") == 2 and "### tile on Here, float32" in page
    assert "sweeps.md" in (tmp_path / "docs/results/index.md").read_text()
    assert not (tmp_path / "docs/results/sweep_conv3d.md").exists()
    assert "## conv3d on CPU and GPU" in page and "../../results/here/sides_conv3d-float32.svg" in page
    html = (tmp_path / "results/report.html").read_text()
    assert 'id="sweep_conv3d"' in html and 'id="sides"' in html
    assert write(tmp_path) == []
