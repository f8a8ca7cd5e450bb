"""How `embedding_conv1d` finds the rows of the tokens of a batch, on either device.

On the CPU the operation looks tokens up itself. On a GPU kernels read slots of the token table, and only the host can
add rows to it. Finding unseen tokens on the host takes longer than a batch on the GPU. If the previous call met no
unseen token, this call runs speculatively without checking. The GPU flags sentences that did contain one; their rows
are computed, and the call runs again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

import numpy as np

from tilewright.ops.embedding_conv1d import Located, Prepared, precompute

if TYPE_CHECKING:
    from tilewright.backends.protocol import Array, Spans
    from tilewright.ops.embedding_conv1d.device_table import DeviceTable


class TokenLookup(Protocol):
    """Makes sure that the rows of a call's tokens exist. ids: int32 (n, L), checked. lowest: int32 (n,) on the host.
    After a pass it holds each sentence's smallest slot, which `located` computes on the GPU and the batch copies back;
    it is negative for a sentence with an unseen token. Unused on a CPU."""

    def passes(self, ids: np.ndarray, lowest: np.ndarray, batch: int) -> Iterator[Spans]:
        """(first, end) of the sentences to compute next, mostly once; a second time if there were unseen tokens.

        The rows of a span exist until the next one is requested. batch: the most sentences of a batch.
        """

    def located(self, ids: Array, lowest: Array) -> Array | Located:
        """A batch's ids in the form that `embedding_conv1d` takes. Writes `lowest`."""

    def forget(self) -> None:
        """Empty a GPU's token table, as before a measurement."""


def token_lookup(prepared: Prepared) -> TokenLookup:
    """The lookup for weights on the CPU or on a GPU."""
    return CpuLookup(prepared) if isinstance(prepared.table, np.ndarray) else CudaLookup(prepared)


class CpuLookup:
    """The operation finds rows by id, and adds those that are missing."""

    def __init__(self, prepared: Prepared) -> None:
        self.prepared = prepared

    def passes(self, ids: np.ndarray, lowest: np.ndarray, batch: int) -> Iterator[Spans]:
        """All sentences at once, after the rows of all were computed in large products."""
        precompute(ids, self.prepared)
        yield [(0, len(ids))]

    def located(self, ids: Array, lowest: Array) -> Array:
        """The ids unchanged."""
        return ids

    def forget(self) -> None:
        """Does nothing: the CPU's table is measured with a new model instead."""


class CudaLookup:
    """Slots of the GPU's token table, if the rung has one; otherwise ids.

    settled: True if the last call met no token that was new to the table.
    """

    def __init__(self, prepared: Prepared) -> None:
        self.table: DeviceTable | None = prepared.state if hasattr(prepared.state, "device_slots") else None
        self.settled = False

    def passes(self, ids: np.ndarray, lowest: np.ndarray, batch: int) -> Iterator[Spans]:
        """See `TokenLookup`."""
        table, everything = self.table, [(0, len(ids))]
        if table is None:
            yield everything
            return
        if not table.holds_all:
            yield ((first, end) for first, end, _ in table.batches(ids, batch))
            return
        built = table.built
        if not self.settled:
            table.precompute(ids)
        yield everything
        if lowest.min(initial=0) < 0:
            table.precompute(ids)
            yield everything
        self.settled = table.built == built

    def located(self, ids: Array, lowest: Array) -> Located:
        """See `TokenLookup`. The work is queued, so that a CUDA graph can contain it."""
        import torch

        assert isinstance(ids, torch.Tensor) and isinstance(lowest, torch.Tensor)
        slots = ids
        if self.table is not None:
            slots = self.table.device_slots.index_select(0, ids.view(-1)).view(ids.shape)
            torch.amin(slots, 1, out=lowest)
        return Located(slots.clamp(min=0))

    def forget(self) -> None:
        """See `TokenLookup`."""
        if self.table is not None:
            self.table.clear()
        self.settled = False
