"""The device of a job, "cpu" or "cuda", and the errors for a GPU that is missing or fails."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType

from tilewright.backends.memory import is_kind, out_of_memory
from tilewright.errors import ResourceError, TilewrightError, UsageError
from tilewright.formats.packages import install_command
from tilewright.hardware import engines, gpus, no_gpu

DEVICES = ("cpu", "cuda", "auto")
GPU_DTYPES = ("float16", "tf32")  # accuracy classes without CPU kernels
LEAST = (8, 0)  # the lowest compute capability: Ampere's tensor cores are the first with bfloat16 and tf32
ON_CPU = 'run on the CPU: device="cpu", --device cpu on the command line'

_elsewhere: ContextVar[bool] = ContextVar("elsewhere", default=False)
_class_elsewhere: ContextVar[str | None] = ContextVar("class_elsewhere", default=None)


@contextmanager
def gpu_elsewhere(taken_for_granted: bool, device_class: str | None = None) -> Iterator[None]:
    """Within the block, `place_for("cuda")` does not check for a GPU, because the job runs on another machine.

    device_class: of that machine's GPU, see `fingerprint.device_class`; None: unknown.
    """
    tokens = _elsewhere.set(taken_for_granted), _class_elsewhere.set(device_class)
    try:
        yield
    finally:
        _elsewhere.reset(tokens[0])
        _class_elsewhere.reset(tokens[1])


def class_elsewhere() -> str | None:
    """The GPU class that was given to the enclosing `gpu_elsewhere`; None if there is none."""
    return _class_elsewhere.get()


def is_gpu_elsewhere() -> bool:
    """True within a block of `gpu_elsewhere`, for a GPU of another machine."""
    return _elsewhere.get()


def place_for(device: str, dtype: str = "float32") -> str:
    """The device to compute on: "cpu" or "cuda". device: one of DEVICES; "auto" is "cuda" if a GPU can be used, else
    "cpu". dtype: the wanted accuracy class.

    Raises UsageError for an unknown device, and for float16 on the CPU. Raises ResourceError for "cuda" if PyTorch,
    Triton or numba-cuda is not installed, if there is no GPU, if it is older than LEAST, or if its driver is older
    than PyTorch's CUDA.
    """
    if device not in DEVICES:
        raise UsageError(f"device is {device!r}; it must be one of {', '.join(DEVICES)}")
    if device == "cuda" and _elsewhere.get():
        return device
    if device != "cpu":
        try:
            _check_gpu()
            return "cuda"
        except ResourceError as error:
            if device == "cuda":
                raise
            missing = f"; {error.message}"
    if dtype in GPU_DTYPES:
        why = "" if device == "cpu" else missing
        raise UsageError(f"{dtype} is for a GPU, and this runs on the CPU{why}", remedy="use bfloat16 or float32")
    return "cpu"


def _check_gpu() -> None:
    """Raises ResourceError unless the kernels of both engines can run on a GPU here."""
    if why := no_gpu():
        raise ResourceError(f"there is no GPU to run on: {why}", remedy=ON_CPU)
    gpu = gpus()[0]
    if gpu.capability < LEAST:
        (major, minor), (wanted, _) = gpu.capability, LEAST
        raise ResourceError(
            f"the {gpu.name} is too old for tilewright's kernels: its compute capability is {major}.{minor}, they need "
            f"{wanted}.0, without which matrix units have no bfloat16",
            remedy=ON_CPU,
        )
    extra = f"install what the GPU needs, {install_command('gpu')}, or {ON_CPU}"
    missing = [why for engine, why in engines().items() if engine in ("torch", "tile", "simt") and why]
    if missing:
        raise ResourceError(f"the GPU cannot be used: {'; '.join(missing)}", remedy=extra)
    import torch

    if torch.version.cuda is None:
        raise ResourceError(f"PyTorch {torch.__version__} is built for the CPU alone", remedy=extra)
    with warnings.catch_warnings():  # the error below says the same as its warnings
        warnings.simplefilter("ignore")
        works = torch.cuda.is_available()
    if not works:
        raise ResourceError(
            f"PyTorch {torch.__version__} cannot use the {gpu.name}: it is built for CUDA {torch.version.cuda}, "
            f"and the driver knows CUDA up to {gpu.driver}",
            remedy="update the driver, or install a PyTorch built for this one",
        )


class gpu_faults:
    """Within the block, errors of the GPU's driver (a fault, a lost device, no memory) become ResourceErrors."""

    def __enter__(self) -> None:
        """Do nothing: on a CPU no such errors occur."""

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is None or isinstance(error, TilewrightError):
            return
        if cause := out_of_memory(error):
            what, remedy = str(cause).partition(". ")[0], f"stop what else runs on it, or {ON_CPU}"
            raise ResourceError(f"the GPU has too little memory: {what}", remedy=remedy) from error
        what = str(error).partition("\n")[0]
        if _is_gpu_fault(error):
            raise ResourceError(f"the GPU failed: {what}", remedy=f"run the same command again, or {ON_CPU}") from error


def _is_gpu_fault(error: BaseException) -> bool:
    """True if PyTorch, numba-cuda or Triton raised this error for the driver. None of them needs to be installed."""
    return is_kind(error, "AcceleratorError", "CudaAPIError") or str(error).startswith("Triton Error [CUDA]")
