"""The phases of a transposed convolution as products of tiles, all phases in one launch."""

import triton
import triton.language as tl

from tilewright.ops.gemm.tile.epilogue import activate


@triton.jit
def products(totals, x, weights, limbs: tl.constexpr):
    """totals + x (positions, depth) times weights (columns, depth): tuples of one tile, or of a high and a low limb.

    Three products of limbs, the small ones first. Matrix units truncate their sums. So each block has its own sum
    there, and the total is added outside them, with rounding.
    """
    if limbs == 2:
        x_high, x_low = x
        high, low = weights
        part = tl.dot(x_low, high.T)
        part = tl.dot(x_high, low.T, part)
        totals += tl.dot(x_high, high.T, part)
    else:
        (x_tile,) = x
        (tile,) = weights
        totals = tl.dot(x_tile, tile.T, totals, input_precision="tf32")
    return totals


@triton.jit
def store(totals, out, bias, place, n, start, sizes, form: tl.constexpr):
    """Finish sums (positions, columns) and write them. place: image, row and column of each position.

    n: the columns, (i t + l) O + o for a phase i rows and l columns away from `start` (down, across).
    sizes, form: `records.Sizes`, `records.Form`.
    """
    b, j, k = place
    i, l = start
    B, OH, OW, O, N, s, t, _, _, _ = sizes
    ACTIVATION: tl.constexpr = form.activation
    RUN: tl.constexpr = form.run
    if bias is not None:
        totals += tl.load(bias + n % O, mask=n < N, other=0.0).to(tl.float32)[None, :]
    inside = ((b < B) & (j * s < OH) & (k * t < OW))[:, None] & (n < N)[None, :]
    row = j * s + i
    if not form.even:
        column = (k * t + l)[:, None] + (n // O % t)[None, :]
        inside = inside & (row[:, None] + (n // RUN)[None, :] < OH) & (column < OW)
    first = (b.to(tl.int64) * OH + row) * (OW * O) + k * RUN + l * O
    at = out + (first[:, None] + (n // RUN * (OW * O) + n % RUN)[None, :])
    tl.store(at, activate(totals, ACTIVATION).to(out.dtype.element_ty), mask=inside)


@triton.jit
def phase_of(table, which):
    """(first phase, offset of the first tap, number of taps, index of the first weight) of a row of the table.

    Each is a pair: down, across.
    """
    row = table + 8 * which
    start, first = (tl.load(row), tl.load(row + 4)), (tl.load(row + 1), tl.load(row + 5))
    count, at = (tl.load(row + 2), tl.load(row + 6)), (tl.load(row + 3), tl.load(row + 7))
    return start, first, count, at


@triton.jit(do_not_specialize=["sizes", "taps"])
def phases(x, weights, out, extras, sizes, taps, tile: tl.constexpr, form: tl.constexpr):
    """out[b, s j + i, t k + l, o] = activation(bias + the product of phase (i, l)). One program per tile of a phase.

    x (B, H, W, C); weights (N, taps down, taps across, taps.deep * BK), two of them if they are limbs. extras: bias or
    None, and the table of `phase_of`. sizes, taps, tile, form: `records.Sizes`, `Taps`, `Tile`, `Form`.
    """
    bias, table = extras
    B, OH, OW, _, N, s, t, H, W, C = sizes
    down, across, deep = taps
    BM: tl.constexpr = tile.BM
    BN: tl.constexpr = tile.BN
    BK: tl.constexpr = tile.BK
    sides, height, width = tl.cdiv(N, BN), tl.cdiv(OH, s), tl.cdiv(OW, t)
    tiles = tl.cdiv(B * height * width, BM) * sides
    start, first, count, place = phase_of(table, tl.program_id(0) // tiles)
    above, left_of = first
    rows, columns = count
    top, beside = place
    index = tl.program_id(0) % tiles
    m, n, c = index // sides * BM + tl.arange(0, BM), index % sides * BN + tl.arange(0, BN), tl.arange(0, BK)
    b, j, k = m // (height * width), m // width % height, m % width
    depth = deep * BK  # the compiler sees a multiple: 16 bytes per load
    line = weights + n[:, None] * (down * across * depth) + c[None, :]
    low = N * down * across * depth
    totals = tl.zeros((BM, BN), tl.float32)
    for step in tl.range(rows * columns * deep):
        tap, p = step // deep, step % deep * BK
        u, v = tap // columns, tap % columns
        h, w, q = j + above + u, k + left_of + v, p + c
        inside = ((b < B) & (h >= 0) & (h < H) & (w >= 0) & (w < W))[:, None]
        pixel = (b.to(tl.int64) * H + h) * W + w
        if form.whole:
            left = tl.load(x + (pixel[:, None] * depth + q[None, :]), mask=inside, other=0.0)
        else:
            left = tl.load(x + (pixel[:, None] * C + q[None, :]), mask=inside & (q < C)[None, :], other=0.0)
        at = line + (((top + u) * across + beside + v) * depth + p)
        right = tl.load(at, mask=n[:, None] < N, other=0.0)
        if form.limbs == 2:
            high = left.to(tl.bfloat16)
            rest = (left - high.to(tl.float32)).to(tl.bfloat16)
            right = (right, tl.load(at + low, mask=n[:, None] < N, other=0.0))
            totals = products(totals, (high, rest), right, 2)
        else:
            totals = products(totals, (left,), (right,), 1)
    store(totals, out, bias, (b, j, k), n, start, sizes, form)
