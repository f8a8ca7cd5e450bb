"""rope in vectors: with a and b the halves of a head's rotated part, a cos - b sin, b cos + a sin.

Memory bandwidth is the limit if rows come from memory. Changes from `table`: whole vectors; a vector of cosines and one
of sines stay in registers for all heads of a row; rows of bfloat16 are read and written as they are; threads take rows.
It is slow where fewer elements are rotated than a vector has.
"""

import functools

import numpy as np
from numba import types

from tilewright import simd
from tilewright.hardware import cpu
from tilewright.ops.core.arrays import BFLOAT16
from tilewright.ops.core.rows import draw_rows
from tilewright.ops.rope.operands import Rotation

SHORT_2D = types.Array(types.uint16, 2, "A", readonly=True)  # bfloat16


@functools.cache
def row_kernel(lanes: int, reads: str, writes: str):
    """The kernel for a vector width. reads, writes: the dtype of x and of out, bfloat16 passed as uint16."""
    X = SHORT_2D if reads == "bfloat16" else simd.INPUT_2D
    OUT = simd.ROUNDED_2D if writes == "bfloat16" else simd.OUTPUT_2D
    if reads == "bfloat16":

        @simd.inline
        def take(x, at, count):
            return simd.first_halves(simd.load_halves(x, at, count, lanes))
    else:

        @simd.inline
        def take(x, at, count):
            return simd.load_first(x, at, count, lanes)

    arrays = X, simd.INDICES, simd.MATRIX, types.int64, OUT, types.int64, simd.TASKS, simd.OUTPUT

    @simd.kernel(types.void(*arrays), name=f"rope.vectors.{lanes}.{reads}.{writes}")
    def rotate_rows(x, positions, table, heads, out, step, tasks, scratch):
        """x, out: (rows, heads * D) with contiguous rows; out may be x. positions: int64 (rows,). table:
        float32 (length, 2 F), of each position its cosines and then its sines. A task is `step` rows."""
        rows, F, D = x.shape[0], table.shape[1] // 2, x.shape[1] // heads
        x_stride, out_stride = x.strides[0] // x.itemsize, out.strides[0] // out.itemsize
        task = simd.draw(tasks)
        while task >= 0:
            for i in range(task * step, min((task + 1) * step, rows)):
                turn, start, to = positions[i] * 2 * F, i * x_stride, i * out_stride
                for c in range(0, F, lanes):
                    left = F - c
                    w = simd.load_first(table, turn + c, left, lanes)
                    v = simd.load_first(table, turn + F + c, left, lanes)
                    for h in range(heads):
                        at = h * D + c
                        a, b = take(x, start + at, left), take(x, start + at + F, left)
                        simd.put_first(out, to + at, simd.subtract(simd.multiply(a, w), simd.multiply(b, v)), left)
                        simd.put_first(out, to + at + F, simd.add(simd.multiply(b, w), simd.multiply(a, v)), left)
                for h in range(heads):
                    for at in range(h * D + 2 * F, h * D + D, lanes):
                        left = h * D + D - at
                        simd.put_first(out, to + at, take(x, start + at, left), left)
            task = simd.draw(tasks)

    return rotate_rows


def rotate(x: np.ndarray, positions: np.ndarray, rotation: Rotation, heads: int, out: np.ndarray) -> None:
    """out = the rotated rows of x; both float32 or bfloat16 (rows, heads * D), and out may be x."""
    reads, writes = ("bfloat16" if array.dtype == BFLOAT16 else "float32" for array in (x, out))
    x, out = (array.view(np.uint16) if array.dtype == BFLOAT16 else array for array in (x, out))
    kernel = row_kernel(cpu().lanes, reads, writes)
    draw_rows(kernel, x, positions, rotation.table, heads, out=out, words=1)
