"""Limits and parameters of the SIMT kernels; the ladder refuses larger windows."""

import math
from typing import NamedTuple

from tilewright.ops.core.gpu.limits import THREADS_LIMIT

MOST_TAPS = 343  # taps of a window whose weights are kernel parameters, with one instruction for each
CUBE = 4  # outputs along each axis of a block of `cubes`: the largest with which K = 7 has 1,024 threads at most
MOST_PLANES = 7  # planes of a window: a thread has this many unfinished sums for each output


class Tile(NamedTuple):
    """Outputs of a block along z, y and x."""

    planes: int
    rows: int
    columns: int


class March(NamedTuple):
    """How blocks march along z.

    z, y: elements from a window's start to its output. x: the same, from the quad that contains the start. chunk:
    planes of out per block. mode: the border's code along z and y. row_mode: its code along x, CONSTANT if the rows of
    x already include the border.
    """

    z: int
    y: int
    x: int
    chunk: int
    mode: int
    row_mode: int


TILE = Tile(2, 4, 32)  # a warp covers one row, so its loads have no bank conflicts


def halo_bytes(sizes: tuple[int, int, int]) -> int:
    """Bytes of a tile of `shared` with its halo, for a kernel (KD, KH, KW)."""
    return 4 * math.prod(tile + K - 1 for tile, K in zip(TILE, sizes, strict=True))


def cube_refusal(sizes: tuple[int, int, int], tile: int) -> str | None:
    """The reason why `cubes` cannot run this tile with a kernel (KD, KH, KW); None if it can.

    Shared memory is no limit: 1,024 elements take 4 KiB.
    """
    if tile < 1:
        return f"a tile of {tile} has no output; give 1 or more"
    planes, rows, columns = (tile + K - 1 for K in sizes)
    threads = planes * rows * columns
    if threads <= THREADS_LIMIT:
        return None
    extents = f"{planes} x {rows} x {columns}"
    return f"a tile of {tile} with its halo takes {extents} = {threads:,} threads; a block has up to {THREADS_LIMIT:,}"
