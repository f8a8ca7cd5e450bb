"""Blocks of queries against blocks of keys: out = softmax(scale * q @ k.T) @ v for each head, in one pass.

A program holds up to BM queries of one head. It loads BN keys and values at a time, from position 0 on. Scores and
weights stay in registers; a running maximum rescales the sums, so no exponential overflows. Matrix units limit prompts,
the bandwidth of the cache limits single queries. It is slow for short prompts against `whole`, which need not read the
keys back, and in decoding against `step`.

Source: Dao et al., "FlashAttention", 2022; the running softmax is Milakov and Gimelshein's, 2018.
"""

import triton
import triton.language as tl

PRECISION = tl.constexpr("tf32x3")  # of float32 products: elements as two of 11 bits, three products; 16 bits are exact


@triton.jit
def first_block(q, k, v, mask, scale):
    """The state after the first block: `absorb` into `empty_state`, in fewer operations."""
    scores = tl.where(mask, tl.dot(q, k.T, input_precision=PRECISION), float("-inf"))
    maxima = tl.max(scores, 1) * scale
    weights = tl.exp2(tl.fma(scores, scale, -maxima[:, None]))
    return tl.dot(weights.to(v.dtype), v, input_precision=PRECISION), tl.sum(weights, 1), maxima


@triton.jit
def absorb(state, q, k, v, mask, scale):
    """Add a block of keys k and values v (BN, D) to the state (sums (BM, D), totals (BM,), maxima (BM,)).

    totals: sums of weights. mask: (BM, BN), True where a query attends to a key; None: all. scale: of scores, times
    log2(e), because weights are powers of two. Multiply-adds are explicit, so every kernel rounds alike.
    """
    sums, totals, maxima = state
    scores = tl.dot(q, k.T, input_precision=PRECISION)
    if mask is not None:
        scores = tl.where(mask, scores, float("-inf"))
    larger = tl.maximum(maxima, tl.max(scores, 1) * scale)
    weights = tl.exp2(tl.fma(scores, scale, -larger[:, None]))
    rescale = tl.exp2(maxima - larger)
    totals = tl.fma(totals, rescale, tl.sum(weights, 1))
    sums = tl.dot(weights.to(v.dtype), v, sums * rescale[:, None], input_precision=PRECISION)
    return sums, totals, larger


@triton.jit
def empty_state(BM: tl.constexpr, DP: tl.constexpr):
    """The state before the first block."""
    return tl.zeros((BM, DP), tl.float32), tl.zeros((BM,), tl.float32), tl.full((BM,), float("-inf"), tl.float32)


@triton.jit
def in_head(rows, d, D: tl.constexpr):
    """Mask of the elements d < D of the rows where `rows` is True: (rows, 1) if D is DP, otherwise (rows, DP)."""
    if d.shape[0] == D:
        return rows[:, None]
    else:
        return rows[:, None] & (d < D)[None, :]


@triton.jit
def load_rows(x, row, stride, head, mask, D: tl.constexpr, DP: tl.constexpr, BM: tl.constexpr):
    """(BM, DP): one head of the rows from `row` on; zeros where `mask` (BM,) is False."""
    d = tl.arange(0, DP)
    at = x + row.to(tl.int64) * stride + head * D + tl.arange(0, BM)[:, None] * stride + d[None, :]
    return tl.load(at, mask=in_head(mask, d, D), other=0.0)


@triton.jit
def load_block(x, start, end, D: tl.constexpr, DP: tl.constexpr, BN: tl.constexpr):
    """(BN, DP): positions from `start` on of the head at pointer x; zeros from `end` on. None: the block is whole."""
    positions, d = start + tl.arange(0, BN), tl.arange(0, DP)
    at = x + positions[:, None] * D + d[None, :]
    if end is not None:
        return tl.load(at, mask=in_head(positions < end, d, D), other=0.0)
    elif D == DP:
        return tl.load(at)
    else:
        return tl.load(at, mask=(d < D)[None, :], other=0.0)


