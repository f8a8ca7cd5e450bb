"""Long prompts and texts on Hopper, in Gluon: a warp loads keys and values by bulk copies for two warpgroups, which
attend from 64 queries each.

out = softmax(scale * q @ k.T) @ v, with the bits of `blocks.attend` and `direct.attend`: the same blocks, and the same
operations in the same order. Against these, twice as many queries share a loaded block, so L2 delivers half the bytes,
and no multiplying warp computes addresses of keys. The warps synchronise at barriers in shared memory: `full` counts
the bytes that have arrived in a buffer, `empty` the warpgroups that have read it. Products and exponentials take about
as long as each other; the warpgroups of two programs per multiprocessor overlap them. A program computes several tiles.
While it attends from one, the queries and first keys of the next are loaded. It was not measured for short spans.

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

from tilewright.ops.attention.tile.records import Buffers, Keys, Queries, Rows
from tilewright.ops.gemm.tile.hopper import barriers
from tilewright.ops.gemm.tile.hopper_ends import copy_in

QUERIES = gl.constexpr(64)  # of a warpgroup: the rows of one of its instructions
TILES = gl.constexpr(2)  # buffers of queries
STAGES = gl.constexpr(3)  # buffers of keys, and of values: a multiprocessor then holds two programs
REGISTERS = 80  # per thread at the start: two programs of 12 warps; then a multiplying warpgroup takes 104, loading 24

barrier = getattr(gl, "thread_barrier", None) or gl.barrier  # the first name in Triton 3.6


@gluon.jit
def load_tiles(rows, tiles, buffers, sizes, form: gl.constexpr):
    """The loading warp: load the queries of each tile of this program, and its blocks of keys and of values, once a
    buffer is empty. rows: descriptors of boxes of 64 rows of one head."""
    BN: gl.constexpr = buffers.k_tiles.type.shape[1]
    D: gl.constexpr = buffers.k_tiles.type.shape[2]
    step = 0
    for index in range(gl.program_id(0), sizes.tiles, gl.num_programs(0)):
        head, tile = index % sizes.heads, tiles + index // sizes.heads * 5
        slot, first, count = gl.load(tile), gl.load(tile + 1), gl.load(tile + 2)
        row, end = gl.load(tile + 3), gl.load(tile + 4)
        if count > 0:  # all warps skip the same tiles, only in the last turn, so `turn` gives the phase of a barrier
            if form.causal:
                end = first + count
            column = head * D
            turn = index // gl.num_programs(0)
            buffer = turn % TILES
            full = buffers.q_full.index(buffer)
            mbarrier.wait(buffers.q_empty.index(buffer), (turn // TILES & 1) ^ 1)
            mbarrier.expect(full, 2 * rows.q.block_type.nbytes)
            for group in gl.static_range(2):
                copy_in(rows.q, [row + group * QUERIES, column], full, buffers.q_tiles.index(2 * buffer + group))
            if form.cached:
                start = (slot * sizes.heads + head) * sizes.length
                column = 0
            else:
                start = row - first
            for at in range(0, end, BN):
                stage = step % STAGES
                mbarrier.wait(buffers.empty.index(stage), (step // STAGES & 1) ^ 1)
                load_block(rows.k, start + at, column, buffers.k_tiles.index(stage), buffers.k_full.index(stage))
                load_block(rows.v, start + at, column, buffers.v_tiles.index(stage), buffers.v_full.index(stage))
                step += 1


@gluon.jit
def load_block(rows, row, column, tile, full):
    """Start to copy a box of `rows` to `tile`."""
    mbarrier.expect(full, rows.block_type.nbytes)
    copy_in(rows, [row, column], full, tile)


@gluon.jit
def take(tiles, full, step):
    """The block of this step, once it is loaded."""
    mbarrier.wait(full.index(step % STAGES), step // STAGES & 1)
    return tiles.index(step % STAGES)


@gluon.jit
def release(buffers, step):
    """This warpgroup has read the keys and values of this step."""
    mbarrier.arrive(buffers.empty.index(step % STAGES))


@gluon.jit
def visible(scores, at, start, end, CAUSAL: gl.constexpr):
    """Scores, -inf where queries, from position `start` on, do not attend to the keys from `at` on. Keys stop before
    `end`."""
    columns = at + gl.arange(0, scores.type.shape[1], gl.SliceLayout(0, scores.type.layout))[None, :]
    mask = columns < end
    if CAUSAL:
        positions = start + gl.arange(0, QUERIES, gl.SliceLayout(1, scores.type.layout))
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
def clear_after(values, at, end):
    """Zero the positions from `end` on of a block of values from `at` on: their weights are 0, but they may be NaN.

    Both warpgroups may do so, also while the other one multiplies: they write the bits that are there, and the same
    zeros. With this barrier the compiler adds none after the branch.
    """
    BN: gl.constexpr = values.type.shape[0]
    D: gl.constexpr = values.type.shape[1]
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 8], [32 * 8 // D, D // 8], [4, 1], [1, 0])
    x = values.load(LAYOUT)
    positions = at + gl.arange(0, BN, gl.SliceLayout(1, LAYOUT))[:, None]
    values.store(gl.where(positions < end, x, gl.zeros_like(x)))
    fence_async_shared()
    barrier()


@gluon.jit
def absorb_blocks(query, keys, buffers, step, form: gl.constexpr):
    """(sums, totals, step) after all blocks of a tile; see `blocks.absorb`.

    query, keys, buffers: `records.Queries`, `Keys`, `Buffers`. step: blocks read so far.
    """
    BN: gl.constexpr = buffers.k_tiles.type.shape[1]
    D: gl.constexpr = buffers.k_tiles.type.shape[2]
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BN, 16])
    O_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    P_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, O_LAYOUT, 2)
    sums = gl.zeros((QUERIES, D), gl.float32, O_LAYOUT)
    totals = gl.zeros((QUERIES,), gl.float32, gl.SliceLayout(1, S_LAYOUT))
    maxima = gl.full((QUERIES,), float("-inf"), gl.float32, gl.SliceLayout(1, S_LAYOUT))
    for at in range(0, keys.last, BN):
        k = take(buffers.k_tiles, buffers.k_full, step).permute((1, 0))
        scores = gl.zeros((QUERIES, BN), gl.float32, S_LAYOUT)
        scores = warpgroup_mma(query.q, k, scores, use_acc=False, is_async=True)
        scores = warpgroup_mma_wait(0, deps=(scores,))
        if at >= keys.whole:
            scores = visible(scores, at, query.start, keys.last, form.causal)
            if at + BN > keys.end:
                clear_after(take(buffers.v_tiles, buffers.v_full, step), at, keys.end)
        weights, rescale, totals, maxima = weigh(scores, totals, maxima, query.scale)
        weights = gl.convert_layout(weights.to(buffers.v_tiles.dtype), P_LAYOUT)
        sums = sums * gl.convert_layout(rescale, gl.SliceLayout(1, O_LAYOUT))[:, None]
        v = take(buffers.v_tiles, buffers.v_full, step)
        sums = warpgroup_mma(weights, v, sums, is_async=True)
        sums = warpgroup_mma_wait(0, deps=(sums,))
        release(buffers, step)
        step += 1
    return sums, totals, step


@gluon.jit
def attend_tiles(out, tiles, buffers, scale, sizes, form: gl.constexpr, GROUP: gl.constexpr):
    """A multiplying warpgroup: attend from the first (GROUP 0) or last 64 queries of each tile of this program."""
    BN: gl.constexpr = buffers.k_tiles.type.shape[1]
    step = 0
    for index in range(gl.program_id(0), sizes.tiles, gl.num_programs(0)):
        head, tile = index % sizes.heads, tiles + index // sizes.heads * 5
        first, count = gl.load(tile + 1), gl.load(tile + 2)
        row, end = gl.load(tile + 3) + GROUP * QUERIES, gl.load(tile + 4)
        if count > 0:
            mine = gl.minimum(count - GROUP * QUERIES, QUERIES)  # queries of this warpgroup
            start, last = first + GROUP * QUERIES, end
            if form.causal:
                end = first + count
                whole, last = (start + 1) // BN * BN, start + mine
            else:
                whole = end // BN * BN
            if mine <= 0:
                whole, last = 0, 0
            turn = index // gl.num_programs(0)
            buffer = turn % TILES
            mbarrier.wait(buffers.q_full.index(buffer), turn // TILES & 1)
            next_step = step + gl.cdiv(end, BN)
            query = Queries(buffers.q_tiles.index(2 * buffer + GROUP), start, scale)
            sums, totals, step = absorb_blocks(query, Keys(whole, last, end), buffers, step, form)
            for unused in range(step, next_step):  # only the other warpgroup attends to these keys
                take(buffers.k_tiles, buffers.k_full, unused)  # a wait sees only the phase before: none is left out
                take(buffers.v_tiles, buffers.v_full, unused)
                release(buffers, unused)
            step = next_step
            mbarrier.arrive(buffers.q_empty.index(buffer))
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
    """Attend from the queries in tiles of 128 to the keys of their sequences. A program computes one queue of tiles
    for one head; the number of programs is a multiple of the heads.

    q, k, v: descriptors of boxes of 64 rows and one head. k, v: the cache, (slots * heads * length, D), or the rows of
    the batch. out: pointer to rows of heads * D elements. tiles: int32 (n, 5), see
    `spans.in_queues`.
    sizes, form: `records.TileSizes`, `LongForm`.
    """
    q_tiles = gl.allocate_shared_memory(q.dtype, [2 * TILES] + q.block_type.shape, q.layout)
    k_tiles = gl.allocate_shared_memory(k.dtype, [STAGES] + k.block_type.shape, k.layout)
    v_tiles = gl.allocate_shared_memory(v.dtype, [STAGES] + v.block_type.shape, v.layout)
    q_full, k_full, v_full = barriers(TILES, 1), barriers(STAGES, 1), barriers(STAGES, 1)
    buffers = Buffers(q_tiles, k_tiles, v_tiles, q_full, k_full, v_full, barriers(TILES, 2), barriers(STAGES, 2))
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
