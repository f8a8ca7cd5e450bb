"""A tile of rows marches along z: each element that it loads feeds KD open sums, as in `simt.march`.

No shared memory holds the plane: each tap of a plane loads a shifted tile from the L1 cache.
"""

import triton
import triton.language as tl

from tilewright.ops.conv3d.tile.border import source_index


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
def march(x, out, weights, extents, window, sizes: tl.constexpr, MODE: tl.constexpr, block: tl.constexpr):
    """out (planes, height, width) of x (D, H, W). extents, window, sizes, block: `records.Marched`, `Border`, `Sizes`,
    `Plane`.

    weights: (KD, KH, KW). Loses to shared memory: it loads an element from the cache KH * KW times, four bytes at a
    time, and computes its address each time.
    """
    KD: tl.constexpr = sizes.KD
    KH: tl.constexpr = sizes.KH
    KW: tl.constexpr = sizes.KW
    D, H, W, planes = extents.D, extents.H, extents.W, extents.planes
    height, width, chunk = extents.height, extents.width, extents.chunk
    across = tl.cdiv(width, block.columns)
    rows = tl.program_id(0) // across * block.rows + tl.arange(0, block.rows)
    columns = tl.program_id(0) % across * block.columns + tl.arange(0, block.columns)
    start = tl.program_id(1) * chunk
    written = (rows < height)[:, None] & (columns < width)[None, :]
    sums = _zeros(KD, block.rows, block.columns)
    for p in range(min(chunk, planes - start) + KD - 1):
        z = source_index(start + p - window.above, D, MODE)
        sums = _shifted(sums, KD)
        for b in range(KH):
            y = source_index(rows + (b - window.before), H, MODE)
            line = x + (z.to(tl.int64) * H + y) * W
            for t in tl.static_range(KW):
                at = source_index(columns + (t - window.left), W, MODE)
                inside = (tl.minimum(y, z) >= 0)[:, None] & (at >= 0)[None, :]
                numbers = tl.load(line[:, None] + at[None, :], mask=inside, other=window.fill)
                sums = _fed(sums, numbers, weights + b * KW + t, KH * KW, KD)
        if p >= KD - 1:
            target = out + ((start + p - KD + 1).to(tl.int64) * height + rows) * width
            tl.store(target[:, None] + columns[None, :], sums[KD - 1], mask=written)