@triton.jit
def visible(start, end, positions, BN: tl.constexpr, CAUSAL: tl.constexpr):
    """(BM, BN): True where the queries at `positions` attend to the keys from `start` on. Keys stop before `end`."""
    columns = start + tl.arange(0, BN)
    if CAUSAL:
        return (columns[None, :] <= positions[:, None]) & (columns < end)[None, :]
    else:
        return (columns < end)[None, :] & (positions >= 0)[:, None]


@triton.jit
def write_rows(sums, totals, out, row, stride, head, mask, D: tl.constexpr):
    """Write sums / totals to the rows of `out` from `row` on, where `mask` is True."""
    BM: tl.constexpr = sums.shape[0]
    DP: tl.constexpr = sums.shape[1]
    d = tl.arange(0, DP)
    found = sums * (1 / tl.where(totals == 0, 1.0, totals))[:, None]
    at = out + row.to(tl.int64) * stride + head * D + tl.arange(0, BM)[:, None] * stride + d[None, :]
    tl.store(at, found.to(out.dtype.element_ty), mask=in_head(mask, d, D))


@triton.jit
def write_zeros(out, row, stride, head, D: tl.constexpr, DP: tl.constexpr):
    """One head of one row that belongs to no sequence."""
    d = tl.arange(0, DP)
    tl.store(out + row.to(tl.int64) * stride + head * D + d, tl.zeros((DP,), out.dtype.element_ty), mask=d < D)


@triton.jit
def attend(q, cache, out, tiles, sizes, scale, block: tl.constexpr, form: tl.constexpr):
    """Attend from the queries in tiles to the keys in the cache. One program per head of a tile.

    q, out: pointers to rows, heads * D elements each. tiles: int32 (n, 5), a slot, first position, count, row and end
    of the sequence each; a tile of count 0 is a row that belongs to no sequence and gets zeros. scale: as for `absorb`.
    cache, sizes, block, form: `records.Cache`, `CacheSizes`, `Block`, `Form`.
    """
    heads = sizes.heads
    BM: tl.constexpr = block.BM
    BN: tl.constexpr = block.BN
    D: tl.constexpr = block.D
    DP: tl.constexpr = block.DP
    CAUSAL: tl.constexpr = form.causal
    SHORT: tl.constexpr = form.short
    head, tile = tl.program_id(0) % heads, tiles + tl.program_id(0) // heads * 5
    slot, first, count = tl.load(tile), tl.load(tile + 1), tl.load(tile + 2)
    row, end = tl.load(tile + 3), tl.load(tile + 4)
    queries = tl.arange(0, BM)
    if count == 0:
        write_zeros(out, row, sizes.out_stride, head, D, DP)
        return
    start = (slot.to(tl.int64) * heads + head) * sizes.length * D
    keys, values = cache.k + start, cache.v + start
    inside, positions = queries < count, first + queries
    query = load_rows(q, row, sizes.q_stride, head, inside, D, DP, BM).to(keys.dtype.element_ty)
    if CAUSAL:
        end, whole = first + count, (first + 1) // BN * BN
    else:
        whole = end // BN * BN
    if SHORT:
        mask = visible(0, end, positions, BN, CAUSAL)
        k, v = load_block(keys, 0, end, D, DP, BN), load_block(values, 0, end, D, DP, BN)
        sums, totals, _ = first_block(query, k, v, mask, scale)
    else:
        sums, totals, maxima = empty_state(BM, DP)
        for at in tl.range(0, whole, BN):
            k, v = load_block(keys, at, None, D, DP, BN), load_block(values, at, None, D, DP, BN)
            sums, totals, maxima = absorb((sums, totals, maxima), query, k, v, None, scale)
        for at in tl.range(whole, end, BN):
            mask = visible(at, end, positions, BN, CAUSAL)
            k, v = load_block(keys, at, end, D, DP, BN), load_block(values, at, end, D, DP, BN)
            sums, totals, maxima = absorb((sums, totals, maxima), query, k, v, mask, scale)
    write_rows(sums, totals, out, row, sizes.out_stride, head, inside, D)
