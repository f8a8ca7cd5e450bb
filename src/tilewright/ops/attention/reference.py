"""What attention computes, in NumPy float64: softmax(scale * q @ k.T, over the visible keys) @ v."""

import math

import numpy as np


def attention(q, k, v, *, causal=True, scale=None):
    """q (B, H, Q, D), k and v (B, H, T, D), the queries at the last Q of T positions -> (B, H, Q, D), float64."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    Q, T, D = q.shape[2], k.shape[2], q.shape[3]
    scores = (1 / math.sqrt(D) if scale is None else scale) * q @ k.swapaxes(-1, -2)  # (B, H, Q, T)
    if causal:
        scores = np.where(np.arange(T) <= np.arange(T - Q, T)[:, None], scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True) @ v
