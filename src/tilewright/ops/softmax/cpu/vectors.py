"""A row in vectors, three times over: the largest number, exp and its sum, the division.

Against `naive`: numbers go through in vectors, with several maxima and sums side by side. It loses where a row is
shorter than a vector.
"""

import functools

import numpy as np
from numba import types

from tilewright import simd
from tilewright.hardware import cpu
from tilewright.ops.core.rows import draw_rows

SIDE = 4  # vectors of maxima or sums side by side: an operation takes 3 or 4 cycles, and one starts in each


@functools.cache
def row_functions(lanes: int):
    """(load_left, larger, put_exp, scale_row): what kernels of a vector width are made of."""

    @simd.inline
    def load_left(x, at, left, ramp):
        """The `left` numbers before a row's end, -inf in the lanes beyond; ramp: 0, 1, 2 ..."""
        beyond = simd.splat(np.float32(-np.inf), lanes)
        inside = simd.splat(np.float32(left), lanes)
        return simd.select_greater(inside, ramp, simd.load_first(x, at, left, lanes), beyond)

    @simd.inline
    def larger(a, b):
        """The larger lane; b where one is NaN: one instruction, and a NaN comes out of the sum all the same."""
        return simd.select_greater(a, b, a, b)

    @simd.inline
    def put_exp(x, at, largest, out, to):
        """out = exp(x - largest), and that vector."""
        shares = simd.exp(simd.subtract(simd.load(x, at, lanes), largest))
        simd.store(out, to, shares)
        return shares

    @simd.inline
    def scale_row(out, to, C, factor):
        c = 0
        while c + lanes <= C:
            simd.store(out, to + c, simd.multiply(simd.load(out, to + c, lanes), factor))
            c += lanes
        if c < C:
            left = C - c
            simd.store_first(out, to + c, simd.multiply(simd.load_first(out, to + c, left, lanes), factor), left)

    return load_left, larger, put_exp, scale_row


@functools.cache
def row_kernel(lanes: int):
    """The kernel for a vector width."""
    load_left, larger, put_exp, scale_row = row_functions(lanes)

    @simd.inline
    def largest_of(x, at, C, ramp):
        s = t = u = v = simd.splat(np.float32(-np.inf), lanes)
        c = 0
        while c + SIDE * lanes <= C:
            s = larger(simd.load(x, at + c, lanes), s)
            t = larger(simd.load(x, at + c + lanes, lanes), t)
            u = larger(simd.load(x, at + c + 2 * lanes, lanes), u)
            v = larger(simd.load(x, at + c + 3 * lanes, lanes), v)
            c += SIDE * lanes
        while c < C:
            s = larger(load_left(x, at + c, C - c, ramp), s)
            c += lanes
        return simd.reduce_max(larger(larger(s, t), larger(u, v)))

    @simd.inline
    def exp_sum(x, at, C, largest, out, to, ramp):
        s = t = u = v = simd.zeros(lanes)
        c = 0
        while c + SIDE * lanes <= C:
            s = simd.add(s, put_exp(x, at + c, largest, out, to + c))
            t = simd.add(t, put_exp(x, at + c + lanes, largest, out, to + c + lanes))
            u = simd.add(u, put_exp(x, at + c + 2 * lanes, largest, out, to + c + 2 * lanes))
            v = simd.add(v, put_exp(x, at + c + 3 * lanes, largest, out, to + c + 3 * lanes))
            c += SIDE * lanes
        while c < C:
            shares = simd.exp(simd.subtract(load_left(x, at + c, C - c, ramp), largest))
            simd.store_first(out, to + c, shares, C - c)
            s = simd.add(s, shares)
            c += lanes
        return simd.reduce_add(simd.add(simd.add(s, t), simd.add(u, v)))

    signature = types.void(simd.INPUT_2D, simd.OUTPUT_2D, types.int64, simd.TASKS, simd.OUTPUT)

    @simd.kernel(signature, name=f"softmax.vectors.{lanes}")
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
                at, to = i * x_stride, i * out_stride
                largest = simd.splat(largest_of(x, at, C, ramp), lanes)
                total = exp_sum(x, at, C, largest, out, to, ramp)
                scale_row(out, to, C, simd.divide(simd.splat(np.float32(1), lanes), simd.splat(total, lanes)))
            task = simd.draw(tasks)

    return normalise_rows


def normalise(x: np.ndarray, out: np.ndarray) -> None:
    """softmax of float32 x (rows, C), which has contiguous rows, into out of that shape; out may be x."""
    lanes = cpu().lanes
    draw_rows(row_kernel(lanes), x, out=out, words=lanes)
