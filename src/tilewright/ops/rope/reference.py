"""What rope computes, in NumPy float64. The angle alone is rounded to float32, as part of the definition."""

import numpy as np


def rope(x, positions, frequencies, heads):
    """x (rows, heads * D), positions (rows,), frequencies float32 (F,), 2 F <= D: (rows, heads * D), float64."""
    rows, width = np.shape(x)
    x = np.asarray(x, np.float64).reshape(rows, heads, width // heads)  # (rows, H, D)
    angles = np.asarray(positions)[:, None].astype(np.float32) * np.asarray(frequencies, np.float32)  # (rows, F)
    cos, sin = (f(angles.astype(np.float64))[:, None, :] for f in (np.cos, np.sin))  # (rows, 1, F)
    F = angles.shape[1]
    first, second, rest = x[..., :F], x[..., F : 2 * F], x[..., 2 * F :]
    rotated = first * cos - second * sin, second * cos + first * sin, rest
    return np.concatenate(rotated, axis=-1).reshape(rows, width)
