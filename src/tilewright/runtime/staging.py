"""Where copies run beside kernels: the results of a batch travel to the host while the next batch is computed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from tilewright.runtime.jobs import trace

if TYPE_CHECKING:
    import numpy as np

Batch = TypeVar("Batch")


class Staging:
    """Results of batches on the host, a batch behind the GPU.

    results: for each of at least two slots the tensors that hold a batch's results there, a row a record. Each has a
    twin in pinned memory. Batches take slots in turn, so that the GPU writes one while the other is copied and read.
    """

    def __init__(self, results: Sequence[Sequence[Any]]) -> None:
        import torch

        self._results = results
        self._hosts = [[torch.empty_like(x, device="cpu", pin_memory=x.is_cuda) for x in slot] for slot in results]
        self._copies = torch.cuda.Stream() if results[0][0].is_cuda else None

    def run(
        self, batches: Iterable[Batch], start: Callable[[int, Batch], int]
    ) -> Iterator[tuple[Batch, tuple[np.ndarray, ...]]]:
        """(batch, its results) in order, as NumPy arrays that are valid until the next is asked for.

        start(slot, batch) queues the work of a batch on torch's current stream, which writes the slot's tensors, and
        returns the number of rows.
        """
        waiting = None
        for number, batch in enumerate(batches):
            slot = number % len(self._results)
            with trace.device_span(trace.COMPUTE) if self._copies else trace.OFF:
                rows = start(slot, batch)
            queued = batch, slot, *self._copy(slot, rows)
            if waiting:
                yield self._arrived(*waiting)
            waiting = queued
        if waiting:
            yield self._arrived(*waiting)

    def _copy(self, slot: int, rows: int) -> tuple[int, Any]:
        """Queue the copies of a slot behind its work, on their own stream; (rows, the event of their end)."""
        import torch

        pairs = list(zip(self._hosts[slot], self._results[slot], strict=True))
        if self._copies is None:
            for host, result in pairs:
                host[:rows].copy_(result[:rows])
            return rows, None
        self._copies.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._copies), trace.device_span(trace.COPY_OUT):
            for host, result in pairs:
                host[:rows].copy_(result[:rows], non_blocking=True)
        return rows, self._copies.record_event()

    def _arrived(self, batch: Batch, slot: int, rows: int, copied: Any) -> tuple[Batch, tuple[np.ndarray, ...]]:
        if copied is not None:
            copied.synchronize()
        return batch, tuple(host[:rows].numpy() for host in self._hosts[slot])
