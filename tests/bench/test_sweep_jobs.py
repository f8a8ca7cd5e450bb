"""Sweeps of whole jobs in one process: every point checked and compared, refused ones with their reasons."""

import numpy as np
import pytest

from tilewright.bench import sweep_jobs
from tilewright.bench.report.sweeps import curves, remarks, sweep_figure, sweep_table
from tilewright.bench.sweep_jobs import sweep
from tilewright.bench.sweep_kinds import KINDS, Setting
from tilewright.errors import InternalError, ResourceError
from tilewright.ops.core.launch import thread_count


class Squares:
    """The squares of the first integers. A batch of 3 has other bits, one of 5 does not fit."""

    size, each, edge = "integers", 2, 1
    wrong = 0.0

    def __init__(self, setting, most):
        self.numbers, self.calls = np.arange(most) ** 2, []

    def error(self):
        return self.wrong, 0.5

    def run(self, count, batch):
        self.calls.append((count, batch, thread_count()))
        if batch == 5:
            raise ResourceError("a batch of 5 does not fit")
        return self.numbers[:count] + (batch == 3)


@pytest.fixture(autouse=True)
def squares(monkeypatch):
    monkeypatch.setitem(KINDS, "dcgan", Squares)
    monkeypatch.setattr(sweep_jobs, "ROUNDS", 3)


def test_a_point_per_combination_and_refused_ones_with_their_reason():
    said = []
    rows = sweep(Setting("dcgan"), {"batch": (2, 3, 5, 16), "threads": (1, 3)}, 8, said.append)
    assert [row.point for row in rows[:2]] == ["batch=2, threads=1", "batch=2, threads=3"]
    assert [row.threads for row in rows] == [1, 3] * 4 and {row.op for row in rows} == {"sweep_dcgan"}
    assert [row.runs for row in rows] == [3] * 4 + [0] * 4 and rows[0].rows == 16 and rows[2].rows == 12
    assert [row.check for row in rows[1::2]] == [
        "passed 0.0e+00", "passed 0.0e+00; 6 of 8 images; other bits",
        "refused: a batch of 5 does not fit", "refused: there are 8 images",
    ]  # fmt: skip
    assert {row.size for row in rows} == {"integers, 8 images"} and said[0].startswith("dcgan, integers: prepared")
    assert "Other bits than the first point of the job: one process at batch=3, threads=1" in remarks(rows)[-1]


def test_rows_of_a_users_model_name_it():
    rows = sweep(Setting("dcgan", model="mine"), {"batch": (2,)}, 8, lambda text: None)
    assert [row.size for row in rows] == ["mine, integers, 8 images"]


def test_numbers_of_records_are_an_axis_and_their_common_results_are_compared():
    rows = sweep(Setting("dcgan"), {"images": (4, 16)}, 0, lambda text: None)
    assert [(row.point, row.rows, row.size) for row in rows] == [
        ("images=4", 8, "integers"),
        ("images=16", 32, "integers"),
    ]
    assert remarks(rows) == ["All points of the job gave the same bits."]


def test_wrong_results_are_not_timed(monkeypatch):
    monkeypatch.setattr(Squares, "wrong", np.nan)
    with pytest.raises(InternalError, match="the results are off by nan"):
        sweep(Setting("dcgan"), {"batch": (2,)}, 8, lambda text: None)


def test_a_jobs_table_and_figure_show_its_rate(row):
    rows = [
        row("one process", op="sweep_gpt2", point=f"batch={b}", rows=800, median_s=s, low_s=s, high_s=s)
        for b, s in ((1, 8.0), (8, 2.0), (64, 1.0), (800, 0.99))
    ]
    (curve,), table = curves(rows), sweep_table(rows)
    assert curve.best.point == "batch=64" and "tokens/s" in table.header and "GFLOP/s" not in table.header
    assert table.caption.startswith("gpt2, float32: tokens/s against batch; ")
    assert table.notes[0].startswith("Published by a report of the course") and "800 prompts" in table.notes[0]
    assert "tokens/s (logarithmic)" in sweep_figure(rows) and "best 64, 800 tokens/s" in sweep_figure(rows)
