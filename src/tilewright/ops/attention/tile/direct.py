"""Texts that are attended to once: keys and values are read from the rows in which the product wrote them.

out = softmax(scale * q @ k.T) @ v over each text's own rows, as `blocks.attend`. Against `whole` nothing is written to
the cache, and longer texts need no append and read no copy: an encoder's keys are never read again. Memory bandwidth
limits short texts, matrix units long ones. Loses for texts of many blocks, whose rows lie further apart than a cache's.
"""

import triton
import triton.language as tl

from tilewright.ops.attention.tile.blocks import absorb, empty_state, first_block, load_rows, visible, write_rows


@triton.jit
def load_keys(x, row, at, end, stride, head, block: tl.constexpr):
    """(BN, DP): one head of positions `at` on of the text whose first row is `row`; zeros from `end` on."""
    BN: tl.constexpr = block.BN
    D: tl.constexpr = block.D
    DP: tl.constexpr = block.DP
    return load_rows(x, row + at, stride, head, at + tl.arange(0, BN) < end, D, DP, BN)


@triton.jit
def attend(rows, cache, out, tiles, sizes, scale, block: tl.constexpr, form: tl.constexpr):
    """Attend from the queries in tiles to the keys of their own texts. One program per head of a tile.

    rows, sizes: `records.Rows`, `RowSizes`. cache: pointers of the dtype to which rows are rounded; nothing is read or
    written there. Other parameters as for `blocks.attend`; position 0 of a sequence is in the batch.
    """
    heads = sizes.heads
    BM: tl.constexpr = block.BM
    BN: tl.constexpr = block.BN
    D: tl.constexpr = block.D
    DP: tl.constexpr = block.DP
    CAUSAL: tl.constexpr = form.causal
    head, tile = tl.program_id(0) % heads, tiles + tl.program_id(0) // heads * 5
    first, count, row, end = tl.load(tile + 1), tl.load(tile + 2), tl.load(tile + 3), tl.load(tile + 4)
    text = row - first
    dtype = cache.k.dtype.element_ty
    queries = tl.arange(0, BM)
    inside, positions = queries < count, first + queries
    q = load_rows(rows.q, row, sizes.q_stride, head, inside, D, DP, BM).to(dtype)
    if CAUSAL:
        end, whole = first + count, (first + 1) // BN * BN
    else:
        whole = end // BN * BN
    if form.short:
        k = load_keys(rows.k, text, 0, end, sizes.k_stride, head, block).to(dtype)
        v = load_keys(rows.v, text, 0, end, sizes.v_stride, head, block).to(dtype)
        sums, totals, _ = first_block(q, k, v, visible(0, end, positions, BN, CAUSAL), scale)
    else:
        sums, totals, maxima = empty_state(BM, DP)
        for at in tl.range(0, whole, BN):
            k = load_keys(rows.k, text, at, end, sizes.k_stride, head, block).to(dtype)
            v = load_keys(rows.v, text, at, end, sizes.v_stride, head, block).to(dtype)
            sums, totals, maxima = absorb((sums, totals, maxima), q, k, v, None, scale)
        for at in tl.range(whole, end, BN):
            k = load_keys(rows.k, text, at, end, sizes.k_stride, head, block).to(dtype)
            v = load_keys(rows.v, text, at, end, sizes.v_stride, head, block).to(dtype)
            mask = visible(at, end, positions, BN, CAUSAL)
            sums, totals, maxima = absorb((sums, totals, maxima), q, k, v, mask, scale)
    write_rows(sums, totals, out, row, sizes.out_stride, head, inside, D)
