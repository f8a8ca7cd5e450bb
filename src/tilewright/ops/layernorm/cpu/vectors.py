"""A row in vectors, three times over while it is in L1: its mean, its variance around that, the result.

Against `naive`: numbers go through in vectors, and each sum is four that do not wait for one another. It loses where a
row is shorter than a vector.
"""

import functools
import math

import numpy as np
from numba import types

from tilewright import simd
from tilewright.hardware import cpu
from tilewright.ops.core.arrays import BFLOAT16
from tilewright.ops.core.rows import draw_rows

SUMS = 4  # vectors summed side by side: an addition takes 3 or 4 cycles, and one starts in each


@functools.cache
def row_sums(lanes: int):
    """(sum_of, squares_of): the sums of a row for a vector width."""

    @simd.inline
    def sum_of(x, at, C):
        s = t = u = v = simd.zeros(lanes)
        c = 0
        while c + SUMS * lanes <= C:
            s = simd.add(s, simd.load(x, at + c, lanes))
            t = simd.add(t, simd.load(x, at + c + lanes, lanes))
            u = simd.add(u, simd.load(x, at + c + 2 * lanes, lanes))
            v = simd.add(v, simd.load(x, at + c + 3 * lanes, lanes))
            c += SUMS * lanes
        while c < C:
            s = simd.add(s, simd.load_first(x, at + c, C - c, lanes))
            c += lanes
        return simd.reduce_add(simd.add(simd.add(s, t), simd.add(u, v)))

    @simd.inline
    def add_square(x, at, mean, total):
        deviation = simd.subtract(simd.load(x, at, lanes), mean)
        return simd.fma(deviation, deviation, total)

    @simd.inline
    def squares_of(x, at, C, mean, ramp):
        """The sum of (x - mean)**2; ramp: 0, 1, 2 ..., which tells the lanes beyond the row's end."""
        s = t = u = v = zero = simd.zeros(lanes)
        c = 0
        while c + SUMS * lanes <= C:
            s = add_square(x, at + c, mean, s)
            t = add_square(x, at + c + lanes, mean, t)
            u = add_square(x, at + c + 2 * lanes, mean, u)
            v = add_square(x, at + c + 3 * lanes, mean, v)
            c += SUMS * lanes
        while c < C:
            deviation = simd.subtract(simd.load_first(x, at + c, C - c, lanes), mean)
            deviation = simd.select_greater(simd.splat(np.float32(C - c), lanes), ramp, deviation, zero)
            s = simd.fma(deviation, deviation, s)
            c += lanes
        return simd.reduce_add(simd.add(simd.add(s, t), simd.add(u, v)))

    return sum_of, squares_of


@functools.cache
def row_kernel(lanes: int, rounds: bool = False):
    """The kernel for a vector width; rounds: out is bfloat16, as uint16."""
    OUT, store = (simd.ROUNDED_2D, simd.store_rounded) if rounds else (simd.OUTPUT_2D, simd.store)
    sum_of, squares_of = row_sums(lanes)

    @simd.inline
    def write(x, at, weight, bias, moments, out, to, C):
        mean, inverse = simd.splat(moments[0], lanes), simd.splat(moments[1], lanes)
        c = 0
        while c + lanes <= C:
            y = simd.multiply(simd.subtract(simd.load(x, at + c, lanes), mean), inverse)
            store(out, to + c, simd.fma(y, simd.load(weight, c, lanes), simd.load(bias, c, lanes)))
            c += lanes
        if c < C:
            left = C - c
            y = simd.multiply(simd.subtract(simd.load_first(x, at + c, left, lanes), mean), inverse)
            w, b = simd.load_first(weight, c, left, lanes), simd.load_first(bias, c, left, lanes)
            simd.put_first(out, to + c, simd.fma(y, w, b), left)

    arrays = simd.INPUT_2D, simd.INPUT, simd.INPUT, types.float64, OUT, types.int64, simd.TASKS, simd.OUTPUT

    @simd.kernel(types.void(*arrays), name=f"layernorm.vectors.{lanes}{'.rounded' if rounds else ''}")
    def normalise_rows(x, weight, bias, eps, out, step, tasks, scratch):
        """A task is `step` rows."""
        rows, C = x.shape
        x_stride, out_stride = x.strides[0] // 4, out.strides[0] // out.itemsize
        for lane in range(lanes):
            scratch[lane] = lane
        ramp = simd.load(scratch, 0, lanes)
        task = simd.draw(tasks)
        while task >= 0:
            for i in range(task * step, min((task + 1) * step, rows)):
                at = i * x_stride
                mean = np.float32(sum_of(x, at, C) / C)
                squares = squares_of(x, at, C, simd.splat(mean, lanes), ramp)
                inverse = np.float32(np.divide(1.0, math.sqrt(squares / C + eps)))  # infinite, and no exception, at 0
                write(x, at, weight, bias, (mean, inverse), out, i * out_stride, C)
            task = simd.draw(tasks)

    return normalise_rows


def normalise(x, weight, bias, eps: float, out: np.ndarray) -> None:
    """Layer normalisation of float32 x (rows, C), rows contiguous, into float32 or bfloat16 out; out may be x."""
    lanes, rounds = cpu().lanes, out.dtype == BFLOAT16
    out = out.view(np.uint16) if rounds else out
    draw_rows(row_kernel(lanes, rounds), x, weight, bias, eps, out=out, words=lanes)
