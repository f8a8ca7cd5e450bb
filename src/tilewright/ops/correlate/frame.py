"""The arguments of correlate's kernels: axes, byte offsets of the elements outside x, tiles, and offsets of taps
(elements of the filter) in a tile.

A kernel has four loops, so every problem has four axes here: w, z, y and x, from outer to inner. A *tile* is a block of
outputs. A thread copies it with its halo, all elements that its taps read, to its scratch as float64.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from tilewright.ops.correlate.operands import KINDS, Edges, Taps

AXES = 4
TILE_NUMBERS = 1 << 15  # float64 in a tile and its halo: 256 KiB, a quarter of a Zen 5's second-level cache
LEAST_TILE = 1 << 12  # smaller tasks end before another thread has woken
ROW = 64  # elements in a row of a tile, or the whole axis if it is shorter: 8 vectors of AVX-512
COLUMNS = 8  # the same where a tile holds whole lines
LINE_NUMBERS = 1 << 20  # float64 in a tile of whole lines: 8 MiB


class Axis(NamedTuple):
    """size: outputs. taps: extent of the kernel. step, out_step: bytes from one element of x, or of out, to the next.
    number: index of the axis in the caller's array; of merged axes, that of the last."""

    size: int
    taps: int
    step: int
    out_step: int
    number: int


class TiledAxis(NamedTuple):
    """An axis as kernels get it.

    size, taps, step, out_step: as in `Axis`. before: halo elements before the first output. tile: outputs of a tile.
    tiles: number of tiles. pitch: float64 from one element of a tile to the next. first: index in `Frame.offsets` of
    the axis' first offset.
    """

    size: int
    taps: int
    step: int
    out_step: int
    before: int
    tile: int
    tiles: int
    pitch: int
    first: int


class Job(NamedTuple):
    """A correlation as kernels get it.

    w, z, y, x: the axes. source, out: addresses of x and out. source_kind, out_kind: indices of their dtypes in
    `KINDS`. singles: taps without a partner. sign: of a partner's element. merged: 1 if a plane of a tile is computed
    as one row. joined: 1 if rows of x and out are contiguous, so a plane is copied as one row. cval: the value outside
    x in mode "constant". start: what a sum starts from. divisor: what a sum is divided by.
    """

    w: TiledAxis
    z: TiledAxis
    y: TiledAxis
    x: TiledAxis
    source: int
    source_kind: int
    out: int
    out_kind: int
    singles: int
    sign: int
    merged: int
    joined: int
    cval: float
    start: float
    divisor: float


@dataclass(frozen=True, eq=False)
class Frame:
    """A problem cut into tiles.

    offsets: int64, the `Edges.offsets` of the axes with more than one tap, one after another. order: the number of
    each of the four axes in `Taps`, -1 for none. words: float64 in a tile with its halo. tasks: number of tiles.
    """

    job: Job
    offsets: np.ndarray
    order: tuple[int, ...]
    words: int
    tasks: int

    def on_axes(self, positions: np.ndarray) -> np.ndarray:
        """int64 (T, 4): the columns of `positions` (T, axes of x) for the four axes."""
        zeros = np.zeros(len(positions), np.int64)
        return np.stack([positions[:, a] if a >= 0 else zeros for a in self.order], axis=1)

    def tile_offsets(self, taps: Taps) -> np.ndarray:
        """int64 (T, 2): offsets in the tile, from an output's first element, of the elements of a tap and its
        partner."""
        job, pairs = self.job, np.zeros((len(taps.positions), 2), np.int64)
        pitches = np.array([job.w.pitch, job.z.pitch, job.y.pitch, job.x.pitch])
        pairs[:, 0] = self.on_axes(taps.positions) @ pitches
        pairs[taps.singles :, 1] = self.on_axes(taps.partners) @ pitches
        return pairs


