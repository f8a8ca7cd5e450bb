"""A 3-D convolution whose programs march along z: each loaded element feeds KD unfinished sums (`simt.march`).

The plane is not in shared memory: for each tap (one element of the filter), the program loads a shifted tile from the
L1 cache.
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
    """The sums shifted for the next plane: zeros first, the finished sums dropped."""
    moved = (tl.zeros_like(sums[KD - 1]),)
    for a in tl.static_range(KD - 1):
        moved = moved + (sums[a],)
    return moved


@triton.jit
def _accumulated(sums, elements, weights, step, KD: tl.constexpr):
    """sums[a] + elements * weights[a * step]."""
    added = ()
    for a in tl.static_range(KD):
        added = added + (sums[a] + elements * tl.load(weights + a * step),)
    return added


@triton.jit
def march(x, out, weights, extents, window, sizes: tl.constexpr, MODE: tl.constexpr, block: tl.constexpr):
    """out (planes, height, width) of x (D, H, W), one channel. weights: (KD, KH, KW).

    extents: `records.Marched`. window: `Border`. sizes: `Sizes`. block: `Plane`. The limit is loads from the L1 cache
    and their addresses, so it is slower than shared memory: it loads each element KH * KW times, four bytes at a time.
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
    inside_out = (rows < height)[:, None] & (columns < width)[None, :]
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
                elements = tl.load(line[:, None] + at[None, :], mask=inside, other=window.fill)
                sums = _accumulated(sums, elements, weights + b * KW + t, KH * KW, KD)
        if p >= KD - 1:
            target = out + ((start + p - KD + 1).to(tl.int64) * height + rows) * width
            tl.store(target[:, None] + columns[None, :], sums[KD - 1], mask=inside_out)
