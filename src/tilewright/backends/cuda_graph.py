"""CUDA graphs: the kernels that a call queues are captured once, and are then replayed by one launch."""

from __future__ import annotations

import gc
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import torch

from tilewright.backends.memory import out_of_memory
from tilewright.ops.core.ladder import Forced, forced_within

T = TypeVar("T")
Pool = Any  # a handle of memory that graphs share: the result of torch.cuda.graph_pool_handle(), whose type is private

_capturing = threading.Lock()  # PyTorch captures one graph at a time


def captured(call: Callable[[], T], pool: Pool | None = None) -> tuple[torch.cuda.CUDAGraph, T]:
    """(a CUDA graph of what `call` queues, its result). pool: memory that it shares with other graphs.

    Raises torch's OutOfMemoryError if the memory does not suffice; PyTorch itself then reports only that the capture
    failed.
    """
    graph, lack = torch.cuda.CUDAGraph(), None
    try:
        with _capturing, _without_collection(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The CUDA Graph is empty")  # of a call that failed at its start
            with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
                result = call()
    except torch.AcceleratorError as error:
        lack = out_of_memory(error)
        if lack is None:
            raise
    if lack is not None:
        try:
            raise lack  # outside the handler: errors that refer to each other keep what callers have allocated
        finally:
            del lack
    return graph, result


@contextmanager
def _without_collection() -> Iterator[None]:
    """No garbage is collected inside. If the collector frees another graph during a capture, the capture fails."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


class Repeated(Generic[T]):
    """Runs the same work again and again on the same tensors, from the second time on by a CUDA graph.

    The first `run` only calls it, which compiles its kernels. The second captures it, and later ones replay the graph.
    A graph holds the kernels of the rungs that were forced when it was captured. If other rungs are forced now, `run`
    begins anew. pool: see `captured`.
    """

    def __init__(self, pool: Pool | None = None) -> None:
        self.pool = pool
        self.forced: Forced | None = None  # at the first run
        self.graph: tuple[torch.cuda.CUDAGraph, T] | None = None

    def run(self, call: Callable[[], T]) -> T:
        """The result of `call`, which must queue the same work on the same tensors each time. From the capture on, the
        result is the same tensor, overwritten."""
        if self.forced is None or not self.forced.again():
            with forced_within() as forced:
                result = call()
            self.graph, self.forced = None, forced  # not after an error: its kernels may not be compiled yet
            return result
        self.graph = self.graph or captured(call, self.pool)
        graph, result = self.graph
        graph.replay()
        return result
