"""Keys and values on the CPU, and the batches that attend to them. `cuda.attention` is the same for a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tilewright.backends.cpu import Workspace
from tilewright.generation.decoder import Batch, Sizes
from tilewright.ops.attention import Cache, append, attend, bytes_a_sequence, checked_spans
from tilewright.ops.attention.operands import SPAN
from tilewright.ops.core.recording import RepeatedPass

BATCH_MEMORY = 1 << 30  # bytes of keys and values by default: 512 sequences of the course's job


class CpuAttention:
    """See `decoder.Attention`. free: the caches of the last engine. Page faults of new memory would take a sixth of the
    time of 800 short prompts, so the next engine reuses these caches."""

    memory = BATCH_MEMORY

    def __init__(self, sizes: Sizes, dtype: str) -> None:
        self.sizes, self.dtype = sizes, dtype
        self.free: list[Cache] = []

    def caches(self, slots: int, length: int) -> list[Cache]:
        """One cache per layer. The caches of the last engine are used if they have these sizes."""
        free, self.free = self.free, []
        if free and (free[0].slots, free[0].length) == (slots, length):
            return free
        free.clear()  # free the old caches before new memory is allocated
        return [
            Cache.empty(slots, self.sizes.heads, length, self.sizes.head_size, self.dtype)
            for _ in range(self.sizes.layers)
        ]

    def leave(self, caches: list[Cache]) -> None:
        """Take back caches that an engine no longer needs."""
        self.free = caches

    def cache_bytes(self, length: int) -> int:
        """Bytes of one sequence's keys and values in all layers."""
        sizes = self.sizes
        return sizes.layers * bytes_a_sequence(sizes.heads, length, sizes.head_size, self.dtype)

    def batch(
        self,
        ids: np.ndarray,
        positions: np.ndarray,
        caches: Sequence[Cache],
        spans: np.ndarray,
        last: Batch | None = None,
        kept: np.ndarray | None = None,
    ) -> Batch:
        """See `decoder.Attention`."""
        if kept is None and isinstance(last, CpuBatch) and last.moved(ids, positions, caches, spans):
            return last  # type: ignore[return-value]
        return CpuBatch(ids, positions, caches, spans, kept)  # type: ignore[return-value]


class CpuBatch:
    """See `decoder.Batch`. Prompts and single new positions may be mixed. kept: as for `decoder.Attention.batch`."""

    def __init__(
        self,
        ids: np.ndarray,
        positions: np.ndarray,
        caches: Sequence[Cache],
        spans: np.ndarray,
        kept: np.ndarray | None = None,
    ) -> None:
        self.ids, self.positions, self.caches = ids, positions, caches
        (cache, *_), (self.last, ends) = caches, last_rows(spans, kept)  # all layers have the same shape
        self.spans = checked_spans(spans, cache, len(ids))
        self.last_spans = checked_spans(ends, cache, len(self.last))
        self.repeated: RepeatedPass | None = None  # once the batch has moved

    def moved(self, ids: np.ndarray, positions: np.ndarray, caches: Sequence[Cache], spans: np.ndarray) -> bool:
        """True if these are the next positions of the same sequences, one of each. The batch then has these rows: its
        arrays keep their memory, so that its passes make the same launches."""
        mine = self.spans.array
        if caches is not self.caches or spans.shape != mine.shape or len(spans) != len(ids):
            return False
        differs, first, source = spans != mine, spans[:, SPAN.first], spans[:, SPAN.source]
        differs[:, SPAN.first] = False
        if differs.any() or source.max() >= 0 or not (first.min() >= 0 and first.max() < self.caches[0].length):
            return False
        self.ids[...], self.positions[...], mine[...] = ids, positions, spans
        self.repeated = self.repeated or RepeatedPass()
        return True

    def attend(
        self, layer: int, x: np.ndarray, q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float, work: Workspace
    ) -> tuple[np.ndarray, np.ndarray]:
        """See `decoder.Batch`."""
        (R, C), cache, n, dtype = q.shape, self.caches[layer], len(self.last), q.dtype.name
        if layer < len(self.caches) - 1 or n == R:
            return x, attend(q, cache, self.spans, scale=scale, new=(k, v), out=work.take("h", R, C, dtype))
        append(k, v, cache, self.spans)
        out = work.take("h", n, C, dtype)
        return x[self.last], attend(q[self.last], cache, self.last_spans, scale=scale, out=out)

    def output(self, work: Workspace, rows: int, columns: int) -> np.ndarray | None:
        """None: a new array is allocated. A batch that has moved gets a buffer, which its next pass overwrites."""
        return work.take("hidden", rows, columns) if self.repeated else None

    def run(self, x: np.ndarray, layers: Callable[[], np.ndarray]) -> np.ndarray:
        """See `decoder.Batch`."""
        return self.repeated.run(x, layers) if self.repeated else layers()


def last_rows(spans: np.ndarray, kept: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """(the last rows of each span, spans of those rows alone): int64 (rows,), (n, 5). kept: as for
    `decoder.Attention.batch`."""
    slot, first, count, row, _ = spans.T
    kept = np.ones_like(slot) if kept is None else kept
    to = np.cumsum(kept) - kept
    ends = np.stack([slot, first + count - kept, kept, to, np.full_like(slot, -1)], axis=1)
    return np.repeat(row + count - kept - to, kept) + np.arange(kept.sum()), ends
