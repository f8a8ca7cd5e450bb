"""Divides volumes into tiles with halos, and reads and writes tiles while others are computed.

A block is a tile with its halo. Voxels outside the volume are filled in when a block is read. So the kernel needs no
boundary rule, and gives the same bits in any tiling. Positions along an axis count from the volume's first voxel. A
position p is outside if p < 0 or p >= the size of the axis. The index maps of ops.conv3d then give the voxel to use.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple, Protocol

import numpy as np

from tilewright.formats.volumes import MemoryShort, Shape
from tilewright.ops.conv3d import ALIASES
from tilewright.ops.conv3d.operands import index_map
from tilewright.ops.conv3d.problem import MODES as PLAIN_MODES
from tilewright.ops.core.memory import empty

MODES = (*PLAIN_MODES, *ALIASES)
CONSTANT = -1  # in an index map: use the constant and not a voxel

# Costs for `cheapest`. The unit is the time to read a voxel from the page cache and decode it (1 GB/s).
COPY = 0.2  # to copy a voxel from the previous block
TOUCH = 3.0  # to write a voxel to memory for the first time (page faults; measured on a virtual machine: 3 s/GB)
TILE = 50_000  # per tile: system calls, and threads that wait for each other

Allocate = Callable[[int, np.dtype], np.ndarray]


class Tile(NamedTuple):
    """A box of the volume: its first voxel and its shape."""

    start: Shape
    shape: Shape


@dataclass(frozen=True)
class Tiling:
    """The division of a volume into tiles.

    shape: of the volume. tile: shape of a tile; the last one along an axis may be smaller. before, after: the halo of a
    tile. layer: the number of planes that the format reads together. A block is read up to the end of a layer. Planes
    that it does not need are copied to the next block.
    """

    shape: Shape
    tile: Shape
    before: Shape
    after: Shape
    layer: int = 1

    def tiles(self, box: Tile | None = None) -> Iterator[Tile]:
        """Yield the tiles of a box (None: of the volume), along z first: neighbours along z share the most voxels."""
        (z0, y0, x0), (D, H, W) = box or Tile((0, 0, 0), self.shape)
        d, h, w = self.tile
        for y, x, z in product(range(0, H, h), range(0, W, w), range(0, D, d)):
            yield Tile((z0 + z, y0 + y, x0 + x), (min(d, D - z), min(h, H - y), min(w, W - x)))

    def count(self, box: Tile | None = None) -> int:
        """The number of tiles."""
        shape = box.shape if box else self.shape
        return math.prod(-(-n // t) for n, t in zip(shape, self.tile, strict=True))

    @property
    def block(self) -> Shape:
        """The shape of the largest block, including the planes that are read ahead."""
        d, h, w = (t + b + a for t, b, a in zip(self.tile, self.before, self.after, strict=True))
        ahead = min(self.layer - 1, self.shape[0] - self.tile[0])
        return d + ahead, h, w


class Boxes(Protocol):
    """The source of blocks: a `Volume`, or a stand-in for one."""

    def read_into(self, start: tuple[int, int, int], target: np.ndarray) -> None:
        """See `Volume.read_into`."""


class Blocks:
    """Reads the blocks of a tiling in turn, in two buffers: `read` fills one while the other is in use."""

    def __init__(
        self, volume: Boxes, tiling: Tiling, *, mode: str, cval: float, dtype: np.dtype, allocate: Allocate = empty
    ) -> None:
        self._volume, self._tiling, self._cval = volume, tiling, cval
        self._maps = [
            index_map(n, b + a + 1, ALIASES.get(mode, mode), -b)
            for n, b, a in zip(tiling.shape, tiling.before, tiling.after, strict=True)
        ]
        self._buffers = [allocate(math.prod(tiling.block), dtype) for _ in range(2)]
        self._last: tuple[tuple[int, ...], np.ndarray] | None = None  # start and content of the last block

    def read(self, tile: Tile) -> np.ndarray:
        """Read the tile's block, C-contiguous. The call after the next one overwrites it."""
        tiling, D = self._tiling, self._tiling.shape[0]
        start = tuple(s - b for s, b in zip(tile.start, tiling.before, strict=True))
        shape = tuple(n + b + a for n, b, a in zip(tile.shape, tiling.before, tiling.after, strict=True))
        end = start[0] + shape[0]
        planes = max(end, min(D, -(-end // tiling.layer) * tiling.layer)) - start[0]
        self._buffers.reverse()
        block = self._buffers[0][: planes * shape[1] * shape[2]].reshape(planes, *shape[1:])
        have = self._keep(start, block)
        self._fill(start, block, have)
        self._last = start, block
        return block[: shape[0]]

    def _keep(self, start: tuple[int, ...], block: np.ndarray) -> int:
        """Copy the planes that the previous block shares with this one. Returns their number."""
        if self._last is None or self._last[0][1:] != start[1:] or self._last[1].shape[1:] != block.shape[1:]:
            return 0
        (first, *_), before = self._last
        if not first <= start[0] < first + len(before):
            return 0
        kept = before[start[0] - first :][: len(block)]
        block[: len(kept)] = kept
        return len(kept)

    def _fill(self, start: tuple[int, ...], block: np.ndarray, have: int) -> None:
        """Read the planes of the block from `have` on. Then fill voxels outside the volume by copies in the block."""
        axes = [
            _Axis.of(voxels[first + before :][:count], first, size, done)
            for voxels, first, before, count, size, done in zip(
                self._maps, start, self._tiling.before, block.shape, self._tiling.shape, (have, 0, 0), strict=True
            )
        ]
        for (z, at_z, d), (y, at_y, h), (x, at_x, w) in product(*(axis.reads for axis in axes)):
            self._volume.read_into((at_z, at_y, at_x), block[z : z + d, y : y + h, x : x + w])
        for axis, along in enumerate(axes):
            lines = np.moveaxis(block[have:] if axis else block, axis, 0)
            for place, source in along.copies:
                lines[place] = self._cval if source == CONSTANT else lines[source]


@dataclass(frozen=True)
class _Axis:
    """How a block is filled along one axis.

    reads: (index in the block, first voxel, count). copies: (index in the block, index of the source or CONSTANT).
    """

    reads: list[tuple[int, int, int]]
    copies: list[tuple[int, int]]

    @classmethod
    def of(cls, voxels: np.ndarray, first: int, size: int, have: int) -> _Axis:
        """The reads and copies for the positions from `first` on.

        voxels: the index map of these positions. have: the number of leading positions that the block already has.
        """
        count = len(voxels)
        low, high = max(0, -first), min(count, size - first)  # indices of positions in the volume
        begin = max(low, have)
        reads = [(begin, first + begin, high - begin)] if begin < high else []
        copies = []
        for place in (p for p in range(have, count) if not low <= p < high):
            source = int(voxels[place]) - first if voxels[place] != CONSTANT else CONSTANT
            if voxels[place] == CONSTANT or low <= source < high:
                copies.append((place, source))
            else:  # the voxel is in the volume, but not in this block
                reads.append((place, int(voxels[place]), 1))
        return cls(_joined(reads), copies)


def _joined(reads: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Join adjacent reads."""
    joined: list[tuple[int, int, int]] = []
    for place, voxel, count in sorted(reads):
        if joined:
            earlier = joined[-1]
            if (earlier[0] + earlier[2], earlier[1] + earlier[2]) == (place, voxel):
                joined[-1] = (*earlier[:2], earlier[2] + count)
                continue
        joined.append((place, voxel, count))
    return joined


def needed_bytes(tiling: Tiling, itemsize: int, spare_blocks: int = 0) -> int:
    """Bytes of two blocks and two tiles, and of `spare_blocks` further blocks for the computation."""
    return itemsize * ((2 + spare_blocks) * math.prod(tiling.block) + 2 * math.prod(tiling.tile))


def tilings(shape: Shape, halo: tuple[Shape, Shape], units: tuple[Shape, Shape], box: Shape) -> list[Tiling]:
    """The candidates for a tiling. Along each axis, a tile has 1, 2, 4, ... units of writing, or all voxels.

    shape: of the volume. halo: voxels before and after a tile, along each axis. units: (voxels read together, voxels
    written together) along each axis; tiles begin at multiples of the second. box: the largest shape of a tile.
    """
    reading, writing = units
    sizes = [_sizes(n, unit) for n, unit in zip(box, writing, strict=True)]
    return [Tiling(shape, (d, h, w), *halo, reading[0]) for d, h, w in product(*sizes)]


def cheapest(candidates: list[Tiling], needed: list[int], memory: int, box: Shape, reading: Shape) -> Tiling:
    """The fastest tiling that fits in `memory` bytes, for shards of at most the shape `box`.

    needed: the bytes of each candidate. reading: the unit of reading. Raises MemoryShort if not even the smallest tile
    fits.
    """
    fitting = [tiling for tiling, nbytes in zip(candidates, needed, strict=True) if nbytes <= memory]
    if not fitting:
        least = min(needed)
        raise MemoryShort(
            f"the smallest tiles, {candidates[0].tile} with their halo and the buffers of files, take {least:,} "
            f"bytes; {max(0, memory):,} are left beside the program",
            missing=least - memory,
        )
    return min(fitting, key=lambda tiling: _cost(tiling, box, reading))


def _sizes(n: int, unit: int) -> list[int]:
    """The sizes of a tile along an axis: 1, 2, 4, ... units, or all voxels."""
    sizes = [min(n, unit)]
    while sizes[-1] < n:
        sizes.append(min(n, 2 * sizes[-1]))
    return sizes


def _cost(tiling: Tiling, box: Shape, reading: Shape) -> float:
    voxels, spread = math.prod(box), 1.0
    for axis in (1, 2):  # not along z, where nothing is read twice
        unit, tile = reading[axis], tiling.tile[axis]
        halo = sum(-(-side[axis] // unit) * unit for side in (tiling.before, tiling.after))
        spread *= min(tile + halo, tiling.shape[axis]) / tile if tile < tiling.shape[axis] else 1.0
    kept = tiling.block[0] - tiling.tile[0] if tiling.tile[0] < tiling.shape[0] else 0
    copied = kept / tiling.tile[0] * spread
    return (
        voxels * (spread + COPY * copied) + TOUCH * needed_bytes(tiling, 1) + TILE * tiling.count(Tile((0, 0, 0), box))
    )


def overlapped(
    tiles: Sequence[Tile],
    buffers: Sequence[np.ndarray],
    read: Callable[[Tile], np.ndarray],
    write: Callable[[Tile, np.ndarray], None],
) -> Generator[tuple[Tile, np.ndarray, np.ndarray], None, None]:
    """Yields (tile, its block, its output) for every tile. The caller fills the output before it takes the next tile.

    Meanwhile one thread reads the next block, and another writes the previous output. buffers: two flat arrays, each as
    large as the largest tile. Raises the errors of both threads. After an error of its own, the caller closes the
    generator, which stops the threads.
    """
    written: Future[None] | None = None
    out_of, next_out = buffers
    with ThreadPoolExecutor(1, "tilewright-read") as reader, ThreadPoolExecutor(1, "tilewright-write") as writer:
        coming = reader.submit(read, tiles[0])
        for i, tile in enumerate(tiles):
            block = coming.result()
            if i + 1 < len(tiles):
                coming = reader.submit(read, tiles[i + 1])
            out_of, next_out = next_out, out_of
            out = out_of[: math.prod(tile.shape)].reshape(tile.shape)
            yield tile, block, out
            if written:
                written.result()
            written = writer.submit(write, tile, out)
        if written:
            written.result()
