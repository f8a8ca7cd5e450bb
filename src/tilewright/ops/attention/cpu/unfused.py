"""Attention as four operations on whole matrices: scores, mask, softmax, values.

scores = scale * q @ k.T, -inf where a key is masked, and out = softmax(scores) @ v, for each head of each span. Every
score is written to memory. It is slow where sequences are short: each head is two calls of matmul and one of softmax.

The number of keys decides the order of the sums, so a position's last bits depend on how its text is cut into steps.
"""

import numpy as np

from tilewright.ops.attention.cpu.append import append_first
from tilewright.ops.attention.operands import AttendOptions, Cache
from tilewright.ops.matmul import matmul
from tilewright.ops.softmax import softmax


def attend(q: np.ndarray, cache: Cache, spans: np.ndarray, options: AttendOptions, out: np.ndarray) -> None:
    """Attention of q to the cache, written to out; see `ladder` for the arguments."""
    append_first(cache, spans, options)
    D = q.shape[1] // cache.heads
    for slot, first, count, row, _ in spans.tolist():
        for head in range(cache.heads):
            T, part = first + count, (slice(row, row + count), slice(head * D, head * D + D))
            keys, values = cache.plain(slot, head, T)  # (T, D) each
            scores = matmul(q[part][:, : cache.D].astype(np.float32), keys.T)  # (count, T)
            scores *= np.float32(options.scale)
            if options.causal:
                scores[np.arange(T) > np.arange(first, T)[:, None]] = -np.inf
            out[part][:, : cache.D] = matmul(softmax(scores), values)
