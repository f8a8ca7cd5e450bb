"""Where a job runs: "cpu" or "cuda", and what to do when the GPU is missing or too small for the batch."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from tilewright.errors import ResourceError, UsageError
from tilewright.hardware import engines, gpus, no_gpu

DEVICES = ("cpu", "cuda", "auto")
EXTRA = "install what the GPU needs, pip install 'tilewright[gpu]', or leave --device cuda out"
T = TypeVar("T")


def place_for(device: str) -> str:
    """The word itself, one of DEVICES, but for "auto": "cuda" where that can run, else "cpu".

    Raises UsageError for another word, and for "cuda" ResourceError where PyTorch, Triton or numba-cuda is not
    installed, there is no GPU, or its driver is older than PyTorch's CUDA.
    """
    if device not in DEVICES:
        raise UsageError(f"device is {device!r}; {', '.join(DEVICES)} are")
    if device == "cpu":
        return "cpu"
    try:
        _check_gpu()
    except ResourceError:
        if device == "cuda":
            raise
        return "cpu"
    return "cuda"


def _check_gpu() -> None:
    """Raises ResourceError unless the kernels of both engines can run on a GPU here."""
    if why := no_gpu():
        raise ResourceError(f"there is no GPU to run on: {why}", hint="leave --device cuda out to run on the CPU")
    missing = [why for engine, why in engines().items() if engine in ("torch", "tile", "simt") and why]
    if missing:
        raise ResourceError(f"the GPU cannot be used: {'; '.join(missing)}", hint=EXTRA)
    import torch

    if torch.version.cuda is None:
        raise ResourceError(f"PyTorch {torch.__version__} is built for the CPU alone", hint=EXTRA)
    with warnings.catch_warnings():  # what it warns of is said below
        warnings.simplefilter("ignore")
        works = torch.cuda.is_available()
    if not works:
        driver = gpus()[0].driver
        raise ResourceError(
            f"PyTorch {torch.__version__} cannot use the {gpus()[0].name}: it is built for CUDA {torch.version.cuda}, "
            f"and the driver knows CUDA up to {driver}",
            hint="update the driver, or install a PyTorch built for this one",
        )


def halving(run: Callable[[int], T], batch: int) -> T:
    """run(batch), with half the batch each time that the GPU's memory does not suffice.

    Raises ResourceError where it does not suffice for a batch of 1. Nothing that a failed run has allocated may be
    held elsewhere, or the next cannot use it.
    """
    import torch

    while True:
        try:
            return run(batch)
        except torch.cuda.OutOfMemoryError as error:
            what = str(error).partition(". ")[0]  # the rest is about settings of PyTorch
        if batch <= 1:
            raise ResourceError(
                f"the GPU has too little memory, even for a batch of 1: {what}",
                hint="end what else runs on it, or run on the CPU",
            )
        batch //= 2
        torch.cuda.empty_cache()


@contextmanager
def gpu_faults() -> Iterator[None]:
    """What the GPU's driver reports within the block - a fault, a lost device - becomes a ResourceError."""
    import torch

    try:
        yield
    except torch.AcceleratorError as error:
        what = str(error).partition("\n")[0]
        raise ResourceError(f"the GPU failed: {what}", hint="run the same command again, or on the CPU") from error
