"""The phases as products of tiles that bulk copies fetch: a tile of positions is a box of images, rows and columns.

For a tap the box is read shifted; what lies outside an image arrives as zeros. No thread computes an address.
"""

import triton
import triton.language as tl

from tilewright.ops.conv_transpose2d.tile.phases import phase_of, products, store


@triton.jit
def place(first, BOX: tl.constexpr):
    """(image, row, column) of each position of a box at `first`."""
    m = tl.arange(0, BOX[0] * BOX[1] * BOX[2])
    return first[0] + m // (BOX[1] * BOX[2]), first[1] + m // BOX[2] % BOX[1], first[2] + m % BOX[2]


@triton.jit
def reached(first, size, count, offset, length: tl.constexpr):
    """(first, number) of the taps with which a box's rows, or columns, `first` .. `first + length`, meet an image."""
    begin = tl.maximum(0, 1 - length - first - offset)
    return begin, tl.maximum(0, tl.minimum(count, size - first - offset) - begin)


@triton.jit(do_not_specialize=["sizes", "window"])
def phases(x, weights, out, extras, sizes, window, TILE: tl.constexpr, FORM: tl.constexpr):
    """out as `phases.phases` computes it. x: a descriptor of boxes (images, rows, columns, depth) of x, or of its limbs
    side by side; weights: of boxes (columns, depth) of (N, taps * blocks * depth), limbs below each other.

    Weights are the left operand: matrix units want 64 rows or more, while positions may be 256. window: taps down and
    across, blocks of the depth, boxes of positions down and across, products. TILE: images, rows, columns, channels,
    depth. FORM: as `store` takes it.
    """
    bias, table = extras
    N, H, W = sizes[4], sizes[7], sizes[8]
    BM: tl.constexpr = TILE[0] * TILE[1] * TILE[2]
    BN: tl.constexpr = TILE[3]
    BK: tl.constexpr = TILE[4]
    sides, blocks = tl.cdiv(N, BN), window[2]
    tiles = window[3] * window[4] * sides
    images, rest = tl.program_id(0) // (tiles * window[5]), tl.program_id(0) % (tiles * window[5])
    start, offset, count, at = phase_of(table, rest // tiles)
    tile = rest % tiles
    n = tile % sides * BN
    first = images * TILE[0], tile // sides // window[4] * TILE[1], tile // sides % window[4] * TILE[2]
    u0, high = reached(first[1], H, count[0], offset[0], TILE[1])
    v0, wide = reached(first[2], W, count[1], offset[1], TILE[2])
    totals = tl.zeros((BN, BM), tl.float32)
    for step in tl.range(high * wide * blocks):
        tap, p = step // blocks, step % blocks * BK
        u, v = u0 + tap // wide, v0 + tap % wide
        h, w = first[1] + offset[0] + u, first[2] + offset[1] + v
        q = ((at[0] + u) * window[1] + at[1] + v) * blocks * BK + p
        left, right = weights.load([n, q]), x.load([first[0], h, w, p]).reshape(BM, BK)
        if FORM[0] == 2:
            left_low = weights.load([N + n, q])
            right_low = x.load([first[0], h, w, blocks * BK + p]).reshape(BM, BK)
            totals = products(totals, (left, left_low), (right, right_low), 2)
        else:
            totals = products(totals, (left,), (right,), 1)
    columns = n + tl.arange(0, BN)
    store(totals.T, out, bias, place(first, TILE), columns, start, sizes, FORM)


@triton.jit(do_not_specialize=["sizes", "window"])
def blocks(x, weights, out, bias, sizes, window, TILE: tl.constexpr, FORM: tl.constexpr):
    """out for few channels: a position is a block of G x G positions, and all phases of all of them are the columns.

    G x G positions read (taps + G - 1)^2 pixels where they would read G^2 taps^2: at G = 2 and three taps, 16 for 36.
    x: a descriptor of boxes (images, rows, 1, columns, depth) of (B, H / G, G, W / G, G channels). sizes: N, s and t
    are a block's. window: pixels down and across, blocks of the depth, boxes down and across; the first pixel's row and
    column, which are not negative, and the blocks to go back for that; channels. TILE: images, rows, columns, N's
    share, depth, G.
    """
    BM: tl.constexpr = TILE[0] * TILE[1] * TILE[2]
    BN: tl.constexpr = TILE[3]
    BK: tl.constexpr = TILE[4]
    G: tl.constexpr = TILE[5]
    down, across, deep, high, wide, top, left, up, back, channels = window
    tile = tl.program_id(0)
    first = tile // (high * wide) * TILE[0], tile // wide % high * TILE[1], tile % wide * TILE[2]
    totals = tl.zeros((BN, BM), tl.float32)
    for step in tl.range(down * across * deep):
        pixel, p = step // deep, step % deep * BK
        u, v = top + pixel // across, left + pixel % across
        h, w, c = first[1] - up + u // G, first[2] - back + v // G, v % G * channels + p
        a, b = weights.load([0, step * BK]), x.load([first[0], h, u % G, w, c]).reshape(BM, BK)
        if FORM[0] == 2:
            a_low, b_low = weights.load([sizes[4], step * BK]), x.load([first[0], h, u % G, w, c + deep * BK])
            totals = products(totals, (a, a_low), (b, b_low.reshape(BM, BK)), 2)
        else:
            totals = products(totals, (a,), (b,), 1)
    store(totals.T, out, bias, place(first, TILE), tl.arange(0, BN), (0, 0), sizes, FORM)
