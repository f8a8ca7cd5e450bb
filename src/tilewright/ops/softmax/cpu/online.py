"""A row in two passes: the largest number and the sum together, then the result.

Against `vectors`: the first pass knows no largest number, so each lane keeps its own and rescales its sum when that
grows: a row that is too long for a cache comes from memory twice and not three times. It loses where a row fits in L1
or L2, because exp is computed twice: reading is cheap there, exp is not.
"""

import functools

import numpy as np
from numba import types

from tilewright import simd
from tilewright.hardware import cpu
from tilewright.ops.core.rows import draw_rows
from tilewright.ops.softmax.cpu.vectors import SIDE, row_functions

LEAST = float(np.finfo(np.float32).min)  # no -inf among the largest: exp(-inf - LEAST) is 0, exp(-inf + inf) NaN


@simd.inline
def exp_below(x, largest):
    """exp(x - largest) in each lane."""
    return simd.exp(simd.subtract(x, largest))


@functools.cache
def row_moments(lanes: int):
    """moments(x, at, C, ramp): the first pass, for a vector width."""
    load_left, larger, _, _ = row_functions(lanes)

    @simd.inline
    def moments(x, at, C, ramp):
        """(largest, sum of exp(x - largest)) of a row."""
        largest, total = simd.splat(np.float32(LEAST), lanes), simd.zeros(lanes)
        c = 0
        while c + SIDE * lanes <= C:  # one rescaling for so many vectors
            s, t = simd.load(x, at + c, lanes), simd.load(x, at + c + lanes, lanes)
            u, v = simd.load(x, at + c + 2 * lanes, lanes), simd.load(x, at + c + 3 * lanes, lanes)
            grown = larger(larger(larger(s, t), larger(u, v)), largest)
            total = simd.multiply(total, exp_below(largest, grown))
            pair = simd.add(exp_below(s, grown), exp_below(t, grown))
            total = simd.add(total, simd.add(pair, simd.add(exp_below(u, grown), exp_below(v, grown))))
            largest = grown
            c += SIDE * lanes
        while c < C:
            s = load_left(x, at + c, C - c, ramp)
            grown = larger(s, largest)
            total = simd.fma(total, exp_below(largest, grown), exp_below(s, grown))
            largest = grown
            c += lanes
        most = simd.reduce_max(largest)
        return most, simd.reduce_add(simd.multiply(total, exp_below(largest, simd.splat(most, lanes))))

    return moments


@functools.cache
def online_kernel(lanes: int):
    """The kernel for a vector width."""
    moments = row_moments(lanes)

    @simd.inline
    def write(x, at, C, largest, factor, out, to):
        c = 0
        while c + lanes <= C:
            simd.store(out, to + c, simd.multiply(exp_below(simd.load(x, at + c, lanes), largest), factor))
            c += lanes
        if c < C:
            shares = exp_below(simd.load_first(x, at + c, C - c, lanes), largest)
            simd.store_first(out, to + c, simd.multiply(shares, factor), C - c)

    signature = types.void(simd.INPUT_2D, simd.OUTPUT_2D, types.int64, simd.TASKS, simd.OUTPUT)

    @simd.kernel(signature, name=f"softmax.online.{lanes}")
    def normalise_rows(x, out, step, tasks, scratch):
        """A task is `step` rows."""
        rows, C = x.shape
        x_stride, out_stride = x.strides[0] // 4, out.strides[0] // 4
        for lane in range(lanes):
            scratch[lane] = lane
        ramp = simd.load(scratch, 0, lanes)
        task = simd.draw(tasks)
        while task >= 0:
            for i in range(task * step, min((task + 1) * step, rows)):
                at = i * x_stride
                largest, total = moments(x, at, C, ramp)
                factor = simd.divide(simd.splat(np.float32(1), lanes), simd.splat(total, lanes))
                write(x, at, C, simd.splat(largest, lanes), factor, out, i * out_stride)
            task = simd.draw(tasks)

    return normalise_rows


def normalise(x: np.ndarray, out: np.ndarray) -> None:
    """The rung's run function."""
    lanes = cpu().lanes
    draw_rows(online_kernel(lanes), x, out=out, words=lanes, alone=True)
