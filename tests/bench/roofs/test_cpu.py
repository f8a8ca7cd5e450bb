"""The measured limits."""

import numpy as np
import pytest

from tilewright.bench.roofs import Roofs
from tilewright.bench.roofs.cpu import limits_beside, roofs
from tilewright.hardware import cpu
from tilewright.ops.core.launch import threads


def test_the_time_of_the_tighter_limit():
    made = Roofs(threads=2, copy_gbytes_s=10, gflops={"float32": 100, "bfloat16": 200})
    assert made.seconds(100e9, 1e9, "bfloat16") == pytest.approx(0.5)
    assert made.seconds(100e9, 1e9, "float32") == pytest.approx(1.0)
    assert made.seconds(100e9, 40e9, "float32") == pytest.approx(4.0)


def test_this_machines_limits_are_plausible():
    found = roofs(1)
    assert found is roofs(1)
    # Lower limits would only say how busy the machine is: beside eight other processes a copy was seen at 0.6 GB/s.
    assert 0 < found.copy_gbytes_s < 2000
    assert 0 < found.gflops["float32"] < 64 * 6 * cpu().lanes  # no core runs above 6 GHz or 32 FMAs a cycle
    assert (found.instructions["bfloat16"] is not None) == cpu().has("avx512bf16")


@pytest.mark.parametrize(("count", "tasks", "pieces"), [(1, 3, 5), (2, 4, 6), (16, 16, 16)])
def test_limits_beside_a_kernel_do_its_work(count, tasks, pieces, monkeypatch):
    """As many multiply-adds and bytes as asked for, rounded up to as many whole tasks for each thread; the share says
    by how much."""
    from tilewright.bench.roofs import cpu as module

    copied, repeated = [], []
    monkeypatch.setattr(module, "_copy_all", lambda source, target: copied.append(source.nbytes + target.nbytes))
    monkeypatch.setattr(module, "_repeat", lambda kernel, tasks: repeated.append(tasks))
    step = module._block_kernel("float32", cpu().lanes)[1] * module.STEPS
    with threads(count):
        limits = limits_beside(2.5 * step, 8.5 * module.PIECE)
        for call, _ in limits.values():
            call()
    assert repeated == [tasks] and limits["multiply-adds"][1] == pytest.approx(2.5 / tasks)
    assert copied == [2 * pieces * module.PIECE] and limits["copy"][1] == pytest.approx(8.5 / 2 / pieces)


def test_a_copy_is_whole():
    from tilewright.bench.roofs.cpu import _copy_all

    source, target = np.arange(1 << 17, dtype=np.float32)[: (1 << 17) - 48], np.zeros((1 << 17) - 48, np.float32)
    _copy_all(source, target)
    assert np.array_equal(source, target)
