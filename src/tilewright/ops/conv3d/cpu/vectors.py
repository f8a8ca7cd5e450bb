"""Vectors along x: a lane is an output, so one FMA multiplies a tap (one element of the filter) by `lanes` neighbouring
elements of a row.

    out[o, z, y, i : i + lanes] = sum over c, a, b, t of w[o, c, a, b, t] * x[c, z + a, y + b, i + t : i + t + lanes]

It changes `naive`, the rung below, by computing `lanes` sums at once, with nothing to add across lanes. It still reads
a padded copy of the volume. The limit is one load of a vector per product, at any alignment, and the latency of the
additions, because there is one sum at a time. It is slower than `rows`, which uses each loaded vector for many outputs.
"""

import functools
from typing import NamedTuple

import numpy as np
from numba import types

from tilewright import simd
from tilewright.hardware import cpu
from tilewright.ops.conv3d.cpu.gather import RESULT
from tilewright.ops.conv3d.cpu.naive import padded
from tilewright.ops.conv3d.operands import Border, Packed
from tilewright.ops.core.launch import launch


class Taps(NamedTuple):
    """Channels and extents of the kernel. channel, plane, row: strides of x in elements."""

    C: int
    KD: int
    KH: int
    KW: int
    channel: int
    plane: int
    row: int


@functools.cache
def vector_kernel(lanes: int):
    """The kernel for a vector width."""

    @simd.inline
    def sums(x, at, left, weights, w_at, job):
        """A vector of outputs. left: outputs from here to the end of the row. at, w_at: offsets in x and in weights."""
        total = simd.zeros(lanes)
        for c in range(job.C):
            for a in range(job.KD):
                for b in range(job.KH):
                    source = at + c * job.channel + a * job.plane + b * job.row
                    for t in range(job.KW):
                        w = simd.broadcast(weights, w_at, lanes)
                        total = simd.fma(w, simd.load_first(x, source + t, left, lanes), total)
                        w_at += 1
        return total

    signature = types.void(simd.INPUT, simd.INPUT, RESULT, simd.record(Taps), simd.TASKS, simd.OUTPUT)

    @simd.kernel(signature, name=f"conv3d.vectors.{lanes}")
    def vectors(x, weights, out, job, tasks, scratch):
        """x: padded and flat, strides in job. weights: [O][C][KD][KH][KW]. out: (O, D, H, W). All float32.

        A task is one plane of one output channel. scratch is unused.
        """
        D, H, W = out.shape[1:]
        task = simd.draw(tasks)
        while task >= 0:
            o, z = task // D, task % D
            w_at = o * job.C * job.KD * job.KH * job.KW
            for y in range(H):
                target = o * (out.strides[0] // 4) + z * (out.strides[1] // 4) + y * (out.strides[2] // 4)
                for i in range(0, W, lanes):
                    total = sums(x, z * job.plane + y * job.row + i, W - i, weights, w_at, job)
                    simd.store_first(out, target + i, total, W - i)
            task = simd.draw(tasks)

    return vectors


def convolve(x: np.ndarray, weights: Packed, out: np.ndarray, border: Border) -> None:
    """out (O, D, H, W) = the convolution of x (C, ...) with its border."""
    wide = padded(x, border)
    flat = np.ascontiguousarray(weights.weights).reshape(-1)
    job = Taps(*weights.weights.shape[1:], *(stride // 4 for stride in wide.strides[:3]))
    tasks = out.shape[0] * out.shape[1]
    launch(vector_kernel(cpu().lanes), wide.reshape(-1), flat, out, job, tasks=tasks, words=1)
