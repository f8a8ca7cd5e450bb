"""What matmul_argmax computes, in NumPy float64: the largest column of a @ b in each row."""

import numpy as np


def matmul_argmax(a, b):
    """a (M, K) @ b (K, N) -> (index of the largest (M,), the lowest of equals; its value (M,), float64)."""
    out = np.asarray(a, np.float64) @ np.asarray(b, np.float64)
    return out.argmax(axis=1), out.max(axis=1)
