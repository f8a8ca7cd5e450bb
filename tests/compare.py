"""The one comparator, and the buffers that show what a kernel did besides its result."""

import numpy as np

GUARD = 64  # elements before, after and between the rows of a guarded output
SENTINEL = np.float32(-6.25e27)  # no result looks like it
NANS = np.uint32(0x7FC07FC0)  # NaN as one float32 and as two of 16 bits


def compare(actual, reference, bound, *, dtype=np.float32) -> None:
    """Raise AssertionError unless `actual` is the result: exact shape and dtype, and every element within `bound`.

    bound: elementwise, of |actual - reference|; where the float64 `reference` is not finite, actual must be the same.
    """
    reference = np.asarray(reference, np.float64)
    bound = np.broadcast_to(np.asarray(bound, np.float64), reference.shape)
    assert isinstance(actual, np.ndarray), f"the result is a {type(actual).__name__}, not an array"
    assert actual.dtype == dtype, f"dtype is {actual.dtype}, {np.dtype(dtype)} is wanted"
    assert actual.shape == reference.shape, f"shape is {actual.shape}, {reference.shape} is wanted"
    assert np.isfinite(bound).all() and (bound >= 0).all(), "the bound itself is not finite and positive"
    values = actual.astype(np.float64)
    finite = np.isfinite(reference)
    same = values == reference
    same |= np.isnan(values) & np.isnan(reference)
    with np.errstate(invalid="ignore", over="ignore"):
        wrong = np.where(finite, ~(np.abs(values - reference) <= bound), ~same)
    if wrong.any():
        raise AssertionError(_worst(values, reference, bound, wrong))


def _worst(values, reference, bound, wrong) -> str:
    """One paragraph: how many, and the worst of them."""
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        excess = np.where(wrong, np.abs(values - reference) / np.maximum(bound, 1e-300), -1.0)
    excess = np.where(wrong & ~np.isfinite(excess), np.inf, excess)
    place = np.unravel_index(int(np.argmax(excess)), values.shape)
    at = tuple(map(int, place))
    return (
        f"{int(wrong.sum())} of {wrong.size} elements are wrong; the worst, {list(at)}, is {values[at]!r}, "
        f"the reference {reference[at]!r}, the error {excess[at]:.3g} times its bound {bound[at]:.3g}"
    )


class Guarded:
    """An output buffer of NaN inside guard zones: `.array` for the kernel, then `.check()`.

    Rows are GUARD elements apart and the whole has GUARD elements on both sides: a write past a row's end is seen too.
    """

    def __init__(self, shape: tuple[int, ...]):
        *outer, last = shape
        rows = int(np.prod(outer, dtype=int))
        self._memory = np.full(GUARD + rows * (last + GUARD), SENTINEL, np.float32)
        padded = self._memory[GUARD:].reshape(rows, last + GUARD)
        self._guards = padded[:, last:]
        self.array = padded[:, :last].reshape(shape) if len(shape) < 2 else self._shaped(padded, tuple(outer), last)
        self.array[...] = np.nan

    @staticmethod
    def _shaped(padded: np.ndarray, outer: tuple[int, ...], last: int) -> np.ndarray:
        return padded.reshape(*outer, padded.shape[1])[..., :last]

    def check(self) -> None:
        """Raise AssertionError if anything but the array was written."""
        assert (self._memory[:GUARD] == SENTINEL).all(), "written before the output's first element"
        touched = np.argwhere(self._guards != SENTINEL)
        assert not touched.size, f"written {int(touched[0][1]) + 1} elements past the end of row {int(touched[0][0])}"


def frozen(inputs: dict) -> dict:
    """The same arguments, their arrays read-only; those of floats are copies (same strides) in a field of NaN, so that
    a number read beside an input is seen in the result."""
    fixed = {}
    for name, value in inputs.items():
        if isinstance(value, np.ndarray):
            value = _between_nans(value) if value.dtype.itemsize in (2, 4) and value.dtype.kind in "fV" else value[...]
            value.flags.writeable = False
        elif isinstance(value, list):
            value = list(frozen(dict(enumerate(value))).values())
        fixed[name] = value
    return fixed


def _between_nans(array: np.ndarray) -> np.ndarray:
    """A copy that lies to a cache line as `array` does, with NaN around it and in its gaps."""
    if not array.size:
        return array[...]
    low, high = np.lib.array_utils.byte_bounds(array)
    memory = np.full((high - low) // 4 + 2 * GUARD + 32, NANS).view(np.uint8)
    first = 4 * GUARD + (low - memory.ctypes.data - 4 * GUARD) % 64
    start = first + array.__array_interface__["data"][0] - low
    copy = np.ndarray(array.shape, array.dtype, memory, start, array.strides)
    copy[...] = array
    return copy
