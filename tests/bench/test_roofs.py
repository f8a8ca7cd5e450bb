"""The measured limits."""

import pytest

from tilewright.bench.roofs import Roofs, roofs
from tilewright.hardware import cpu


def test_the_time_of_the_tighter_limit():
    made = Roofs(threads=2, copy_gbytes_s=10, float32_gflops=100, bfloat16_gflops=200, amx_gflops=None)
    assert made.gflops("float32") == 100
    assert made.gflops("bfloat16") == 200
    assert made.seconds(100e9, 1e9, "float32") == pytest.approx(1.0)
    assert made.seconds(100e9, 40e9, "float32") == pytest.approx(4.0)


def test_this_machines_limits_are_plausible():
    found = roofs(1)
    assert found is roofs(1)
    assert 1 < found.copy_gbytes_s < 2000
    assert cpu().lanes / 4 < found.float32_gflops < 64 * 6 * cpu().lanes  # no core runs above 6 GHz or 32 FMAs a cycle
    assert (found.bfloat16_gflops is not None) == cpu().has("avx512bf16")
