"""Six loops over outputs and taps (eight with channels); the sum stays in a register until it is complete.

    out[o, z, y, i] = sum over c, a, b, t of w[o, c, a, b, t] * x[c, z + a, y + b, i + t]

They read a copy of the volume with its border written out, which doubles the memory, so that no loop tests for the
border. Each thread takes planes of out. The limit is latency: each addition waits for the one before it. It is slower
than `vectors` and all rungs above it.
"""

import numpy as np
from numba import types

from tilewright import simd
from tilewright.ops.conv3d.cpu.gather import RESULT
from tilewright.ops.conv3d.operands import Border, Packed
from tilewright.ops.core.launch import launch

PADDED = types.Array(types.float32, 4, "C", readonly=True)
WEIGHTS = types.Array(types.float32, 5, "A", readonly=True)


@simd.kernel(types.void(PADDED, WEIGHTS, RESULT, simd.TASKS, simd.OUTPUT), name="conv3d.naive")
def loops(x, weights, out, tasks, scratch):
    """x: padded, (C, D + KD - 1, H + KH - 1, W + KW - 1). weights: (O, C, KD, KH, KW). out: (O, D, H, W). All float32.

    A task is one plane of one output channel. scratch is unused.
    """
    _, C, KD, KH, KW = weights.shape
    _, D, H, W = out.shape
    task = simd.draw(tasks)
    while task >= 0:
        o, z = task // D, task % D
        for y in range(H):
            for i in range(W):
                total = np.float32(0)
                for c in range(C):
                    for a in range(KD):
                        for b in range(KH):
                            for t in range(KW):
                                total += weights[o, c, a, b, t] * x[c, z + a, y + b, i + t]
                out[o, z, y, i] = total
        task = simd.draw(tasks)


def padded(x: np.ndarray, border: Border) -> np.ndarray:
    """x (C, D, H, W) with its border written out: C-ordered (C, D + KD - 1, H + KH - 1, W + KW - 1)."""
    wide = np.empty((len(x), len(border.z), len(border.y), len(border.x)), np.float32)
    for c, z in np.ndindex(wide.shape[:2]):
        wide[c, z] = x[c, border.z[z]][border.y[:, None], border.x]
    wide[:, border.z < 0], wide[:, :, border.y < 0], wide[:, :, :, border.x < 0] = (border.cval,) * 3
    return wide


def convolve(x: np.ndarray, weights: Packed, out: np.ndarray, border: Border) -> None:
    """out (O, D, H, W) of x (C, D, H, W), float32, one plane of outputs per task."""
    planes = out.shape[0] * out.shape[1]
    launch(loops, padded(x, border), weights.weights, out, tasks=planes, words=1)
