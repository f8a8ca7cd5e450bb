"""The measured limits."""

import numpy as np
import pytest

from tilewright.bench.roofs import Roofs, limits_beside, roofs
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


def test_limits_beside_a_kernel_do_its_work(monkeypatch):
    """As many multiply-adds and bytes as asked for, rounded up to whole tasks; the share says by how much."""
    from tilewright.bench import roofs as module

    copied, tasks = [], []
    monkeypatch.setattr(module, "_copy_all", lambda source, target: copied.append(source.nbytes + target.nbytes))
    monkeypatch.setattr(module, "_repeat", lambda kernel, count: tasks.append(count))
    step = module._block_kernel("float32", cpu().lanes)[1] * module.STEPS
    limits = limits_beside(2.5 * step, 1000)
    for call, _ in limits.values():
        call()
    assert tasks == [3] and limits["multiply-adds"][1] == pytest.approx(2.5 / 3)
    assert copied == [1024] and limits["copy"][1] == pytest.approx(1000 / 1024)


def test_a_copy_is_whole():
    from tilewright.bench.roofs import _copy_all

    source, target = np.arange(1 << 17, dtype=np.float32)[: (1 << 17) - 48], np.zeros((1 << 17) - 48, np.float32)
    _copy_all(source, target)
    assert np.array_equal(source, target)
