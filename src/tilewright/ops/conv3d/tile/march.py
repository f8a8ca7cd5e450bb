"""A tile of rows marches along z: each number that it loads feeds KD open sums, as in `simt.march`, but no shared
memory holds the plane: a shifted tile comes from the first cache for each tap of a plane."""

import triton
import triton.language as tl

from tilewright.ops.conv3d.tile.border import place


@triton.jit
def _zeros(KD: tl.constexpr, BY: tl.constexpr, BX: tl.constexpr):
    """KD tiles of zeros."""
    sums = ()
    for _ in tl.static_range(KD):
        sums = sums + (tl.zeros((BY, BX), tl.float32),)
    return sums


@triton.jit
def _shifted(sums, KD: tl.constexpr):
    """The sums one plane later: a new one in front, without the last."""
    moved = (tl.zeros_like(sums[0]),)
    for a in tl.static_range(KD - 1):
        moved = moved + (sums[a],)
    return moved


@triton.jit
def _fed(sums, numbers, weights, step, KD: tl.constexpr):
    """sums[a] + numbers * weights[a * step]."""
    fed = ()
    for a in tl.static_range(KD):
        fed = fed + (sums[a] + numbers * tl.load(weights + a * step),)
    return fed


@triton.jit
def march(x, out, weights, extents, window, SIZES: tl.constexpr, MODE: tl.constexpr, BLOCK: tl.constexpr):
    """out (planes, height, width) of x (D, H, W); extents: both, and the planes that a program marches along.

    weights: (KD, KH, KW). window: how far it begins before its output, and what stands where MODE says none. BLOCK:
    rows, columns of a tile. Loses to shared memory: a number comes from the cache KH * KW times, four bytes at a time,
    with its address.
    """
    KD: tl.constexpr = SIZES[0]
    KH: tl.constexpr = SIZES[1]
    KW: tl.constexpr = SIZES[2]
    D, H, W, planes, height, width, chunk = extents
    above, before, left, fill = window
    across = tl.cdiv(width, BLOCK[1])
    rows = tl.program_id(0) // across * BLOCK[0] + tl.arange(0, BLOCK[0])
    columns = tl.program_id(0) % across * BLOCK[1] + tl.arange(0, BLOCK[1])
    start = tl.program_id(1) * chunk
    written = (rows < height)[:, None] & (columns < width)[None, :]
    sums = _zeros(KD, BLOCK[0], BLOCK[1])
    for p in range(min(chunk, planes - start) + KD - 1):
        z = place(start + p - above, D, MODE)
        sums = _shifted(sums, KD)
        for b in range(KH):
            y = place(rows + (b - before), H, MODE)
            line = x + (z.to(tl.int64) * H + y) * W
            for t in tl.static_range(KW):
                at = place(columns + (t - left), W, MODE)
                inside = (tl.minimum(y, z) >= 0)[:, None] & (at >= 0)[None, :]
                numbers = tl.load(line[:, None] + at[None, :], mask=inside, other=fill)
                sums = _fed(sums, numbers, weights + b * KW + t, KH * KW, KD)
        if p >= KD - 1:
            target = out + ((start + p - KD + 1).to(tl.int64) * height + rows) * width
            tl.store(target[:, None] + columns[None, :], sums[KD - 1], mask=written)
