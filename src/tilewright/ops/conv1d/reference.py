"""What conv1d computes, in NumPy float64: a cross-correlation (the kernel is not flipped), then bias, activation,
pooling."""

import numpy as np


def conv1d(x, weight, bias=None, stride=1, padding=0, dilation=1, activation=None, pool=None):
    """x (B, C, L), weight (O, C, K), bias (O,) -> (B, O, positions), or (B, O) with pool "max"; float64."""
    x = np.pad(np.asarray(x, np.float64), ((0, 0), (0, 0), (padding, padding)))
    K = weight.shape[2]
    positions = (x.shape[2] - dilation * (K - 1) - 1) // stride + 1
    out = np.zeros((len(x), len(weight), positions))
    for tap in range(K):
        first = tap * dilation
        under = x[:, :, first : first + stride * (positions - 1) + 1 : stride]  # (B, C, positions)
        out += np.asarray(weight[:, :, tap], np.float64) @ under
    if bias is not None:
        out += np.asarray(bias, np.float64)[:, None]
    out = {None: lambda y: y, "relu": lambda y: np.maximum(y, 0)}[activation](out)
    return {None: lambda y: y, "max": lambda y: y.max(axis=2)}[pool](out)
