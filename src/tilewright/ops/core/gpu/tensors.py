"""Torch tensors on a GPU: how a public function recognises and checks them.

A tensor stays on its GPU. Arrays of other libraries in a GPU's memory (CuPy, JAX) become torch tensors through DLPack,
without a copy. Nothing here imports torch before a caller passes or requests such an array.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import numpy as np

from tilewright.errors import UsageError, WrongType
from tilewright.hardware import gpus

FLOATS = ("float32", "bfloat16", "float16")
INTEGERS = ("int64", "int32")
DLPACK_GPUS = (2, 13)  # kDLCUDA, kDLCUDAManaged

_simulated: list[bool] = []  # one entry per open `gpu_kernels_on_the_cpu`


@contextmanager
def gpu_kernels_on_the_cpu() -> Iterator[None]:
    """Inside, torch tensors on the CPU run the GPU's kernels, in numba-cuda's simulator or Triton's interpreter.

    For tests on machines without a GPU. It holds for all threads of the process. NumPy arrays still run the CPU's
    kernels.
    """
    _simulated.append(True)
    try:
        yield
    finally:
        _simulated.pop()


def on_gpu(value) -> bool:
    """True for an array in a GPU's memory: a torch tensor, or an array of another library with DLPack."""
    if hasattr(value, "is_cuda"):
        return value.is_cuda or (bool(_simulated) and hasattr(value, "data_ptr"))
    if isinstance(value, np.ndarray) or not hasattr(value, "__dlpack_device__"):
        return False
    return value.__dlpack_device__()[0] in DLPACK_GPUS


def names_gpu(device) -> bool:
    """True if an argument `device` of a public function names a GPU, or the CPU that simulates one."""
    return device is not None and (str(device) != "cpu" or bool(_simulated))


def kind(tensor) -> str:
    """The tensor's dtype by its NumPy name."""
    return str(tensor.dtype).removeprefix("torch.")


def torch_dtype(name: str):
    """The torch dtype of the operands of an accuracy class: float32 for "tf32"."""
    import torch

    return {"tf32": torch.float32, "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[name]


def tensor_of(op: str, name: str, value, dtypes: tuple[str, ...] = FLOATS):
    """The tensor itself, or another library's GPU array as a tensor on the same memory.

    Raises UsageError unless it has one of the dtypes.
    """
    if not hasattr(value, "data_ptr"):
        if on_gpu(value):
            import torch

            return tensor_of(op, name, torch.from_dlpack(value), dtypes)
        raise WrongType(f"{op}: {name} is a {type(value).__name__}; a torch tensor on the GPU is wanted")
    if kind(value) not in dtypes:
        raise UsageError(f"{op}: {name} is {kind(value)}; {', '.join(dtypes)} are taken, convert it first")
    return value


def same_device(op: str, first: str, tensor, **others) -> None:
    """Raises UsageError naming the argument that is not on the device of `tensor`, which is the argument `first`. None
    is accepted."""
    for name, other in others.items():
        if other is not None and getattr(other, "device", None) != tensor.device:
            found = getattr(other, "device", f"a {type(other).__name__}")
            raise UsageError(f"{op}: {first} is on {tensor.device} and {name} is {found}: move them to one device")


def result_for(op: str, out, shape: tuple[int, ...], near, dtypes: tuple[str, ...] = ("float32",)):
    """`out`, or a new tensor of the first dtype on the device of `near`. Raises UsageError unless out has one of the
    dtypes and that shape."""
    if out is None:
        preferred, *_ = dtypes
        return near.new_empty(shape, dtype=torch_dtype(preferred))
    out = tensor_of(op, "out", out)
    if kind(out) not in dtypes or tuple(out.shape) != tuple(shape):
        wanted = " or ".join(dict.fromkeys(dtypes))
        what = f"{kind(out)} {tuple(out.shape)}; a {wanted} tensor of shape {tuple(shape)} is wanted"
        raise UsageError(f"{op}: out is {what}")
    same_device(op, "out", out, input=near)
    return out


def overlaps(out, *inputs) -> bool:
    """True if `out` may share memory with one of the tensors."""
    return any(out.numel() and x.numel() and not _apart(out, x) for x in inputs)


def _apart(x, y) -> bool:
    """True if two tensors share no memory: by their addresses, otherwise by those of their storages, which takes three
    times as long. Arrays of other libraries have a storage per view."""
    if y.data_ptr() >= x.data_ptr() + x.nbytes and x.is_contiguous():
        return True
    if x.data_ptr() >= y.data_ptr() + y.nbytes and y.is_contiguous():
        return True
    one, other = x.untyped_storage(), y.untyped_storage()
    first, second = one.data_ptr(), other.data_ptr()
    return first + one.nbytes() <= second or second + other.nbytes() <= first


@cache
def nothing(device, rank: int):
    """An empty float32 tensor, made once for a device."""
    import torch

    return torch.empty((0,) * rank, device=device)


def moved(inputs: dict, device: str = "cuda") -> dict:
    """A case's inputs with their NumPy arrays as tensors on `device`, copied."""
    import torch

    return {
        name: torch.from_numpy(np.array(value, order="K")).to(device) if isinstance(value, np.ndarray) else value
        for name, value in inputs.items()
    }


@cache
def multiprocessors() -> int:
    """The number of multiprocessors of the first GPU. Three in the interpreter, so that programs process several tiles
    each."""
    return gpus()[0].multiprocessors if gpus() else 3
