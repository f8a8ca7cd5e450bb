"""Products of tiles on Hopper whose two multiplying warpgroups take turns: while one ends a tile, the other multiplies.

In `hopper` both have half a tile, and the matrix unit waits while they end it; where K is short that is a tenth to a
third of the time. Here each has tiles of its own, 128 x 128, every other one of the program's. The copying warp brings
them in order, so the warpgroups need not agree on whose turn it is. Loses where K is long: tiles half as large are
copied half as often again.
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

from tilewright.ops.matmul.tile.hopper import barriers
from tilewright.ops.matmul.tile.hopper_ends import keep_best, place, write, write_moved


@gluon.jit
def copy_in(a, b, stages, shape, BLOCKS: gl.constexpr):
    """The copying warp: every block of K of every tile of this program, in order, as soon as a stage is empty."""
    a_tiles, b_tiles, full, empty = stages
    M, N, K = shape
    BM: gl.constexpr = BLOCKS[0]
    BN: gl.constexpr = BLOCKS[1]
    STAGES: gl.constexpr = full.type.shape[0]
    step = 0
    for tile in range(gl.program_id(0), gl.cdiv(M, BM) * gl.cdiv(N, BN), gl.num_programs(0)):
        i, j = place(tile, M, N, BLOCKS)
        for p in range(0, K, BLOCKS[2]):
            stage = step % STAGES
            bar = full.index(stage)
            mbarrier.wait(empty.index(stage), (step // STAGES & 1) ^ 1)
            mbarrier.expect(bar, a.block_type.nbytes + b.block_type.nbytes)
            tma.async_copy_global_to_shared(a, [i, p], bar, a_tiles.index(stage))
            tma.async_copy_global_to_shared(b, [j, p], bar, b_tiles.index(stage))
            step += 1


@gluon.jit
def multiply(stages, step, K, BLOCKS: gl.constexpr):
    """The sums of a tile, whose blocks of K begin at `step`. One product is in flight while the next is queued."""
    a_tiles, b_tiles, full, empty = stages
    BM: gl.constexpr = BLOCKS[0]
    BN: gl.constexpr = BLOCKS[1]
    DEEP: gl.constexpr = 256 // a_tiles.dtype.primitive_bitwidth  # of an instruction: 32 bytes
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BN, DEEP])
    STAGES: gl.constexpr = full.type.shape[0]
    totals = gl.zeros((BM, BN), gl.float32, LAYOUT)
    for p in range(0, K, BLOCKS[2]):
        stage = step % STAGES
        mbarrier.wait(full.index(stage), step // STAGES & 1)
        totals = warpgroup_mma(a_tiles.index(stage), b_tiles.index(stage).permute((1, 0)), totals, is_async=True)
        totals = warpgroup_mma_wait(1, deps=(totals,))
        mbarrier.arrive(empty.index((step + STAGES - 1) % STAGES), pred=p > 0)
        step += 1
    totals = warpgroup_mma_wait(0, deps=(totals,))
    mbarrier.arrive(empty.index((step + STAGES - 1) % STAGES))
    return totals


@gluon.jit
def consume(out, stages, moves, extras, shape, BLOCKS: gl.constexpr, FORM: gl.constexpr, WHICH: gl.constexpr):
    """A multiplying warpgroup: every other tile of this program. FORM: see `hopper.product`."""
    M, N, K = shape
    BM: gl.constexpr = BLOCKS[0]
    BN: gl.constexpr = BLOCKS[1]
    programs = gl.num_programs(0)
    for tile in range(gl.program_id(0) + WHICH * programs, gl.cdiv(M, BM) * gl.cdiv(N, BN), 2 * programs):
        i, j = place(tile, M, N, BLOCKS)
        totals = multiply(stages, tile // programs * gl.cdiv(K, BLOCKS[2]), K, BLOCKS)
        if FORM[1] == "best":
            keep_best(totals, out, i, j, (M, N))
        elif FORM[1] == "moved":
            write_moved(totals, out, moves, extras[0], (tile // (2 * programs), j, N), FORM, WHICH)
        else:
            write(totals, out, moves[0].index(WHICH), i, j, extras, (M, N), FORM)
    if FORM[1] == "bulk":
        tma.store_wait(0)


@gluon.jit
def consume_even(out, stages, moves, extras, shape, BLOCKS: gl.constexpr, FORM: gl.constexpr):
    """The warpgroup of the first, the third tile and so on."""
    consume(out, stages, moves, extras, shape, BLOCKS, FORM, 0)


@gluon.jit
def consume_odd(out, stages, moves, extras, shape, BLOCKS: gl.constexpr, FORM: gl.constexpr):
    """The warpgroup of the second, the fourth tile and so on."""
    consume(out, stages, moves, extras, shape, BLOCKS, FORM, 1)


@gluon.jit
def bring(residual, moves, tile, turn, shape, BLOCKS: gl.constexpr):
    """Start the copies of a tile's residual into the rooms of the warpgroup whose turn it is; past the last, none."""
    rooms, come, _ = moves
    M, N, _ = shape
    BM: gl.constexpr = BLOCKS[0]
    BN: gl.constexpr = BLOCKS[1]
    PART: gl.constexpr = residual.block_type.shape[1]
    PARTS: gl.constexpr = BN // PART
    tiles = gl.cdiv(M, BM) * gl.cdiv(N, BN)
    more = tile < tiles
    i, j = place(min(tile, tiles - 1), M, N, BLOCKS)
    for p in gl.static_range(PARTS):
        at = turn % 2 * PARTS + p
        mbarrier.expect(come.index(at), residual.block_type.nbytes, pred=more)
        tma.async_copy_global_to_shared(residual, [i, j + p * PART], come.index(at), rooms.index(at), pred=more)


