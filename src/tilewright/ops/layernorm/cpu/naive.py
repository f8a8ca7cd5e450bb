"""Scalar layernorm: out[i, c] = (x[i, c] - mean[i]) / sqrt(variance[i] + eps) * weight[c] + bias[c].

Three passes over a row: the mean, the variance, the result. Sums are float64; mean and products are float32. The limit
is the latency of an addition, because each sum waits for the one before. It is the lowest rung.
"""

import math

import numpy as np
from numba import types

from tilewright import simd
from tilewright.ops.core.arrays import put_back


@simd.kernel(types.void(simd.INPUT_2D, simd.INPUT, simd.INPUT, types.float64, simd.OUTPUT_2D), name="layernorm.naive")
def normalise_rows(x, weight, bias, eps, out):
    """x, out: float32 (rows, C); weight, bias: float32 (C,). eps: added to the variance."""
    C = x.shape[1]
    for i in range(x.shape[0]):
        total = 0.0
        for c in range(C):
            total += x[i, c]
        mean = np.float32(total / C)
        squares = 0.0
        for c in range(C):
            squares += (x[i, c] - mean) * (x[i, c] - mean)
        # np.divide: infinite at 0, and no exception
        inverse = np.float32(np.divide(1.0, math.sqrt(squares / C + eps)))
        for c in range(C):
            out[i, c] = (x[i, c] - mean) * inverse * weight[c] + bias[c]


def normalise(x: np.ndarray, weight: np.ndarray, bias: np.ndarray, eps: float, out: np.ndarray) -> None:
    """out = layernorm of float32 x (rows, C); out is float32 or bfloat16, to which `put_back` rounds."""
    result = out if out.dtype == np.float32 else np.empty(out.shape, np.float32)
    normalise_rows(x, weight, bias, eps, result)
    put_back(out, result)
