"""From the hidden states of texts to one vector per text, and vectors of length 1, on either device.

Sums are in float64, and their order depends on the text alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from tilewright.backends.protocol import Array

LEAST = 1e-12  # a shorter vector is divided by this, as PyTorch's normalize does


def pooled(x: Array, bounds: Array, poolings: Sequence[str], skip: int = 0) -> Any:
    """Hidden states (R, C) of n texts -> float32 (n, C * poolings), the kind of array that x is.

    bounds: int64 (n + 1,), the first row of each text, and R. poolings: "cls", "lasttoken", "max", "mean",
    "mean_sqrt_len_tokens" or "weightedmean". skip: tokens at the start of each text that are not pooled, but for its
    last one.
    """
    if not isinstance(x, np.ndarray):
        from tilewright.ops.layernorm.tile.pooled import pool

        return pool(x, bounds, poolings, skip)
    texts = [x[first:end] for first, end in pairwise(np.asarray(bounds))]
    return np.stack([_of_text(text, poolings, min(skip, len(text) - 1)) for text in texts])


def _of_text(x: np.ndarray, poolings: Sequence[str], skip: int) -> np.ndarray:
    """float32 (C * poolings,) of one text's rows (T, C)."""
    y, found = x[skip:], []
    for pooling in poolings:
        if pooling == "cls":
            found.append(y[0])
        elif pooling == "lasttoken":
            found.append(y[-1])
        elif pooling == "max":
            found.append(y.max(axis=0))
        elif pooling == "weightedmean":
            counts = np.arange(skip + 1, len(x) + 1, dtype=np.float64)
            found.append(np.add.reduce(y * counts[:, None], axis=0) / counts.sum())
        else:
            total = np.add.reduce(y, axis=0, dtype=np.float64)
            found.append(total / (len(y) if pooling == "mean" else np.sqrt(len(y))))
    return np.concatenate(found, dtype=np.float32, casting="same_kind")


def unit(x: Array) -> Any:
    """Each row of (n, D) divided by its Euclidean length, or by LEAST if that is larger: float32 (n, D)."""
    if not isinstance(x, np.ndarray):
        from tilewright.ops.layernorm.tile.pooled import scale

        return scale(x, LEAST)
    wide = x.astype(np.float64)
    lengths = np.sqrt(np.add.reduce(wide * wide, axis=1, keepdims=True))
    return (wide / np.maximum(lengths, LEAST)).astype(np.float32)
