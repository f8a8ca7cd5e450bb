"""Curves of `bench scaling`: fitted laws, workers that share a device, and the figure."""

import xml.etree.ElementTree as ET

import pytest

from tilewright.bench.report.laws import curves, law_sentences
from tilewright.bench.report.scaling import of_scaling, save_scaling
from tilewright.bench.report.tables import bench_tables
from tilewright.bench.results import read


@pytest.fixture
def scaled(row):
    """scaled({workers: speed-up}, devices=..., engine=...) -> rows."""

    def make(speedups, *, devices=99, engine="local", count=512, **more):
        return [
            row(
                f"{engine}, {n}", op="scaling", size=f"gpt2, {count} prompts", dtype="bfloat16", label=str(n),
                rows=count, median_s=8 / faster, low_s=8 / faster, high_s=8 / faster, runs=1, versus_below=faster,
                point=f"workers={n}, hosts=1, devices={min(n, devices)}", check="passed", **more,
            )
            for n, faster in speedups.items()
        ]  # fmt: skip

    return make


def test_laws_of_a_curve(scaled):
    (curve,) = curves(scaled({1: 1.0, 2: 1.9, 4: 3.4}))
    (told,) = law_sentences(curve)
    assert told.startswith("gpt2, 512 prompts, bfloat16, local: Amdahl's serial share is 5.8 %, at most 17.2 ")
    assert "Universal Scalability Law: contention 4.6 %, coherency 0.31 %, fastest at 18 workers (from 2 po" in told
    assert "no limit" in law_sentences(curves(scaled({1: 1.0, 2: 2.0}))[0])[0]
    assert law_sentences(curves(scaled({1: 1.0}))[0]) == []
    assert law_sentences(curves(scaled({1: 1.0, 2: 0.9, 4: 0.8}))[0]) == [
        "gpt2, 512 prompts, bfloat16, local: no number of workers was faster than one."
    ]


def test_ranks_that_share_cores_are_not_fitted(scaled):
    (curve,) = curves(scaled({1: 1.0, 2: 1.9, 16: 2.0}, devices=2, engine="mpi"))
    law, shared = law_sentences(curve)
    assert curve.speedups == {1: 1.0, 2: 1.9} and "from 1 point)" in law
    assert shared == (
        "gpt2, 512 prompts, bfloat16, mpi: workers share cores or GPUs (16 on 2). Their speed-up means nothing, so no "
        "law is fitted to it."
    )
    old = [one.__class__(**{**vars(one), "point": ""}) for one in curve.rows]
    assert curves(old)[0].speedups[16] == 2.0, "rows of earlier versions do not know"


def test_two_sessions_and_engines_are_never_one_curve(scaled):
    rows = scaled({1: 1.0, 2: 1.9}) + scaled({1: 1.0, 2: 1.5}, session="later") + scaled({1: 1.0}, engine="mpi")
    assert [len(curve.rows) for curve in curves(rows)] == [2, 2, 1]
    (only,) = of_scaling(rows).values()
    assert "1.50 x with 2 workers" in only, "the latest session"


def test_a_figure_with_two_sizes(scaled):
    rows = scaled({1: 1.0, 2: 1.9, 4: 3.4}) + scaled({1: 1.0, 2: 0.7, 4: 0.9}, count=16, devices=2)
    ((name, drawing),) = of_scaling(rows).items()
    assert name == "made-up-2c/scaling-gpt2-local-bfloat16.svg"
    assert ET.fromstring(drawing).tag.endswith("svg")  # noqa: S314 - our own text
    assert "512 prompts: 3.40 x with 4 workers" in drawing and drawing.count("<circle") == 6
    assert of_scaling(scaled({1: 1.0})) == {}
    (table,) = bench_tables(rows)
    assert len(table.rows) == 6 and sum("faster than one" in note for note in table.notes) == 1


def test_a_session_replaces_its_engine_alone(scaled, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for engine, speedups in (("local", {1: 1.0, 2: 1.8}), ("mpi", {1: 1.0, 4: 3.0}), ("local", {1: 1.0, 4: 3.5})):
        written = save_scaling(scaled(speedups, engine=engine))
    assert [path.suffix for path in written] == [".csv", ".svg", ".svg"] and all(path.exists() for path in written)
    saved = read(tmp_path / "results", op="scaling")
    assert [one.rung for one in saved] == ["mpi, 1", "mpi, 4", "local, 1", "local, 4"]
