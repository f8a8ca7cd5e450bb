"""The phases as products of tiles that bulk copies load: a tile of positions is a box of images, rows and columns.

For each tap the box is shifted. Bulk copies give zeros outside an image. No thread computes an address.
"""

import triton
import triton.language as tl

from tilewright.ops.conv_transpose2d.tile.phases import phase_of, products, store


@triton.jit
def place(first, tile: tl.constexpr):
    """(image, row, column) of each position of a box whose first position is `first`."""
    image, row, column = first
    m = tl.arange(0, tile.images * tile.rows * tile.columns)
    area: tl.constexpr = tile.rows * tile.columns
    return image + m // area, row + m // tile.columns % tile.rows, column + m % tile.columns


@triton.jit
def reached(first, size, count, offset, length: tl.constexpr):
    """(first, number) of the taps with which rows (or columns) `first` .. `first + length` of a box meet an image."""
    begin = tl.maximum(0, 1 - length - first - offset)
    return begin, tl.maximum(0, tl.minimum(count, size - first - offset) - begin)


@triton.jit(do_not_specialize=["sizes", "grid"])
def phases(x, weights, out, extras, sizes, grid, tile: tl.constexpr, form: tl.constexpr):
    """out as in `phases.phases`. x: a descriptor of boxes (images, rows, columns, depth) of x, or of its two limbs
    along the depth; weights: of boxes (columns, depth) of (N, taps * grid.deep * depth), or of two limbs along N.

    Weights are the left operand: matrix units want 64 rows or more, and a tile may have 256 positions. sizes, grid,
    tile, form: `records.Sizes`, `Grid`, `BoxTile`, `Form`.
    """
    bias, table = extras
    N, H, W, across, deep = sizes.N, sizes.H, sizes.W, grid.across, grid.deep
    BM: tl.constexpr = tile.images * tile.rows * tile.columns
    BN: tl.constexpr = tile.BN
    BK: tl.constexpr = tile.BK
    sides = tl.cdiv(N, BN)
    tiles = grid.high * grid.wide * sides
    images, rest = tl.program_id(0) // (tiles * grid.products), tl.program_id(0) % (tiles * grid.products)
    start, offset, count, at = phase_of(table, rest // tiles)
    above, left_of = offset
    rows, columns = count
    top, beside = at
    index = rest % tiles
    n = index % sides * BN
    image = images * tile.images
    row, column = index // sides // grid.wide * tile.rows, index // sides % grid.wide * tile.columns
    u0, high = reached(row, H, rows, above, tile.rows)
    v0, wide = reached(column, W, columns, left_of, tile.columns)
    totals = tl.zeros((BN, BM), tl.float32)
    for step in tl.range(high * wide * deep):
        tap, p = step // deep, step % deep * BK
        u, v = u0 + tap // wide, v0 + tap % wide
        h, w = row + above + u, column + left_of + v
        q = ((top + u) * across + beside + v) * deep * BK + p
        left, right = weights.load([n, q]), x.load([image, h, w, p]).reshape(BM, BK)
        if form.limbs == 2:
            left_low = weights.load([N + n, q])
            right_low = x.load([image, h, w, deep * BK + p]).reshape(BM, BK)
            totals = products(totals, (left, left_low), (right, right_low), 2)
        else:
            totals = products(totals, (left,), (right,), 1)
    channels = n + tl.arange(0, BN)
    store(totals.T, out, bias, place((image, row, column), tile), channels, start, sizes, form)


@triton.jit(do_not_specialize=["sizes", "pixels"])
def blocks(x, weights, out, bias, sizes, pixels, tile: tl.constexpr, form: tl.constexpr):
    """out for few channels: a position is a block of G x G positions. The columns are all phases of all its positions.

    A block reads (taps + G - 1)^2 pixels. Separate positions would read G^2 taps^2: for G = 2 and three taps 36,
    not 16. x: a descriptor of boxes (images, rows, 1, columns, depth) of (B, H / G, G, W / G, G channels). sizes,
    pixels, tile, form: `records.Sizes`, `Pixels`, `BoxTile`, `Form`.
    """
    BM: tl.constexpr = tile.images * tile.rows * tile.columns
    BN: tl.constexpr = tile.BN
    BK: tl.constexpr = tile.BK
    G: tl.constexpr = tile.G
    N = sizes.N
    down, across, deep, high, wide, top, left, up, back, channels = pixels
    index = tl.program_id(0)
    image = index // (high * wide) * tile.images
    row, column = index // wide % high * tile.rows, index % wide * tile.columns
    totals = tl.zeros((BN, BM), tl.float32)
    for step in tl.range(down * across * deep):
        pixel, p = step // deep, step % deep * BK
        u, v = top + pixel // across, left + pixel % across
        h, w, c = row - up + u // G, column - back + v // G, v % G * channels + p
        a, b = weights.load([0, step * BK]), x.load([image, h, u % G, w, c]).reshape(BM, BK)
        if form.limbs == 2:
            a_low, b_low = weights.load([N, step * BK]), x.load([image, h, u % G, w, c + deep * BK])
            totals = products(totals, (a, a_low), (b, b_low.reshape(BM, BK)), 2)
        else:
            totals = products(totals, (a,), (b,), 1)
    store(totals.T, out, bias, place((image, row, column), tile), tl.arange(0, BN), (0, 0), sizes, form)
