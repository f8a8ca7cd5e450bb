"""Tables for correlate's kernels: axes, offsets of the elements of an extended axis, tiles, positions of taps.

A kernel has four loops, so every problem has four axes here. A *tile* is a block of outputs. A thread copies it with
its halo, all elements that its taps reach, to its scratch as float64.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from tilewright.ops.correlate.operands import KINDS, Edges, Taps

AXES = 4
TILE_NUMBERS = 1 << 15  # float64 in a tile and its halo: 256 KiB, a quarter of a Zen 5's second-level cache
LEAST_TILE = 1 << 12  # below it a task is over before another thread has woken
ROW = 64  # numbers of a row of a tile, if there are so many: 8 vectors of AVX-512
COLUMNS = 8  # the same where a tile has to hold whole lines
LINE_NUMBERS = 1 << 20  # and how much it may hold then: 8 MiB


class AxisColumns(NamedTuple):
    """Columns of `Frame.axes`, one row per axis.

    size: outputs. taps: extent of the kernel. before: elements of the halo before the first output. tile: outputs of a
    tile. tiles: number of tiles. pitch: float64 from one element of a tile to the next. first: index in
    `Frame.offsets` of the axis' first offset. step, out_step: bytes from one element of x, or of out, to the next.
    """

    size: int
    taps: int
    before: int
    tile: int
    tiles: int
    pitch: int
    first: int
    step: int
    out_step: int


class EndEntries(NamedTuple):
    """Entries of `Frame.ends`.

    source, out: addresses of x and out. source_kind, out_kind: indices of their dtypes in `KINDS`. singles: taps
    without a partner. sign: of a partner's sum. merged: a plane of a tile is computed as one row. joined: rows of x and
    out follow each other, so a plane is copied as one row.
    """

    source: int
    source_kind: int
    out: int
    out_kind: int
    singles: int
    sign: int
    merged: int
    joined: int


AXIS, ENDS = AxisColumns(*range(9)), EndEntries(*range(8))


class Axis(NamedTuple):
    """size: outputs. taps: the kernel's extent. step, out_step: bytes from one number to the next. number: which axis
    of the caller's array it is; of one that is several, the last."""

    size: int
    taps: int
    step: int
    out_step: int
    number: int


@dataclass(frozen=True, eq=False)
class Frame:
    """All that a kernel is told in numbers.

    axes: int64 (4, 9), columns as in `AxisColumns`. ends: int64 (8,), entries as in `EndEntries`. offsets: int64, the
    `Edges.offsets` of the axes with more than one tap, one after the other; each starts at the axis' `first`. order:
    the axes of `Taps` that the four are, -1 for none. words: float64 in a tile with its halo. tasks: tiles.
    """

    axes: np.ndarray
    ends: np.ndarray
    offsets: np.ndarray
    order: tuple[int, ...]
    words: int
    tasks: int

    def places(self, places: np.ndarray) -> np.ndarray:
        """int64 (T, 4): the columns of `places` as the four axes have them."""
        return np.stack([places[:, a] if a >= 0 else np.zeros(len(places), np.int64) for a in self.order], axis=1)

    def tile_offsets(self, taps: Taps) -> np.ndarray:
        """int64 (T, 2): how far from an output's own place in the tile a tap and its partner read."""
        pairs = np.zeros((len(taps.places), 2), np.int64)
        pairs[:, 0] = self.places(taps.places) @ self.axes[:, AXIS.pitch]
        pairs[taps.singles :, 1] = self.places(taps.partners) @ self.axes[:, AXIS.pitch]
        return pairs


def axes_of(x: np.ndarray, out: np.ndarray, window: tuple[int, ...]) -> list[Axis]:
    """The axes by the step of `out`, largest first, as few as there can be.

    An axis of one number that no tap leaves is dropped; two that no tap leaves are one where both arrays allow it.
    """
    axes = [Axis(x.shape[a], window[a], x.strides[a], out.strides[a], a) for a in range(x.ndim)]
    found: list[Axis] = []
    for axis in sorted(axes, key=lambda a: -abs(a.out_step)):
        if axis.size == axis.taps == 1:
            continue
        outer = found[-1] if found else None
        if outer and outer.taps == axis.taps == 1 and _follow(outer, axis):
            found[-1] = axis._replace(size=outer.size * axis.size)
        else:
            found.append(axis)
    return found


