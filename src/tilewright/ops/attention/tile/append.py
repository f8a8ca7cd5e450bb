"""Writing keys and values into the cache, from rows of a batch or from another slot."""

import triton
import triton.language as tl


@triton.jit
def append(kv, cache, pieces, sizes, SHAPE: tl.constexpr):
    """Pieces (n, 4) of positions: a program a head of a piece. kv: (k, v); cache: (keys, values).

    sizes: (heads, length, row stride of k, of v). SHAPE: (positions of a piece, D, D up to a power of two).
    """
    heads, length, k_stride, v_stride = sizes
    BP: tl.constexpr = SHAPE[0]
    D: tl.constexpr = SHAPE[1]
    head, piece = tl.program_id(0) % heads, pieces + tl.program_id(0) // heads * 4
    slot, first, count, row = tl.load(piece), tl.load(piece + 1), tl.load(piece + 2), tl.load(piece + 3)
    i, d = tl.arange(0, BP)[:, None], tl.arange(0, SHAPE[2])[None, :]
    inside = (i < count) & (d < D)
    at = ((slot.to(tl.int64) * heads + head) * length + first + i) * D + d
    if row >= 0:
        here = row.to(tl.int64) + i
        k = tl.load(kv[0] + here * k_stride + head * D + d, mask=inside, other=0.0)
        v = tl.load(kv[1] + here * v_stride + head * D + d, mask=inside, other=0.0)
        tl.store(cache[0] + at, k.to(cache[0].dtype.element_ty), mask=inside)
        tl.store(cache[1] + at, v.to(cache[1].dtype.element_ty), mask=inside)
    else:
        there = (((-1 - row).to(tl.int64) * heads + head) * length + first + i) * D + d
        tl.store(cache[0] + at, tl.load(cache[0] + there, mask=inside, other=0.0), mask=inside)
        tl.store(cache[1] + at, tl.load(cache[1] + there, mask=inside, other=0.0), mask=inside)
