"""From the hidden states of texts to one vector per text, and vectors of length 1, on either device.

Sums are in float64, and their order depends on the text alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.ops.pool import pool

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
        return _on_device(x, bounds, poolings, skip)
    edges, C = np.asarray(bounds), x.shape[1]
    begin, end = edges[:-1], edges[1:]
    first, result = begin + np.minimum(skip, end - begin - 1), np.empty((len(begin), C * len(poolings)), np.float32)
    texts = [(x[i:j], int(k - i)) for i, j, k in zip(begin, end, first, strict=True)]
    for i, pooling in enumerate(poolings):
        part = result[:, i * C : (i + 1) * C]
        if pooling == "mean":
            pool(x, first, end, out=part)
        else:
            for row, (text, skipped) in zip(part, texts, strict=True):
                row[...] = _of_text(text, pooling, skipped)
    return result


def _on_device(x: Any, bounds: Any, poolings: Sequence[str], skip: int) -> Any:
    """The same for tensors."""
    import torch

    from tilewright.ops.layernorm.tile.pooled import pool_into

    C, begin, end = x.shape[1], bounds[:-1], bounds[1:]
    first = begin + (end - begin - 1).clamp(max=skip) if skip else begin
    result = x.new_empty((len(begin), C * len(poolings)), dtype=torch.float32)
    for i, pooling in enumerate(poolings):
        part = result[:, i * C : (i + 1) * C]
        if pooling == "mean":
            pool(x, first, end, out=part)
        else:
            pool_into(x, bounds, pooling, skip, part)
    return result


def _of_text(x: np.ndarray, pooling: str, skip: int) -> np.ndarray:
    """(C,) of one text's rows (T, C)."""
    y = x[skip:]
    if pooling == "cls":
        return y[0]
    if pooling == "lasttoken":
        return y[-1]
    if pooling == "max":
        return np.asarray(y.max(axis=0))
    if pooling == "weightedmean":
        counts = np.arange(skip + 1, len(x) + 1, dtype=np.float64)
        return np.asarray(np.add.reduce(y * counts[:, None], axis=0) / counts.sum())
    return np.asarray(np.add.reduce(y, axis=0, dtype=np.float64) / np.sqrt(len(y)))


def unit(x: Array) -> Any:
    """Each row of (n, D) divided by its Euclidean length, or by LEAST if that is larger: float32 (n, D)."""
    if not isinstance(x, np.ndarray):
        from tilewright.ops.layernorm.tile.pooled import scale

        return scale(x, LEAST)
    wide = x.astype(np.float64)
    lengths = np.sqrt(np.add.reduce(wide * wide, axis=1, keepdims=True))
    return (wide / np.maximum(lengths, LEAST)).astype(np.float32)
