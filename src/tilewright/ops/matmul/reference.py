"""What matmul computes, in NumPy float64: out = activation(a @ b + residual + bias)."""

import numpy as np


def matmul(a, b, bias=None, activation=None, residual=None):
    """a (..., M, K) @ b (..., K, N) [+ residual (..., M, N)] [+ bias (N,)], then the activation; float64."""
    out = np.asarray(a, np.float64) @ np.asarray(b, np.float64)
    if residual is not None:
        out = out + np.asarray(residual, np.float64)
    if bias is not None:
        out = out + np.asarray(bias, np.float64)
    return {None: lambda x: x, "relu": lambda x: np.maximum(x, 0)}[activation](out)
