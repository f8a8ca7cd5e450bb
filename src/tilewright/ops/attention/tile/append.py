"""Append to the cache: cache[slot, head, first + i] = rows[row + i, head], for keys and values, or a copy from a slot.

Every byte is read once and written once, so memory bandwidth is the limit.
"""

import triton
import triton.language as tl


@triton.jit
def append(new, cache, pieces, sizes, block: tl.constexpr):
    """Write pieces of up to block.BM positions to the cache. One program per head of a piece.

    pieces: int32 (n, 4), a slot, first position, count and row each; row -1 - s copies from slot s. new, cache, sizes,
    block: `records.New`, `Cache`, `AppendSizes`, `Block`.
    """
    heads, length = sizes.heads, sizes.length
    BP: tl.constexpr = block.BM
    D: tl.constexpr = block.D
    head, piece = tl.program_id(0) % heads, pieces + tl.program_id(0) // heads * 4
    slot, first, count, row = tl.load(piece), tl.load(piece + 1), tl.load(piece + 2), tl.load(piece + 3)
    i, d = tl.arange(0, BP)[:, None], tl.arange(0, block.DP)[None, :]
    inside = (i < count) & (d < D)
    at = ((slot.to(tl.int64) * heads + head) * length + first + i) * D + d
    if row >= 0:
        from_row = row.to(tl.int64) + i
        k = tl.load(new.k + from_row * sizes.k_stride + head * D + d, mask=inside, other=0.0)
        v = tl.load(new.v + from_row * sizes.v_stride + head * D + d, mask=inside, other=0.0)
        tl.store(cache.k + at, k.to(cache.k.dtype.element_ty), mask=inside)
        tl.store(cache.v + at, v.to(cache.v.dtype.element_ty), mask=inside)
    else:
        from_slot = (((-1 - row).to(tl.int64) * heads + head) * length + first + i) * D + d
        tl.store(cache.k + at, tl.load(cache.k + from_slot, mask=inside, other=0.0), mask=inside)
        tl.store(cache.v + at, tl.load(cache.v + from_slot, mask=inside, other=0.0), mask=inside)
