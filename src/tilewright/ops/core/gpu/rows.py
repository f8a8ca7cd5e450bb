"""Torch tensors that an operation on rows, or on single elements, takes: checked, and laid out for a kernel."""

from functools import cache

import numpy as np

from tilewright.ops.core.arrays import BFLOAT16
from tilewright.ops.core.gpu.tensors import FLOATS, moved, result_for, torch_dtype

ALIGNMENT = 16  # bytes that a thread loads at once; elsewhere Triton would cut a row, and so its sums, in another way
SHORT = {"bfloat16": BFLOAT16, "float16": np.dtype(np.float16)}


@cache
def class_of(*kinds: str) -> str:
    """The accuracy class of a call whose arrays have these dtypes: the first of 16 bits, else float32."""
    return next((name for name in kinds if name != "float32"), "float32")


@cache
def _kinds() -> dict:
    """torch dtype -> its NumPy name, for the dtypes that are taken: a dictionary is faster than `kind`."""
    return {torch_dtype(name): name for name in FLOATS}


def plain(x, out, *vectors) -> bool:
    """Whether the tensors are what nearly every call brings, so that nothing else need be asked: of the three dtypes,
    on one device, contiguous and aligned; out of x's shape, over x or apart from it; vectors as long as x's rows."""
    kinds = _kinds()
    if getattr(x, "dtype", None) not in kinds:
        return False
    place, row = x.get_device(), x.shape[-1:]
    for tensor in (x, out, *vectors):
        if getattr(tensor, "dtype", None) not in kinds or tensor.get_device() != place:
            return False
        if tensor.data_ptr() % ALIGNMENT or not tensor.is_contiguous():
            return False
    for vector in vectors:
        if vector.shape != row:
            return False
    if x.shape != out.shape:
        return False
    return (x.data_ptr() == out.data_ptr() and x.dtype == out.dtype) or _apart(x, out)


def kinds_of(*tensors) -> str:
    """`class_of` tensors."""
    kinds = _kinds()
    return class_of(*[kinds[tensor.dtype] for tensor in tensors])


def placed(op: str, x, out):
    """(x, result, target): x contiguous, what the caller gets, and where a kernel may write it: the result itself, or
    a new tensor, which `put_back` copies.

    A kernel may write over exactly what it reads, not over a part of it. Raises UsageError for an out that does not
    fit.
    """
    result = result_for(op, out, x.shape, x, FLOATS)
    x = ready(x)
    same = x.data_ptr() == result.data_ptr() and x.dtype == result.dtype
    usable = out is None or (same and _simple(out)) or writable(out, x)
    return x, result, result if usable else result.new_empty(result.shape)


def writable(out, *inputs) -> bool:
    """Whether a kernel may write to `out` while it reads the inputs, which are `ready`."""
    return _simple(out) and all(_apart(x, out) for x in inputs)


def as_rows(x, C: int):
    """A contiguous tensor (..., C) as (rows, C): itself where it is that."""
    return x if x.ndim == 2 else x.view(-1, C)


def put_back(result, target):
    """The result, its numbers in it."""
    return result if target is result else result.copy_(target)


def ready(x):
    """x itself where it is contiguous and aligned, else a copy that is."""
    import torch

    return x if _simple(x) else x.clone(memory_format=torch.contiguous_format)


def shortened(array: np.ndarray, dtype: str) -> np.ndarray:
    """float32 numbers as those of a class, in place: rounded where it has 16 bits, which may make them infinite."""
    if dtype in SHORT:
        with np.errstate(over="ignore"):
            array[...] = array.astype(SHORT[dtype])
    return array


def tensors_of(case, inputs: dict, device: str, *names: str) -> dict:
    """A case's inputs on a device, those named in the class's 16-bit dtype, if it has one."""
    values = moved(inputs, device)
    for name in names if case.dtype in SHORT else ():
        if name in values:
            values[name] = values[name].to(torch_dtype(case.dtype))
    return values


def _simple(x) -> bool:
    return x.is_contiguous() and x.data_ptr() % ALIGNMENT == 0


def _apart(x, out) -> bool:
    """Whether two contiguous tensors have no byte in common."""
    first, second = x.data_ptr(), out.data_ptr()
    return first + x.nbytes <= second or second + out.nbytes <= first
