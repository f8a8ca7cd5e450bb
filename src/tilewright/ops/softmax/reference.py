"""What softmax computes, in NumPy float64."""

import numpy as np


def softmax(x):
    """x (..., C) -> (..., C), float64; NaN for a row of only -inf."""
    x = np.asarray(x, np.float64)
    with np.errstate(invalid="ignore"):  # -inf - -inf
        powers = np.exp(x - x.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)
