"""pool, one element after the other: out[i, c] = the sum of x[t, c] over the rows of text i, divided by their number.

`naive`, the lowest rung, reads down a column, so each load is from another cache line. `rows` reads row after row, and
keeps the sums of all columns in L1. Both run on one thread. Sums are float64, in the order of the rows.
"""

import numpy as np
from numba import types

from tilewright import simd

RANGES = simd.INDICES, simd.INDICES
SUMS = types.Array(types.float64, 1, "C")


@simd.kernel(types.void(simd.INPUT_2D, *RANGES, simd.OUTPUT_2D), name="pool.naive")
def naive(x, begin, end, out):
    """x: float32 (R, C). begin, end: int64 (n,), ranges of at least one row. out: float32 (n, C)."""
    for i in range(out.shape[0]):
        for c in range(out.shape[1]):
            total = 0.0
            for t in range(begin[i], end[i]):
                total += x[t, c]
            out[i, c] = total / (end[i] - begin[i])


@simd.kernel(types.void(simd.INPUT_2D, *RANGES, simd.OUTPUT_2D, SUMS), name="pool.rows")
def rows(x, begin, end, out, sums):
    """As `naive`. sums: float64 (C,), scratch."""
    C = out.shape[1]
    for i in range(out.shape[0]):
        sums[:] = 0.0
        for t in range(begin[i], end[i]):
            for c in range(C):
                sums[c] += x[t, c]
        for c in range(C):
            out[i, c] = sums[c] / (end[i] - begin[i])


def run(x: np.ndarray, begin: np.ndarray, end: np.ndarray, out: np.ndarray, *, kernel: str) -> None:
    """One of the kernels above."""
    if kernel == "naive":
        naive(x, begin, end, out)
    else:
        rows(x, begin, end, out, np.empty(out.shape[1]))
