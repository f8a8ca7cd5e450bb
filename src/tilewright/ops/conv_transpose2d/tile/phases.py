"""All output phases in one launch, each as a product on matrix units whose operands are loaded by pointers.

out[b, s j + i, t k + l, o] = activation(bias[o] + sum over taps (u, v) and channels c of
x[b, j + above + u, k + left + v, c] * weights[o, top + u, side + v, c]), for each phase (i, l). A tap is one element of
the filter. A program computes BM positions (b, j, k) by BN columns. For each tap and block of channels, it loads BM
pixels of x, shifted by the tap, with zeros outside, and BN rows of weights. No im2col matrix is written. Each pixel is
loaded once per tap, from addresses that threads compute: this is the limit, and `boxes` avoids it.
"""

import triton
import triton.language as tl

from tilewright.ops.conv_transpose2d.tile.records import Phase, Positions
from tilewright.ops.gemm.tile.epilogue import INTERPRETED, activate


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
def limbs_of(tile):
    """(high, low): the bfloat16 limbs of a float32 tile."""
    high = tile.to(tl.bfloat16)
    return high, (tile - high.to(tl.float32)).to(tl.bfloat16)


@triton.jit
def rest_of(x, high):
    """x - high in float32. x is rounded before, also if it is a product: a fused multiply-add would not round it."""
    if INTERPRETED:
        return x - high.to(tl.float32)
    else:
        operands = [x, high.to(tl.float32)]
        return tl.inline_asm_elementwise("sub.rn.f32 $0, $1, $2;", "=f,f,f", operands, tl.float32, True, 1)


