"""A convolution along one axis; three of them are the convolution with an outer product of three vectors."""

import triton
import triton.language as tl

from tilewright.ops.conv3d.tile.border import place


@triton.jit
def along(x, out, weights, extents, first, fill, MODE: tl.constexpr, BLOCK: tl.constexpr):
    """out (outer, m, inner) of x (outer, n, inner), convolved along the middle axis. extents: n, m, inner, K.

    weights: (K,). BLOCK: positions along the middle axis, and along the inner one, of a program. A number comes from a
    cache K times: loses to sums that stay in registers, and to one pass over memory in place of three.
    """
    n, m, inner, K = extents
    across, down = tl.cdiv(inner, BLOCK[1]), tl.cdiv(m, BLOCK[0])
    tile = tl.program_id(0)
    outer = (tile // (across * down)).to(tl.int64)
    at = tile // across % down * BLOCK[0] + tl.arange(0, BLOCK[0])
    columns = tile % across * BLOCK[1] + tl.arange(0, BLOCK[1])
    inside, sums = (columns < inner)[None, :], tl.zeros(BLOCK, tl.float32)
    for t in range(K):
        source = place(at + (t - first), n, MODE)
        line = x + (outer * n + source) * inner
        there = (source >= 0)[:, None] & inside
        numbers = tl.load(line[:, None] + columns[None, :], mask=there, other=fill)
        sums += numbers * tl.load(weights + t)
    target = out + (outer * m + at) * inner
    tl.store(target[:, None] + columns[None, :], sums, mask=(at < m)[:, None] & inside)
