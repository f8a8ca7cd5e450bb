"""Vectors along the window: each window is copied to scratch, multiplied by all taps (elements of the filter), and
summed at the end.

    out[o, z, y, i] = sum over n of w[o, n] * window(z, y, i)[n]         n < C * KD * KH * KW

This is the usual first use of AVX on a convolution: SIMD over the window, threads over z. Each thread takes planes of
out, so it scales up to D threads. One step multiplies a vector of the window by a vector of taps; a horizontal sum ends
each output. Unlike the rung below it keeps a vector of 16 partial sums, so 16 additions run at once. The limit is the
copy of a whole window per output, one element at a time: 5 x 5 x 5 taps take 400 ns per output, for eight vector
multiply-adds and one horizontal sum. Every other rung is faster: the six loops took 167 ns (AMD EPYC, one thread), and
on Zen 5 a quarter of its time.
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
    """Channels and extents of the kernel."""

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
        at = 0
        for c in range(sizes.C):
            for a in range(sizes.KD):
                for b in range(sizes.KH):
                    for t in range(sizes.KW):
                        scratch[at + t] = x[c, z + a, y + b, i + t]
                    at += sizes.KW

    @simd.kernel(
        types.void(PADDED, simd.MATRIX, RESULT, simd.record(Window), simd.TASKS, simd.OUTPUT),
        name=f"conv3d.taps.{lanes}",
    )
    def taps(x, weights, out, sizes, tasks, scratch):
        """x: padded, (C, D + KD - 1, ...). weights: (O, C * KD * KH * KW). out: (O, D, H, W). All are float32.

        A task is one plane of all output channels. scratch: one window.
        """
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
