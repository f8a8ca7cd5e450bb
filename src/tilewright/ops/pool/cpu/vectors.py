"""pool in vectors: out[i, c] = the sum of x[t, c] over the rows of text i, divided by their number.

Memory bandwidth is the limit if rows come from memory. Changes from `rows`: the sums of a block of columns are vectors
of float64 in registers, so they are not loaded and stored for each row; threads take texts. Each sum has the order of
the rows, so the bits are those of the rungs below. It is slow where rows are shorter than a block.
"""

import functools

import numpy as np
from numba import types

from tilewright import simd
from tilewright.hardware import cpu
from tilewright.ops.core.launch import launch
from tilewright.ops.core.rows import ALONE, TASK

SUMS = 4  # vectors of sums side by side: an addition takes 3 or 4 cycles, and one starts in each


@functools.cache
def text_kernel(half: int):
    """The kernel for vectors of `half` float64."""
    block = SUMS * half
    arrays = simd.INPUT_2D, simd.INDICES, simd.INDICES, simd.OUTPUT_2D, types.int64, simd.TASKS, simd.OUTPUT

    @simd.kernel(types.void(*arrays), name=f"pool.vectors.{half}")
    def mean_rows(x, begin, end, out, step, tasks, scratch):
        """x: (R, C) with contiguous rows. begin, end: (n,). out: (n, C). A task is `step` texts. scratch: the float64
        sums of a block."""
        texts, C = out.shape
        stride, sums = x.strides[0] // 4, scratch[: 2 * block].view(np.float64)
        task = simd.draw(tasks)
        while task >= 0:
            for i in range(task * step, min((task + 1) * step, texts)):
                start, stop, c = begin[i], end[i], 0
                count = np.float64(stop - start)
                while c + block <= C:
                    s = t = u = v = simd.splat_double(0.0, half)
                    for row in range(start, stop):
                        at = row * stride + c
                        s = simd.add(s, simd.load_double(x, at, half))
                        t = simd.add(t, simd.load_double(x, at + half, half))
                        u = simd.add(u, simd.load_double(x, at + 2 * half, half))
                        v = simd.add(v, simd.load_double(x, at + 3 * half, half))
                    simd.store(sums, 0, s)
                    simd.store(sums, half, t)
                    simd.store(sums, 2 * half, u)
                    simd.store(sums, 3 * half, v)
                    for j in range(block):
                        out[i, c + j] = sums[j] / count
                    c += block
                for j in range(c, C):
                    total = 0.0
                    for row in range(start, stop):
                        total += x[row, j]
                    out[i, j] = total / count
            task = simd.draw(tasks)

    return mean_rows


def mean_rows(x: np.ndarray, begin: np.ndarray, end: np.ndarray, out: np.ndarray) -> None:
    """out (n, C) = the means of ranges of rows of x (R, C)."""
    half, each = cpu().lanes // 2, x.size // len(out)  # elements of a text
    step = max(1, TASK // max(each, 1))
    tasks, words = -(-len(out) // step), 2 * SUMS * half
    launch(text_kernel(half), x, begin, end, out, step, tasks=tasks, words=words, alone=x.size <= ALONE)
