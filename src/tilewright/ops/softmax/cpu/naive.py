"""One number after the other, three times over: the largest, exp and its sum (float64), the division."""

import math

from numba import types

from tilewright import simd


@simd.kernel(types.void(simd.INPUT_2D, simd.OUTPUT_2D), name="softmax.naive")
def normalise(x, out):
    """x, out (rows, C)."""
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
