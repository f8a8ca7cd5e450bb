"""Correlation with a kernel in float64, for arrays of any dtype; `tilewright.ndimage` is built on it.

from tilewright.ops.correlate import correlate, correlate1d, uniform1d
y = correlate(volume, weights, mode="reflect")      # 1 to 4 dimensions, weights have as many; y has volume's dtype
correlate1d(x, [1, 2, 1], axis=0, out=x)            # in place
uniform1d(x, 9, axis=-1)                            # means of 9 neighbours, at the cost of 2
"""

import operator

import numpy as np

from tilewright.errors import ResourceError, UsageError
from tilewright.ops.core.arrays import as_numpy, like, one_of
from tilewright.ops.correlate.frame import AXES, axes_of
from tilewright.ops.correlate.ladder import ladder
from tilewright.ops.correlate.operands import KINDS, MODES, Edges, Taps, dense_taps, line_taps, mean_taps
from tilewright.ops.correlate.problem import Problem

__all__ = ["Problem", "correlate", "correlate1d", "ladder", "uniform1d"]


def correlate(x, weights, *, mode="constant", cval: float = 0.0, origin=0, out=None):
    """out[i] = sum over j of weights[j] * x[i + j - shape(weights) // 2 - origin], one index per axis; not flipped.

    x: bool, integers, float32 or float64, up to 4 dimensions (more where the kernel has an extent of 1), any strides.
    weights: real, as many dimensions as x, any size. mode: the border, scipy.ndimage's "reflect", "constant"
    (cval), "nearest", "mirror", "wrap" and their "grid-" names. mode, origin: one, or one per axis; origin is within
    -(K // 2) ... (K - 1) // 2. out: a NumPy array of x's shape and any such dtype; it may be x itself. Sums are
    float64, in C order of the taps that are not zero, as in scipy.ndimage. Returns out, or a new array of x's dtype;
    integers are truncated. Raises UsageError naming the argument that does not fit.
    """
    array, weights = as_numpy("x", x), _weights(weights)
    if weights.ndim != array.ndim or not weights.size:
        raise UsageError(
            f"correlate: weights has shape {weights.shape} and x {array.shape}; as many dimensions are wanted"
        )
    edges = _edges(array, weights.shape, mode, origin, cval)
    return like(x, _run(array, dense_taps(weights), edges, out))


def correlate1d(x, weights, axis: int = -1, *, mode="constant", cval: float = 0.0, origin: int = 0, out=None):
    """`correlate` with a kernel along one axis: weights (K,). The sum runs in scipy.ndimage.correlate1d's order.

    Symmetric and antisymmetric kernels of odd size add two elements before they multiply.
    """
    array, weights = as_numpy("x", x), _weights(weights)
    if weights.ndim != 1 or not weights.size:
        raise UsageError(f"correlate1d: weights has shape {weights.shape}; (K,) is wanted, K at least 1")
    axis = _axis("correlate1d", axis, array.ndim)
    return like(x, _run_line(array, line_taps(weights, axis, array.ndim), axis, (mode, cval, origin), out))


def uniform1d(x, size: int, axis: int = -1, *, mode="constant", cval: float = 0.0, origin: int = 0, out=None):
    """The mean of `size` neighbours along an axis, as a running sum in float64. The rest is as in `correlate1d`.

    A NaN or an infinity stays in the sum to the end of its line, or of its tile if the line is long.
    """
    array = as_numpy("x", x)
    axis = _axis("uniform1d", axis, array.ndim)
    number = _integer("uniform1d", "size", size)
    if number < 1:
        raise UsageError(f"uniform1d: size is {number}; at least 1 is wanted")
    return like(x, _run_line(array, mean_taps(number, axis, array.ndim), axis, (mode, cval, origin), out, mean=True))


def _run_line(array, taps: Taps, axis: int, border: tuple, out, mean: bool = False) -> np.ndarray:
    mode, cval, origin = border
    origins = [0] * array.ndim
    origins[axis] = origin
    return _run(array, taps, _edges(array, taps.window, mode, origins, cval), out, mean=mean)