@triton.jit(do_not_specialize=["shape"])
def split(x, limbs, shape, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """limbs (pixels, 2 depth) bfloat16: high and low limbs of x (pixels, C) float32, zeros beyond C. shape: (pixels, C,
    depth). One program per ROWS pixels and BLOCK channels."""
    pixels, C, depth = shape
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    high, low = limbs_of(tl.load(x + row * C + c, mask=(row < pixels) & (c < C), other=0.0))
    inside = (row < pixels) & (c < depth)
    tl.store(limbs + row * (2 * depth) + c, high, mask=inside)
    tl.store(limbs + row * (2 * depth) + depth + c, low, mask=inside)


@triton.jit
def load_pixels(x, pixel, q, inside, C, depth, form: tl.constexpr):
    """Elements q of these pixels, zeros outside: a tile, or its two limbs if form.limbs is 2. x: pointer to pixels of C
    elements, or of two limbs of `depth` elements each."""
    if form.limbs == 2 and x.dtype.element_ty == tl.bfloat16:
        at = x + (pixel[:, None] * (2 * depth) + q[None, :])
        return tl.load(at, mask=inside, other=0.0), tl.load(at + depth, mask=inside, other=0.0)
    else:
        if form.whole:
            tile = tl.load(x + (pixel[:, None] * depth + q[None, :]), mask=inside, other=0.0)
        else:
            tile = tl.load(x + (pixel[:, None] * C + q[None, :]), mask=inside & (q < C)[None, :], other=0.0)
        return limbs_of(tile) if form.limbs == 2 else tile


@triton.jit
def store(totals, target, positions, n, i, l, sizes, form: tl.constexpr):
    """Add bias to sums (positions, columns), apply the activation, and write them, or in float32 perhaps their limbs.

    n: the columns, (i' t + l') O + o for the phase i' rows and l' columns after the phase (i, l).
    target, positions, sizes, form: `records.Target`, `Positions`, `Sizes`, `Form`.
    """
    OH, OW, O, N, s, t = sizes.OH, sizes.OW, sizes.O, sizes.N, sizes.s, sizes.t
    b, j, k = positions.image, positions.row, positions.column
    ACTIVATION: tl.constexpr = form.activation
    RUN: tl.constexpr = form.run
    if target.bias is not None:
        totals += tl.load(target.bias + n % O, mask=n < N, other=0.0).to(tl.float32)[None, :]
    inside = ((b < sizes.B) & (j * s < OH) & (k * t < OW))[:, None] & (n < N)[None, :]
    row = j * s + i
    if not form.even:
        column = (k * t + l)[:, None] + (n // O % t)[None, :]
        inside = inside & (row[:, None] + (n // RUN)[None, :] < OH) & (column < OW)
    first = (b.to(tl.int64) * OH + row) * (OW * O) + k * RUN + l * O
    totals = activate(totals, ACTIVATION)
    if form.limbs == 2 and target.out.dtype.element_ty == tl.bfloat16:
        pixel = n // RUN * (OW * O) + n % RUN // form.O * form.O
        at = target.out + (2 * first[:, None] + (2 * pixel + n % form.O)[None, :])
        high = totals.to(tl.bfloat16)
        tl.store(at, high, mask=inside)
        tl.store(at + form.O, rest_of(totals, high).to(tl.bfloat16), mask=inside)
    else:
        at = target.out + (first[:, None] + (n // RUN * (OW * O) + n % RUN)[None, :])
        tl.store(at, totals.to(target.out.dtype.element_ty), mask=inside)


@triton.jit
def phase_of(table, which):
    """Row `which` of the table, int32 (products, 8), as a `records.Phase`."""
    row = table + 8 * which
    i, above, down, top = tl.load(row), tl.load(row + 1), tl.load(row + 2), tl.load(row + 3)
    l, left, across, side = tl.load(row + 4), tl.load(row + 5), tl.load(row + 6), tl.load(row + 7)
    return Phase(i, above, down, top, l, left, across, side)


@triton.jit(do_not_specialize=["sizes", "taps"])
def phases(x, weights, table, target, sizes, taps, tile: tl.constexpr, form: tl.constexpr):
    """out of all phases. One program per tile of a phase.

    x: pointer to (B, H, W, C) or its limbs. weights: pointer to (N, taps.down, taps.across, taps.deep * BK), or to two
    of these, the limbs. table: see `phase_of`. target, sizes, taps, tile, form: `records.Target`, `Sizes`, `Taps`,
    `Tile`, `Form`.
    """
    B, N, H, W, C = sizes.B, sizes.N, sizes.H, sizes.W, sizes.C
    BM: tl.constexpr = tile.BM
    BN: tl.constexpr = tile.BN
    BK: tl.constexpr = tile.BK
    sides, height, width = tl.cdiv(N, BN), tl.cdiv(sizes.OH, sizes.s), tl.cdiv(sizes.OW, sizes.t)
    tiles = tl.cdiv(B * height * width, BM) * sides
    phase = phase_of(table, tl.program_id(0) // tiles)
    index = tl.program_id(0) % tiles
    m, n, c = index // sides * BM + tl.arange(0, BM), index % sides * BN + tl.arange(0, BN), tl.arange(0, BK)
    b, j, k = m // (height * width), m // width % height, m % width
    depth = taps.deep * BK  # the compiler sees a multiple: 16 bytes per load
    line = weights + n[:, None] * (taps.down * taps.across * depth) + c[None, :]
    low = N * taps.down * taps.across * depth
    totals = tl.zeros((BM, BN), tl.float32)
    for step in tl.range(phase.down * phase.across * taps.deep):
        tap, p = step // taps.deep, step % taps.deep * BK
        u, v = tap // phase.across, tap % phase.across
        h, w, q = j + phase.above + u, k + phase.left + v, p + c
        inside = ((b < B) & (h >= 0) & (h < H) & (w >= 0) & (w < W))[:, None]
        pixel = (b.to(tl.int64) * H + h) * W + w
        left = load_pixels(x, pixel, q, inside, C, depth, form)
        at = line + (((phase.top + u) * taps.across + phase.side + v) * depth + p)
        right = tl.load(at, mask=n[:, None] < N, other=0.0)
        if form.limbs == 2:
            right = (right, tl.load(at + low, mask=n[:, None] < N, other=0.0))
            totals = products(totals, left, right, 2)
        else:
            totals = products(totals, (left,), (right,), 1)
    store(totals, target, Positions(b, j, k), n, phase.i, phase.l, sizes, form)
