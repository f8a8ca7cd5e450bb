"""Operands of a conv3d rung: weights in the rung's layout, and the index of each element under a window."""

import functools
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.ops.conv3d.memo import Memo
from tilewright.ops.conv3d.problem import Problem


@dataclass(frozen=True, eq=False)
class Packed:
    """Weights in the layout of one rung: the result of `conv3d.prepare`, which `conv3d` accepts as weights.

    rung: the rung's name. problem: the Problem it was chosen for. channels: True if volumes are (C, D, H, W), False
    for (D, H, W). weights: float32 (O, C, KD, KH, KW), or None where the rung needs the factors only. factors:
    (wz, wy, wx) whose outer product is weights, or None. data: the rung's own layout, or None. memo: the recorded
    last call on the CPU, see `memo.py`.
    """

    rung: str
    problem: Problem
    channels: bool
    weights: np.ndarray | None
    factors: tuple[np.ndarray, np.ndarray, np.ndarray] | None
    data: Any = None
    memo: Memo = field(default_factory=Memo, init=False, repr=False)

    @property
    def sizes(self) -> tuple[int, int, int]:
        """(KD, KH, KW)."""
        return self.problem.KD, self.problem.KH, self.problem.KW

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the caller's weights."""
        return (self.problem.O, self.problem.C, *self.sizes) if self.channels else self.sizes


@dataclass(frozen=True, eq=False)
class Border:
    """Index maps of a volume with its border: tap t of output i is element axis[i + t] of that axis, or cval for -1.

    z, y, x: int64 (outputs + K - 1). left: padded columns before the volume's first column; the volume's columns follow
    in order. cval: float32.
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
    """A window and its border, for a rung on a GPU: output i reads i - first .. i - first + K - 1 of each axis.

    mode, cval: the border, one of MODES in `problem`, or "valid", whose windows are inside the volume.
    """

    first: tuple[int, int, int]
    mode: str
    cval: np.float32


@functools.lru_cache(maxsize=96)  # some dozen volumes; with cold caches it took a fifth of a call
def index_map(n: int, K: int, mode: str, first: int) -> np.ndarray:
    """int64, read-only: the index in an axis of n elements for each padded position, -1 for cval.

    mode: "valid" for the n elements themselves. One of MODES in `problem` for the n + K - 1 positions that n outputs of
    K taps read, from index `first` (at most 0) on.
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
    period = 2 * n if mode == "reflect" else max(2 * n - 2, 1)  # mirror does not repeat the ends
    at = at % period
    return np.minimum(at, period - 1 - at if mode == "reflect" else period - at) if n > 1 else np.zeros_like(at)
