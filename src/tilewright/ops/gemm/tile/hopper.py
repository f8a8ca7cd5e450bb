"""out (M, N) = activation(a (M, K) @ b (N, K)^T + residual + bias) on Hopper, in Gluon: two warps load tiles into
shared memory by bulk copies, two warpgroups multiply half a tile's rows each.

They synchronise at barriers in shared memory: `full` counts the bytes that have arrived in a stage, `empty` the
warpgroups that have read it. So up to `stages` blocks of K are prefetched, also of the next tile. Unlike `product`, one
warpgroup finishes a tile while the other uses the matrix unit. The limit is the rate of the matrix units. It gains
little where each program has one tile: nothing overlaps its end.

With few tiles the limit is latency: the blocks of K are multiplied one after the other. If there are no more tiles of
64 x 64 than programs, one warpgroup multiplies such a tile, which leaves shared memory for more stages. Each stage then
has two boxes along K, so that barriers are waited for half as often. With few rows the first stages are filled with
weights while kernels ahead are still running.
"""

import triton.experimental.gluon.language as gl
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from tilewright.ops.gemm.tile.hopper_ends import (
    HALF_ROWS,
    copy_in,
    finish,
    finish_in_buffers,
    move_tiles,
    store_peaks,
    tile_corner,
    wait_for_inputs,
    write_by_copy,
    write_by_stores,
)
from tilewright.ops.gemm.tile.records import Exchange, Extras, Stages

REGISTERS = 168  # per thread, of 3 x 128; the two multiplying warpgroups then take 240, the loading warps keep 24


@gluon.jit
def share_of_depth(K, block: gl.constexpr):
    """(begin, end) along K of this program: all of K, unless the second axis of the grid divides it."""
    length = gl.cdiv(gl.cdiv(K, block.BK), gl.num_programs(1)) * block.BK
    begin = gl.program_id(1) * length
    return begin, min(K, begin + length)


