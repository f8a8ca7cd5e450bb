"""The CPU as the place of a model: where its arrays live and what they are made of; see `device_place` for the GPU."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.generation.engine import Generator
from tilewright.ops.attention import Cache, append, attend, bytes_a_sequence, checked_spans
from tilewright.ops.core.arrays import BFLOAT16
from tilewright.ops.core.memory import empty

FLOAT32 = np.dtype(np.float32)
BATCH_MEMORY = 1 << 30  # bytes of keys and values unless the caller says: 512 sequences of the course's job


class Workspace:
    """Arrays that are used again at the next step: memory that is new to a process costs more than the work on it."""

    def __init__(self) -> None:
        self.buffers: dict[str, np.ndarray] = {}

    def take(self, name: str, rows: int, columns: int, dtype: np.dtype = FLOAT32) -> np.ndarray:
        """(rows, columns), whatever was left in it; the array that had this name before is gone."""
        size = rows * columns * dtype.itemsize
        if name not in self.buffers or self.buffers[name].size < size:
            self.buffers[name] = empty(size, np.uint8)
        return self.buffers[name][:size].view(dtype).reshape(rows, columns)


class Rows:
    """Rows of one pass on the CPU, and which of them attend to each other. spans: (n, 5), see `attention.span`."""

    def __init__(self, ids: np.ndarray, positions: np.ndarray, caches: Sequence[Cache], spans: np.ndarray):
        self.ids, self.positions, self.caches = ids, positions, caches
        self.last, alone = last_rows(spans)
        self.each = checked_spans(spans, caches[0], len(ids))
        self.ends = checked_spans(alone, caches[0], len(spans))

    def attended(self, i: int, x: np.ndarray, qkv: np.ndarray, scale: float, work: Workspace):
        """(x, attention of qkv in layer i); in the last layer, of the last row of each span only. Appends the new keys
        and values to the cache."""
        R, C = x.shape
        q, k, v = qkv[:, :C], qkv[:, C : 2 * C], qkv[:, 2 * C :]
        kind, cache, n = qkv.dtype, self.caches[i], len(self.last)
        if i < len(self.caches) - 1 or n == R:
            return x, attend(q, cache, self.each, scale=scale, new=(k, v), out=work.take("h", R, C, kind))
        append(k, v, cache, self.each)
        return x[self.last], attend(q[self.last], cache, self.ends, scale=scale, out=work.take("h", n, C, kind))


class Host:
    """The CPU as the place of a model: arrays are NumPy's, weights stay where they are mapped until prepared.

    kind: of what nothing but a product or attention reads. memory: bytes of keys and values unless the caller says.
    """

    memory = BATCH_MEMORY

    def __init__(self, dtype: str):
        self.kind = BFLOAT16 if dtype == "bfloat16" else FLOAT32
        self.kept: tuple[tuple, list[Cache]] = (), []  # sizes, and free caches of these sizes

    def array(self, weights: np.ndarray) -> np.ndarray:
        """As it is."""
        return weights

    def vector(self, weights: np.ndarray) -> np.ndarray:
        """A float32 copy."""
        return np.array(weights, np.float32)

    def workspace(self) -> Workspace:
        """For one generator."""
        return Workspace()

    def cache(self, *sizes: Any) -> Cache:
        """See `Cache.empty`; what was kept of other sizes is let go."""
        if self.kept[0] != sizes:
            self.kept = sizes, []
        return self.kept[1].pop() if self.kept[1] else Cache.empty(*sizes)

    def keep(self, caches: list[Cache]) -> None:
        """Memory that is new to a process costs more than writing to it: a sixth of the time of 800 short prompts.

        Those of other sizes than the last that were asked for are let go.
        """
        if caches and (*caches[0].values.shape[:2], caches[0].length) == self.kept[0][:3]:  # slots, heads, length
            self.kept[1][:] = caches

    def final(self, work: Workspace, rows: int, columns: int) -> None:
        """The last norm's result is a new array."""

    def engine(self, *model: Any, **options: Any) -> Generator:
        """See `Generator`."""
        return Generator(*model, **options)

    def batch(self, *rows: Any) -> Rows:
        """The rows of a pass."""
        return Rows(*rows)

    def numpy(self, values: np.ndarray) -> np.ndarray:
        """The values themselves."""
        return values

    def finite(self, rows: np.ndarray) -> np.ndarray:
        """Which of (n, C) hold no NaN and no infinity: bool (n,)."""
        return np.isfinite(rows).all(axis=1)

    def cache_bytes(self, heads: int, length: int, D: int, dtype: str) -> int:
        """Bytes of one sequence's keys and values in one layer."""
        return bytes_a_sequence(heads, length, D, dtype)


def last_rows(spans: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(the last row of each span, spans of those rows alone): int64 (n,), (n, 5)."""
    slot, first, count, row, _ = spans.T
    ends = np.stack(
        [slot, first + count - 1, np.ones_like(slot), np.arange(len(spans)), np.full_like(slot, -1)], axis=1
    )
    return row + count - 1, ends
