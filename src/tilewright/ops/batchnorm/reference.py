"""What batchnorm computes, in NumPy float64, with stored statistics."""

import math

import numpy as np

ACTIVATIONS = {
    None: lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "gelu_tanh": lambda x: x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "gelu": lambda x: x / 2 * np.vectorize(math.erfc, otypes=[float])(-x / math.sqrt(2)),
    "tanh": np.tanh,
}


def batchnorm(x, gamma, beta, mean, variance, eps=1e-5, activation=None):
    """activation((x - mean) / sqrt(variance + eps) * gamma + beta): x (..., C), the others (C,)."""
    x, gamma, beta, mean, variance = (np.asarray(a, np.float64) for a in (x, gamma, beta, mean, variance))
    return ACTIVATIONS[activation]((x - mean) / np.sqrt(variance + eps) * gamma + beta)
