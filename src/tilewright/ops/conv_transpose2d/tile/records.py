"""Parameters of the tile kernels of conv_transpose2d. `Tile`, `BoxTile`, `Form`, `Sides` and `Rolling`
are compile-time constants.

Triton 3.6 cannot read a field named `values` or `type` of a record, so no record here has one.
"""

from typing import Any, NamedTuple

IMAGES, BLOCKS = 8, 8  # of a tile in `rolling`; their product is 64, the rows of an instruction


class Target(NamedTuple):
    """Pointers to out (B, OH, OW, O), or its limbs (B, OH, OW, 2, O), contiguous; and to the bias (O,), or None."""

    out: Any
    bias: Any


class Sizes(NamedTuple):
    """B, OH, OW, O: extents of out. N: columns of the product. s, t: outputs per position, down and across. H, W, C:
    extents of an image of x. For blocks of positions N, s and t are those of a block."""

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


class Phase(NamedTuple):
    """A phase, or the first of several that are one product; a row of the table. i, l: its output row and column.
    above, left: offset of its first tap. down, across: how many taps. top, side: index of its first tap among the
    weights."""

    i: Any
    above: Any
    down: Any
    top: Any
    l: Any
    left: Any
    across: Any
    side: Any


class Positions(NamedTuple):
    """Image, row and column of each position of a tile: int32 (BM,)."""

    image: Any
    row: Any
    column: Any


class Job(NamedTuple):
    """Arguments of `hopper.products` that most of its warps need."""

    table: Any
    target: Any
    sizes: Any
    grid: Any


class Task(NamedTuple):
    """A tile of one product. phase: a `Phase`. n: its first column. image, row, column: its first position. u, high:
    the first of its taps down and how many there are. v, wide: the same across."""

    phase: Any
    n: Any
    image: Any
    row: Any
    column: Any
    u: Any
    high: Any
    v: Any
    wide: Any


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
    loaded at a time. G: positions of a block along each axis, 1 without blocks. stages: blocks of the depth in flight
    (Hopper)."""

    images: int
    rows: int
    columns: int
    BN: int
    BK: int
    G: int = 1
    stages: int = 0


class Sides(NamedTuple):
    """The taps across for which each half of a tile's columns has weights: sums of 2**v."""

    left: int
    right: int


class Form(NamedTuple):
    """limbs: 1, or 2 for float32 as two bfloat16 limbs. activation: a name that `gemm.tile.epilogue` knows, or None.
    even: all phases have equally many outputs. run: t * O, a constant, so that the compiler sees which outputs are
    adjacent. whole: C is as deep as the weights, so loads along the depth need no mask. O: channels, a constant for the
    same reason. sides: None if all columns have weights for all taps (Hopper)."""

    limbs: int
    activation: str | None
    even: bool
    run: int
    whole: bool
    O: int
    sides: Sides | None = None


class Walk(NamedTuple):
    """How `rolling` walks down images.

    B, OH, OW: extents of out. channels: of a pixel of x. across, down: strips. first, last: the first row of x after
    which two rows of outputs are finished, and the end of these rows; they may lie below the image. height: rows of a
    strip. top: outputs cropped above. left: column of the first pixel of block 0. back: blocks to add so that it is not
    negative.
    """

    B: int
    OH: int
    OW: int
    channels: int
    across: int
    down: int
    first: int
    last: int
    height: int
    top: int
    left: int
    back: int


class Rolling(NamedTuple):
    """limbs, activation: as in `Form`. O: channels of out. deep: LINEs of channels of x. above: rows of x above a strip
    that its first outputs need. stages: in flight."""

    limbs: int
    activation: str | None
    O: int
    deep: int
    above: int
    stages: int


class RollingStages(NamedTuple):
    """Shared memory of `rolling`. rows: x, a unit for each pixel. weights: all of them. full, empty: a barrier for each
    stage. loaded: completes when the weights have arrived."""

    rows: Any
    weights: Any
    full: Any
    empty: Any
    loaded: Any
