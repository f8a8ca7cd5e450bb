"""Attention as four operations on whole matrices: scores, mask, softmax, values. Every score is written to memory.
Loses where sequences are short: each head of each span is two calls of matmul and one of softmax.

The number of keys at hand orders the sums, so a position's last bits depend on how its text is cut into steps.
"""

import numpy as np

from tilewright.ops.attention.cpu.append import keep_new
from tilewright.ops.attention.operands import Cache, Look
from tilewright.ops.matmul import matmul
from tilewright.ops.softmax import softmax


def attend(q: np.ndarray, cache: Cache, spans: np.ndarray, look: Look, out: np.ndarray) -> None:
    """Attention of q to the cache, written to out; see `ladder` for the arguments."""
    keep_new(cache, spans, look)
    D = q.shape[1] // cache.heads
    for slot, first, count, row, _ in spans.tolist():
        for head in range(cache.heads):
            T, part = first + count, (slice(row, row + count), slice(head * D, head * D + D))
            keys, values = cache.plain(slot, head, T)  # (T, D) each
            scores = matmul(q[part][:, : cache.D].astype(np.float32), keys.T)  # (count, T)
            scores *= np.float32(look.scale)
            if look.causal:
                scores[np.arange(T) > np.arange(first, T)[:, None]] = -np.inf
            out[part][:, : cache.D] = matmul(softmax(scores), values)
