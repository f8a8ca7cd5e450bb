"""Parameters of the tile kernels of conv_transpose2d. `Tile` and `Form` are compile-time constants.

Triton 3.6 cannot read a field named `values` or `type` of a record, so no record here has one.
"""

from typing import NamedTuple


class Sizes(NamedTuple):
    """B, OH, OW, O: extents of out. N: columns of the product. s, t: positions of out per position, down and across.
    H, W, C: extents of an image of x. For blocks of positions N, s and t are those of a block."""

    B: int
    OH: int
    OW: int
    O: int
    N: int
    s: int
    t: int
    H: int
    W: int
    C: int


class Taps(NamedTuple):
    """down, across: taps among the weights. deep: blocks of BK in the depth."""

    down: int
    across: int
    deep: int


class Grid(NamedTuple):
    """down, across, deep: as in `Taps`. high, wide: boxes of positions down and across. products: rows of the table."""

    down: int
    across: int
    deep: int
    high: int
    wide: int
    products: int


class Pixels(NamedTuple):
    """What a block of positions reads, for `boxes.blocks`.

    down, across: pixels. deep: blocks of BK in the channels. high, wide: boxes down and across. top, left: row and
    column of the first pixel, not negative. up, back: blocks to subtract for that. channels: of a pixel.
    """

    down: int
    across: int
    deep: int
    high: int
    wide: int
    top: int
    left: int
    up: int
    back: int
    channels: int


class Tile(NamedTuple):
    """BM: positions. BN: columns. BK: depth that is loaded at a time."""

    BM: int
    BN: int
    BK: int


class BoxTile(NamedTuple):
    """images, rows, columns: positions of a box; their product is BM. BN: columns of the product. BK: depth that is
    loaded at a time. G: positions of a block each way, 1 where a position is no block."""

    images: int
    rows: int
    columns: int
    BN: int
    BK: int
    G: int = 1


class Form(NamedTuple):
    """limbs: 1, or 2 for float32 as two bfloat16 limbs. activation: a name that `gemm.tile.epilogue` knows, or None.
    even: all phases have as many outputs. run: t O, a constant, so that the compiler sees which outputs are adjacent.
    whole: C is as deep as the weights, so loads along the depth need no mask."""

    limbs: int
    activation: str | None
    even: bool
    run: int
    whole: bool = True