@gluon.jit
def move(out, residual, moves, shape, BLOCKS: gl.constexpr):
    """The moving warp: the residual of the tile after this one into the rooms, then this tile's results out of them."""
    rooms, _, done = moves
    M, N, _ = shape
    BM: gl.constexpr = BLOCKS[0]
    BN: gl.constexpr = BLOCKS[1]
    PART: gl.constexpr = out.block_type.shape[1]
    PARTS: gl.constexpr = BN // PART
    programs = gl.num_programs(0)
    bring(residual, moves, gl.program_id(0), 0, shape, BLOCKS)
    for tile in range(gl.program_id(0), gl.cdiv(M, BM) * gl.cdiv(N, BN), programs):
        i, j = place(tile, M, N, BLOCKS)
        turn = tile // programs
        tma.store_wait(0)
        bring(residual, moves, tile + programs, turn + 1, shape, BLOCKS)
        for p in gl.static_range(PARTS):
            at = turn % 2 * PARTS + p
            mbarrier.wait(done.index(at), turn // 2 & 1)
            tma.async_copy_shared_to_global(out, [i, j + p * PART], rooms.index(at))
    tma.store_wait(0)


@gluon.jit
def product(a, b, out, bias, residual, shape, BLOCKS: gl.constexpr, FORM: gl.constexpr):
    """As `hopper.product`, of one product a block; boxes of a, out and the residual have BM rows."""
    STAGES: gl.constexpr = FORM[3]
    a_tiles = gl.allocate_shared_memory(a.dtype, [STAGES] + a.block_type.shape, a.layout)
    b_tiles = gl.allocate_shared_memory(b.dtype, [STAGES] + b.block_type.shape, b.layout)
    stages = (a_tiles, b_tiles, barriers(STAGES, 1), barriers(STAGES, 1))
    if FORM[1] == "moved":
        ROOMS: gl.constexpr = 2 * BLOCKS[1] // out.block_type.shape[1]
        rooms = gl.allocate_shared_memory(out.dtype, [ROOMS] + out.block_type.shape, out.layout)
        moves = (rooms, barriers(ROOMS, 1), barriers(ROOMS, 1))
        fence_async_shared()
        gl.warp_specialize(
            [
                (consume_even, (out, stages, moves, (bias, None), shape, BLOCKS, FORM)),
                (consume_odd, (out, stages, moves, (bias, None), shape, BLOCKS, FORM)),
                (copy_in, (a, b, stages, shape, BLOCKS)),
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
                (consume_even, (out, stages, moves, (bias, residual), shape, BLOCKS, FORM)),
                (consume_odd, (out, stages, moves, (bias, residual), shape, BLOCKS, FORM)),
                (copy_in, (a, b, stages, shape, BLOCKS)),
            ],
            [4, 1],
            [240, 24],
        )
