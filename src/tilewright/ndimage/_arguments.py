"""scipy.ndimage's rules for arguments, and the exceptions that it raises if they are broken."""

import math
import numbers
import operator
import warnings
from collections.abc import Iterable

import numpy as np
from numpy.lib.array_utils import normalize_axis_index

from tilewright.errors import UsageError
from tilewright.ops.core.arrays import BFLOAT16, as_numpy
from tilewright.ops.core.gpu.tensors import on_gpu
from tilewright.ops.core.memory import empty
from tilewright.ops.correlate.operands import KINDS, MODES


def array_of(name: str, value) -> np.ndarray:
    """`value` as NumPy reads it; bfloat16 of any library is widened to float32, which is exact."""
    array = _unwidened(name, value)
    return array.astype(np.float32) if array.dtype == BFLOAT16 else array


def _unwidened(name: str, value) -> np.ndarray:
    """`value` as an array. Raises UsageError for an array on a GPU, and for a bfloat16 one that cannot be read."""
    if on_gpu(value):
        what = (
            f"tilewright.ndimage: {name} is on a GPU; `correlate` and `convolve` alone filter there, a float32 volume"
        )
        raise UsageError(what, remedy="copy it to the CPU: value.cpu() of torch, cupy.asnumpy(value)")
    return as_numpy(name, value) if "bfloat16" in str(getattr(value, "dtype", "")) else np.asarray(value)


def output_for(output, input: np.ndarray, *, to_complex: bool = False) -> np.ndarray:
    """The array to write to: `output` itself, or a new one with its dtype; None: with input's dtype.

    to_complex: the result is complex. Raises RuntimeError for another shape or a dtype that is not numeric, TypeError
    for something that is no dtype.
    """
    if output is None:
        return _new(input.shape, np.promote_types(input.dtype, np.complex64) if to_complex else input.dtype.name)
    if isinstance(output, type | np.dtype):
        if to_complex and np.dtype(output).kind != "c":
            warnings.warn("promoting specified output dtype to complex", stacklevel=3)
            output = np.promote_types(output, np.complex64)
        return _new(input.shape, output)
    if isinstance(output, str):
        dtype = np.dtype(output)
        if not issubclass(dtype.type, np.complexfloating if to_complex else np.number):
            raise RuntimeError(f"output must have {'complex' if to_complex else 'numeric'} dtype; it is {output!r}")
        return _new(input.shape, dtype)
    array = _unwidened("output", output)
    if array.shape != input.shape:
        raise RuntimeError(f"output shape not correct: it is {array.shape}, {input.shape} is wanted")
    if to_complex and array.dtype.kind != "c":
        raise RuntimeError(f"output must have complex dtype; it is {array.dtype}")
    return array


def _new(shape: tuple[int, ...], dtype) -> np.ndarray:
    """An array for results, which starts at a cache line. Its contents are undefined: a filter writes all elements."""
    kind = np.dtype(dtype)
    return empty(shape, kind) if kind.kind in "biufc" else np.zeros(shape, kind)


def as_bytes(output: np.ndarray) -> np.ndarray:
    """`output` for results of passes that other passes read. As in scipy.ndimage, bool becomes bytes between them."""
    return output.view(np.uint8) if output.dtype == bool else output


def settled(output: np.ndarray, result: np.ndarray) -> np.ndarray:
    """`output`, into which `result` is copied if it is another array."""
    if result is not output:
        output[...] = result
    return output


def per_axis(value, count: int) -> list:
    """`value` for each of `count` axes, or its items. Raises RuntimeError if there are more or fewer of them."""
    if isinstance(value, str) or not np.iterable(value):
        return [value] * count
    items = list(value)
    if len(items) != count:
        raise RuntimeError(f"sequence argument must have length equal to input rank: {len(items)} items, {count} axes")
    return items


def axis_of(axis, ndim: int) -> int:
    """A non-negative axis. Raises TypeError unless it is an integer, AxisError if there is no such axis."""
    return normalize_axis_index(operator.index(axis), ndim)


def axes_of(axes, ndim: int) -> tuple[int, ...]:
    """`axes` as non-negative numbers; None: all. Raises as `axis_of`, and ValueError for a repeated one."""
    if axes is None:
        return tuple(range(ndim))
    given = [axes] if np.isscalar(axes) else axes
    if not isinstance(given, Iterable):
        raise ValueError(f"axes is {axes!r}; an integer, integers, or None is wanted")
    numbers = tuple(axis_of(axis, ndim) for axis in given)
    if len(set(numbers)) < len(numbers):
        raise ValueError(f"axes must be unique; they are {axes!r}")
    return numbers


def check_origin(origin, taps: int) -> None:
    """Raise ValueError unless the kernel still covers its output."""
    least, most = -(taps // 2), (taps - 1) // 2
    if origin < least or origin > most:
        raise ValueError(f"Invalid origin: origin is {origin}; {least} to {most} for {taps} weights")


def turned(origin, taps: int):
    """The origin for a flipped kernel."""
    return -origin - (taps % 2 == 0)


def mode_of(mode) -> str:
    """The main name of `mode`. Raises RuntimeError for an unknown mode."""
    if not isinstance(mode, str) or mode not in MODES:
        raise RuntimeError(f"boundary mode not supported: {mode!r}; there are {', '.join(MODES)}")
    return MODES[mode]


def real_of(cval) -> float:
    """Raises TypeError unless it is a real number."""
    if isinstance(cval, str | bytes):
        raise TypeError(f"cval must be real number, not {type(cval).__name__}")
    return math.fsum([cval])  # accepts what C accepts: no strings, no arrays


def check_kinds(input: np.ndarray, output: np.ndarray) -> None:
    """Raise RuntimeError for a dtype that is not supported, ValueError for an output that cannot be written."""
    for array in (input, output):
        if array.dtype.name not in KINDS:
            raise RuntimeError(
                f"array type {array.dtype!r} not supported; there are {', '.join(KINDS)} and complex ones"
            )
    if not output.flags.writeable:
        raise ValueError("output array is read-only.")


def gaussian(sigma, order: int, truncate: float, radius: int | None) -> np.ndarray:
    """The weights that correlate with a Gaussian of sum 1, or with its derivative of that order, up to `radius`.

    radius: None for `truncate` standard deviations. Raises ValueError for a negative radius or order.
    """
    radius = int(truncate * float(sigma) + 0.5) if radius is None else radius
    if not isinstance(radius, numbers.Integral) or radius < 0:
        raise ValueError(f"radius is {radius!r}: it must be a nonnegative integer")
    if order < 0:
        raise ValueError(f"order must be non-negative; it is {order}")
    variance = sigma * sigma
    x = np.arange(-radius, radius + 1)
    density = np.exp(-0.5 / variance * x**2)
    density /= density.sum()
    if order == 0:
        return density[::-1]
    # a derivative is q * density: q' - q * x / variance as a matrix on the coefficients of q
    step = np.diag(np.arange(1, order + 1), 1) + np.diag(np.ones(order) / -variance, -1)
    q = np.zeros(order + 1)
    q[0] = 1
    for _ in range(order):
        q = step.dot(q)
    return ((x[:, None] ** np.arange(order + 1)).dot(q) * density)[::-1]
