"""Arrays at the public door: what a caller may pass, and what he gets back."""

import math
import sys

import ml_dtypes
import numpy as np

from tilewright.errors import ResourceError, UsageError
from tilewright.ops.core.memory import empty

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def as_numpy(name: str, value) -> np.ndarray:
    """`value` as a NumPy array without a copy where its memory allows: NumPy, DLPack, the buffer protocol, then lists.

    Raises UsageError naming the argument if it is none of these.
    """
    if isinstance(value, np.ndarray):
        return value
    try:
        if str(getattr(value, "dtype", "")).rpartition(".")[2] == "bfloat16":
            return _bfloat16(value)
        return np.from_dlpack(value) if hasattr(value, "__dlpack__") else np.asarray(value)
    except (TypeError, ValueError, BufferError, RuntimeError) as error:
        raise UsageError(f"{name} is a {type(value).__name__} that NumPy cannot read: {error}") from error


def _bfloat16(value) -> np.ndarray:
    """Another library's bfloat16 array on its own memory: NumPy's DLPack has no such type, so torch's passes as int16.

    Others, as JAX's, make a NumPy array of ml_dtypes' type themselves.
    """
    if hasattr(value, "data_ptr"):
        return np.from_dlpack(value.view(sys.modules["torch"].int16)).view(BFLOAT16)
    return np.asarray(value)


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
    if array.dtype == np.float32 and array.flags.carray:
        return array
    if array.dtype == BFLOAT16:
        return array.astype(np.float32)
    if array.dtype != np.float32:
        raise UsageError(f"{name} is {array.dtype}; float32 or bfloat16 is wanted, convert it first")
    if not array.flags.aligned or any(stride % 4 for stride in array.strides):
        return np.ascontiguousarray(array)
    return array


def one_of(op: str, name: str, value, allowed):
    """`value` itself. Raises UsageError naming the operation and its argument unless it is one of `allowed`."""
    if value not in allowed:
        raise UsageError(f"{op}: {name} is {value!r}; it must be one of {', '.join(map(str, allowed))}")
    return value


def result_for(op: str, out, shape: tuple[int, ...], *, rounded: bool = False) -> np.ndarray:
    """`out`, or a new float32 array where it is None.

    rounded: out may be bfloat16. Raises UsageError unless it is a writeable float32 NumPy array of `shape`,
    ResourceError if memory holds no new one.
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
        raise UsageError(f"{op}: out is {what}; a writeable {wanted} NumPy array of shape {shape} is wanted")
    return out


def target_for(out: np.ndarray, *inputs: np.ndarray, residual: np.ndarray | None = None) -> np.ndarray:
    """`out` where a kernel may write it while it reads the inputs, else a new array, which the caller copies to out.

    A kernel may not where out is misaligned or steps by parts of an element (a field of a structured array), or where
    its memory lies between the first and the last byte of an input. It may be exactly the residual: each element of
    that is read before it is written, and by the same thread.
    """
    beside = not out.flags.aligned or any(stride % out.itemsize for stride in out.strides)
    if beside or any(np.may_share_memory(out, array) for array in inputs) or _crosses(out, residual):
        return empty(out.shape, out.dtype)
    return out


def _crosses(out: np.ndarray, residual: np.ndarray | None) -> bool:
    """They share memory, and are not one and the same view of it."""
    if residual is None or residual is out or not np.may_share_memory(out, residual):
        return False
    here, there = (array.__array_interface__["data"][0] for array in (out, residual))
    return (here, out.shape, out.strides) != (there, residual.shape, residual.strides)


def rows_for(out: np.ndarray) -> np.ndarray:
    """out (..., N) as (rows, N) with contiguous rows, for a kernel to write: a view, or a new array where the strides
    allow none; `put_back` copies that."""
    if out.flags.c_contiguous:
        return out.reshape(math.prod(out.shape[:-1]), out.shape[-1])
    if out.ndim == 2 and out.strides[1] == out.itemsize:
        return out
    return empty((math.prod(out.shape[:-1]), out.shape[-1]), out.dtype)


def put_back(out: np.ndarray, target: np.ndarray) -> None:
    """Copy `target` to out unless it is its memory already; it came from `target_for` or `rows_for`."""
    if target is not out and not np.may_share_memory(target, out):
        out[...] = target.reshape(out.shape)


def rounded(array: np.ndarray) -> np.ndarray:
    """float32 numbers rounded to bfloat16 and widened again."""
    return array.astype(BFLOAT16).astype(np.float32)
