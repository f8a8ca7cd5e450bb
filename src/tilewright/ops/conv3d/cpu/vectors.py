"""Vectors along x: a lane is an output, so a tap meets as many numbers of a row as a vector has lanes, and nothing is
summed across lanes.

It loads a vector for every product, at any alignment, and reads a padded copy of the volume whose rows are in the way
of each other in the first cache; one sum at a time waits for the addition before it.
"""

import functools

import numpy as np
from numba import types

from tilewright import simd
from tilewright.hardware import cpu
from tilewright.ops.conv3d.cpu.gather import RESULT
from tilewright.ops.conv3d.cpu.naive import padded
from tilewright.ops.conv3d.operands import Border, Packed
from tilewright.ops.core.launch import launch


@functools.cache
def vector_kernel(lanes: int):
    """The kernel for a vector width."""

    @simd.inline
    def sums(x, at, left, weights, w_at, plan):
        """`lanes` outputs side by side, of which `left` are there."""
        C, KD, KH, KW, channel, plane, row = plan[2], plan[3], plan[4], plan[5], plan[6], plan[7], plan[8]
        total = simd.zeros(lanes)
        for c in range(C):
            for a in range(KD):
                for b in range(KH):
                    source = at + c * channel + a * plane + b * row
                    for t in range(KW):
                        w = simd.broadcast(weights, w_at, lanes)
                        total = simd.fma(w, simd.load_first(x, source + t, left, lanes), total)
                        w_at += 1
        return total

    signature = types.void(simd.INPUT, simd.INPUT, RESULT, simd.PLAN, simd.OUTPUT)

    @simd.kernel(signature, name=f"conv3d.vectors.{lanes}")
    def vectors(x, weights, out, plan, scratch):
        """plan: next plane, O, C, KD, KH, KW, numbers of x from channel to channel, plane to plane, row to row."""
        D, H, W = out.shape[1:]
        task = simd.fetch_add(plan, 0, 1)
        while task < plan[1] * D:
            o, z = task // D, task % D
            w_at = o * plan[2] * plan[3] * plan[4] * plan[5]
            for y in range(H):
                target = o * (out.strides[0] // 4) + z * (out.strides[1] // 4) + y * (out.strides[2] // 4)
                for i in range(0, W, lanes):
                    total = sums(x, z * plan[7] + y * plan[8] + i, W - i, weights, w_at, plan)
                    simd.store_first(out, target + i, total, W - i)
            task = simd.fetch_add(plan, 0, 1)

    return vectors


def convolve(x: np.ndarray, weights: Packed, out: np.ndarray, border: Border) -> None:
    """The rung's run function."""
    wide = padded(x, border)
    flat = np.ascontiguousarray(weights.weights).reshape(-1)
    plan = np.array([0, *weights.weights.shape, *(stride // 4 for stride in wide.strides[:3])], np.int64)
    tasks = out.shape[0] * out.shape[1]
    launch(vector_kernel(cpu().lanes), wide.reshape(-1), flat, out, plan, tasks=tasks, words=1)
