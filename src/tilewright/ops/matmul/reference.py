"""What matmul computes, in NumPy float64: out = activation(a @ b + residual + bias)."""

import math

import numpy as np

ACTIVATIONS = {
    None: lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "gelu_tanh": lambda x: x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "gelu": lambda x: x / 2 * np.vectorize(math.erfc, otypes=[float])(-x / math.sqrt(2)),
    "tanh": np.tanh,
}


def matmul(a, b, bias=None, activation=None, residual=None):
    """a (..., M, K) @ b (..., K, N) [+ residual (..., M, N)] [+ bias (N,)], then the activation; float64."""
    out = np.asarray(a, np.float64) @ np.asarray(b, np.float64)
    if residual is not None:
        out = out + np.asarray(residual, np.float64)
    if bias is not None:
        out = out + np.asarray(bias, np.float64)
    return ACTIVATIONS[activation](out)
