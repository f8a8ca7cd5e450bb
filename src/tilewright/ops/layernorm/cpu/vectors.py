"""layernorm in vectors: out[i, c] = (x[i, c] - mean[i]) / sqrt(variance[i] + eps) * weight[c] + bias[c].

Three passes over a row, which stays in L1: its mean, its variance around that, the result. Memory bandwidth is the
limit if rows come from memory. Changes from `naive`: whole vectors, and each sum is four that do not wait for one
another; threads take rows. It is slow where a row is shorter than a vector.
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
    """(sum_of, squares_of): sums over the row x[start:start + C], for a vector width."""

    @simd.inline
    def sum_of(x, start, C):
        s = t = u = v = simd.zeros(lanes)
        c = 0
        while c + SUMS * lanes <= C:
            s = simd.add(s, simd.load(x, start + c, lanes))
            t = simd.add(t, simd.load(x, start + c + lanes, lanes))
            u = simd.add(u, simd.load(x, start + c + 2 * lanes, lanes))
            v = simd.add(v, simd.load(x, start + c + 3 * lanes, lanes))
            c += SUMS * lanes
        while c < C:
            s = simd.add(s, simd.load_first(x, start + c, C - c, lanes))
            c += lanes
        return simd.reduce_add(simd.add(simd.add(s, t), simd.add(u, v)))

    @simd.inline
    def add_square(x, start, mean, total):
        deviation = simd.subtract(simd.load(x, start, lanes), mean)
        return simd.fma(deviation, deviation, total)

    @simd.inline
    def squares_of(x, start, C, mean, lane_ids):
        """The sum of (x - mean)**2. lane_ids: 0, 1, 2 ..., to find the lanes after the row's end."""
        s = t = u = v = zero = simd.zeros(lanes)
        c = 0
        while c + SUMS * lanes <= C:
            s = add_square(x, start + c, mean, s)
            t = add_square(x, start + c + lanes, mean, t)
            u = add_square(x, start + c + 2 * lanes, mean, u)
            v = add_square(x, start + c + 3 * lanes, mean, v)
            c += SUMS * lanes
        while c < C:
            deviation = simd.subtract(simd.load_first(x, start + c, C - c, lanes), mean)
            deviation = simd.select_greater(simd.splat(np.float32(C - c), lanes), lane_ids, deviation, zero)
            s = simd.fma(deviation, deviation, s)
            c += lanes
        return simd.reduce_add(simd.add(simd.add(s, t), simd.add(u, v)))

    return sum_of, squares_of


@functools.cache
def row_kernel(lanes: int, rounds: bool = False):
    """The kernel for a vector width. rounds: out is bfloat16, passed as uint16."""
    OUT, store = (simd.ROUNDED_2D, simd.store_rounded) if rounds else (simd.OUTPUT_2D, simd.store)
    sum_of, squares_of = row_sums(lanes)

    @simd.inline
    def scaled(x, weight, bias, mean, inverse):
        return simd.fma(simd.multiply(simd.subtract(x, mean), inverse), weight, bias)

    arrays = simd.INPUT_2D, simd.INPUT, simd.INPUT, types.float64, OUT, types.int64, simd.TASKS, simd.OUTPUT

    @simd.kernel(types.void(*arrays), name=f"layernorm.vectors.{lanes}{'.rounded' if rounds else ''}")
    def normalise_rows(x, weight, bias, eps, out, step, tasks, scratch):
        """x, out: (rows, C) with contiguous rows; weight, bias: (C,). A task is `step` rows. scratch: (lanes,)."""
        rows, C = x.shape
        x_stride, out_stride = x.strides[0] // 4, out.strides[0] // out.itemsize
        for lane in range(lanes):
            scratch[lane] = lane
        lane_ids = simd.load(scratch, 0, lanes)
        task = simd.draw(tasks)
        while task >= 0:
            for i in range(task * step, min((task + 1) * step, rows)):
                start, to, c = i * x_stride, i * out_stride, 0
                mean = np.float32(sum_of(x, start, C) / C)
                center = simd.splat(mean, lanes)
                squares = squares_of(x, start, C, center, lane_ids)
                # np.divide: infinite at 0, and no exception
                inverse = simd.splat(np.float32(np.divide(1.0, math.sqrt(squares / C + eps))), lanes)
                while c + lanes <= C:
                    w, b = simd.load(weight, c, lanes), simd.load(bias, c, lanes)
                    store(out, to + c, scaled(simd.load(x, start + c, lanes), w, b, center, inverse))
                    c += lanes
                if c < C:
                    left = C - c
                    w, b = simd.load_first(weight, c, left, lanes), simd.load_first(bias, c, left, lanes)
                    y = scaled(simd.load_first(x, start + c, left, lanes), w, b, center, inverse)
                    simd.put_first(out, to + c, y, left)
            task = simd.draw(tasks)

    return normalise_rows


def normalise(x, weight, bias, eps: float, out: np.ndarray) -> None:
    """out = layernorm of float32 x (rows, C), rows contiguous; out is float32 or bfloat16 and may be x."""
    lanes, rounds = cpu().lanes, out.dtype == BFLOAT16
    out = out.view(np.uint16) if rounds else out
    draw_rows(row_kernel(lanes, rounds), x, weight, bias, eps, out=out, words=lanes)
