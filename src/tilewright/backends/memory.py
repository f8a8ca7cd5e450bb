"""The size of a batch: its check, and how it is halved when a GPU's memory is full."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Integral
from typing import TypeVar

from tilewright.errors import ResourceError, UsageError, WrongType

T = TypeVar("T")


def checked_batch(batch: int) -> int:
    """A number of records per batch. Raises UsageError for one below 1, WrongType for anything but an integer."""
    if isinstance(batch, bool) or not isinstance(batch, Integral):
        raise WrongType(f"batch is {batch!r}; an integer is wanted")
    if batch < 1:
        raise UsageError(f"batch is {batch}; it must be at least 1")
    return int(batch)


def out_of_memory(error: BaseException | None) -> BaseException | None:
    """PyTorch's OutOfMemoryError, if this error is one or was caused by one. It also ends the capture of a CUDA graph.

    Works without PyTorch.
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
            what = str(cause).partition(". ")[0]  # the rest of the message is about settings of PyTorch
            del cause
        if batch <= 1:
            raise ResourceError(
                f"the GPU has too little memory, even for a batch of 1: {what}",
                remedy="stop what else runs on it, or run on the CPU",
            )
        batch //= 2
        torch.cuda.empty_cache()
