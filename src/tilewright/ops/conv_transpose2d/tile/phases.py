"""The phases of a transposed convolution as products of tiles, all of them in one launch."""

import triton
import triton.language as tl

from tilewright.ops.gemm.tile.epilogue import activate


@triton.jit
def products(totals, x, weights, limbs: tl.constexpr):
    """totals + x (positions, depth) times weights (columns, depth), each one tile, or a high and a low limb of float32.

    Three products of limbs, the small ones first. Matrix units truncate where they add, always the same way; so a
    block's sum leaves them, and is added to the total with rounding.
    """
    if limbs == 2:
        part = tl.dot(x[1], weights[0].T)
        part = tl.dot(x[0], weights[1].T, part)
        totals += tl.dot(x[0], weights[0].T, part)
    else:
        totals = tl.dot(x[0], weights[0].T, totals, input_precision="tf32")
    return totals


@triton.jit
def store(totals, out, bias, place, n, start, sizes, FORM: tl.constexpr):
    """Finish sums (positions, columns) and write them. place: image, row and column of each position; n: the columns,
    (i t + l) O + o for a phase that lies i rows and l columns beside `start`. FORM: limbs, activation, whether all
    phases have as many outputs, t O: a constant, so that the compiler sees which outputs lie side by side."""
    b, j, k = place
    B, OH, OW, O, N, s, t, _, _, _ = sizes
    ACTIVATION: tl.constexpr = FORM[1]
    RUN: tl.constexpr = FORM[3]
    if bias is not None:
        totals += tl.load(bias + n % O, mask=n < N, other=0.0).to(tl.float32)[None, :]
    inside = ((b < B) & (j * s < OH) & (k * t < OW))[:, None] & (n < N)[None, :]
    row = j * s + start[0]
    if not FORM[2]:
        column = (k * t + start[1])[:, None] + (n // O % t)[None, :]
        inside = inside & (row[:, None] + (n // RUN)[None, :] < OH) & (column < OW)
    first = (b.to(tl.int64) * OH + row) * (OW * O) + k * RUN + start[1] * O
    at = out + (first[:, None] + (n // RUN * (OW * O) + n % RUN)[None, :])
    tl.store(at, activate(totals, ACTIVATION).to(out.dtype.element_ty), mask=inside)


@triton.jit
def phase_of(table, which):
    """(start, first tap's offset, taps, their place among the weights) of a row of the table; each down and across."""
    row = table + 8 * which
    start, first = (tl.load(row), tl.load(row + 4)), (tl.load(row + 1), tl.load(row + 5))
    count, at = (tl.load(row + 2), tl.load(row + 6)), (tl.load(row + 3), tl.load(row + 7))
    return start, first, count, at


@triton.jit(do_not_specialize=["sizes", "window"])
def phases(x, weights, out, extras, sizes, window, TILE: tl.constexpr, FORM: tl.constexpr):
    """out[b, s j + i, t k + l, o] = activation(bias + the product of phase (i, l)), a program a tile of one phase.

    x (B, H, W, C); weights (N, taps down, taps across, blocks * BK), two of them if they are limbs. extras: bias, or
    None, and the table of `phase_of`. sizes: (B, OH, OW, O, N, s, t, H, W, C). window: taps down and across, blocks of
    the depth. TILE: positions, columns, depth. FORM: as `store` takes it; whether C is as deep as the weights.
    """
    bias, table = extras
    B, OH, OW, _, N, s, t, H, W, C = sizes
    BM: tl.constexpr = TILE[0]
    BN: tl.constexpr = TILE[1]
    BK: tl.constexpr = TILE[2]
    sides, height, width = tl.cdiv(N, BN), tl.cdiv(OH, s), tl.cdiv(OW, t)
    tiles = tl.cdiv(B * height * width, BM) * sides
    start, first, count, place = phase_of(table, tl.program_id(0) // tiles)
    tile = tl.program_id(0) % tiles
    m, n, c = tile // sides * BM + tl.arange(0, BM), tile % sides * BN + tl.arange(0, BN), tl.arange(0, BK)
    b, j, k = m // (height * width), m // width % height, m % width
    depth = window[2] * BK  # the compiler sees a multiple: 16 bytes a load
    columns = weights + n[:, None] * (window[0] * window[1] * depth) + c[None, :]
    low = N * window[0] * window[1] * depth
    totals = tl.zeros((BM, BN), tl.float32)
    for step in tl.range(count[0] * count[1] * window[2]):
        tap, p = step // window[2], step % window[2] * BK
        u, v = tap // count[1], tap % count[1]
        h, w, q = j + first[0] + u, k + first[1] + v, p + c
        inside = ((b < B) & (h >= 0) & (h < H) & (w >= 0) & (w < W))[:, None]
        pixel = (b.to(tl.int64) * H + h) * W + w
        if FORM[4]:
            left = tl.load(x + (pixel[:, None] * depth + q[None, :]), mask=inside, other=0.0)
        else:
            left = tl.load(x + (pixel[:, None] * C + q[None, :]), mask=inside & (q < C)[None, :], other=0.0)
        at = columns + (((place[0] + u) * window[1] + place[1] + v) * depth + p)
        right = tl.load(at, mask=n[:, None] < N, other=0.0)
        if FORM[0] == 2:
            high = left.to(tl.bfloat16)
            rest = (left - high.to(tl.float32)).to(tl.bfloat16)
            right = (right, tl.load(at + low, mask=n[:, None] < N, other=0.0))
            totals = products(totals, (high, rest), right, 2)
        else:
            totals = products(totals, (left,), (right,), 1)
    store(totals, out, bias, (b, j, k), n, start, sizes, FORM)
