"""scipy.ndimage's linear filters with tilewright's kernels. Change the import and keep the calls.

import tilewright.ndimage as ndi
ndi.gaussian_filter(volume, sigma=2)
ndi.correlate(image, weights, mode="nearest", output=np.int16)

Signatures, modes, dtypes of results and types of exceptions are those of scipy 1.17. Sums are float64 in scipy's order,
so that results have scipy's bits, with three exceptions. First, float32 volumes that stay float32 are filtered by
`tilewright.ops.conv3d` in float32: within c * eps32 * sqrt(taps) * (|input| corr |weights|). Second, weights below
2.2e-16 count, while scipy.ndimage treats them as zeros; NaN among the weights gives NaN. Third, in long lines the
running sum of `uniform_filter` is computed anew from time to time. An output may share memory with the input in any
way. Up to four dimensions are filtered at once; there may be more if the kernel has the size 1 along them. bfloat16, as
an array of NumPy or a torch tensor on the CPU, counts as float32.

`tilewright convolve` is the job of the same filters for volumes on disk, larger than memory. Its names gaussian, box,
laplace and sobel are `gaussian_filter`, `uniform_filter`, `laplace` and `sobel` here, with the same default mode,
"reflect". There a kernel from a file is not flipped, as in `correlate`, and zeros are outside the volume unless --mode
chooses another border. `convolve` here flips the kernel. The job computes and writes floats; here a result has the
input's dtype.

Source: the algorithms and argument rules of scipy.ndimage (P. Verveer and others), written anew.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from tilewright.ndimage._arguments import (
    array_of,
    as_bytes,
    axes_of,
    axis_of,
    check_origin,
    gaussian,
    output_for,
    per_axis,
    settled,
    turned,
)
from tilewright.ndimage._kernels import by_parts, filter_chain, filter_cross, filter_dense, filter_line, filter_mean
from tilewright.ndimage._tensors import filter_tensor, turned_tensor
from tilewright.ops.core.gpu.tensors import on_gpu

__all__ = [
    "convolve",
    "convolve1d",
    "correlate",
    "correlate1d",
    "gaussian_filter",
    "gaussian_filter1d",
    "gaussian_laplace",
    "laplace",
    "prewitt",
    "sobel",
    "uniform_filter",
    "uniform_filter1d",
]


def __dir__() -> list[str]:
    return sorted(__all__)


T = TypeVar("T")
Each: TypeAlias = "T | Sequence[T]"  # one for all axes, or one per axis
Output: TypeAlias = "DTypeLike | NDArray[Any] | None"


def correlate1d(
    input: ArrayLike,
    weights: ArrayLike,
    axis: int = -1,
    output: Output = None,
    mode: str = "reflect",
    cval: complex = 0.0,
    origin: int = 0,
) -> NDArray[Any]:
    """Correlation along one axis with weights (K,), real or complex, of any size.

    input: array of bool, integers, float32, float64 or their complex kinds. output: None for input's dtype, a dtype, or
    an array to write to. mode: "reflect", "constant" (cval), "nearest", "mirror", "wrap", "grid-mirror",
    "grid-constant" or "grid-wrap". origin: -(K // 2) to (K - 1) // 2, how far the kernel is moved to the left.
    Returns the output array. Raises RuntimeError, ValueError or TypeError where scipy.ndimage does.
    """
    input, weights = array_of("input", input), array_of("weights", weights)
    if "c" in (input.dtype.kind, weights.dtype.kind):
        weights = weights.conj().astype(np.complex128) if weights.dtype.kind == "c" else weights
        output = output_for(output, input, to_complex=True)
        return by_parts(correlate1d, input, weights, output, cval, axis=axis, mode=mode, origin=origin)
    output = output_for(output, input)
    weights = np.asarray(weights, np.float64)
    if weights.ndim != 1 or not weights.size:
        raise RuntimeError(f"weights has shape {weights.shape}; (K,) is wanted, K at least 1: no filter weights given")
    axis = axis_of(axis, input.ndim)
    check_origin(origin, len(weights))
    filter_line(input, weights, axis, output, mode, cval, origin)
    return output


def convolve1d(
    input: ArrayLike,
    weights: ArrayLike,
    axis: int = -1,
    output: Output = None,
    mode: str = "reflect",
    cval: complex = 0.0,
    origin: int = 0,
) -> NDArray[Any]:
    """`correlate1d` with the flipped kernel."""
    weights = array_of("weights", weights)[::-1]
    weights = weights.conj() if weights.dtype.kind == "c" else weights
    return correlate1d(input, weights, axis, output, mode, cval, turned(origin, len(weights)))


def correlate(
    input: ArrayLike,
    weights: ArrayLike,
    output: Output = None,
    mode: Each[str] = "reflect",
    cval: complex = 0.0,
    origin: Each[int] = 0,
    *,
    axes: int | Sequence[int] | None = None,
) -> Any:
    """Correlation with weights that have as many dimensions as input, or as there are `axes`.

    axes: the axes of the kernel; None: all. origin: one, or one per axis. mode: one for all axes. The rest is as in
    `correlate1d`. A float32 volume (D, H, W) may be a torch tensor on a GPU, and so may weights and output. It is then
    filtered there, in float32.
    """
    if on_gpu(input):
        return filter_tensor(input, weights, output, mode, cval, origin, axes)
    return _filter_all(input, weights, output, mode, cval, origin, False, axes)


def convolve(
    input: ArrayLike,
    weights: ArrayLike,
    output: Output = None,
    mode: Each[str] = "reflect",
    cval: complex = 0.0,
    origin: Each[int] = 0,
    *,
    axes: int | Sequence[int] | None = None,
) -> Any:
    """`correlate` with the kernel flipped along every axis."""
    if on_gpu(input):
        weights, origins = turned_tensor(weights, origin)
        return filter_tensor(input, weights, output, mode, cval, origins, axes)
    return _filter_all(input, weights, output, mode, cval, origin, True, axes)


def gaussian_filter1d(
    input: ArrayLike,
    sigma: float,
    axis: int = -1,
    order: int = 0,
    output: Output = None,
    mode: str = "reflect",
    cval: complex = 0.0,
    truncate: float = 4.0,
    *,
    radius: int | None = None,
) -> NDArray[Any]:
    """Correlation along one axis with a Gaussian of standard deviation `sigma`, or with its derivative of that order.

    sigma: in voxels (elements of the array), not in millimetres: divide a length by the voxel size. The kernel ends at
    `truncate` standard deviations, or at `radius` elements on each side. The rest is as in `correlate1d`.
    """
    weights = gaussian(sigma, order, truncate, radius)
    return correlate1d(input, weights, axis, output, mode, cval, 0)


def gaussian_filter(
    input: ArrayLike,
    sigma: Each[float],
    order: Each[int] = 0,
    output: Output = None,
    mode: Each[str] = "reflect",
    cval: complex = 0.0,
    truncate: float = 4.0,
    *,
    radius: Each[int] | None = None,
    axes: int | Sequence[int] | None = None,
) -> NDArray[Any]:
    """Gaussian along each of `axes`: `gaussian_filter1d` for one axis after another, each result in the output's dtype.

    sigma, order, mode, radius: one, or one for each of the axes. sigma is in voxels, not in millimetres: divide a
    length by the voxel size. An axis with sigma 0 is not filtered.
    """
    input = array_of("input", input)
    output = output_for(output, input)
    axes = axes_of(axes, input.ndim)
    given = (per_axis(value, len(axes)) for value in (sigma, order, mode, radius))
    steps = [step for step in zip(axes, *given, strict=True) if step[1] > 1e-15]
    passes = [(axis, gaussian(sigma, order, truncate, radius), mode) for axis, sigma, order, mode, radius in steps]
    return filter_chain(correlate1d, input, passes, output, cval)


def uniform_filter1d(
    input: ArrayLike,
    size: int,
    axis: int = -1,
    output: Output = None,
    mode: str = "reflect",
    cval: complex = 0.0,
    origin: int = 0,
) -> NDArray[Any]:
    """The mean of `size` neighbours, in voxels, along one axis. The rest is as in `correlate1d`."""
    input = array_of("input", input)
    axis = axis_of(axis, input.ndim)
    if size < 1:
        raise RuntimeError(f"incorrect filter size: size is {size}, at least 1 is wanted")
    is_complex = input.dtype.kind == "c"
    output = output_for(output, input, to_complex=is_complex)
    if not 0 <= size // 2 + origin < size:
        raise ValueError(
            f"invalid origin: origin is {origin}, {-(size // 2)} to {(size - 1) // 2} for a size of {size}"
        )
    size, origin = operator.index(size), operator.index(origin)
    if is_complex:
        filter_mean(input.real, size, axis, output.real, mode, np.real(cval), origin)
        filter_mean(input.imag, size, axis, output.imag, mode, np.imag(cval), origin)
    else:
        filter_mean(input, size, axis, output, mode, cval, origin)
    return output


def uniform_filter(
    input: ArrayLike,
    size: Each[int] = 3,
    output: Output = None,
    mode: Each[str] = "reflect",
    cval: complex = 0.0,
    origin: Each[int] = 0,
    *,
    axes: int | Sequence[int] | None = None,
) -> NDArray[Any]:
    """The mean over a box: `uniform_filter1d` along each of `axes`, each result in the output's dtype.

    size, mode, origin: one, or one for each of the axes. size is in voxels; an axis with size 1 is not filtered.
    """
    input = array_of("input", input)
    output = output_for(output, input, to_complex=input.dtype.kind == "c")
    axes = axes_of(axes, input.ndim)
    given = (per_axis(value, len(axes)) for value in (size, origin, mode))
    steps = [step for step in zip(axes, *given, strict=True) if step[1] > 1]
    between = as_bytes(output)
    for axis, extent, shift, border in steps:
        uniform_filter1d(input, int(extent), axis, between, border, cval, shift)
        input = between
    return settled(output, input)


def prewitt(
    input: ArrayLike, axis: int = -1, output: Output = None, mode: Each[str] = "reflect", cval: complex = 0.0
) -> NDArray[Any]:
    """The difference of neighbours along `axis`, summed over three neighbours along the others."""
    return _edge(input, axis, output, mode, cval, [1, 1, 1])


def sobel(
    input: ArrayLike, axis: int = -1, output: Output = None, mode: Each[str] = "reflect", cval: complex = 0.0
) -> NDArray[Any]:
    """The difference of neighbours along `axis`, smoothed by [1, 2, 1] along the others."""
    return _edge(input, axis, output, mode, cval, [1, 2, 1])


def laplace(
    input: ArrayLike,
    output: Output = None,
    mode: Each[str] = "reflect",
    cval: complex = 0.0,
    *,
    axes: int | Sequence[int] | None = None,
) -> NDArray[Any]:
    """The sum of second differences [1, -2, 1] along each of `axes`; mode: one, or one for each of them."""

    input = array_of("input", input)
    output = output_for(output, input)
    axes = axes_of(axes, input.ndim)
    modes = per_axis(mode, len(axes)) if axes else []

    def second_difference(input, axis, output, mode):
        return correlate1d(input, [1, -2, 1], axis, output, mode, cval, 0)

    def one_by_one(out):
        return _sum_along(second_difference, input, axes, modes, out)

    return filter_cross([1, -2, 1], input, axes, modes, output, cval, one_by_one)


def gaussian_laplace(
    input: ArrayLike,
    sigma: Each[float],
    output: Output = None,
    mode: Each[str] = "reflect",
    cval: complex = 0.0,
    *,
    axes: int | Sequence[int] | None = None,
    **kwargs: Any,
) -> NDArray[Any]:
    """The sum of a Gaussian's second derivatives along each of `axes`. sigma: in voxels, one, or one for each axis.
    kwargs are passed to `gaussian_filter`."""
    input = array_of("input", input)
    chosen = axes_of(axes, input.ndim)
    sigmas = per_axis(sigma, len(chosen))  # where all axes are named, scipy goes by the array's order
    if len(chosen) < input.ndim:
        sigmas = [dict(zip(chosen, sigmas, strict=True)).get(axis, 0) for axis in range(input.ndim)]

    def second_derivative(input, axis, output, mode):
        order = [2 if a == axis else 0 for a in range(input.ndim)]
        return gaussian_filter(input, sigmas, order, output, mode, cval, **kwargs)

    output = output_for(output, input)
    return _sum_along(second_derivative, input, chosen, per_axis(mode, len(chosen)) if chosen else [], output)


def _edge(input, axis, output, mode, cval, smooth):
    input = array_of("input", input)
    axis = axis_of(axis, input.ndim)
    output = output_for(output, input)
    modes = per_axis(mode, input.ndim)
    others = [(other, smooth, modes[other]) for other in range(input.ndim) if other != axis]
    return filter_chain(correlate1d, input, [(axis, [-1, 0, 1], modes[axis]), *others], output, cval)


def _sum_along(derivative, input, axes, modes, output):
    """derivative(input, axis, output, mode) along each axis, summed in the output's dtype."""
    if not axes:
        return settled(output, input)
    source = input.copy() if len(axes) > 1 and np.may_share_memory(input, output) else input
    derivative(source, axes[0], output, modes[0])
    for axis, mode in zip(axes[1:], modes[1:], strict=True):
        output += derivative(source, axis, output.dtype, mode)
    return output


def _filter_all(input, weights, output, mode, cval, origin, turn: bool, axes):
    """`correlate`, or `convolve` if `turn`."""
    input, weights = array_of("input", input), array_of("weights", weights)
    if "c" in (input.dtype.kind, weights.dtype.kind):
        weights = weights.conj() if weights.dtype.kind == "c" and not turn else weights
        output = output_for(output, input, to_complex=True)

        def filter_part(input, weights, output, cval):
            return _filter_all(input, weights, output, mode, cval, origin, turn, axes)

        return by_parts(filter_part, input, weights, output, cval)
    axes = axes_of(axes, input.ndim)
    weights = np.asarray(weights, np.float64)
    if weights.ndim != len(axes) or not weights.size:
        raise RuntimeError(
            f"weights has shape {weights.shape}; as many dimensions as axes, {len(axes)}, are wanted, none empty"
        )
    named = axes if len(axes) < input.ndim else range(input.ndim)  # all of them: scipy goes by the array's order
    origins = dict(zip(named, per_axis(origin, len(axes)), strict=True))
    weights = np.expand_dims(weights, tuple(axis for axis in range(input.ndim) if axis not in axes))
    if turn:
        weights = np.flip(weights)
        origins = {axis: turned(value, weights.shape[axis]) for axis, value in origins.items()}
    for axis, value in origins.items():
        check_origin(value, weights.shape[axis])
    output = output_for(output, input)
    filter_dense(input, weights, output, mode, cval, [origins.get(axis, 0) for axis in range(input.ndim)])
    return output
