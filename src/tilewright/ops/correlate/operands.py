"""What a correlate rung is handed: which taps are added in which order, and where an array's numbers come from beyond
its ends."""

from dataclasses import dataclass, replace

import numpy as np

KINDS = ("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float32", "float64")
NEGATED = "uint64 negated"  # uint64 as scipy's many-dimensional filters store it: a negative sum by its opposite
MODES = {
    "reflect": "reflect", "constant": "constant", "nearest": "nearest", "mirror": "mirror", "wrap": "wrap",
    "grid-mirror": "reflect", "grid-constant": "constant", "grid-wrap": "wrap",
}  # fmt: skip
OUTSIDE = np.iinfo(np.int64).min  # an offset that is no place in an array
EPS = np.finfo(np.float64).eps


@dataclass(frozen=True, eq=False)
class Taps:
    """A sum: start, then the single taps one by one, then the pairs; divided by `divisor`.

    window: the kernel's extent an axis. places: int64 (T, axes), where in the window a tap reads. partners: for the
    last len(partners) taps the place of a second number, added to the first (sign 1) or taken from it (sign -1)
    before the product. weights: float64 (T,).
    negated: a negative sum becomes a uint64 by way of its opposite.
    """

    window: tuple[int, ...]
    places: np.ndarray
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
        """The same sum with one axis fewer, along which it has an extent of 1."""
        window = self.window[:axis] + self.window[axis + 1 :]
        places, partners = (np.delete(table, axis, axis=1) for table in (self.places, self.partners))
        return replace(self, window=window, places=places, partners=partners)


def dense_taps(weights: np.ndarray) -> Taps:
    """All taps of weights but the zeros, in C order, added to 0.0: as scipy.ndimage.correlate does."""
    places = np.argwhere(weights != 0)
    return Taps(weights.shape, places, weights[tuple(places.T)], places[:0], negated=True)


def line_taps(weights: np.ndarray, axis: int, ndim: int) -> Taps:
    """The taps of a one-dimensional kernel, in the order of scipy.ndimage.correlate1d: a symmetric or antisymmetric
    kernel of odd size from the centre, then pairs from the outside in; any other one from its last tap, then from the
    first."""
    K = len(weights)
    centre, paired = K // 2, _symmetry(weights)
    order = [centre, *range(centre)] if paired else [K - 1, *range(K - 1)]
    places = np.zeros((len(order), ndim), np.int64)
    places[:, axis] = order
    partners = places[1 if paired else len(order) :].copy()
    partners[:, axis] = K - 1 - partners[:, axis]
    window = tuple(K if a == axis else 1 for a in range(ndim))
    return Taps(window, places, weights[order], partners, paired or 1, start=-0.0)  # -0.0 + x is x, its sign too


def _symmetry(weights: np.ndarray) -> int:
    """1 or -1 for a symmetric or antisymmetric kernel of odd size, else 0; scipy's measure, an absolute one, with a
    relative one beside it so that small weights keep their differences."""
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
    places = np.zeros((size, ndim), np.int64)
    places[:, axis] = range(size)
    window = tuple(size if a == axis else 1 for a in range(ndim))
    return Taps(window, places, np.ones(size), places[:0], divisor=float(size))


@dataclass(frozen=True, eq=False)
class Edges:
    """What lies beyond the array: per axis a mode of `MODES` and an origin; `cval` for "constant"."""

    modes: tuple[str, ...]
    origins: tuple[int, ...]
    cval: float = 0.0

    def without(self, axis: int) -> "Edges":
        """The same with one axis fewer."""
        return replace(
            self,
            modes=self.modes[:axis] + self.modes[axis + 1 :],
            origins=self.origins[:axis] + self.origins[axis + 1 :],
        )

    def before(self, axis: int, taps: int) -> int:
        """How many numbers before the array the first output of an axis reaches; negative: it starts inside."""
        return taps // 2 + self.origins[axis]

    def offsets(self, axis: int, n: int, taps: int, stride: int) -> np.ndarray:
        """int64 (taps - 1,): byte offsets of what stands for the numbers before the axis and then for those behind it,
        as far as `taps` taps reach; OUTSIDE where there is nothing."""
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
