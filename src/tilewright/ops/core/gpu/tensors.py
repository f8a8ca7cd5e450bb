"""Torch tensors on a GPU, at the public door and behind it: what the operations' `device.py` share.

An operation's public function sends GPU tensors to the function of the same name in its `device.py`, which takes torch
tensors wherever they live: on the CPU its kernels run in numba-cuda's simulator or Triton's interpreter. Nothing here
imports torch before a caller has handed over a tensor, or asked for one.
"""

from functools import cache

import numpy as np

from tilewright.errors import UsageError
from tilewright.hardware import gpus

FLOATS = ("float32", "bfloat16", "float16")


def on_gpu(value) -> bool:
    """Whether it is a torch tensor on a GPU."""
    return bool(getattr(value, "is_cuda", False))


def kind(tensor) -> str:
    """The tensor's dtype by its NumPy name."""
    return str(tensor.dtype).removeprefix("torch.")


def torch_dtype(name: str):
    """The torch dtype in which operands of an accuracy class are kept: "tf32" is float32."""
    import torch

    return {"tf32": torch.float32, "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[name]


def tensor_of(op: str, name: str, value, dtypes: tuple[str, ...] = FLOATS):
    """The tensor itself. Raises UsageError unless it is a torch tensor of one of the dtypes."""
    if not hasattr(value, "data_ptr"):
        raise UsageError(f"{op}: {name} is a {type(value).__name__}; a torch tensor on the GPU is wanted")
    if kind(value) not in dtypes:
        raise UsageError(f"{op}: {name} is {kind(value)}; {', '.join(dtypes)} are taken, convert it first")
    return value


def same_device(op: str, first: str, tensor, **others) -> None:
    """Raises UsageError naming the argument that is not on the device of `tensor`, the argument `first`; None is."""
    for name, other in others.items():
        if other is not None and getattr(other, "device", None) != tensor.device:
            place = getattr(other, "device", f"a {type(other).__name__}")
            raise UsageError(f"{op}: {first} is on {tensor.device} and {name} is {place}: move them to one device")


def result_for(op: str, out, shape: tuple[int, ...], near, dtypes: tuple[str, ...] = ("float32",)):
    """`out`, or a new tensor of the first dtype on the device of `near`. Raises UsageError for an out that is not of
    one of the dtypes and of that shape."""
    if out is None:
        return near.new_empty(shape, dtype=torch_dtype(dtypes[0]))
    if kind(tensor_of(op, "out", out)) not in dtypes or tuple(out.shape) != tuple(shape):
        wanted = " or ".join(dict.fromkeys(dtypes))
        what = f"{kind(out)} {tuple(out.shape)}; a {wanted} tensor of shape {tuple(shape)} is wanted"
        raise UsageError(f"{op}: out is {what}")
    same_device(op, "out", out, input=near)
    return out


def overlaps(out, *inputs) -> bool:
    """Whether `out` shares memory with one of the tensors, as far as their storages tell."""
    here = out.untyped_storage().data_ptr()
    return any(out.numel() and x.numel() and x.untyped_storage().data_ptr() == here for x in inputs)


def moved(inputs: dict, device: str = "cuda") -> dict:
    """A case's inputs with their NumPy arrays as tensors on `device`, copied."""
    import torch

    return {
        name: torch.from_numpy(np.array(value, order="K")).to(device) if isinstance(value, np.ndarray) else value
        for name, value in inputs.items()
    }


@cache
def multiprocessors() -> int:
    """How many programs run side by side; in the interpreter, which has none, three, so that they take turns."""
    return gpus()[0].multiprocessors if gpus() else 3
