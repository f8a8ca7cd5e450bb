"""What the SIMT kernels can take; the ladder refuses more."""

import math
from typing import NamedTuple

MOST_TAPS = 343  # of a kernel whose weights are parameters, with one instruction for each
MOST_PLANES = 7  # of a kernel: a thread has as many open sums for each output


class Tile(NamedTuple):
    """Outputs of a block along z, y and x."""

    planes: int
    rows: int
    columns: int


class March(NamedTuple):
    """How blocks march along z: elements z, y from a window's start to its output, and x from the quad that holds that
    start; planes of out per block; codes of the border along z and y, and along x (CONSTANT: x holds it already)."""

    z: int
    y: int
    x: int
    chunk: int
    mode: int
    row_mode: int


TILE = Tile(2, 4, 32)  # a warp lies along a row, so its loads have no bank conflicts


def halo_bytes(sizes: tuple[int, int, int]) -> int:
    """Bytes of a tile of `shared` with its halo, for a kernel (KD, KH, KW)."""
    return 4 * math.prod(tile + K - 1 for tile, K in zip(TILE, sizes, strict=True))
