"""Products whose tiles are loaded by bulk copies (TMA): a tile of positions is a box of images, rows and columns.

The formula is that of `phases`. The kernel visits the taps (elements of the filter) one after another. For each tap
it loads the box of x that is shifted by this tap. Bulk copies give zeros outside an image, and no thread computes an
address. In `blocks`, for few channels, a position is a block of G x G positions, so that each pixel is loaded less
often: L2 bandwidth limits such layers. Bulk copies need rows of x of whole 16-byte units. If images do not fill the
boxes, some products are wasted.
"""

import triton
import triton.language as tl

from tilewright.ops.conv_transpose2d.tile.phases import phase_of, products, store
from tilewright.ops.conv_transpose2d.tile.records import Positions


@triton.jit
def positions_of(image, row, column, tile: tl.constexpr):
    """`records.Positions` of a box whose first position is (image, row, column)."""
    m = tl.arange(0, tile.images * tile.rows * tile.columns)
    area: tl.constexpr = tile.rows * tile.columns
    return Positions(image + m // area, row + m // tile.columns % tile.rows, column + m % tile.columns)


@triton.jit
def taps_inside(first, size, count, offset, length: tl.constexpr):
    """(first, number) of the `count` taps with which positions `first` to `first + length` meet an image of `size`
    rows (or columns). offset: of tap 0."""
    begin = tl.maximum(0, 1 - length - first - offset)
    return begin, tl.maximum(0, tl.minimum(count, size - first - offset) - begin)


@triton.jit(do_not_specialize=["sizes", "grid"])
def phases(x, weights, table, target, sizes, grid, tile: tl.constexpr, form: tl.constexpr):
    """out as in `phases.phases`. One program per box of a phase and BN of its columns.

    x: a descriptor of boxes (images, rows, columns, depth) of x, or of its two limbs along the depth. weights: of boxes
    (columns, depth) of (N, taps * grid.deep * depth), or of two limbs along N. They are the left operand: matrix units
    need 64 rows or more, and a tile may have 256 positions. table: see `phases.phase_of`. target, sizes, grid, tile,
    form: `records.Target`, `Sizes`, `Grid`, `BoxTile`, `Form`.
    """
    N, across, deep = sizes.N, grid.across, grid.deep
    BM: tl.constexpr = tile.images * tile.rows * tile.columns
    BN: tl.constexpr = tile.BN
    BK: tl.constexpr = tile.BK
    sides = tl.cdiv(N, BN)
    tiles = grid.high * grid.wide * sides
    images, rest = tl.program_id(0) // (tiles * grid.products), tl.program_id(0) % (tiles * grid.products)
    phase = phase_of(table, rest // tiles)
    index = rest % tiles
    n = index % sides * BN
    image = images * tile.images
    row, column = index // sides // grid.wide * tile.rows, index // sides % grid.wide * tile.columns
    u0, high = taps_inside(row, sizes.H, phase.down, phase.above, tile.rows)
    v0, wide = taps_inside(column, sizes.W, phase.across, phase.left, tile.columns)
    totals = tl.zeros((BN, BM), tl.float32)
    for step in tl.range(high * wide * deep):
        tap, p = step // deep, step % deep * BK
        u, v = u0 + tap // wide, v0 + tap % wide
        h, w = row + phase.above + u, column + phase.left + v
        q = ((phase.top + u) * across + phase.side + v) * deep * BK + p
        left, right = weights.load([n, q]), x.load([image, h, w, p]).reshape(BM, BK)
        if form.limbs == 2:
            left_low = weights.load([N + n, q])
            right_low = x.load([image, h, w, deep * BK + p]).reshape(BM, BK)
            totals = products(totals, (left, left_low), (right, right_low), 2)
        else:
            totals = products(totals, (left,), (right,), 1)
    channels, positions = n + tl.arange(0, BN), positions_of(image, row, column, tile)
    store(totals.T, target, positions, channels, phase.i, phase.l, sizes, form)


@triton.jit(do_not_specialize=["sizes", "pixels"])
def blocks(x, weights, target, sizes, pixels, tile: tl.constexpr, form: tl.constexpr):
    """out for few channels: a position is a block of G x G positions. The columns are all phases of all its positions.

    A block reads (taps + G - 1)^2 pixels. Separate positions would read G^2 taps^2: for G = 2 and three taps 36,
    not 16. x: a descriptor of boxes (images, rows, 1, columns, depth) of (B, H / G, G, W / G, G channels). weights: of
    boxes (columns, depth) of (N, pixels * channels), or of two limbs along N. target, sizes, pixels, tile, form:
    `records.Target`, `Sizes`, `Pixels`, `BoxTile`, `Form`.
    """
    BM: tl.constexpr = tile.images * tile.rows * tile.columns
    BN: tl.constexpr = tile.BN
    BK: tl.constexpr = tile.BK
    G: tl.constexpr = tile.G
    N, across, deep, high, wide = sizes.N, pixels.across, pixels.deep, pixels.high, pixels.wide
    index = tl.program_id(0)
    image = index // (high * wide) * tile.images
    row, column = index // wide % high * tile.rows, index % wide * tile.columns
    totals = tl.zeros((BN, BM), tl.float32)
    for step in tl.range(pixels.down * across * deep):
        pixel, p = step // deep, step % deep * BK
        u, v = pixels.top + pixel // across, pixels.left + pixel % across
        h, w, c = row - pixels.up + u // G, column - pixels.back + v // G, v % G * pixels.channels + p
        a, b = weights.load([0, step * BK]), x.load([image, h, u % G, w, c]).reshape(BM, BK)
        if form.limbs == 2:
            a_low, b_low = weights.load([N, step * BK]), x.load([image, h, u % G, w, c + deep * BK])
            totals = products(totals, (a, a_low), (b, b_low.reshape(BM, BK)), 2)
        else:
            totals = products(totals, (a,), (b,), 1)
    store(totals.T, target, positions_of(image, row, column, tile), tl.arange(0, BN), 0, 0, sizes, form)
