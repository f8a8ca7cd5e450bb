"""Where the time of a volume job goes: its parts, each timed alone, after a check."""

import numpy as np
import pytest

from tilewright.bench.clocks import cpu as clock
from tilewright.bench.job_ladders import convolve
from tilewright.bench.report.tables import bench_tables
from tilewright.bench.roofs.limits import Roofs
from tilewright.bench.workloads import convolve_profile
from tilewright.errors import InternalError

ROOF = Roofs(threads=1, copy_gbytes_s=10.0, gflops={"float32": 50.0})


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(clock, "SPIN_S", 0.0)
    monkeypatch.setattr(convolve, "SIDE", {"cpu": 16, "cuda": 16})
    monkeypatch.setattr(convolve_profile, "measured_roofs", lambda count: ROOF)


def test_the_parts_of_a_job_add_up():
    rows = convolve_profile.profile("cpu", planes=8, rounds=2)
    assert [row.rung.partition(",")[0] for row in rows] == ["read the file", "conv3d", "write the file"]
    assert sum(float(row.label.rstrip("%")) for row in rows) == pytest.approx(100, abs=0.2)
    read, conv3d, write = rows
    assert read.gbytes_s == pytest.approx(4 * 8 * 16 * 16 / read.median_s / 1e9) and read.roof_share is None
    assert conv3d.gflops and conv3d.roof_share and conv3d.check.startswith("passed 0.") and write.gflops is None
    (table,) = bench_tables(rows)
    assert table.caption.startswith("8x16x16, kernel 5x5x5, float32, ") and len(table.rows) == 3


def test_a_wrong_result_is_not_reported(monkeypatch):
    monkeypatch.setattr(convolve, "conv3d", lambda volume, packed: np.zeros_like(volume))
    with pytest.raises(InternalError, match=r"the result is off by .* nothing is reported"):
        convolve_profile.profile("cpu", planes=8, rounds=2)
