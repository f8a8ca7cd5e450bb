"""Memory of a GPU: sizes of buffers that may grow, how the lack of memory is recognised, and a batch that is halved."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tilewright.errors import ResourceError

T = TypeVar("T")
STEPS_OF_SIZE = 16  # sizes of growing buffers between two powers of two


def with_headroom(size: int) -> int:
    """Bytes of a buffer that may grow: `size`, rounded up by at most 1/16.

    Batches of nearly one size then share a buffer. If a buffer grew by a few bytes with each batch, PyTorch's allocator
    would keep all the earlier ones: a freed block does not serve a larger request.
    """
    unit = max(1, (1 << max(size - 1, 1).bit_length()) // (2 * STEPS_OF_SIZE))
    return -(-size // unit) * unit


def out_of_memory(error: BaseException | None) -> BaseException | None:
    """PyTorch's OutOfMemoryError that this error is or came from: it also ends the capture of a CUDA graph.

    Needs no PyTorch.
    """
    while error is not None and not is_kind(error, "OutOfMemoryError"):
        error = error.__context__
    return error


def is_kind(error: BaseException, *names: str) -> bool:
    """True if the error's class, or one that it derives from, has one of these names."""
    return any(kind.__name__ in names for kind in type(error).__mro__)


def halving(run: Callable[[int], T], batch: int) -> T:
    """See `protocol.Backend.halving`."""
    import torch

    while True:
        try:
            return run(batch)
        except (torch.cuda.OutOfMemoryError, torch.AcceleratorError) as error:
            cause = out_of_memory(error)
            if cause is None:
                raise
            what = str(cause).partition(". ")[0]  # the rest is about settings of PyTorch
            del cause
        if batch <= 1:
            raise ResourceError(
                f"the GPU has too little memory, even for a batch of 1: {what}",
                remedy="stop what else runs on it, or run on the CPU",
            )
        batch //= 2
        torch.cuda.empty_cache()