def _follow(outer: Axis, inner: Axis) -> bool:
    """One step of `outer` is what all numbers of `inner` span, in both arrays."""
    return outer.step == inner.size * inner.step and outer.out_step == inner.size * inner.out_step


def frame_of(x, out, axes: list[Axis], taps: Taps, edges: Edges, lanes: int, *, whole: bool = False) -> Frame:
    """The frame of x, out and their axes, at most four; tiles as large as scratch and threads like them.

    whole: tiles hold all of an axis that has a halo, so that no tile reads what another one writes.
    """
    axes = [Axis(1, 1, 0, 0, -1)] * (AXES - len(axes)) + axes
    sizes = tile_sizes(tuple(axis.size for axis in axes), tuple(axis.taps for axis in axes), whole)
    pitches, words, merged = _pitches(axes, sizes, lanes)
    lines, offsets, first = [], [np.zeros(0, np.int64)], 0
    for axis, size, pitch in zip(axes, sizes, pitches, strict=True):
        before, tiles = 0, -(-axis.size // size)
        if axis.taps > 1:
            before = edges.before(axis.number, axis.taps)
            offsets.append(edges.offsets(axis.number, axis.size, axis.taps, axis.step))
        lines.append(AxisColumns(axis.size, axis.taps, before, size, tiles, pitch, first, axis.step, axis.out_step))
        first = sum(map(len, offsets))
    kind, out_kind = (KINDS.index(array.dtype.name) for array in (x, out))
    joined = axes[3].taps == 1 and pitches[2] == axes[3].size and _follow(axes[2], axes[3])
    if taps.negated and out.dtype == np.uint64:
        out_kind = len(KINDS)  # `NEGATED`
    ends = EndEntries(_address(x), kind, _address(out), out_kind, taps.singles, taps.sign, merged, joined)
    table = np.array(lines, np.int64)
    order = tuple(axis.number for axis in axes)
    return Frame(
        table, np.array(ends, np.int64), np.concatenate(offsets), order, words, int(table[:, AXIS.tiles].prod())
    )


def _address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


@lru_cache(maxsize=256)
def tile_sizes(shape: tuple[int, ...], window: tuple[int, ...], whole: bool) -> tuple[int, ...]:
    """Outputs of a tile an axis: whole rows first, then what lessens the share of the halo."""

    def extent(sizes) -> int:
        return math.prod(size + taps - 1 for size, taps in zip(sizes, window, strict=True))

    most = min(TILE_NUMBERS, max(LEAST_TILE, math.prod(shape) // 8))
    sizes = [n if whole and taps > 1 else 1 for n, taps in zip(shape, window, strict=True)]
    row = max(COLUMNS, min(ROW, TILE_NUMBERS // extent(sizes))) if whole else ROW
    sizes[-1] = max(sizes[-1], min(shape[-1], row))
    growing = list(range(len(shape)))
    while growing:
        a = max(growing, key=lambda a: ((window[a] - 1) / sizes[a], a))
        grown = [*sizes[:a], min(2 * sizes[a], shape[a]), *sizes[a + 1 :]]
        if grown == sizes or extent(grown) > most:
            growing.remove(a)
        else:
            sizes = grown
    return tuple(sizes)


def _pitches(axes: list[Axis], sizes: tuple[int, ...], lanes: int) -> tuple[list[int], int, bool]:
    """(pitch an axis, float64 in all, merged).

    merged: the outputs of the last two axes are summed in one run, with what lies between the rows; it is so where rows
    are short. A run is a whole number of vectors, and the next one begins behind it.
    """
    reach = [size + axis.taps - 1 for size, axis in zip(sizes, axes, strict=True)]
    together = -(-((sizes[2] - 1) * reach[3] + sizes[3]) // lanes)
    merged = together <= sizes[2] * -(-sizes[3] // lanes)
    row = reach[3] if merged else _up(reach[3], lanes)
    plane = _up(reach[2] * row, lanes)
    return [reach[1] * plane, plane, row, 1], reach[0] * reach[1] * plane + lanes, merged


def _up(number: int, step: int) -> int:
    return -(-number // step) * step
