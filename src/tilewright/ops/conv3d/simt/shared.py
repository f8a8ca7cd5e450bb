"""A block's outputs and their halo in shared memory: the block loads an element once for all windows over it."""

import math
from functools import cache
from typing import NamedTuple

from numba import cuda, float32

from tilewright.ops.conv3d.simt.border import source_index
from tilewright.ops.conv3d.simt.limits import TILE, Tile
from tilewright.ops.conv3d.simt.window import taps_for
from tilewright.ops.core.gpu.simt import inline, kernel

THREADS = TILE.columns, TILE.rows, TILE.planes


class Box(NamedTuple):
    """A part of a volume: its first plane, row and column, and how many of each."""

    plane: int
    row: int
    column: int
    planes: int
    rows: int
    columns: int


@inline
def gather(x, tile, box, mode, fill):
    """Fill the tile (planes, rows, columns) with the elements of x (D, H, W) in the `Box`; `fill` outside of x."""
    for i in range(cuda.threadIdx.z, box.planes, TILE.planes):
        z = source_index(box.plane + i, x.shape[0], mode)
        for j in range(cuda.threadIdx.y, box.rows, TILE.rows):
            y, start = source_index(box.row + j, x.shape[1], mode), (i * box.rows + j) * box.columns
            for k in range(cuda.threadIdx.x, box.columns, TILE.columns):
                at = source_index(box.column + k, x.shape[2], mode)
                tile[start + k] = fill if z < 0 or y < 0 or at < 0 else x[z, y, at]


def corner_for(tile: Tile):
    """corner(out): (o, plane, row, column) of the first output of a block that computes `tile`."""

    @inline
    def corner(out):
        _, planes, height, width = out.shape
        across, down = (width + tile.columns - 1) // tile.columns, (height + tile.rows - 1) // tile.rows
        layers, block = (planes + tile.planes - 1) // tile.planes, cuda.blockIdx.x
        plane, row = block // (across * down) % layers * tile.planes, block // across % down * tile.rows
        return block // (across * down * layers), plane, row, block % across * tile.columns

    return corner


corner_of = corner_for(TILE)


@inline
def put(out, o, plane, row, column, total):
    """Write this thread's output if it is inside out. plane, row, column: of the block's first output."""
    plane, row, column = plane + cuda.threadIdx.z, row + cuda.threadIdx.y, column + cuda.threadIdx.x
    if plane < out.shape[1] and row < out.shape[2] and column < out.shape[3]:
        out[o, plane, row, column] = total


@inline
def window_start(extents):
    """Index of the first element of this thread's window in a tile (planes, rows, columns)."""
    _, rows, columns = extents
    return (cuda.threadIdx.z * rows + cuda.threadIdx.y) * columns + cuda.threadIdx.x


@kernel
def shared(x, weights, out, first, mode, fill):
    """As `naive`, from a tile in shared memory, whose size is set at launch.

    A block makes (TILE + K - 1)**3 loads from device memory, and K**3 loads per output from shared memory. It is slow
    on volumes smaller than a tile.
    """
    tile = cuda.shared.array(0, float32)
    C, KD, KH, KW = weights.shape[1:]
    o, plane, row, column = corner_of(out)
    extents = (TILE.planes + KD - 1, TILE.rows + KH - 1, TILE.columns + KW - 1)
    (planes, rows, columns), (above, before, left) = extents, first
    at, total = window_start(extents), float32(0)
    for c in range(C):
        box = Box(plane - above, row - before, column - left, planes, rows, columns)
        gather(x[c], tile, box, mode, fill)
        cuda.syncthreads()
        for a in range(KD):
            for b in range(KH):
                start = at + (a * rows + b) * columns
                for t in range(KW):
                    total += weights[o, c, a, b, t] * tile[start + t]
        cuda.syncthreads()
    put(out, o, plane, row, column, total)


@cache
def constant(sizes: tuple[int, int, int]):
    """kernel(x (1, D, H, W), out (1, ...), weights, first, mode, fill); weights: a tuple of float32.

    Kernel parameters are in constant memory. A multiply-add reads one there as fast as a register. The loops over taps
    are unrolled. It is slow at the first call: it compiles a kernel for each size.
    """
    extents = planes, rows, columns = tuple(tile + K - 1 for tile, K in zip(TILE, sizes, strict=True))
    elements, taps = math.prod(extents), taps_for(sizes, extents)

    @kernel
    def convolve(x, out, weights, first, mode, fill):
        tile = cuda.shared.array(elements, float32)
        (_, plane, row, column), (above, before, left) = corner_of(out), first
        box = Box(plane - above, row - before, column - left, planes, rows, columns)
        gather(x[0, :, :, :], tile, box, mode, fill)
        cuda.syncthreads()
        put(out, 0, plane, row, column, taps(tile, window_start(extents), weights))

    return convolve
