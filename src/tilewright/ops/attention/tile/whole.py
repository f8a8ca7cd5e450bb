"""Short prompts: the program that keeps a head's keys and values looks at them while it has them."""

import triton
import triton.language as tl

from tilewright.ops.attention.tile.blocks import begin, box, rows_of, visible, write_rows


@triton.jit
def keep(x, kept, count, D: tl.constexpr):
    """Write the first `count` of x (BM, DP) to the positions of a head that begins at `kept`."""
    BM: tl.constexpr = x.shape[0]
    DP: tl.constexpr = x.shape[1]
    positions, d = tl.arange(0, BM), tl.arange(0, DP)
    tl.store(kept + positions[:, None] * D + d[None, :], x, mask=box(positions < count, d, D))


@triton.jit
def look_at_new(qkv, cache, out, tiles, sizes, scale, SHAPE: tl.constexpr, FORM: tl.constexpr):
    """Whole prompts of up to BM positions, tiles (n, 5): keys and values are kept and looked at; a program a head of a
    tile.

    Saves reading them back. Loses nothing, but serves short prompts alone. qkv: (q, k, v); sizes: (heads, length, row
    stride of q, of k, of v, of out); otherwise as `blocks.look`, with BN = BM.
    """
    heads, length, q_stride, k_stride, v_stride, out_stride = sizes
    BM: tl.constexpr = SHAPE[0]
    D: tl.constexpr = SHAPE[2]
    DP: tl.constexpr = SHAPE[3]
    CAUSAL: tl.constexpr = FORM[0]
    PRECISION: tl.constexpr = FORM[2]
    head, tile = tl.program_id(0) % heads, tiles + tl.program_id(0) // heads * 5
    slot, count, row = tl.load(tile), tl.load(tile + 2), tl.load(tile + 3)
    start = (slot.to(tl.int64) * heads + head) * length * D
    kind = cache[0].dtype.element_ty
    positions = tl.arange(0, BM)
    inside = positions < count
    q = rows_of(qkv[0], row, q_stride, head, inside, D, DP, BM).to(kind)
    k = rows_of(qkv[1], row, k_stride, head, inside, D, DP, BM).to(kind)
    v = rows_of(qkv[2], row, v_stride, head, inside, D, DP, BM).to(kind)
    keep(k, cache[0] + start, count, D)
    keep(v, cache[1] + start, count, D)
    seen = visible(0, count, positions, BM, CAUSAL)
    state = begin(q, k, v, seen, scale, PRECISION)
    write_rows(state, out, row, out_stride, head, inside, D)
