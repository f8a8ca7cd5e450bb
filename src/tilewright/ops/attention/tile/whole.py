"""Short prompts: the program that appends a head's keys and values to the cache attends to them, too.

out = softmax(scale * q @ k.T) @ v for whole prompts of up to one block. Against `append` and then `blocks.attend`, keys
and values are not read back and one kernel is launched instead of two. Memory bandwidth is the limit. Longer prompts
and prompts with a shared prefix cannot use it.
"""

import triton
import triton.language as tl

from tilewright.ops.attention.tile.blocks import first_block, in_head, load_rows, visible, write_rows


@triton.jit
def write_positions(x, target, count, D: tl.constexpr):
    """Write the first `count` rows of x (BM, DP) to positions 0 on of the head at pointer `target`."""
    BM: tl.constexpr = x.shape[0]
    DP: tl.constexpr = x.shape[1]
    positions, d = tl.arange(0, BM), tl.arange(0, DP)
    tl.store(target + positions[:, None] * D + d[None, :], x, mask=in_head(positions < count, d, D))


@triton.jit
def append_and_attend(rows, cache, out, tiles, sizes, scale, block: tl.constexpr, form: tl.constexpr):
    """Append whole prompts of up to BM positions to the cache and attend to them. One program per head of a tile.

    rows, sizes: `records.Rows`, `RowSizes`; other parameters as for `blocks.attend`, with BN = BM.
    """
    heads = sizes.heads
    BM: tl.constexpr = block.BM
    D: tl.constexpr = block.D
    DP: tl.constexpr = block.DP
    CAUSAL: tl.constexpr = form.causal
    head, tile = tl.program_id(0) % heads, tiles + tl.program_id(0) // heads * 5
    slot, count, row = tl.load(tile), tl.load(tile + 2), tl.load(tile + 3)
    start = (slot.to(tl.int64) * heads + head) * sizes.length * D
    dtype = cache.k.dtype.element_ty
    positions = tl.arange(0, BM)
    inside = positions < count
    q = load_rows(rows.q, row, sizes.q_stride, head, inside, D, DP, BM).to(dtype)
    k = load_rows(rows.k, row, sizes.k_stride, head, inside, D, DP, BM).to(dtype)
    v = load_rows(rows.v, row, sizes.v_stride, head, inside, D, DP, BM).to(dtype)
    write_positions(k, cache.k + start, count, D)
    write_positions(v, cache.v + start, count, D)
    mask = visible(0, count, positions, BM, CAUSAL)
    sums, totals, _ = first_block(q, k, v, mask, scale)
    write_rows(sums, totals, out, row, sizes.out_stride, head, inside, D)
