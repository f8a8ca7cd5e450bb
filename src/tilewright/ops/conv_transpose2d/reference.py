"""What conv_transpose2d computes, in NumPy float64."""

import math

import numpy as np

ACTIVATIONS = {
    None: lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "gelu_tanh": lambda x: x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "gelu": lambda x: x / 2 * np.vectorize(math.erfc, otypes=[float])(-x / math.sqrt(2)),
    "tanh": np.tanh,
}


def conv_transpose2d(x, weights, stride=1, padding=0, bias=None, activation=None):
    """x (B, H, W, C), weights (KH, KW, O, C) -> (B, OH, OW, O): each input adds its kernel to the full result."""
    x, weights = np.asarray(x, np.float64), np.asarray(weights, np.float64)
    (B, H, W, _), (KH, KW, O, _) = x.shape, weights.shape
    sh, sw = np.broadcast_to(stride, 2)
    (top, bottom), (left, right) = np.broadcast_to(padding, (2, 2))
    full = np.zeros((B, (H - 1) * sh + KH, (W - 1) * sw + KW, O))
    for a in range(KH):
        for c in range(KW):
            full[:, a : a + (H - 1) * sh + 1 : sh, c : c + (W - 1) * sw + 1 : sw] += x @ weights[a, c].T
    out = full[:, top : full.shape[1] - bottom, left : full.shape[2] - right]
    return ACTIVATIONS[activation](out if bias is None else out + np.asarray(bias, np.float64))
