"""What pool computes, in NumPy float64."""

import numpy as np


def pool(x, begin, end):
    """x (R, C); begin, end: integers (n,) -> (n, C), float64."""
    x = np.asarray(x, np.float64)
    found = [x[i:j].mean(axis=0) for i, j in zip(begin, end, strict=True)]
    return np.stack(found) if found else np.zeros((0, x.shape[1]))
