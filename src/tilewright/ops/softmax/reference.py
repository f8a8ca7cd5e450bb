"""What softmax computes, in NumPy float64."""

import numpy as np


def softmax(x):
    """x (..., C) -> (..., C), float64; NaN for a row of nothing but -inf."""
    x = np.asarray(x, np.float64)
    with np.errstate(invalid="ignore"):  # -inf - -inf
        shares = np.exp(x - x.max(axis=-1, keepdims=True))
    return shares / shares.sum(axis=-1, keepdims=True)
