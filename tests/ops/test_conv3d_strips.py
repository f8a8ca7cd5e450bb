"""Small volumes in strips have the bits of the larger tiles of `cpu.rows`."""

from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest

from tilewright.hardware import CPU
from tilewright.ops.conv3d import conv3d
from tilewright.ops.conv3d.cpu import strips, tiles
from tilewright.ops.conv3d.problem import MODES, Problem
from tilewright.ops.core.launch import SCRATCH_BYTES

SHAPES = {  # volume: kernel
    (9, 23, 64): (3, 3, 3), (20, 16, 45): (5, 3, 4), (8, 7, 7): (2, 3, 7), (40, 11, 37): (1, 3, 3),
    (48, 12, 40): (2, 5, 5),
}  # fmt: skip


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("mode", [*MODES, "valid"])
def test_strips_have_the_bits_of_larger_tiles(mode, left, rng, monkeypatch):
    """Small volumes, with rows that end within a vector, strips of fewer rows or planes, and planes that run backwards.

    left: windows begin at their output, so that there are columns of the border on the right alone.
    """
    monkeypatch.setattr(CPU, "lanes", 8)
    for shape, sizes in SHAPES.items():
        x, weights = (rng.standard_normal(n, dtype=np.float32) for n in (shape, sizes))
        x = x[::-1]
        origin = (0, -(sizes[1] // 2), -(sizes[2] // 2) if left else (sizes[2] - 1) // 2)
        border = {} if mode == "valid" else {"cval": 2.5, "origin": origin}
        planned = Mock(wraps=strips.plan_for)
        with monkeypatch.context() as watched:
            watched.setattr(strips, "plan_for", planned)
            results = [conv3d(x, weights, mode=mode, **border)]
        assert strips.plan_for(*planned.call_args.args), "there were strips"
        with monkeypatch.context() as without:
            without.setattr(strips, "plan_for", lambda *given: None)
            results.append(conv3d(x, weights, mode=mode, **border))
        assert results[0].tobytes() == results[1].tobytes()


def test_large_results_and_channels_have_no_strips():
    for problem, sizes in ((Problem(1, 1, 3, 3, 3), (128, 128, 128)), (Problem(2, 1, 3, 3, 3), (8, 8, 8))):
        assert strips.plan_for(problem, None, sizes, 2, 8) is None


@pytest.mark.parametrize("lanes", [4, 8, 16])
@pytest.mark.parametrize("l2", [256 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20])
def test_the_scratch_of_a_separable_kernel_is_limited(lanes, l2, monkeypatch):
    monkeypatch.setattr(tiles, "cpu", lambda: SimpleNamespace(lanes=lanes, l2=l2, l1d=32 << 10))
    for K in (3, 9, 17, 33, 65, 97, 129):
        for sizes in ((256, 256, 256), (64, 64, 64), (512, 512, 512)):
            rows = tiles.ROWS[lanes]
            cut, ring = tiles.fused_tiling(Problem(1, 1, K, K, K), sizes, rows, 2)
            words = (K - 1 + rows) * tiles.plane_of(ring) + rows * cut.pitch + cut.plane + lanes
            assert 4 * words <= SCRATCH_BYTES, (K, sizes)
