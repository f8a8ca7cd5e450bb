"""softmax, one element after the other: out[i, c] = exp(x[i, c] - max of row i) / sum of those exps.

Three passes over a row: the largest element, exp and its sum (float64), the division. The limit is exp, which the C
library computes for one element at a time. It is the lowest rung.
"""

import math

from numba import types

from tilewright import simd


@simd.kernel(types.void(simd.INPUT_2D, simd.OUTPUT_2D), name="softmax.naive")
def normalise(x, out):
    """x, out: float32 (rows, C); out may be x."""
    for i in range(x.shape[0]):
        largest = x[i, 0]
        for c in range(x.shape[1]):
            largest = max(largest, x[i, c])
        total = 0.0
        for c in range(x.shape[1]):
            out[i, c] = math.exp(x[i, c] - largest)
            total += out[i, c]
        for c in range(x.shape[1]):
            out[i, c] /= total