def axes_of(x: np.ndarray, out: np.ndarray, window: tuple[int, ...]) -> list[Axis]:
    """The axes by the step of `out`, largest first, as few as possible.

    An axis of one element and one tap is dropped. Two axes of one tap are merged where both arrays allow it.
    """
    axes = [Axis(x.shape[a], window[a], x.strides[a], out.strides[a], a) for a in range(x.ndim)]
    found: list[Axis] = []
    for axis in sorted(axes, key=lambda a: -abs(a.out_step)):
        if axis.size == axis.taps == 1:
            continue
        outer = found[-1] if found else None
        if outer and outer.taps == axis.taps == 1 and _contiguous(outer, axis):
            found[-1] = axis._replace(size=outer.size * axis.size)
        else:
            found.append(axis)
    return found


def _contiguous(outer: Axis, inner: Axis) -> bool:
    """True if one step of `outer` spans all elements of `inner`, in both arrays."""
    return outer.step == inner.size * inner.step and outer.out_step == inner.size * inner.out_step


def frame_of(x, out, axes: list[Axis], taps: Taps, edges: Edges, lanes: int, *, whole: bool = False) -> Frame:
    """The frame of x, out and their axes, at most four.

    whole: tiles hold all of an axis that has a halo, so that no tile reads what another one writes.
    """
    axes = [Axis(1, 1, 0, 0, -1)] * (AXES - len(axes)) + axes
    sizes = tile_sizes(tuple(axis.size for axis in axes), tuple(axis.taps for axis in axes), whole)
    pitches, words, merged = _pitches(axes, sizes, lanes)
    tiled, offsets = [], [np.zeros(0, np.int64)]
    for axis, size, pitch in zip(axes, sizes, pitches, strict=True):
        before, first = 0, sum(map(len, offsets))
        if axis.taps > 1:
            before = edges.before(axis.number, axis.taps)
            offsets.append(edges.offsets(axis.number, axis.size, axis.taps, axis.step))
        tiled.append(TiledAxis(*axis[:4], before, size, -(-axis.size // size), pitch, first))
    *_, outer, inner = axes
    joined = inner.taps == 1 and tiled[2].pitch == inner.size and _contiguous(outer, inner)
    kind, out_kind = (KINDS.index(array.dtype.name) for array in (x, out))
    if taps.negated and out.dtype == np.uint64:
        out_kind = len(KINDS)  # `NEGATED`
    w, z, y, last = tiled
    job = Job(
        w, z, y, last, _address(x), kind, _address(out), out_kind, taps.singles, taps.sign, int(merged), int(joined),
        float(edges.cval), float(taps.start), float(taps.divisor),
    )  # fmt: skip
    order = tuple(axis.number for axis in axes)
    return Frame(job, np.concatenate(offsets), order, words, math.prod(axis.tiles for axis in tiled))


def _address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


@lru_cache(maxsize=256)
def tile_sizes(shape: tuple[int, ...], window: tuple[int, ...], whole: bool) -> tuple[int, ...]:
    """Outputs of a tile along each axis: whole rows first, then the axis whose halo is the largest part of it."""

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


def _pitches(axes: list[Axis], tile: tuple[int, ...], lanes: int) -> tuple[list[int], int, bool]:
    """(pitch of each axis, float64 in a tile, merged).

    merged: the outputs of the last two axes are summed in one run, with the elements between the rows, because rows are
    short. A run is a whole number of vectors, and the next one begins after it.
    """
    w, z, y, x = (size + axis.taps - 1 for size, axis in zip(tile, axes, strict=True))
    *_, rows, columns = tile
    together = -(-((rows - 1) * x + columns) // lanes)
    merged = together <= rows * -(-columns // lanes)
    row = x if merged else _up(x, lanes)
    plane = _up(y * row, lanes)
    return [z * plane, plane, row, 1], w * z * plane + lanes, merged


def _up(number: int, step: int) -> int:
    return -(-number // step) * step
