"""Long prompts and texts on Hopper, in Gluon: a warp loads keys and values by bulk copies for two warpgroups, which
attend from 64 queries each.

out = softmax(scale * q @ k.T) @ v, with the bits of `blocks.attend` and `direct.attend`: the same blocks, and the same
operations in the same order. Against these, twice as many queries share a loaded block, so L2 delivers half the bytes,
and no multiplying warp computes addresses of keys. The warps synchronise at barriers in shared memory: `full` counts
the bytes that have arrived in a buffer, `empty` the warpgroups that have read it. Products and exponentials take about
as long as each other; the warpgroups of two programs per multiprocessor overlap them. It was not measured for short
spans.

Source: Shah et al., "FlashAttention-3", 2024.
"""

import triton.experimental.gluon.language as gl
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from tilewright.ops.attention.tile.records import Buffers, Keys, Queries, Rows, State
from tilewright.ops.gemm.tile.hopper import barriers
from tilewright.ops.gemm.tile.hopper_ends import copy_in

QUERIES = gl.constexpr(64)  # of a warpgroup: the rows of one of its instructions
STAGES = gl.constexpr(6)  # buffers of keys and values: a multiprocessor then holds two programs
REGISTERS = 80  # per thread at the start: two programs of 12 warps; then a multiplying warpgroup takes 104, loading 24


