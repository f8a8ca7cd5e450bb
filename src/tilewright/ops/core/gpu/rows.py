"""Torch tensors of an operation on rows, or on single elements: checked and prepared for a kernel."""

from functools import cache

import numpy as np

from tilewright.ops.core.arrays import BFLOAT16
from tilewright.ops.core.gpu.tensors import FLOATS, moved, result_for, torch_dtype

ALIGNMENT = 16  # bytes that a thread loads at once; for others Triton would split a row, and so its sums, differently
SHORT = {"bfloat16": BFLOAT16, "float16": np.dtype(np.float16)}


@cache
def class_of(*kinds: str) -> str:
    """The accuracy class of a call whose arrays have these dtypes: the first of 16 bits, otherwise float32."""
    return next((name for name in kinds if name != "float32"), "float32")


@cache
def _kinds() -> dict:
    """torch dtype -> its NumPy name, for the dtypes that are accepted: a dictionary is faster than `kind`."""
    return {torch_dtype(name): name for name in FLOATS}


def usable_as_given(x, out, *vectors) -> bool:
    """True for the tensors of nearly every call, which need no further check.

    They have float dtypes, are on one device, contiguous and aligned. `out` has x's shape, and is x itself or shares no
    memory with it. Each vector is as long as x's rows.
    """
    kinds = _kinds()
    if getattr(x, "dtype", None) not in kinds:
        return False
    device, row = x.get_device(), x.shape[-1:]
    for tensor in (x, out, *vectors):
        if getattr(tensor, "dtype", None) not in kinds or tensor.get_device() != device:
            return False
        if tensor.data_ptr() % ALIGNMENT or not tensor.is_contiguous():
            return False
    for vector in vectors:
        if vector.shape != row:
            return False
    return x.shape == out.shape and (_same_memory(x, out) or _apart(x, out))


def kinds_of(*tensors) -> str:
    """`class_of` tensors."""
    kinds = _kinds()
    return class_of(*[kinds[tensor.dtype] for tensor in tensors])


def with_target(op: str, x, out):
    """(x, result, target): x contiguous; the tensor that the caller gets; the tensor that a kernel writes.

    The target is the result, or a new tensor that must be copied to it: a kernel may write to exactly the memory that
    it reads, not to a part of it. Raises UsageError for an out that does not fit.
    """
    result = result_for(op, out, x.shape, x, FLOATS)
    x = ready(x)
    usable = out is None or (_same_memory(x, result) and _ready(out)) or writable(out, x)
    return x, result, result if usable else result.new_empty(result.shape)


def writable(out, *inputs) -> bool:
    """True if a kernel may write to `out` while it reads the inputs, which are `ready`."""
    return _ready(out) and all(_apart(x, out) for x in inputs)


def as_rows(x, C: int):
    """A contiguous tensor (..., C) as (rows, C): itself if it has this shape."""
    return x if x.ndim == 2 else x.view(-1, C)


def ready(x):
    """x itself if it is contiguous and aligned, otherwise a copy that is."""
    import torch

    return x if _ready(x) else x.clone(memory_format=torch.contiguous_format)


def shortened(array: np.ndarray, dtype: str) -> np.ndarray:
    """float32 elements rounded in place to a class of 16 bits, which may make them infinite; float32 is unchanged."""
    if dtype in SHORT:
        with np.errstate(over="ignore"):
            array[...] = array.astype(SHORT[dtype])
    return array


def tensors_of(case, inputs: dict, device: str, *names: str) -> dict:
    """A case's inputs on a device; the inputs in `names` have the dtype of the class, if it has 16 bits."""
    values = moved(inputs, device)
    for name in names if case.dtype in SHORT else ():
        if name in values:
            values[name] = values[name].to(torch_dtype(case.dtype))
    return values


def _ready(x) -> bool:
    return x.data_ptr() % ALIGNMENT == 0 and x.is_contiguous()


def _same_memory(x, out) -> bool:
    return x.data_ptr() == out.data_ptr() and x.dtype == out.dtype


def _apart(x, out) -> bool:
    """True if two contiguous tensors have no byte in common."""
    first, second = x.data_ptr(), out.data_ptr()
    return first + x.nbytes <= second or second + out.nbytes <= first
