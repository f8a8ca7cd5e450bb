"""Keys and values on a GPU, and two batches that attend to them: one of prompts, one of single new positions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from tilewright.backends.cuda import Cuda, Workspace
from tilewright.backends.protocol import Backend
from tilewright.generation.attention import last_rows
from tilewright.generation.decoder import Batch, Sizes
from tilewright.ops.attention import Cache, DeviceCache, append, append_and_attend, attend, checked_spans
from tilewright.ops.core.arrays import one_of
from tilewright.ops.core.gpu.tensors import FLOATS, torch_dtype

SHARE = 0.7  # share of the GPU's free memory that keys and values take by default


class State(Protocol):
    """A `decode_state.DecodeState`: nbytes of the GPU's memory."""

    nbytes: int


class CudaAttention:
    """See `decoder.Attention`. free: the decode state of the last engine, which the next one reuses."""

    def __init__(self, sizes: Sizes, dtype: str, backend: Backend) -> None:
        one_of("generate", "dtype", dtype, FLOATS)
        assert isinstance(backend, Cuda)
        self.sizes, self.dtype, self.backend, self.device = sizes, dtype, backend, backend.device
        self.free: State | None = None

    @property
    def memory(self) -> int:
        """A share of the free memory. The memory of the last engine counts as free."""
        if self.device == "cpu":
            return 1 << 30
        free, _ = torch.cuda.mem_get_info(self.device)
        held = torch.cuda.memory_stats_as_nested_dict(self.device)  # `memory_stats` takes 0.3 ms to flatten it
        if held:
            free += held["reserved_bytes"]["all"]["current"] - held["allocated_bytes"]["all"]["current"]
        return int(SHARE * (free + (self.free.nbytes if self.free else 0)))

    def caches(self, slots: int, length: int) -> list[Cache]:
        """One cache per layer."""
        sizes = self.sizes
        return [
            DeviceCache.on(self.device, slots, sizes.heads, length, sizes.head_size, self.dtype)
            for _ in range(sizes.layers)
        ]

    def leave(self, caches: list[Cache]) -> None:
        """Nothing to do: the decode state owns the caches."""

    def cache_bytes(self, length: int) -> int:
        """Bytes of one sequence's keys and values in all layers."""
        sizes = self.sizes
        return sizes.layers * 2 * sizes.heads * length * sizes.head_size * torch_dtype(self.dtype).itemsize

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
        return PromptBatch(self.backend, ids, positions, caches, spans, kept)  # type: ignore[return-value]


class PromptBatch:
    """All rows of prompts, see `decoder.Batch`. kept: as for `decoder.Attention.batch`."""

    def __init__(
        self, backend: Cuda, ids: np.ndarray, positions: np.ndarray, caches: Sequence[Cache], spans: np.ndarray,
        kept: np.ndarray | None = None,
    ) -> None:  # fmt: skip
        (cache, *_), (last, alone) = caches, last_rows(spans, kept)  # all layers have the same shape
        self.caches, self.dtype, self.every = caches, cache.dtype, len(last) == len(ids)
        self.ids, self.positions = backend.upload(ids), backend.upload(positions.astype(np.int32))
        self.spans = checked_spans(spans, cache, len(ids))
        self.last_spans = checked_spans(alone, cache, len(last))
        self.last = backend.upload(last)

    def attend(
        self,
        layer: int,
        x: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        scale: float,
        work: Workspace,
    ) -> tuple[Tensor, Tensor]:
        """See `decoder.Batch`."""
        cache, spans = self.caches[layer], self.spans
        new: tuple[Tensor, Tensor] | None = (k, v)
        if layer == len(self.caches) - 1 and not self.every:
            append(k, v, cache, spans)
            x, q, spans, new = x.index_select(0, self.last), q.index_select(0, self.last), self.last_spans, None
        out = work.take("y", len(q), q.shape[1], self.dtype)
        return x, attend(q, cache, spans, scale=scale, new=new, out=out)

    def output(self, work: Workspace, rows: int, columns: int) -> Tensor:
        """A buffer in the caches' dtype, because only matrix products read it."""
        return hidden_states(work, rows, columns, self.dtype)

    def run(self, x: Tensor, layers: Callable[[], Tensor]) -> Tensor:
        """layers(): CUDA graphs are captured outside of a batch, see `decode_state`."""
        return layers()


class DecodeBatch:
    """One new position of each of R sequences, see `decoder.Batch`. ids int64 (R,); positions, slots int32 (R,)."""

    def __init__(self, ids: Tensor, positions: Tensor, slots: Tensor, caches: Sequence[Cache], longest: int) -> None:
        self.ids, self.positions, self.slots, self.longest = ids, positions, slots, longest
        (cache, *_) = caches
        self.caches, self.dtype = caches, cache.dtype

    def attend(
        self,
        layer: int,
        x: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        scale: float,
        work: Workspace,
    ) -> tuple[Tensor, Tensor]:
        """See `decoder.Batch`."""
        cache = self.caches[layer]
        out = work.take("y", len(q), q.shape[1], self.dtype)
        return x, append_and_attend(
            q, k, v, cache, self.slots, self.positions, longest=self.longest, scale=scale, out=out
        )

    def output(self, work: Workspace, rows: int, columns: int) -> Tensor:
        """As `PromptBatch.output`."""
        return hidden_states(work, rows, columns, self.dtype)

    def run(self, x: Tensor, layers: Callable[[], Tensor]) -> Tensor:
        """layers(): CUDA graphs are captured outside of a batch, see `decode_state`."""
        return layers()


def hidden_states(work: Workspace, rows: int, columns: int, dtype: str) -> Tensor:
    """The buffer of hidden states: that of the last pass, if it had the same number of rows."""
    return work.take("final", rows, columns, dtype)
