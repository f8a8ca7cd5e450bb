"""One number after the other: the mean, then the variance around it, then the result; sums in float64."""

import math

import numpy as np
from numba import types

from tilewright import simd
from tilewright.ops.core.arrays import put_back


@simd.kernel(types.void(simd.INPUT_2D, simd.INPUT, simd.INPUT, types.float64, simd.OUTPUT_2D), name="layernorm.naive")
def normalise_rows(x, weight, bias, eps, out):
    """x, out (rows, C); weight, bias (C,)."""
    C = x.shape[1]
    for i in range(x.shape[0]):
        total = 0.0
        for c in range(C):
            total += x[i, c]
        mean = np.float32(total / C)
        squares = 0.0
        for c in range(C):
            squares += (x[i, c] - mean) * (x[i, c] - mean)
        inverse = np.float32(np.divide(1.0, math.sqrt(squares / C + eps)))
        for c in range(C):
            out[i, c] = (x[i, c] - mean) * inverse * weight[c] + bias[c]


def normalise(x: np.ndarray, weight: np.ndarray, bias: np.ndarray, eps: float, out: np.ndarray) -> None:
    """Layer normalisation of float32 x (rows, C) into float32 or bfloat16 out."""
    result = out if out.dtype == np.float32 else np.empty(out.shape, np.float32)
    normalise_rows(x, weight, bias, eps, result)
    put_back(out, result)
