"""All taps of a kernel as one run of vectors: the window is copied beside them, multiplied, and summed once at the end.

This is how AVX is first used on a convolution: the K**3 numbers under the window are gathered into a buffer, 16 at a
time are multiplied with as many taps, and a horizontal sum ends it. One addition in 16 is waited for, but each output
copies its whole window and reduces a vector, and 27 taps fill two vectors of 16 badly: it loses to every rung that
takes neighbouring outputs for its lanes.
"""

import functools

import numpy as np
from numba import types

from tilewright import simd
from tilewright.hardware import cpu
from tilewright.ops.conv3d.cpu.gather import RESULT
from tilewright.ops.conv3d.cpu.naive import PADDED, padded
from tilewright.ops.conv3d.operands import Border, Packed
from tilewright.ops.core.launch import launch


@functools.cache
def tap_kernel(lanes: int):
    """The kernel for a vector width."""

    @simd.inline
    def window(x, place, sizes, scratch):
        """The numbers under the window at `place` (z, y, x), all channels, to the start of scratch."""
        (z, y, i), (C, KD, KH, KW), at = place, sizes, 0
        for c in range(C):
            for a in range(KD):
                for b in range(KH):
                    for t in range(KW):
                        scratch[at + t] = x[c, z + a, y + b, i + t]
                    at += KW

    @simd.kernel(types.void(PADDED, simd.MATRIX, RESULT, simd.PLAN, simd.OUTPUT), name=f"conv3d.taps.{lanes}")
    def taps(x, weights, out, plan, scratch):
        """weights (O, taps). plan: C, KD, KH, KW."""
        O, count = weights.shape
        for z in range(out.shape[1]):
            for y in range(out.shape[2]):
                for i in range(out.shape[3]):
                    window(x, (z, y, i), (plan[0], plan[1], plan[2], plan[3]), scratch)
                    for o in range(O):
                        total = simd.zeros(lanes)
                        for t in range(0, count, lanes):
                            w = simd.load_first(weights, o * count + t, count - t, lanes)
                            total = simd.fma(w, simd.load_first(scratch, t, count - t, lanes), total)
                        out[o, z, y, i] = simd.reduce_add(total)

    return taps


def convolve(x: np.ndarray, weights: Packed, out: np.ndarray, border: Border) -> None:
    """The rung's run function."""
    flat = np.ascontiguousarray(weights.weights).reshape(len(out), -1)
    plan = np.array(weights.weights.shape[1:], np.int64)
    launch(tap_kernel(cpu().lanes), padded(x, border), flat, out, plan, tasks=1, words=flat.shape[1])
