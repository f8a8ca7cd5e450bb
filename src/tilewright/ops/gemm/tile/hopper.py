"""Products of tiles on Hopper, in Gluon: one warp loads tiles, two warpgroups multiply half a tile's rows each.

They synchronise at barriers in shared memory: `full` counts the bytes that have arrived in a stage, `empty` the
warpgroups that have read it. So loads run ahead by the number of stages, into the next tile too. While one warpgroup
finishes a tile, the other uses the matrix unit.
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

from tilewright.ops.gemm.tile.hopper_ends import HALF, keep_best, move, place, write, write_moved

REGISTERS = 168  # per thread, of 3 x 128; the two multiplying warpgroups then take 240, the copying warps keep 24


@gluon.jit
def copy_in(a, b, stages, shape, block: gl.constexpr, LIMBS: gl.constexpr):
    """The copying warp: load each block of K of each tile of this program, in order, once a stage is empty."""
    a_tiles, b_tiles, full, empty = stages
    M, N, K = shape
    BM: gl.constexpr = block.BM
    BN: gl.constexpr = block.BN
    BK: gl.constexpr = block.BK
    STAGES: gl.constexpr = full.type.shape[0]
    step = 0
    for tile in range(gl.program_id(0), gl.cdiv(M, BM) * gl.cdiv(N, BN), gl.num_programs(0)):
        i, j = place(tile, M, N, block)
        for p in range(0, K, BK):
            stage = step % STAGES
            bar = full.index(stage)
            mbarrier.wait(empty.index(stage), (step // STAGES & 1) ^ 1)
            mbarrier.expect(bar, LIMBS * (2 * a.block_type.nbytes + b.block_type.nbytes))
            for limb in gl.static_range(LIMBS):
                at = stage * LIMBS + limb
                tma.async_copy_global_to_shared(a, [i, limb * K + p], bar, a_tiles.index(2 * at))
                tma.async_copy_global_to_shared(a, [i + HALF, limb * K + p], bar, a_tiles.index(2 * at + 1))
                tma.async_copy_global_to_shared(b, [j, limb * K + p], bar, b_tiles.index(at))
            step += 1


@gluon.jit
def multiply_one(stages, step, K, block: gl.constexpr, WHICH: gl.constexpr):
    """(sums, step): half a tile of products. One product is in flight while the next is queued."""
    a_tiles, b_tiles, full, empty = stages
    BN: gl.constexpr = block.BN
    DEEP: gl.constexpr = 256 // a_tiles.dtype.primitive_bitwidth  # of an instruction: 32 bytes
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BN, DEEP])
    STAGES: gl.constexpr = full.type.shape[0]
    totals = gl.zeros((HALF, BN), gl.float32, LAYOUT)
    for p in range(0, K, block.BK):
        stage = step % STAGES
        mbarrier.wait(full.index(stage), step // STAGES & 1)
        left, right = a_tiles.index(2 * stage + WHICH), b_tiles.index(stage).permute((1, 0))
        totals = warpgroup_mma(left, right, totals, is_async=True)
        totals = warpgroup_mma_wait(1, deps=(totals,))
        mbarrier.arrive(empty.index((step + STAGES - 1) % STAGES), pred=p > 0)
        step += 1
    totals = warpgroup_mma_wait(0, deps=(totals,))
    mbarrier.arrive(empty.index((step + STAGES - 1) % STAGES))
    return totals, step


@gluon.jit
def multiply_limbs(stages, step, K, block: gl.constexpr, PRODUCTS: gl.constexpr, WHICH: gl.constexpr):
    """(sums, step): half a tile of three or four limb products a block; see `product.limb_sums`."""
    a_tiles, b_tiles, full, empty = stages
    BN: gl.constexpr = block.BN
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BN, 16])
    STAGES: gl.constexpr = full.type.shape[0]
    totals = gl.zeros((HALF, BN), gl.float32, LAYOUT)
    part = gl.zeros((HALF, BN), gl.float32, LAYOUT)
    for _ in range(0, K, block.BK):
        stage = step % STAGES
        mbarrier.wait(full.index(stage), step // STAGES & 1)
        a_high, a_low = a_tiles.index(4 * stage + WHICH), a_tiles.index(4 * stage + 2 + WHICH)
        b_high, b_low = b_tiles.index(2 * stage).permute((1, 0)), b_tiles.index(2 * stage + 1).permute((1, 0))
        if PRODUCTS == 4:
            part = warpgroup_mma(a_low, b_low, part, use_acc=False, is_async=True)
        part = warpgroup_mma(a_low, b_high, part, use_acc=PRODUCTS == 4, is_async=True)
        part = warpgroup_mma(a_high, b_low, part, is_async=True)
        part = warpgroup_mma(a_high, b_high, part, is_async=True)
        part = warpgroup_mma_wait(0, deps=(part,))
        mbarrier.arrive(empty.index(stage))
        totals += part
        step += 1
    return totals, step


@gluon.jit
def consume(out, stages, moves, extras, shape, block: gl.constexpr, form: gl.constexpr, WHICH: gl.constexpr):
    """A multiplying warpgroup: compute and write its half of each tile of this program."""
    M, N, K = shape
    bias, _ = extras
    BM: gl.constexpr = block.BM
    BN: gl.constexpr = block.BN
    step = 0
    for tile in range(gl.program_id(0), gl.cdiv(M, BM) * gl.cdiv(N, BN), gl.num_programs(0)):
        i, j = place(tile, M, N, block)
        if form.products == 1:
            totals, step = multiply_one(stages, step, K, block, WHICH)
        else:
            totals, step = multiply_limbs(stages, step, K, block, form.products, WHICH)
        if form.end == "best":
            keep_best(totals, out, i + WHICH * HALF, j, (M, N))
        elif form.end == "moved":
            write_moved(totals, out, moves, bias, (tile // gl.num_programs(0), j, N), form, WHICH)
        else:
            write(totals, out, moves.index(WHICH), i + WHICH * HALF, j, extras, (M, N), form)
    if form.end == "bulk":
        tma.store_wait(0)


@gluon.jit
def consume_first(out, stages, moves, extras, shape, block: gl.constexpr, form: gl.constexpr):
    """The warpgroup of the upper half."""
    consume(out, stages, moves, extras, shape, block, form, 0)


@gluon.jit
def consume_second(out, stages, moves, extras, shape, block: gl.constexpr, form: gl.constexpr):
    """The warpgroup of the lower half."""
    consume(out, stages, moves, extras, shape, block, form, 1)


@gluon.jit
def barriers(COUNT: gl.constexpr, ARRIVALS: gl.constexpr):
    """COUNT barriers in shared memory, each of which waits for ARRIVALS."""
    found = gl.allocate_shared_memory(gl.int64, [COUNT, 1], mbarrier.MBarrierLayout())
    for at in gl.static_range(COUNT):
        mbarrier.init(found.index(at), count=ARRIVALS)
    return found


@gluon.jit
def product(a, b, out, bias, residual, shape, block: gl.constexpr, form: gl.constexpr):
    """out (M, N) = activation(a @ b^T + residual + bias) as `product.product`, or with limbs.

    a, b: descriptors of boxes (HALF, BK) and (BN, BK). block: a `records.Block`. form: a `records.Form`. Boxes of out
    are (HALF, BN) for the end "bulk", (HALF, 128 bytes) for "moved"; the residual's too. For "best" see `keep_best`.
    """
    LIMBS: gl.constexpr = 1 if form.products == 1 else 2
    STAGES: gl.constexpr = form.stages
    a_tiles = gl.allocate_shared_memory(a.dtype, [STAGES * LIMBS * 2] + a.block_type.shape, a.layout)
    b_tiles = gl.allocate_shared_memory(b.dtype, [STAGES * LIMBS] + b.block_type.shape, b.layout)
    stages = (a_tiles, b_tiles, barriers(STAGES, 1), barriers(STAGES, 2))
    extras = (bias, residual)
    if form.end == "moved":
        ROOMS: gl.constexpr = 2 * block.BN // out.block_type.shape[1]
        rooms = gl.allocate_shared_memory(out.dtype, [ROOMS] + out.block_type.shape, out.layout)
        moves = (rooms, barriers(ROOMS, 1), barriers(ROOMS, 1))
        fence_async_shared()
        gl.warp_specialize(
            [
                (consume_first, (out, stages, moves, (bias, None), shape, block, form)),
                (consume_second, (out, stages, moves, (bias, None), shape, block, form)),
                (copy_in, (a, b, stages, shape, block, LIMBS)),
                (move, (out, residual, moves, shape, block)),
            ],
            [4, 1, 1],
            [240, 24, 24],
        )
    else:
        if form.end == "bulk":
            moves = gl.allocate_shared_memory(out.dtype, [2] + out.block_type.shape, out.layout)
        else:
            moves = a_tiles
        fence_async_shared()
        gl.warp_specialize(
            [
                (consume_first, (out, stages, moves, extras, shape, block, form)),
                (consume_second, (out, stages, moves, extras, shape, block, form)),
                (copy_in, (a, b, stages, shape, block, LIMBS)),
            ],
            [4, 1],
            [240, 24],
        )
