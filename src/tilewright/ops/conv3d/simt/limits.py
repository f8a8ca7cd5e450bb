"""Limits and parameters of the SIMT kernels; the ladder refuses larger windows."""

import math
from typing import NamedTuple

MOST_TAPS = 343  # taps of a window whose weights are kernel parameters, with one instruction for each
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
