"""The arrays of the public functions: what a caller may pass, and what a call returns."""

import math
import sys
from typing import Any, Protocol, TypeVar

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from tilewright.errors import ResourceError, UsageError, WrongType
from tilewright.ops.core.memory import empty

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
NO_NUMBERS = "OSU"  # kinds of dtypes: objects, bytes, text
Float32 = NDArray[np.float32]


class Tensor(Protocol):
    """An array of any library that supports DLPack: NumPy, PyTorch, CuPy, JAX."""

    def __dlpack__(self, *, stream: Any = None) -> Any: ...


T = TypeVar("T", bound=Tensor)  # the caller's kind of array


def as_numpy(name: str, value) -> np.ndarray:
    """`value` as a NumPy array, without a copy where possible: NumPy, DLPack, the buffer protocol, then lists.

    Raises UsageError naming the argument if it is none of these.
    """
    if isinstance(value, np.ndarray):
        return value
    try:
        if str(getattr(value, "dtype", "")).rpartition(".")[2] == "bfloat16":
            return _bfloat16(value)
        return np.from_dlpack(value) if hasattr(value, "__dlpack__") else np.asarray(value)
    except (TypeError, ValueError, BufferError, RuntimeError) as error:
        kind = WrongType if isinstance(error, TypeError) else UsageError
        raise kind(f"{name} is a {type(value).__name__} that NumPy cannot read: {error}") from error


def _bfloat16(value) -> np.ndarray:
    """Another library's bfloat16 array without a copy. NumPy's DLPack has no bfloat16: a torch tensor passes as int16.

    Other libraries, such as JAX, make a NumPy array of ml_dtypes' type themselves.
    """
    if hasattr(value, "data_ptr"):
        return np.from_dlpack(value.view(sys.modules["torch"].int16)).view(BFLOAT16)
    return np.asarray(value)


def like(caller, array: np.ndarray):
    """`array` as the caller's kind of array: for NumPy itself, for a DLPack array by its library's `from_dlpack`."""
    if isinstance(caller, np.ndarray) or not hasattr(caller, "__dlpack__"):
        return array
    library = sys.modules[type(caller).__module__.partition(".")[0]]
    return library.from_dlpack(array) if hasattr(library, "from_dlpack") else array


def as_float32(name: str, value) -> np.ndarray:
    """`value` as a float32 array, aligned, with strides in whole elements; bfloat16 is widened, which is exact.

    Raises UsageError for any other dtype: a silent conversion would hide a loss of accuracy.
    """
    array = as_numpy(name, value)
    if array.dtype == np.float32 and array.flags.carray:
        return array
    if array.dtype == BFLOAT16:
        return array.astype(np.float32)
    if array.dtype != np.float32:
        kind = WrongType if array.dtype.kind in NO_NUMBERS else UsageError
        raise kind(f"{name} is {array.dtype}; float32 or bfloat16 is wanted, convert it first")
    if not array.flags.aligned or any(stride % 4 for stride in array.strides):
        return np.ascontiguousarray(array)
    return array


def one_of(op: str, name: str, value, allowed):
    """`value` itself. Raises UsageError naming the operation and its argument unless it is one of `allowed`."""
    if value not in allowed:
        raise UsageError(f"{op}: {name} is {value!r}; it must be one of {', '.join(map(str, allowed))}")
    return value


def result_for(op: str, out, shape: tuple[int, ...], *, rounded: bool = False) -> np.ndarray:
    """`out`, or a new float32 array if it is None.

    rounded: out may be bfloat16. Raises UsageError unless out is a writeable float32 NumPy array of `shape`, and
    ResourceError if there is no memory for a new one.
    """
    if out is None:
        try:
            return empty(shape)
        except (MemoryError, ValueError) as error:  # ValueError: more bytes than an address can name
            raise ResourceError(f"{op}: memory does not hold a float32 result of shape {shape}") from error
    kinds = (np.dtype(np.float32), BFLOAT16) if rounded else (np.dtype(np.float32),)
    if not isinstance(out, np.ndarray) or out.dtype not in kinds or out.shape != shape or not out.flags.writeable:
        what = f"{out.dtype} {out.shape}" if isinstance(out, np.ndarray) else type(out).__name__
        wanted = " or ".join(kind.name for kind in kinds)
        refusal = UsageError if isinstance(out, np.ndarray) else WrongType
        raise refusal(f"{op}: out is {what}; a writeable {wanted} NumPy array of shape {shape} is wanted")
    return out


def target_for(out: np.ndarray, *inputs: np.ndarray, residual: np.ndarray | None = None) -> np.ndarray:
    """`out` if a kernel may write it while it reads the inputs, otherwise a new array, which the caller copies to out.

    A kernel may not write to an out that is misaligned, has strides of parts of an element (a field of a structured
    array), or overlaps the memory between the first and the last byte of an input. `out` may be exactly the residual:
    the same thread reads each element of it before it writes it.
    """
    unusable = not out.flags.aligned or any(stride % out.itemsize for stride in out.strides)
    if unusable or any(np.may_share_memory(out, array) for array in inputs) or _crosses(out, residual):
        return empty(out.shape, out.dtype)
    return out


def _crosses(out: np.ndarray, residual: np.ndarray | None) -> bool:
    """True if they share memory and are not the same view of it."""
    if residual is None or residual is out or not np.may_share_memory(out, residual):
        return False
    first, second = (array.__array_interface__["data"][0] for array in (out, residual))
    return (first, out.shape, out.strides) != (second, residual.shape, residual.strides)


def rows_for(out: np.ndarray) -> np.ndarray:
    """out (..., N) as (rows, N) with contiguous rows, for a kernel to write: a view, or a new array if the strides
    allow no view; `put_back` copies it."""
    if out.flags.c_contiguous:
        return out.reshape(math.prod(out.shape[:-1]), out.shape[-1])
    if out.ndim == 2 and out.strides[1] == out.itemsize:
        return out
    return empty((math.prod(out.shape[:-1]), out.shape[-1]), out.dtype)


def put_back(out: np.ndarray, target: np.ndarray) -> None:
    """Copy a `target` of `target_for` or `rows_for` to out, unless it is out's memory."""
    if target is not out and not np.may_share_memory(target, out):
        out[...] = target.reshape(out.shape)


def rounded(array: np.ndarray) -> np.ndarray:
    """float32 elements rounded to bfloat16 and widened again."""
    return array.astype(BFLOAT16).astype(np.float32)
