"""What correlate computes, in NumPy float64: the boundary written out with index arrays, then a sum over the taps."""

import numpy as np


def positions(n, taps, mode, origin):
    """The indices in x of elements 0 ... n + taps - 2 of an axis extended for `taps` taps; -1 for cval."""
    p = np.arange(n + taps - 1) - (taps // 2 + origin)
    if mode == "constant":
        return np.where((p >= 0) & (p < n), p, -1)
    if mode == "nearest":
        return p.clip(0, n - 1)
    if mode == "wrap":
        return p % n
    period = 2 * n if mode == "reflect" else max(2 * n - 2, 1)  # "mirror" has its end points once
    q = p % period
    return np.minimum(q, (2 * n - 1 if mode == "reflect" else 2 * n - 2) - q)


def correlate(x, weights, mode="constant", cval=0.0, origin=0):
    """x and weights have as many dimensions; origin: one integer, or one per axis -> float64 of x's shape."""
    x, weights = np.asarray(x).astype(np.float64), np.asarray(weights, np.float64)
    if not x.size:
        return x
    origins = [origin] * x.ndim if np.ndim(origin) == 0 else origin
    for axis, taps in enumerate(weights.shape):
        source = positions(x.shape[axis], taps, mode, origins[axis])
        x = x.take(source, axis)
        x[(slice(None),) * axis + (source < 0,)] = cval
    shape = [e - taps + 1 for e, taps in zip(x.shape, weights.shape, strict=True)]
    out = np.zeros(shape)
    for tap in np.ndindex(weights.shape):
        out += weights[tap] * x[tuple(slice(at, at + n) for at, n in zip(tap, shape, strict=True))]
    return out
