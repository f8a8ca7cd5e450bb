"""softmax in vectors: out[i, c] = exp(x[i, c] - max of row i) / sum of those exps.

Three passes over a row: the largest element, exp and its sum, a multiplication by 1 / sum. A row of some thousand
elements stays in L1 between them. The limit is the instructions of exp. Changes from `naive`: whole vectors, four
maxima or sums that do not wait for one another, and threads that take rows from a shared counter. It is slow where a
row is shorter than a vector.
"""

import functools

import numpy as np
from numba import types

from tilewright import simd
from tilewright.hardware import cpu
from tilewright.ops.core.rows import draw_rows

SUMS = (
    4  # vectors of maxima or sums at a time, one variable each: an operation takes 3 or 4 cycles, one can start in each
)


@functools.cache
def row_functions(lanes: int):
    """(largest_of, exp_sum): two passes over a row of C elements, for a vector width.

    start, to: the offset of the row from the first element of x and of out. lane_ids: float32 vector 0, 1, 2 ...
    """

    @simd.inline
    def load_left(x, start, left, lane_ids):
        """The next vector of a row that has `left` more elements; -inf in the lanes after its end."""
        minus_infinity = simd.splat(np.float32(-np.inf), lanes)
        count = simd.splat(np.float32(left), lanes)
        return simd.select_greater(count, lane_ids, simd.load_first(x, start, left, lanes), minus_infinity)

    @simd.inline
    def larger(a, b):
        """The larger lane; b where one is NaN: one instruction. The sum becomes NaN anyway, because exp of a NaN is
        one."""
        return simd.select_greater(a, b, a, b)

    @simd.inline
    def largest_of(x, start, C, lane_ids):
        s = t = u = v = simd.splat(np.float32(-np.inf), lanes)
        c = 0
        while c + SUMS * lanes <= C:
            s = larger(simd.load(x, start + c, lanes), s)
            t = larger(simd.load(x, start + c + lanes, lanes), t)
            u = larger(simd.load(x, start + c + 2 * lanes, lanes), u)
            v = larger(simd.load(x, start + c + 3 * lanes, lanes), v)
            c += SUMS * lanes
        while c < C:
            s = larger(load_left(x, start + c, C - c, lane_ids), s)
            c += lanes
        return simd.reduce_max(larger(larger(s, t), larger(u, v)))

    @simd.inline
    def store_exp(x, start, largest, out, to):
        """The exp of one vector, which is also stored."""
        powers = simd.exp(simd.subtract(simd.load(x, start, lanes), largest))
        simd.store(out, to, powers)
        return powers

    @simd.inline
    def exp_sum(x, start, C, largest, out, to, lane_ids):
        """The sum of exp(x - largest), which is stored in out."""
        s = t = u = v = simd.zeros(lanes)
        c = 0
        while c + SUMS * lanes <= C:
            s = simd.add(s, store_exp(x, start + c, largest, out, to + c))
            t = simd.add(t, store_exp(x, start + c + lanes, largest, out, to + c + lanes))
            u = simd.add(u, store_exp(x, start + c + 2 * lanes, largest, out, to + c + 2 * lanes))
            v = simd.add(v, store_exp(x, start + c + 3 * lanes, largest, out, to + c + 3 * lanes))
            c += SUMS * lanes
        while c < C:
            powers = simd.exp(simd.subtract(load_left(x, start + c, C - c, lane_ids), largest))
            simd.store_first(out, to + c, powers, C - c)
            s = simd.add(s, powers)
            c += lanes
        return simd.reduce_add(simd.add(simd.add(s, t), simd.add(u, v)))

    return largest_of, exp_sum


@functools.cache
def row_kernel(lanes: int):
    """The kernel for a vector width."""
    largest_of, exp_sum = row_functions(lanes)

    @simd.inline
    def scale_row(out, to, C, factor):
        c = 0
        while c + lanes <= C:
            simd.store(out, to + c, simd.multiply(simd.load(out, to + c, lanes), factor))
            c += lanes
        if c < C:
            left = C - c
            simd.store_first(out, to + c, simd.multiply(simd.load_first(out, to + c, left, lanes), factor), left)

    signature = types.void(simd.INPUT_2D, simd.OUTPUT_2D, types.int64, simd.TASKS, simd.OUTPUT)

    @simd.kernel(signature, name=f"softmax.vectors.{lanes}")
    def normalise_rows(x, out, step, tasks, scratch):
        """x, out: float32 (rows, C) with contiguous rows. A task is `step` rows. scratch: float32 (lanes,)."""
        rows, C = x.shape
        x_stride, out_stride = x.strides[0] // 4, out.strides[0] // 4
        for lane in range(lanes):
            scratch[lane] = lane
        lane_ids = simd.load(scratch, 0, lanes)
        task = simd.draw(tasks)
        while task >= 0:
            for i in range(task * step, min((task + 1) * step, rows)):
                start, to = i * x_stride, i * out_stride
                largest = simd.splat(largest_of(x, start, C, lane_ids), lanes)
                total = exp_sum(x, start, C, largest, out, to, lane_ids)
                scale_row(out, to, C, simd.divide(simd.splat(np.float32(1), lanes), simd.splat(total, lanes)))
            task = simd.draw(tasks)

    return normalise_rows


def normalise(x: np.ndarray, out: np.ndarray) -> None:
    """out = softmax of x: float32 (rows, C) with contiguous rows; out may be x."""
    lanes = cpu().lanes
    draw_rows(row_kernel(lanes), x, out=out, words=lanes)
