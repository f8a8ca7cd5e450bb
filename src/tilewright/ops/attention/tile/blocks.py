"""Blocks of queries against blocks of keys. Scores and shares stay in registers; a running maximum keeps them finite.

Source: Dao et al., "FlashAttention", 2022; the running softmax is Milakov and Gimelshein's, 2018.
"""

import triton
import triton.language as tl


@triton.jit
def begin(q, k, v, seen, scale, PRECISION: tl.constexpr):
    """The state after the first block: `absorb` of `nothing`, in fewer operations."""
    scores = tl.where(seen, tl.dot(q, k.T, input_precision=PRECISION), float("-inf"))
    peaks = tl.max(scores, 1) * scale
    shares = tl.exp2(tl.fma(scores, scale, -peaks[:, None]))
    return tl.dot(shares.to(v.dtype), v, input_precision=PRECISION), tl.sum(shares, 1), peaks


@triton.jit
def absorb(state, q, k, v, seen, scale, PRECISION: tl.constexpr):
    """Add a block of keys k and values v (BN, D) to the state (sums (BM, D), weights (BM,), tops (BM,)).

    seen: (BM, BN), True where a query sees a key; None: all. scale: of scores, times log2(e): shares are powers of two.
    Multiply-adds are explicit, so every kernel rounds alike.
    """
    sums, weights, tops = state
    scores = tl.dot(q, k.T, input_precision=PRECISION)
    if seen is not None:
        scores = tl.where(seen, scores, float("-inf"))
    peaks = tl.maximum(tops, tl.max(scores, 1) * scale)
    shares = tl.exp2(tl.fma(scores, scale, -peaks[:, None]))
    shrunk = tl.exp2(tops - peaks)
    weights = tl.fma(weights, shrunk, tl.sum(shares, 1))
    sums = tl.dot(shares.to(v.dtype), v, sums * shrunk[:, None], input_precision=PRECISION)
    return sums, weights, peaks


@triton.jit
def nothing(BM: tl.constexpr, DP: tl.constexpr):
    """The state before the first block."""
    return tl.zeros((BM, DP), tl.float32), tl.zeros((BM,), tl.float32), tl.full((BM,), float("-inf"), tl.float32)


@triton.jit
def box(inside, d, D: tl.constexpr):
    """Mask of the elements d of rows that exist: (rows, 1) if D is DP, else (rows, DP)."""
    if d.shape[0] == D:
        return inside[:, None]
    else:
        return inside[:, None] & (d < D)[None, :]


@triton.jit
def rows_of(x, row, stride, head, inside, D: tl.constexpr, DP: tl.constexpr, BM: tl.constexpr):
    """(BM, DP): head `head` of the rows from `row` on; zeros where `inside` (BM,) is False."""
    d = tl.arange(0, DP)
    at = x + row.to(tl.int64) * stride + head * D + tl.arange(0, BM)[:, None] * stride + d[None, :]
    return tl.load(at, mask=box(inside, d, D), other=0.0)


@triton.jit
def keys_from(x, start, limit, D: tl.constexpr, DP: tl.constexpr, BN: tl.constexpr):
    """(BN, DP): positions from `start` on of a head that begins at x; zeros from `limit` on. None: no limit."""
    positions, d = start + tl.arange(0, BN), tl.arange(0, DP)
    at = x + positions[:, None] * D + d[None, :]
    if limit is not None:
        return tl.load(at, mask=box(positions < limit, d, D), other=0.0)
    elif D == DP:
        return tl.load(at)
    else:
        return tl.load(at, mask=(d < D)[None, :], other=0.0)


@triton.jit
def visible(start, end, positions, BN: tl.constexpr, CAUSAL: tl.constexpr):
    """(BM, BN): True where the queries at `positions` see the keys from `start` on. Keys end before `end`."""
    columns = start + tl.arange(0, BN)
    if CAUSAL:
        return (columns[None, :] <= positions[:, None]) & (columns < end)[None, :]
    else:
        return (columns < end)[None, :] & (positions >= 0)[:, None]


@triton.jit
def write_rows(state, out, row, stride, head, inside, D: tl.constexpr):
    """Divide the sums by the weights and write them to the rows of `out` from `row` on; zeros where no key was seen."""
    sums, weights, _ = state
    BM: tl.constexpr = sums.shape[0]
    DP: tl.constexpr = sums.shape[1]
    d = tl.arange(0, DP)
    found = sums * (1 / tl.where(weights == 0, 1.0, weights))[:, None]
    at = out + row.to(tl.int64) * stride + head * D + tl.arange(0, BM)[:, None] * stride + d[None, :]
    tl.store(at, found.to(out.dtype.element_ty), mask=box(inside, d, D))


@triton.jit
def look(q, cache, out, tiles, sizes, scale, block: tl.constexpr, form: tl.constexpr):
    """Attend from the queries in tiles (n, 5) to the keys in the cache. One program per head of a tile.

    A tile of count 0 is a row that belongs to no sequence; it gets zeros. cache, sizes, block, form: `records.Cache`,
    `CacheSizes`, `Block`, `Form`.
    """
    heads, length, q_stride, out_stride = sizes
    BM: tl.constexpr = block.BM
    BN: tl.constexpr = block.BN
    D: tl.constexpr = block.D
    DP: tl.constexpr = block.DP
    CAUSAL: tl.constexpr = form.causal
    SHORT: tl.constexpr = form.short
    PRECISION: tl.constexpr = form.precision
    head, tile = tl.program_id(0) % heads, tiles + tl.program_id(0) // heads * 5
    slot, first, count = tl.load(tile), tl.load(tile + 1), tl.load(tile + 2)
    row, end = tl.load(tile + 3), tl.load(tile + 4)
    queries = tl.arange(0, BM)
    sums, weights, tops = nothing(BM, DP)
    if count == 0:
        write_rows((sums, weights, tops), out, row, out_stride, head, queries == 0, D)
        return
    start = (slot.to(tl.int64) * heads + head) * length * D
    keys, values = cache.k + start, cache.v + start
    inside, positions = queries < count, first + queries
    mine = rows_of(q, row, q_stride, head, inside, D, DP, BM).to(keys.dtype.element_ty)
    if CAUSAL:
        end, whole = first + count, (first + 1) // BN * BN
    else:
        whole = end // BN * BN
    if SHORT:
        seen = visible(0, end, positions, BN, CAUSAL)
        k, v = keys_from(keys, 0, end, D, DP, BN), keys_from(values, 0, end, D, DP, BN)
        sums, weights, tops = begin(mine, k, v, seen, scale, PRECISION)
    else:
        for at in tl.range(0, whole, BN):
            k, v = keys_from(keys, at, None, D, DP, BN), keys_from(values, at, None, D, DP, BN)
            sums, weights, tops = absorb((sums, weights, tops), mine, k, v, None, scale, PRECISION)
        for at in tl.range(whole, end, BN):
            seen = visible(at, end, positions, BN, CAUSAL)
            k, v = keys_from(keys, at, end, D, DP, BN), keys_from(values, at, end, D, DP, BN)
            sums, weights, tops = absorb((sums, weights, tops), mine, k, v, seen, scale, PRECISION)
    write_rows((sums, weights, tops), out, row, out_stride, head, inside, D)
