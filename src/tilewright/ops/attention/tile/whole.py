"""Short prompts: the program that appends a head's keys and values to the cache attends to them, too."""

import triton
import triton.language as tl

from tilewright.ops.attention.tile.blocks import begin, box, rows_of, visible, write_rows


@triton.jit
def keep(x, kept, count, D: tl.constexpr):
    """Write the first `count` rows of x (BM, DP) to the positions of a head that begins at `kept`."""
    BM: tl.constexpr = x.shape[0]
    DP: tl.constexpr = x.shape[1]
    positions, d = tl.arange(0, BM), tl.arange(0, DP)
    tl.store(kept + positions[:, None] * D + d[None, :], x, mask=box(positions < count, d, D))


@triton.jit
def look_at_new(rows, cache, out, tiles, sizes, scale, block: tl.constexpr, form: tl.constexpr):
    """Append whole prompts of up to BM positions, tiles (n, 5), to the cache and attend to them.

    One program per head of a tile. Saves reading keys and values back. Serves short prompts only. rows, sizes:
    `records.Rows`, `RowSizes`; otherwise as `blocks.look`, with BN = BM.
    """
    heads, length, q_stride, k_stride, v_stride, out_stride = sizes
    BM: tl.constexpr = block.BM
    D: tl.constexpr = block.D
    DP: tl.constexpr = block.DP
    CAUSAL: tl.constexpr = form.causal
    PRECISION: tl.constexpr = form.precision
    head, tile = tl.program_id(0) % heads, tiles + tl.program_id(0) // heads * 5
    slot, count, row = tl.load(tile), tl.load(tile + 2), tl.load(tile + 3)
    start = (slot.to(tl.int64) * heads + head) * length * D
    kind = cache.k.dtype.element_ty
    positions = tl.arange(0, BM)
    inside = positions < count
    q = rows_of(rows.q, row, q_stride, head, inside, D, DP, BM).to(kind)
    k = rows_of(rows.k, row, k_stride, head, inside, D, DP, BM).to(kind)
    v = rows_of(rows.v, row, v_stride, head, inside, D, DP, BM).to(kind)
    keep(k, cache.k + start, count, D)
    keep(v, cache.v + start, count, D)
    seen = visible(0, count, positions, BM, CAUSAL)
    state = begin(q, k, v, seen, scale, PRECISION)
    write_rows(state, out, row, out_stride, head, inside, D)
