"""CUDA graphs: what a model queues again and again, captured once."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import torch

T = TypeVar("T")


def captured(call: Callable[[], T], pool: Any = None) -> tuple[torch.cuda.CUDAGraph, T]:
    """(a graph of what `call` queues, its result). pool: memory that graphs share, torch.cuda.graph_pool_handle().

    Raises torch's OutOfMemoryError where the memory does not suffice; a capture that it ended fails for that, and
    PyTorch tells of the failure alone.
    """
    import torch

    graph = torch.cuda.CUDAGraph()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The CUDA Graph is empty")  # said of a call that ended at its beginning
            with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
                result = call()
    except torch.AcceleratorError as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, torch.cuda.OutOfMemoryError):
            cause = cause.__context__
        if cause is None:
            raise
        raise cause from None
    return graph, result
