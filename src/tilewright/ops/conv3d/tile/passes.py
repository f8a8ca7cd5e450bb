"""A convolution along one axis; three passes convolve with an outer product of three vectors."""

import triton
import triton.language as tl

from tilewright.ops.conv3d.tile.border import source_index


@triton.jit
def along(x, out, weights, extents, first, fill, MODE: tl.constexpr, block: tl.constexpr):
    """out (outer, m, inner) of x (outer, n, inner), convolved along the middle axis. extents, block: `records.Line`,
    `Plane`.

    weights: (K,). first: elements from a window's start to its output. It loads each element from a cache K times. It
    is slower than kernels whose sums stay in registers, and which pass over memory once and not three times.
    """
    n, m, inner = extents.n, extents.m, extents.inner
    BM: tl.constexpr = block.rows
    BN: tl.constexpr = block.columns
    across, down = tl.cdiv(inner, BN), tl.cdiv(m, BM)
    tile = tl.program_id(0)
    outer = (tile // (across * down)).to(tl.int64)
    at = tile // across % down * BM + tl.arange(0, BM)
    columns = tile % across * BN + tl.arange(0, BN)
    inside, sums = (columns < inner)[None, :], tl.zeros((BM, BN), tl.float32)
    for t in range(extents.K):
        source = source_index(at + (t - first), n, MODE)
        line = x + (outer * n + source) * inner
        there = (source >= 0)[:, None] & inside
        elements = tl.load(line[:, None] + columns[None, :], mask=there, other=fill)
        sums += elements * tl.load(weights + t)
    target = out + (outer * m + at) * inner
    tl.store(target[:, None] + columns[None, :], sums, mask=(at < m)[:, None] & inside)
