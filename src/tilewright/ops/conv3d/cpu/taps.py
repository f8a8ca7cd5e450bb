"""All taps of a kernel as one run of vectors: the window is copied beside them, multiplied, and summed once at the end.

This is how AVX is first used on a convolution: the K**3 numbers under the window are gathered into a buffer, 16 at a
time are multiplied with as many taps, and a horizontal sum ends it. One addition in 16 is waited for, but each output
copies its whole window and reduces a vector, and 27 taps fill two vectors of 16 badly: it loses to every rung that
takes neighbouring outputs for its lanes.
"""

import functools
from typing import NamedTuple

import numpy as np
from numba import types

from tilewright import simd
from tilewright.hardware import cpu
from tilewright.ops.conv3d.cpu.gather import RESULT
from tilewright.ops.conv3d.cpu.naive import PADDED, padded
from tilewright.ops.conv3d.operands import Border, Packed
from tilewright.ops.core.launch import launch


class Window(NamedTuple):
    """The sizes of the kernel."""

    C: int
    KD: int
    KH: int
    KW: int


@functools.cache
def tap_kernel(lanes: int):
    """The kernel for a vector width."""

    @simd.inline
    def window(x, z, y, i, sizes, scratch):
        """Copy the elements under the window at (z, y, i), all channels, to the start of scratch."""
        (C, KD, KH, KW), at = sizes, 0
        for c in range(C):
            for a in range(KD):
                for b in range(KH):
                    for t in range(KW):
                        scratch[at + t] = x[c, z + a, y + b, i + t]
                    at += KW

    @simd.kernel(
        types.void(PADDED, simd.MATRIX, RESULT, simd.record(Window), simd.TASKS, simd.OUTPUT),
        name=f"conv3d.taps.{lanes}",
    )
    def taps(x, weights, out, sizes, tasks, scratch):
        """weights (O, taps). A task is one plane of all channels."""
        O, count = weights.shape
        z = simd.draw(tasks)
        while z >= 0:
            for y in range(out.shape[2]):
                for i in range(out.shape[3]):
                    window(x, z, y, i, sizes, scratch)
                    for o in range(O):
                        total = simd.zeros(lanes)
                        for t in range(0, count, lanes):
                            w = simd.load_first(weights, o * count + t, count - t, lanes)
                            total = simd.fma(w, simd.load_first(scratch, t, count - t, lanes), total)
                        out[o, z, y, i] = simd.reduce_add(total)
            z = simd.draw(tasks)

    return taps


def convolve(x: np.ndarray, weights: Packed, out: np.ndarray, border: Border) -> None:
    """The rung's run function."""
    flat = np.ascontiguousarray(weights.weights).reshape(len(out), -1)
    sizes, kernel = Window(*weights.weights.shape[1:]), tap_kernel(cpu().lanes)
    launch(kernel, padded(x, border), flat, out, sizes, tasks=out.shape[1], words=flat.shape[1])
