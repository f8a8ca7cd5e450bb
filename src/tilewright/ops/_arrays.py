"""Arrays at the public door: what a caller may pass, and what he gets back."""

import sys

import ml_dtypes
import numpy as np

from tilewright.errors import UsageError

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def as_numpy(name: str, value) -> np.ndarray:
    """`value` as a NumPy array without a copy where its memory allows: NumPy, DLPack, the buffer protocol, then lists.

    Raises UsageError naming the argument if it is none of these.
    """
    if isinstance(value, np.ndarray):
        return value
    try:
        return np.from_dlpack(value) if hasattr(value, "__dlpack__") else np.asarray(value)
    except (TypeError, ValueError, BufferError, RuntimeError) as error:
        raise UsageError(f"{name} is a {type(value).__name__} that NumPy cannot read: {error}") from error


def like(caller, array: np.ndarray):
    """`array` as the caller's kind of array: NumPy stays, a DLPack array goes back through its library's
    `from_dlpack`."""
    if isinstance(caller, np.ndarray) or not hasattr(caller, "__dlpack__"):
        return array
    library = sys.modules[type(caller).__module__.partition(".")[0]]
    return library.from_dlpack(array) if hasattr(library, "from_dlpack") else array


def as_float32(name: str, value) -> np.ndarray:
    """float32 array, aligned, strides in whole elements; bfloat16 is widened, which is exact.

    Raises UsageError for any other dtype: a silent conversion would hide where the accuracy went.
    """
    array = as_numpy(name, value)
    if array.dtype == BFLOAT16:
        return array.astype(np.float32)
    if array.dtype != np.float32:
        raise UsageError(f"{name} is {array.dtype}; float32 or bfloat16 is wanted, convert it first")
    if not array.flags.aligned or any(stride % 4 for stride in array.strides):
        return np.ascontiguousarray(array)
    return array


def rounded(array: np.ndarray) -> np.ndarray:
    """float32 numbers rounded to bfloat16 and widened again."""
    return array.astype(BFLOAT16).astype(np.float32)