@gluon.jit
def load_tiles(rows, tiles, buffers, sizes, form: gl.constexpr):
    """The loading warp: load the queries of each tile of this program, and alternately a block of keys and one of
    values, once a buffer is empty. rows: descriptors of boxes of 64 rows of one head."""
    BN: gl.constexpr = buffers.tiles.type.shape[1]
    D: gl.constexpr = buffers.tiles.type.shape[2]
    step = 0
    for index in range(gl.program_id(0), sizes.tiles, gl.num_programs(0)):
        head, tile = index % sizes.heads, tiles + index // sizes.heads * 5
        slot, first, count = gl.load(tile), gl.load(tile + 1), gl.load(tile + 2)
        row, end = gl.load(tile + 3), gl.load(tile + 4)
        if form.causal:
            end = first + count
        column = head * D
        full = buffers.q_full.index(0)
        mbarrier.wait(buffers.q_empty.index(0), (index // gl.num_programs(0) & 1) ^ 1)
        mbarrier.expect(full, 2 * rows.q.block_type.nbytes)
        for group in gl.static_range(2):
            copy_in(rows.q, [row + group * QUERIES, column], full, buffers.q_tiles.index(group))
        if form.cached:
            start = (slot * sizes.heads + head) * sizes.length
            column = 0
        else:
            start = row - first
        for at in range(0, end, BN):
            for part in gl.static_range(2):
                stage = step % STAGES
                full = buffers.full.index(stage)
                mbarrier.wait(buffers.empty.index(stage), (step // STAGES & 1) ^ 1)
                mbarrier.expect(full, rows.k.block_type.nbytes)
                copy_in(rows.v if part else rows.k, [start + at, column], full, buffers.tiles.index(stage))
                step += 1


@gluon.jit
def take(buffers, step):
    """The block of this step, once it is loaded."""
    mbarrier.wait(buffers.full.index(step % STAGES), step // STAGES & 1)
    return buffers.tiles.index(step % STAGES)


@gluon.jit
def release(buffers, step):
    """This warpgroup has read the block of this step."""
    mbarrier.arrive(buffers.empty.index(step % STAGES))


@gluon.jit
def visible(scores, at, end, positions, CAUSAL: gl.constexpr):
    """Scores, -inf where the queries at `positions` do not attend to the keys from `at` on. Keys stop before `end`."""
    columns = at + gl.arange(0, scores.type.shape[1], gl.SliceLayout(0, scores.type.layout))[None, :]
    mask = columns < end
    if CAUSAL:
        mask = mask & (columns <= positions[:, None])
    return gl.where(mask, scores, float("-inf"))


@gluon.jit
def weigh(scores, totals, maxima, scale):
    """(weights, rescale, totals, maxima) with one more block of scores, as in `blocks.absorb`."""
    larger = gl.maximum(maxima, gl.max(scores, 1) * scale)
    weights = gl.exp2(gl.fma(scores, scale, -larger[:, None]))
    rescale = gl.exp2(maxima - larger)
    return weights, rescale, gl.fma(totals, rescale, gl.sum(weights, 1)), larger


@gluon.jit
def clear_after(values, at, end, D: gl.constexpr):
    """Zero the positions from `end` on of a block of values from `at` on: their weights are 0, but they may be NaN.

    Both warpgroups may do so: they write the same.
    """
    BN: gl.constexpr = values.type.shape[0]
    if at + BN > end:
        LAYOUT: gl.constexpr = gl.BlockedLayout([1, 8], [32 * 8 // D, D // 8], [4, 1], [1, 0])
        x = values.load(LAYOUT)
        positions = at + gl.arange(0, BN, gl.SliceLayout(1, LAYOUT))[:, None]
        values.store(gl.where(positions < end, x, gl.zeros_like(x)))
        fence_async_shared()


@gluon.jit
def absorb_blocks(state, query, keys, buffers, step, form: gl.constexpr, MASKED: gl.constexpr):
    """(sums, totals, maxima, step) after the blocks from keys.first to before keys.last; see `blocks.absorb`.

    state, query, keys, buffers: `records.State`, `Queries`, `Keys`, `Buffers`. step: blocks of keys and of values read
    so far. MASKED: some queries do not attend to some of the keys.
    """
    BN: gl.constexpr = buffers.tiles.type.shape[1]
    D: gl.constexpr = buffers.tiles.type.shape[2]
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BN, 16])
    O_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    P_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, O_LAYOUT, 2)
    sums, totals, maxima = state.sums, state.totals, state.maxima
    for at in range(keys.first, keys.last, BN):
        k = take(buffers, step).permute((1, 0))
        scores = gl.zeros((QUERIES, BN), gl.float32, S_LAYOUT)
        scores = warpgroup_mma(query.q, k, scores, use_acc=False, is_async=True)
        scores = warpgroup_mma_wait(0, deps=(scores,))
        release(buffers, step)
        if MASKED:
            scores = visible(scores, at, keys.last, query.positions, form.causal)
        weights, rescale, totals, maxima = weigh(scores, totals, maxima, query.scale)
        weights = gl.convert_layout(weights.to(buffers.tiles.dtype), P_LAYOUT)
        sums = sums * gl.convert_layout(rescale, gl.SliceLayout(1, O_LAYOUT))[:, None]
        v = take(buffers, step + 1)
        if MASKED:
            clear_after(v, at, keys.end, D)
        sums = warpgroup_mma(weights, v, sums, is_async=True)
        sums = warpgroup_mma_wait(0, deps=(sums,))
        release(buffers, step + 1)
        step += 2
    return sums, totals, maxima, step


@gluon.jit
def attend_tiles(out, tiles, buffers, scale, sizes, form: gl.constexpr, GROUP: gl.constexpr):
    """A multiplying warpgroup: attend from the first (GROUP 0) or last 64 queries of each tile of this program."""
    BN: gl.constexpr = buffers.tiles.type.shape[1]
    D: gl.constexpr = buffers.tiles.type.shape[2]
    ROWS: gl.constexpr = gl.SliceLayout(1, gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BN, 16]))
    step = 0
    for index in range(gl.program_id(0), sizes.tiles, gl.num_programs(0)):
        head, tile = index % sizes.heads, tiles + index // sizes.heads * 5
        first, count = gl.load(tile + 1), gl.load(tile + 2)
        row, end = gl.load(tile + 3) + GROUP * QUERIES, gl.load(tile + 4)
        mine = gl.minimum(count - GROUP * QUERIES, QUERIES)  # queries of this warpgroup
        start, last = first + GROUP * QUERIES, end
        if form.causal:
            end = first + count
            whole, last = (start + 1) // BN * BN, start + mine
        else:
            whole = end // BN * BN
        if mine <= 0:
            whole, last = 0, 0
        query = Queries(buffers.q_tiles.index(GROUP), start + gl.arange(0, QUERIES, ROWS), scale)
        mbarrier.wait(buffers.q_full.index(0), index // gl.num_programs(0) & 1)
        next_step = step + 2 * gl.cdiv(end, BN)
        sums = gl.zeros((QUERIES, D), gl.float32, gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16]))
        totals = gl.zeros((QUERIES,), gl.float32, ROWS)
        state = State(sums, totals, gl.full((QUERIES,), float("-inf"), gl.float32, ROWS))
        sums, totals, maxima, step = absorb_blocks(state, query, Keys(0, whole, end), buffers, step, form, False)
        state = State(sums, totals, maxima)
        sums, totals, _, step = absorb_blocks(state, query, Keys(whole, last, end), buffers, step, form, True)
        for unused in range(step, next_step):  # only the other warpgroup attends to these keys
            take(buffers, unused)
            release(buffers, unused)
        step = next_step
        mbarrier.arrive(buffers.q_empty.index(0))
        write_rows(sums, totals, out, row, sizes.out_stride, head, mine)


@gluon.jit
def write_rows(sums, totals, out, row, stride, head, count):
    """Write sums / totals to the first `count` of 64 rows of `out` from `row` on."""
    D: gl.constexpr = sums.type.shape[1]
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 8], [32 * 8 // D, D // 8], [4, 1], [1, 0])
    shares = 1 / gl.where(totals == 0, 1.0, totals)
    found = sums * gl.convert_layout(shares, gl.SliceLayout(1, sums.type.layout))[:, None]
    found = gl.convert_layout(found.to(out.dtype.element_ty), LAYOUT)
    rows = gl.arange(0, QUERIES, gl.SliceLayout(1, LAYOUT))[:, None]
    columns = head * D + gl.arange(0, D, gl.SliceLayout(0, LAYOUT))[None, :]
    gl.store(out + row.to(gl.int64) * stride + rows * stride + columns, found, mask=rows < count)


@gluon.jit
def attend(q, k, v, out, tiles, sizes, scale, form: gl.constexpr):
    """Attend from the queries in tiles of 128 to the keys of their sequences. A program computes one head of a tile
    after another.

    q, k, v: descriptors of boxes of 64 rows and one head. k, v: the cache, (slots * heads * length, D), or the rows of
    the batch. out: pointer to rows of heads * D elements. tiles: as for `blocks.attend`, none is empty.
    sizes, form: `records.TileSizes`, `LongForm`.
    """
    q_tiles = gl.allocate_shared_memory(q.dtype, [2] + q.block_type.shape, q.layout)
    q_full, q_empty = barriers(1, 1), barriers(1, 2)
    kv_tiles = gl.allocate_shared_memory(k.dtype, [STAGES] + k.block_type.shape, k.layout)
    buffers = Buffers(q_tiles, q_full, q_empty, kv_tiles, barriers(STAGES, 1), barriers(STAGES, 2))
    fence_async_shared()
    gl.warp_specialize(
        [
            (attend_tiles, (out, tiles, buffers, scale, sizes, form, 0)),
            (attend_tiles, (out, tiles, buffers, scale, sizes, form, 1)),
            (load_tiles, (Rows(q, k, v), tiles, buffers, sizes, form)),
        ],
        [4, 1],
        [104, 24],
    )