def _run(x: np.ndarray, taps: Taps, edges: Edges, out, *, mean: bool = False) -> np.ndarray:
    """Run the chosen rung on native arrays that share no memory, or are the same view of it."""
    result = _result(x, out)
    if not result.size:
        return result
    if not x.dtype.isnative:
        x = x.astype(x.dtype.newbyteorder("="))
    if x.dtype.name not in KINDS:
        raise UsageError(f"correlate: x is {x.dtype}; one of {', '.join(KINDS)} is wanted")
    writable = _view(x) == _view(result) or not np.may_share_memory(x, result)
    target = result if writable and result.dtype.isnative else np.empty(result.shape, result.dtype.newbyteorder("="))
    _over_axes(ladder.choose(Problem(len(taps.weights), mean, len(taps.partners) > 0)), x, taps, edges, target)
    if target is not result:
        result[...] = target
    return result


def _over_axes(rung, x: np.ndarray, taps: Taps, edges: Edges, out: np.ndarray) -> None:
    """Run the rung, once per index of axes that kernels have no loop for and along which the kernel's extent is 1."""
    if len(axes_of(x, out, taps.window)) <= AXES:
        rung.run(x, taps, edges, out)
        return
    free = [axis for axis in range(x.ndim) if taps.window[axis] == 1 and x.shape[axis] > 1]
    if not free:
        raise UsageError(
            f"correlate: x has shape {x.shape} and the kernel {taps.window}; at most {AXES} extents above 1 are allowed"
        )
    axis = min(free, key=lambda axis: x.shape[axis])
    for index in range(x.shape[axis]):
        at = (slice(None),) * axis + (index,)
        _over_axes(rung, x[at], taps.without(axis), edges.without(axis), out[at])


def _view(array: np.ndarray) -> tuple:
    """Equal for two arrays that are the same view of memory."""
    return array.__array_interface__["data"][0], array.shape, array.strides, array.dtype


def _result(x: np.ndarray, out) -> np.ndarray:
    if out is None:
        try:
            return np.empty(x.shape, x.dtype.newbyteorder("="))
        except MemoryError as error:
            raise ResourceError(f"correlate: memory does not hold a {x.dtype} result of shape {x.shape}") from error
    fits = isinstance(out, np.ndarray) and out.shape == x.shape and out.dtype.name in KINDS and out.flags.writeable
    if not fits:
        what = f"{out.dtype} {out.shape}" if isinstance(out, np.ndarray) else type(out).__name__
        raise UsageError(f"correlate: out is {what}; a writeable array of numbers of shape {x.shape} is wanted")
    return out


def _weights(weights) -> np.ndarray:
    array = as_numpy("weights", weights)
    if array.dtype.kind not in "biuf":
        raise UsageError(f"correlate: weights is {array.dtype}; real numbers are wanted")
    return array.astype(np.float64)


def _edges(x: np.ndarray, window: tuple[int, ...], mode, origin, cval) -> Edges:
    modes = [mode] * x.ndim if isinstance(mode, str) else list(mode)
    origins = list(origin) if np.iterable(origin) else [origin] * x.ndim
    for name, values in (("mode", modes), ("origin", origins)):
        if len(values) != x.ndim:
            raise UsageError(f"correlate: {name} has {len(values)} entries; x has {x.ndim} dimensions")
    for value in modes:
        one_of("correlate", "mode", value, MODES)
    numbers = [_integer("correlate", "origin", value) for value in origins]
    for number, taps in zip(numbers, window, strict=True):
        if not -(taps // 2) <= number <= (taps - 1) // 2:
            raise UsageError(
                f"correlate: origin is {number}; {-(taps // 2)} to {(taps - 1) // 2} is wanted for {taps} taps"
            )
    return Edges(tuple(modes), tuple(numbers), float(cval))


def _axis(op: str, axis, ndim: int) -> int:
    number = _integer(op, "axis", axis)
    if not -ndim <= number < ndim:
        raise UsageError(f"{op}: axis is {number}; x has {ndim} dimensions")
    return number % ndim


def _integer(op: str, name: str, value) -> int:
    try:
        return operator.index(value)
    except TypeError as error:
        raise UsageError(f"{op}: {name} is {value!r}; an integer is wanted") from error