@gluon.jit
def load_tiles(
    x, boxes, stages, sizes, block: gl.constexpr, LIMBS: gl.constexpr, LEFT: gl.constexpr, WAIT: gl.constexpr
):
    """A loading warp: load each block of K of each tile of this program, in order, once a stage is empty. x: descriptor
    of the LEFT or the right operand. boxes: its buffers in `stages`. A block consists of one or more boxes along K, or
    as many for each of two LIMBS.

    WAIT: until the kernels ahead have ended. Weights are loaded before. None of these kernels writes weights: see
    `launch.settled`.
    """
    STAGES: gl.constexpr = stages.full.type.shape[0]
    DEPTH: gl.constexpr = x.block_type.shape[1]
    PIECES: gl.constexpr = LIMBS * (block.BK // DEPTH)
    BOXES: gl.constexpr = block.BM // HALF_ROWS if LEFT else 1
    if WAIT:
        wait_for_inputs()
    step = 0
    begin, end = share_of_depth(sizes.K, block)
    tiles = gl.cdiv(sizes.M, block.BM) * gl.cdiv(sizes.N, block.BN)
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        i, j = tile_corner(tile, sizes.M, sizes.N, block)
        first = i if LEFT else j
        for p in range(begin, end, block.BK):
            stage = step % STAGES
            full = stages.full.index(stage)
            mbarrier.wait(stages.empty.index(stage), (step // STAGES & 1) ^ 1)
            mbarrier.expect(full, PIECES * BOXES * x.block_type.nbytes)
            for piece in gl.static_range(PIECES):
                column = p + piece // LIMBS * DEPTH
                if LIMBS == 2:  # high limbs, then low ones; zeros from 2 K on
                    column += sizes.K if piece % 2 == 1 else gl.where(column < sizes.K, 0, sizes.K)
                for box in gl.static_range(BOXES):
                    index = BOXES * (stage * PIECES + piece) + box
                    copy_in(x, [first + box * HALF_ROWS, column], full, boxes.index(index))
            step += 1


@gluon.jit
def multiply_half(stages, step, K, block: gl.constexpr, PRODUCTS: gl.constexpr, HALF: gl.constexpr):
    """(sums, step): the upper (HALF 0) or lower (1) half of a tile. step: blocks of K read so far, also in earlier
    tiles. PRODUCTS: see `records.Form`."""
    if PRODUCTS == 1:
        return multiply_one(stages, step, K, block, HALF)
    else:
        return multiply_limbs(stages, step, K, block, PRODUCTS, HALF)


@gluon.jit
def multiply_one(stages, step, K, block: gl.constexpr, HALF: gl.constexpr):
    """(sums, step): one product for each box along K. A block's products are in flight while the next are queued."""
    DEPTH: gl.constexpr = 256 // stages.a_tiles.dtype.primitive_bitwidth  # K of an instruction: 32 bytes
    BN: gl.constexpr = block.BN
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BN, DEPTH])
    STAGES: gl.constexpr = stages.full.type.shape[0]
    HALVES: gl.constexpr = block.BM // HALF_ROWS
    BOXES: gl.constexpr = block.BK // stages.a_tiles.type.shape[2]
    totals = gl.zeros((HALF_ROWS, BN), gl.float32, LAYOUT)
    for p in range(0, K, block.BK):
        stage = step % STAGES
        mbarrier.wait(stages.full.index(stage), step // STAGES & 1)
        for box in gl.static_range(BOXES):
            left = stages.a_tiles.index(HALVES * (stage * BOXES + box) + HALF)
            right = stages.b_tiles.index(stage * BOXES + box).permute((1, 0))
            totals = warpgroup_mma(left, right, totals, is_async=True)
        totals = warpgroup_mma_wait(BOXES, deps=(totals,))
        mbarrier.arrive(stages.empty.index((step + STAGES - 1) % STAGES), pred=p > 0)
        step += 1
    totals = warpgroup_mma_wait(0, deps=(totals,))
    mbarrier.arrive(stages.empty.index((step + STAGES - 1) % STAGES))
    return totals, step


@gluon.jit
def multiply_limbs(stages, step, K, block: gl.constexpr, PRODUCTS: gl.constexpr, HALF: gl.constexpr):
    """(sums, step): three or four limb products per block; see `product.limb_sums`."""
    BN: gl.constexpr = block.BN
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BN, 16])
    STAGES: gl.constexpr = stages.full.type.shape[0]
    HALVES: gl.constexpr = block.BM // HALF_ROWS
    totals = gl.zeros((HALF_ROWS, BN), gl.float32, LAYOUT)
    part = gl.zeros((HALF_ROWS, BN), gl.float32, LAYOUT)
    for _ in range(0, K, block.BK):
        stage = step % STAGES
        mbarrier.wait(stages.full.index(stage), step // STAGES & 1)
        first = 2 * HALVES * stage + HALF
        a_high, a_low = stages.a_tiles.index(first), stages.a_tiles.index(first + HALVES)
        b_high = stages.b_tiles.index(2 * stage).permute((1, 0))
        b_low = stages.b_tiles.index(2 * stage + 1).permute((1, 0))
        if PRODUCTS == 4:
            part = warpgroup_mma(a_low, b_low, part, use_acc=False, is_async=True)
        part = warpgroup_mma(a_low, b_high, part, use_acc=PRODUCTS == 4, is_async=True)
        part = warpgroup_mma(a_high, b_low, part, is_async=True)
        part = warpgroup_mma(a_high, b_high, part, is_async=True)
        part = warpgroup_mma_wait(0, deps=(part,))
        mbarrier.arrive(stages.empty.index(stage))
        totals += part
        step += 1
    return totals, step


@gluon.jit
def barriers(COUNT: gl.constexpr, ARRIVALS: gl.constexpr):
    """COUNT barriers in shared memory; each completes after ARRIVALS arrivals."""
    allocated = gl.allocate_shared_memory(gl.int64, [COUNT, 1], mbarrier.MBarrierLayout())
    for index in gl.static_range(COUNT):
        mbarrier.init(allocated.index(index), count=ARRIVALS)
    return allocated


@gluon.jit
def allocate_stages(a, b, block: gl.constexpr, form: gl.constexpr):
    """`Stages` for tiles of the descriptors a and b."""
    HALVES: gl.constexpr = block.BM // HALF_ROWS
    LIMBS: gl.constexpr = 1 if form.products == 1 else 2
    COUNT: gl.constexpr = form.stages * LIMBS * (block.BK // a.block_type.shape[1])
    a_tiles = gl.allocate_shared_memory(a.dtype, [COUNT * HALVES] + a.block_type.shape, a.layout)
    b_tiles = gl.allocate_shared_memory(b.dtype, [COUNT] + b.block_type.shape, b.layout)
    return Stages(a_tiles, b_tiles, barriers(form.stages, 2), barriers(form.stages, HALVES))


@gluon.jit
def multiply_tiles(out, stages, exchange, extras, sizes, block: gl.constexpr, form: gl.constexpr, HALF: gl.constexpr):
    """A multiplying warpgroup: compute and write one half of each tile of this program, if a tile has this half."""
    if HALF * HALF_ROWS < block.BM:
        ACTIVATION: gl.constexpr = form.activation
        wait_for_inputs()
        step = 0
        tiles = gl.cdiv(sizes.M, block.BM) * gl.cdiv(sizes.N, block.BN)
        for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
            i, j = tile_corner(tile, sizes.M, sizes.N, block)
            totals, step = multiply_half(stages, step, sizes.K, block, form.products, HALF)
            if form.end == "moving_warp":
                finish_in_buffers(totals, exchange, extras.bias, j, sizes.N, tile // gl.num_programs(0), form, HALF)
            else:
                i += HALF * HALF_ROWS
                totals = finish(totals, i, j, extras, sizes, ACTIVATION)
                if extras.peaks is not None:
                    store_peaks(totals, extras.peaks, i, j, sizes)
                if form.end == "bulk_copy":
                    write_by_copy(totals, out, exchange.buffers.index(HALF), i, j)
                else:
                    write_by_stores(totals, out, i, j, sizes)
        if form.end == "bulk_copy":
            tma.store_wait(0)


@gluon.jit
def product(a, b, out, extras, residual, sizes, block: gl.constexpr, form: gl.constexpr):
    """out (M, N) = activation(a @ b^T + residual + bias), float32 sums; operands and limbs as for `product.product`.

    a, b: descriptors of boxes of HALF_ROWS and BN rows, at most 128 bytes wide. Boxes of out are (HALF_ROWS, BN) for
    the end "bulk_copy", (HALF_ROWS, 128 bytes) for "moving_warp"; the residual's too. extras: `records.Extras` without
    the residual, and without peaks for "moving_warp". sizes, block, form: see `records`. block.BM: HALF_ROWS or twice
    as many.
    """
    LIMBS: gl.constexpr = 1 if form.products == 1 else 2
    HALVES: gl.constexpr = block.BM // HALF_ROWS
    stages = allocate_stages(a, b, block, form)
    exchange = Exchange(None, None, None)
    if form.end == "bulk_copy":
        buffers = gl.allocate_shared_memory(out.dtype, [HALVES] + out.block_type.shape, out.layout)
        exchange = Exchange(buffers, None, None)
    elif form.end == "moving_warp":
        COUNT: gl.constexpr = HALVES * block.BN // out.block_type.shape[1]
        buffers = gl.allocate_shared_memory(out.dtype, [COUNT] + out.block_type.shape, out.layout)
        exchange = Exchange(buffers, barriers(COUNT, 1), barriers(COUNT, 1))
    added = Extras(extras.bias, None if form.end == "moving_warp" else residual, extras.peaks)
    fence_async_shared()
    gl.warp_specialize(
        [
            (multiply_tiles, (out, stages, exchange, added, sizes, block, form, 0)),
            (multiply_tiles, (out, stages, exchange, added, sizes, block, form, 1)),
            (load_tiles, (a, stages.a_tiles, stages, sizes, block, LIMBS, True, True)),
            (load_tiles, (b, stages.b_tiles, stages, sizes, block, LIMBS, False, False)),
            (move_tiles, (out, residual, exchange, sizes, block, form)),
        ],
        [4, 1, 1, 1],
        [240, 24, 24, 24],
    )
