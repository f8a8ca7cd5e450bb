"""Products of tiles on Hopper, in Gluon: one warp copies tiles in, two warpgroups multiply, each half a tile's rows.

They meet at barriers in shared memory: `full` counts the bytes that have arrived in a stage, `empty` the warpgroups
that have read it. So copies run ahead as far as there are stages, into the next tile too, and a warpgroup that finishes
a tile leaves the matrix unit to the other.
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

REGISTERS = 168  # a thread, of 3 x 128; two warpgroups then take 240, and the copying warps' gives all but 24 away


@gluon.jit
def copy_in(a, b, stages, shape, BLOCKS: gl.constexpr, LIMBS: gl.constexpr):
    """The copying warp: every block of K of every tile of this program, in order, as soon as a stage is empty."""
    a_tiles, b_tiles, full, empty = stages
    M, N, K = shape
    BM: gl.constexpr = BLOCKS[0]
    BN: gl.constexpr = BLOCKS[1]
    BK: gl.constexpr = BLOCKS[2]
    STAGES: gl.constexpr = full.type.shape[0]
    step = 0
    for tile in range(gl.program_id(0), gl.cdiv(M, BM) * gl.cdiv(N, BN), gl.num_programs(0)):
        i, j = place(tile, M, N, BLOCKS)
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
def multiply_one(stages, step, K, BLOCKS: gl.constexpr, WHICH: gl.constexpr):
    """(sums, step): half a tile of products. One product is in flight while the next is queued."""
    a_tiles, b_tiles, full, empty = stages
    BN: gl.constexpr = BLOCKS[1]
    DEEP: gl.constexpr = 256 // a_tiles.dtype.primitive_bitwidth  # of an instruction: 32 bytes
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BN, DEEP])
    STAGES: gl.constexpr = full.type.shape[0]
    totals = gl.zeros((HALF, BN), gl.float32, LAYOUT)
    for p in range(0, K, BLOCKS[2]):
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
def multiply_limbs(stages, step, K, BLOCKS: gl.constexpr, PRODUCTS: gl.constexpr, WHICH: gl.constexpr):
    """(sums, step): half a tile of three or four limb products a block; see `product.limb_sums`."""
    a_tiles, b_tiles, full, empty = stages
    BN: gl.constexpr = BLOCKS[1]
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BN, 16])
    STAGES: gl.constexpr = full.type.shape[0]
    totals = gl.zeros((HALF, BN), gl.float32, LAYOUT)
    part = gl.zeros((HALF, BN), gl.float32, LAYOUT)
    for _ in range(0, K, BLOCKS[2]):
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
def consume(out, stages, moves, extras, shape, BLOCKS: gl.constexpr, FORM: gl.constexpr, WHICH: gl.constexpr):
    """A multiplying warpgroup: its half of every tile of this program. FORM: see `product`."""
    M, N, K = shape
    BM: gl.constexpr = BLOCKS[0]
    BN: gl.constexpr = BLOCKS[1]
    step = 0
    for tile in range(gl.program_id(0), gl.cdiv(M, BM) * gl.cdiv(N, BN), gl.num_programs(0)):
        i, j = place(tile, M, N, BLOCKS)
        if FORM[0] == 1:
            totals, step = multiply_one(stages, step, K, BLOCKS, WHICH)
        else:
            totals, step = multiply_limbs(stages, step, K, BLOCKS, FORM[0], WHICH)
        if FORM[1] == "best":
            keep_best(totals, out, i + WHICH * HALF, j, (M, N))
        elif FORM[1] == "moved":
            write_moved(totals, out, moves, extras[0], (tile // gl.num_programs(0), j, N), FORM, WHICH)
        else:
            write(totals, out, moves[0].index(WHICH), i + WHICH * HALF, j, extras, (M, N), FORM)
    if FORM[1] == "bulk":
        tma.store_wait(0)


@gluon.jit
def consume_first(out, stages, moves, extras, shape, BLOCKS: gl.constexpr, FORM: gl.constexpr):
    """The warpgroup of the upper half."""
    consume(out, stages, moves, extras, shape, BLOCKS, FORM, 0)


@gluon.jit
def consume_second(out, stages, moves, extras, shape, BLOCKS: gl.constexpr, FORM: gl.constexpr):
    """The warpgroup of the lower half."""
    consume(out, stages, moves, extras, shape, BLOCKS, FORM, 1)


@gluon.jit
def barriers(COUNT: gl.constexpr, ARRIVALS: gl.constexpr):
    """So many barriers in shared memory, each of so many arrivals."""
    found = gl.allocate_shared_memory(gl.int64, [COUNT, 1], mbarrier.MBarrierLayout())
    for at in gl.static_range(COUNT):
        mbarrier.init(found.index(at), count=ARRIVALS)
    return found


@gluon.jit
def product(a, b, out, bias, residual, shape, BLOCKS: gl.constexpr, FORM: gl.constexpr):
    """out (M, N) = activation(a @ b^T + residual + bias) as `product.product`, or with limbs.

    a, b: descriptors of boxes (HALF, BK) and (BN, BK). FORM: 1, or the number of limb products; how a tile ends;
    activation; stages. A tile's end is "alone": out is a pointer, and so is the residual; "bulk": out is a descriptor
    of boxes (HALF, BN); "moved": out and the residual are descriptors of boxes (HALF, a line of 128 bytes); "best": out
    is `keep_best`'s.
    """
    LIMBS: gl.constexpr = 1 if FORM[0] == 1 else 2
    STAGES: gl.constexpr = FORM[3]
    a_tiles = gl.allocate_shared_memory(a.dtype, [STAGES * LIMBS * 2] + a.block_type.shape, a.layout)
    b_tiles = gl.allocate_shared_memory(b.dtype, [STAGES * LIMBS] + b.block_type.shape, b.layout)
    stages = (a_tiles, b_tiles, barriers(STAGES, 1), barriers(STAGES, 2))
    extras = (bias, residual)
    if FORM[1] == "moved":
        ROOMS: gl.constexpr = 2 * BLOCKS[1] // out.block_type.shape[1]
        rooms = gl.allocate_shared_memory(out.dtype, [ROOMS] + out.block_type.shape, out.layout)
        moves = (rooms, barriers(ROOMS, 1), barriers(ROOMS, 1))
        fence_async_shared()
        gl.warp_specialize(
            [
                (consume_first, (out, stages, moves, (bias, None), shape, BLOCKS, FORM)),
                (consume_second, (out, stages, moves, (bias, None), shape, BLOCKS, FORM)),
                (copy_in, (a, b, stages, shape, BLOCKS, LIMBS)),
                (move, (out, residual, moves, shape, BLOCKS)),
            ],
            [4, 1, 1],
            [240, 24, 24],
        )
    else:
        if FORM[1] == "bulk":
            moves = (gl.allocate_shared_memory(out.dtype, [2] + out.block_type.shape, out.layout),)
        else:
            moves = (a_tiles,)
        fence_async_shared()
        gl.warp_specialize(
            [
                (consume_first, (out, stages, moves, extras, shape, BLOCKS, FORM)),
                (consume_second, (out, stages, moves, extras, shape, BLOCKS, FORM)),
                (copy_in, (a, b, stages, shape, BLOCKS, LIMBS)),
            ],
            [4, 1],
            [240, 24],
        )
