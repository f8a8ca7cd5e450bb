"""Choose the operation for a filter. The arguments are checked before; `tilewright.ops.correlate` computes it."""

import operator

import numpy as np

from tilewright.ndimage import _volumes
from tilewright.ndimage._arguments import as_bytes, check_kinds, mode_of, real_of, settled


def filter_line(input, weights, axis: int, output, mode, cval, origin) -> None:
    """A kernel (K,) along one axis."""
    from tilewright.ops.correlate import correlate1d

    check_kinds(input, output)
    mode, cval, origin = mode_of(mode), real_of(cval), operator.index(origin)
    correlate1d(input, weights, axis, mode=mode, cval=cval, origin=origin, out=output)


def filter_dense(input, weights, output, mode, cval, origins: list) -> None:
    """A kernel with as many dimensions as input."""
    from tilewright.ops.correlate import correlate

    check_kinds(input, output)
    mode, cval, origins = mode_of(mode), real_of(cval), [operator.index(origin) for origin in origins]

    def in_float64(out):
        return correlate(input, weights, mode=mode, cval=cval, origin=origins, out=out)

    if _volumes.in_float32(input, output, [weights], cval):
        _volumes.dense(input, weights, output, mode, cval, origins, in_float64)
    else:
        in_float64(output)


def filter_chain(line, input, passes: list, output, cval) -> np.ndarray:
    """line(input, weights, axis, output, mode, cval) for each (axis, weights, mode), each on the result of the one
    before."""

    def one_by_one(out):
        source, between = input, as_bytes(out)
        for axis, weights, mode in passes:
            line(source, weights, axis, between, mode, cval)
            source = between
        return settled(out, source)

    factors = {axis: np.asarray(weights, np.float64) for axis, weights, _ in passes}
    modes = {mode_of(mode) for *_, mode in passes}
    short = max(map(len, factors.values()), default=0) <= _volumes.LONGEST
    zero = modes == {"constant"} and cval == 0  # any other value is put around the results of each pass
    if len(passes) < 2 or len(modes) > 1 or not short or not (zero or "constant" not in modes):
        return one_by_one(output)
    if not _volumes.in_float32(input, output, list(factors.values()), 0.0):
        return one_by_one(output)
    check_kinds(input, output)
    each = [factors.get(axis, np.ones(1)) for axis in range(input.ndim)]
    _volumes.separable(input, each, output, modes.pop(), 0.0, one_by_one)
    return output


def filter_cross(line, input, axes: tuple[int, ...], modes: list, output, cval, one_by_one) -> np.ndarray:
    """The sum of the results of `line`, three elements, along each of the axes. If one kernel with all of them is not
    faster, one_by_one(out) computes it axis by axis."""
    line = np.asarray(line, np.float64)
    fast = len(axes) > 1 and len({mode_of(mode) for mode in modes}) == 1
    if not fast or not _volumes.in_float32(input, output, [len(axes) * line], cval):
        return one_by_one(output)
    check_kinds(input, output)
    weights = np.zeros([3 if axis in axes else 1 for axis in range(input.ndim)])
    centre = tuple(n // 2 for n in weights.shape)
    for axis in axes:
        weights[(*centre[:axis], slice(None), *centre[axis + 1 :])] += line
    _volumes.dense(input, weights, output, mode_of(modes[0]), real_of(cval), [0] * input.ndim, one_by_one)
    return output


def filter_mean(input, size: int, axis: int, output, mode, cval, origin: int) -> None:
    """The mean of `size` elements along one axis."""
    from tilewright.ops.correlate import uniform1d

    check_kinds(input, output)
    uniform1d(input, size, axis, mode=mode_of(mode), cval=real_of(cval), origin=origin, out=output)


def by_parts(filter, input, weights, output, cval, **rest) -> np.ndarray:
    """filter(input, weights, output=, cval=) on the real and the imaginary parts of complex arrays.

    Raises ValueError for a complex cval with a real input.
    """
    if weights.dtype.kind == "c" and np.may_share_memory(input, output):
        input = input.copy()  # it is read again after a part was written
    if input.dtype.kind != "c":
        if np.iscomplexobj(cval):
            raise ValueError("Cannot provide a complex-valued cval when the input is real.")
        filter(input, weights.real, output=output.real, cval=cval, **rest)
        filter(input, weights.imag, output=output.imag, cval=cval, **rest)
        return output
    if weights.dtype.kind != "c":
        filter(input.real, weights, output=output.real, cval=np.real(cval), **rest)
        filter(input.imag, weights, output=output.imag, cval=np.imag(cval), **rest)
        return output
    filter(input.real, weights.real, output=output.real, cval=np.real(cval), **rest)
    output.real -= filter(input.imag, weights.imag, output=None, cval=np.imag(cval), **rest)
    filter(input.real, weights.imag, output=output.imag, cval=np.real(cval), **rest)
    output.imag += filter(input.imag, weights.real, output=None, cval=np.imag(cval), **rest)
    return output
