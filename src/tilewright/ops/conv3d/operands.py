"""What a conv3d rung is handed: weights as it wants them, and where each number under a window lies in the volume."""

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.ops.conv3d.problem import Problem


@dataclass(frozen=True, eq=False)
class Packed:
    """Weights as one rung wants them: what `conv3d.prepare` gives and `conv3d` takes in place of weights.

    rung: whose layout it is. problem: what the choice looked at. channels: are volumes (C, D, H, W), or (D, H, W).
    weights: float32 (O, C, KD, KH, KW), or None where factors are all that the rung needs. factors: (wz, wy, wx) whose
    outer product the weights are, or None. data: the rung's own layout, or None where it takes one of those as it is.
    """

    rung: str
    problem: Problem
    channels: bool
    weights: np.ndarray | None
    factors: tuple[np.ndarray, np.ndarray, np.ndarray] | None
    data: Any = None

    @property
    def sizes(self) -> tuple[int, int, int]:
        """(KD, KH, KW)."""
        return self.problem.KD, self.problem.KH, self.problem.KW

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the weights as the caller has them."""
        return (self.problem.O, self.problem.C, *self.sizes) if self.channels else self.sizes


@dataclass(frozen=True, eq=False)
class Border:
    """Where numbers under a window lie: tap t of output i is number `axis[i + t]` of that axis, or cval where it is -1.

    z, y, x: int64 (outputs + K - 1). left: padded columns before the first that is the volume's own, which then follow
    one another. cval: float32.
    """

    z: np.ndarray
    y: np.ndarray
    x: np.ndarray
    left: int
    cval: np.float32

    @property
    def maps(self) -> np.ndarray:
        """The three in one array, z first, as kernels take them."""
        return np.concatenate([self.z, self.y, self.x])


@dataclass(frozen=True)
class Window:
    """Where a window lies, for a rung on a GPU: output i reads numbers i - first .. i - first + K - 1 of each axis.

    mode, cval: what stands where the volume has none, one of MODES in `spec` or "valid", where that never happens.
    """

    first: tuple[int, int, int]
    mode: str
    cval: np.float32


@functools.lru_cache(maxsize=96)  # some dozen volumes; it took a fifth of a call that finds nothing in the caches
def index_map(n: int, K: int, mode: str, first: int) -> np.ndarray:
    """int64, not to be written to: which of an axis' n numbers each padded position is, -1 for none.

    mode: "valid", where the positions are the n numbers, or one of MODES in `spec`, where n outputs of K taps have
    n + K - 1 positions, of which the first is number `first` (at most 0).
    """
    at = _index_map(n, K, mode, first)
    at.flags.writeable = False
    return at


def _index_map(n: int, K: int, mode: str, first: int) -> np.ndarray:
    if mode == "valid":
        return np.arange(n)
    if n == 0:
        return np.full(K - 1, -1)
    at = np.arange(first, first + n + K - 1)
    if mode == "constant":
        return np.where((at >= 0) & (at < n), at, -1)
    if mode == "nearest":
        return at.clip(0, n - 1)
    if mode == "wrap":
        return at % n
    period = 2 * n if mode == "reflect" else max(2 * n - 2, 1)  # mirror: the ends stand once
    at = at % period
    return np.minimum(at, period - 1 - at if mode == "reflect" else period - at) if n > 1 else np.zeros_like(at)
