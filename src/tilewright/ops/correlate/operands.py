"""Operands of a correlate rung: the taps (elements of the filter) in the order in which they are summed, and the
border, which gives the elements outside x."""

from dataclasses import dataclass, replace

import numpy as np

KINDS = ("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float32", "float64")
NEGATED = "uint64 negated"  # uint64 as scipy's many-dimensional filters store it: -x for a negative sum x, negated
MODES = {
    "reflect": "reflect", "constant": "constant", "nearest": "nearest", "mirror": "mirror", "wrap": "wrap",
    "grid-mirror": "reflect", "grid-constant": "constant", "grid-wrap": "wrap",
}  # fmt: skip
OUTSIDE = np.iinfo(np.int64).min  # the offset of an element that takes `cval`
EPS = np.finfo(np.float64).eps


@dataclass(frozen=True, eq=False)
class Taps:
    """A sum: start, then the single taps one by one, then the pairs; divided by `divisor`.

    window: the kernel's extent along each axis. positions: int64 (T, axes), index in the window of each tap. partners:
    the same for the second elements of the last len(partners) taps. A partner is added to the first element (sign 1) or
    subtracted from it (sign -1) before the product. weights: float64 (T,). negated: a uint64 result is stored as
    `NEGATED`.
    """

    window: tuple[int, ...]
    positions: np.ndarray
    weights: np.ndarray
    partners: np.ndarray
    sign: int = 1
    start: float = 0.0
    divisor: float = 1.0
    negated: bool = False

    @property
    def singles(self) -> int:
        """Taps before the first pair."""
        return len(self.weights) - len(self.partners)

    def without(self, axis: int) -> "Taps":
        """The same sum without an axis along which its extent is 1."""
        window = self.window[:axis] + self.window[axis + 1 :]
        positions, partners = (np.delete(table, axis, axis=1) for table in (self.positions, self.partners))
        return replace(self, window=window, positions=positions, partners=partners)


def dense_taps(weights: np.ndarray) -> Taps:
    """The taps of weights that are not zero, in C order, added to 0.0, as in scipy.ndimage.correlate."""
    positions = np.argwhere(weights != 0)
    return Taps(weights.shape, positions, weights[tuple(positions.T)], positions[:0], negated=True)


def line_taps(weights: np.ndarray, axis: int, ndim: int) -> Taps:
    """The taps of a one-dimensional kernel, in the order of scipy.ndimage.correlate1d.

    A symmetric or antisymmetric kernel of odd size starts with its centre, then has pairs from the outside in. Any
    other kernel starts with its last tap, then continues from the first.
    """
    K = len(weights)
    centre, paired = K // 2, _symmetry(weights)
    order = [centre, *range(centre)] if paired else [K - 1, *range(K - 1)]
    positions = np.zeros((len(order), ndim), np.int64)
    positions[:, axis] = order
    partners = positions[1 if paired else len(order) :].copy()
    partners[:, axis] = K - 1 - partners[:, axis]
    window = tuple(K if a == axis else 1 for a in range(ndim))
    return Taps(
        window, positions, weights[order], partners, paired or 1, start=-0.0
    )  # -0.0 + x is x, also for x = -0.0


def _symmetry(weights: np.ndarray) -> int:
    """1 or -1 for a symmetric or antisymmetric kernel of odd size, otherwise 0.

    The absolute tolerance is scipy's. The relative one preserves differences between small weights.
    """
    K = len(weights)
    if K % 2:
        before, after = weights[: K // 2], weights[: K // 2 : -1]
        for sign in (1, -1):
            apart = np.abs(before - sign * after)
            if (apart <= EPS).all() and (apart <= 8 * EPS * np.abs(before)).all():
                return sign
    return 0


def mean_taps(size: int, axis: int, ndim: int) -> Taps:
    """The mean of `size` neighbours along an axis."""
    positions = np.zeros((size, ndim), np.int64)
    positions[:, axis] = range(size)
    window = tuple(size if a == axis else 1 for a in range(ndim))
    return Taps(window, positions, np.ones(size), positions[:0], divisor=float(size))


@dataclass(frozen=True, eq=False)
class Edges:
    """The border: a mode of `MODES` and an origin per axis; `cval` is the value outside in mode "constant"."""

    modes: tuple[str, ...]
    origins: tuple[int, ...]
    cval: float = 0.0

    def without(self, axis: int) -> "Edges":
        """The same without an axis."""
        return replace(
            self,
            modes=self.modes[:axis] + self.modes[axis + 1 :],
            origins=self.origins[:axis] + self.origins[axis + 1 :],
        )

    def before(self, axis: int, taps: int) -> int:
        """Elements before the array that the first output of an axis reads; negative if its window starts inside."""
        return taps // 2 + self.origins[axis]

    def offsets(self, axis: int, n: int, taps: int, stride: int) -> np.ndarray:
        """int64 (taps - 1,): byte offsets of the elements that stand for those before and then after the axis.

        n: elements of the axis. stride: bytes from one to the next. OUTSIDE where `cval` is read.
        """
        before = self.before(axis, taps)
        p = np.concatenate([np.arange(-before, 0), np.arange(n, n + taps - 1 - before)])
        mode = MODES[self.modes[axis]]
        if mode == "constant":
            return np.full(len(p), OUTSIDE)
        if mode == "nearest":
            p = p.clip(0, n - 1)
        elif mode == "wrap":
            p %= n
        else:
            last = 2 * n - 1 if mode == "reflect" else 2 * n - 2  # "mirror" has its end points once
            p %= max(2 * n if mode == "reflect" else last, 1)
            p = np.minimum(p, last - p)
        return p * stride
