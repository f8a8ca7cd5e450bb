"""Sweeps of whole jobs by worker processes: each point is saved as it is measured, and is not measured again."""

from dataclasses import replace

import pytest

from tilewright import hardware
from tilewright.bench import results, sweep_workers
from tilewright.bench.report.sweeps import matrix_table, pays
from tilewright.bench.results import read, save_here
from tilewright.bench.sweep_kinds import Setting
from tilewright.bench.sweep_workers import MANY, Sweep, saved_points
from tilewright.bench.workloads import scaling
from tilewright.bench.workloads.scaling import SAME, Run
from tilewright.errors import InternalError, UsageError

AXES = {"images": (10, 1000), "workers": (1, 2, 4)}


@pytest.fixture
def ran(monkeypatch, tmp_path):
    """Two cores, a clean commit, and runs that only note (records, workers); the results are under `tmp_path`."""
    noted = []

    def run_once(job, count, plan, workers):
        noted.append((count, workers))
        seconds = 1 + count / workers / 100
        return Run(seconds, seconds + 2.0, workers, f"{count:064d}")

    monkeypatch.setattr(scaling, "run_once", run_once)
    two = replace(hardware.cpu(), cores=2)
    monkeypatch.setattr(hardware, "cpu", lambda: two)
    monkeypatch.setattr(scaling.os, "sched_getaffinity", lambda pid: {0, 1}, raising=False)
    monkeypatch.setattr(results, "commit", lambda: "1a2b3c4")
    monkeypatch.setattr(sweep_workers, "commit", results.commit)
    monkeypatch.chdir(tmp_path)
    return noted


def swept(folder, known=(), axes=AXES):
    return list(sweep_workers.sweep_workers(Sweep(Setting("dcgan"), axes, 7, folder, known), print))


def test_a_row_per_number_of_records_and_of_workers(ran, tmp_path):
    rows = swept(tmp_path)
    assert [row.point for row in rows[:3]] == [f"images=10, workers={n}" for n in (1, 2, 4)]
    assert [row.rows for row in rows] == [10, 10, 0, 1000, 1000, 0] and rows[0].one_off_s == 2.0
    assert rows[2].check == "refused: 4 workers need as many cores; there are 2"
    assert rows[0].check == rows[1].check == SAME + "0" * 16 and {row.rung for row in rows} == {MANY}
    assert list(pays(rows)) == ["2 workers are faster than 1 from 10 images on."]
    matrix = matrix_table(rows)
    assert matrix.header == ("images", "1 worker", "2 workers", "4 workers")
    assert matrix.rows == (("10", "1.1", "1.05", ""), ("1,000", "11", "6", ""))
    assert matrix_table([replace(rows[0], point="images=10")]) is None
    slow = [replace(row, median_s=99.0) if "workers=2" in row.point else row for row in rows]
    assert list(pays(slow)) == ["2 workers are not faster than 1 at 1,000 images."]
    assert list(pays([slow[0], slow[1], *rows[3:]])) == ["2 workers are faster than 1 from 1,000 images on."]
    (one,) = swept(tmp_path, axes={"workers": (2,)})
    assert (one.point, one.size, one.rows) == ("workers=2", "7 images", 7)
    with pytest.raises(UsageError, match="--workers is for sentiment, gpt2, dcgan"):
        next(sweep_workers.sweep_workers(Sweep(Setting("convolve"), AXES, 0, tmp_path), print))


def test_an_interrupted_sweep_keeps_its_points_and_goes_on(ran, tmp_path):
    some = swept(tmp_path, axes=AXES | {"images": (1000,)})
    for row in some[:2]:
        save_here([row])
    assert saved_points(Setting("dcgan", dtype="bfloat16")) == [] and len(saved_points(Setting("dcgan"))) == 2
    ran.clear()
    known = saved_points(Setting("dcgan"))
    rows = swept(tmp_path, known)
    assert ran == [(10, 1), (10, 2)] and [row for row in rows if row in known] == known
    for row in rows:
        if row not in known:
            save_here([row])
    assert [row.point for row in read(tmp_path / "results")] == [row.point for row in rows]  # in the order of values


def test_points_of_other_code_or_other_shares_of_the_cores_are_measured_again(ran, tmp_path, monkeypatch):
    for row in swept(tmp_path, axes={"workers": (1,)}):
        save_here([row])  # one worker had both cores
    known = saved_points(Setting("dcgan"))
    assert len(known) == 1 and known[0].threads == 2
    assert all(row not in known for row in swept(tmp_path, known, {"workers": (1, 2)}))
    for name in ("2b3c4d5", "1a2b3c4-dirty", "unknown"):
        monkeypatch.setattr(sweep_workers, "commit", lambda name=name: name)
        assert saved_points(Setting("dcgan")) == []
    monkeypatch.setattr(results, "commit", lambda: "2b3c4d5")
    (row,) = swept(tmp_path, axes={"workers": (2,)})
    save_here([row])
    assert [row.point for row in read(tmp_path / "results")] == ["workers=2"]  # one figure shows one commit


def test_points_whose_workers_had_other_shares_of_the_cores_do_not_stand_side_by_side(ran, tmp_path):
    for row in swept(tmp_path, axes={"workers": (1, 2)}):
        save_here([row])  # one core each
    (one,) = swept(tmp_path, saved_points(Setting("dcgan")), {"workers": (1,)})
    save_here([one])  # both cores
    assert [(row.point, row.threads) for row in read(tmp_path / "results")] == [("workers=1", 2)]


def test_other_bytes_than_a_saved_point_are_an_error(ran, tmp_path):
    (one,) = swept(tmp_path, axes={"workers": (1,)})
    other = replace(one, threads=1, check=SAME + "f" * 16)
    with pytest.raises(InternalError, match="workers=2 does not give the bytes of fewer workers"):
        swept(tmp_path, [other], {"workers": (1, 2)})


def test_points_of_code_without_a_commit_are_kept_within_a_session(ran, tmp_path, monkeypatch):
    """As on a machine that has the files and no checkout: an interrupted sweep has its points, a later one none."""
    monkeypatch.setattr(results, "commit", lambda: "unknown")
    for row in swept(tmp_path, axes={"workers": (1, 2)}):
        save_here([row])
    assert [row.point for row in read(tmp_path / "results")] == ["workers=1", "workers=2"]
    monkeypatch.setattr(results, "session", lambda: "later")
    save_here(swept(tmp_path, axes={"workers": (2,)}))
    assert [(row.point, row.session) for row in read(tmp_path / "results")] == [("workers=2", "later")]
