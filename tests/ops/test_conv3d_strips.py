"""Small volumes in strips have the bits of the larger tiles of `cpu.rows`."""

import numpy as np
import pytest

from tilewright.hardware import CPU
from tilewright.ops.conv3d import conv3d
from tilewright.ops.conv3d.cpu import strips
from tilewright.ops.conv3d.problem import MODES, Problem


@pytest.mark.parametrize("mode", [*MODES, "valid"])
def test_strips_have_the_bits_of_larger_tiles(mode, rng, monkeypatch):
    """Small volumes, with rows that end within a vector, strips of fewer rows, and planes that run backwards."""
    monkeypatch.setattr(CPU, "lanes", 8)
    for shape, sizes in [((9, 23, 64), (3, 3, 3)), ((20, 16, 45), (5, 3, 4)), ((8, 7, 7), (2, 3, 7))]:
        x, weights = (rng.standard_normal(n, dtype=np.float32) for n in (shape, sizes))
        x = x[::-1]
        border = {} if mode == "valid" else {"cval": 2.5, "origin": (0, -(sizes[1] // 2), (sizes[2] - 1) // 2)}
        outputs = tuple(n - K + 1 for n, K in zip(shape, sizes, strict=True)) if mode == "valid" else shape
        assert strips.tiling(Problem(1, 1, *sizes), outputs, 2)
        results = [conv3d(x, weights, mode=mode, **border)]
        with monkeypatch.context() as without:
            without.setattr(strips, "plan_for", lambda *arguments: None)
            results.append(conv3d(x, weights, mode=mode, **border))
        assert results[0].tobytes() == results[1].tobytes()
