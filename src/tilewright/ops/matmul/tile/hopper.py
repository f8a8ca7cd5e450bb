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

from tilewright.ops.matmul.tile import finish as in_triton

activate = gluon.jit(in_triton.activate.fn)

HALF = gl.constexpr(64)  # rows of a tile a warpgroup has: what one of its instructions multiplies
REGISTERS = 168  # a thread, of 3 x 128; two warpgroups then take 240, and the copying warp's gives all but 24 away


@gluon.jit
def place(tile, M, N, BLOCKS: gl.constexpr):
    """(row, column) of a tile's first element; see `product.place`."""
    BM: gl.constexpr = BLOCKS[0]
    BN: gl.constexpr = BLOCKS[1]
    GROUP: gl.constexpr = BLOCKS[3]
    down, across = gl.cdiv(M, BM), gl.cdiv(N, BN)
    first = tile // (GROUP * across) * GROUP
    height = min(down - first, GROUP)
    return (first + tile % (GROUP * across) % height) * BM, tile % (GROUP * across) // height * BN


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
def multiply_one(a_tiles, b_tiles, full, empty, step, K, BLOCKS: gl.constexpr, WHICH: gl.constexpr):
    """(sums, step): half a tile of products. One product is in flight while the next is queued."""
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
def multiply_limbs(a_tiles, b_tiles, full, empty, step, K, BLOCKS: gl.constexpr, WHICH: gl.constexpr):
    """(sums, step): half a tile of three limb products a block, the small ones first; see `product.limb_product`."""
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
        part = warpgroup_mma(a_low, b_high, part, use_acc=False, is_async=True)
        part = warpgroup_mma(a_high, b_low, part, is_async=True)
        part = warpgroup_mma(a_high, b_high, part, is_async=True)
        part = warpgroup_mma_wait(0, deps=(part,))
        mbarrier.arrive(empty.index(stage))
        totals += part
        step += 1
    return totals, step


@gluon.jit
def elements(i, j, shape, ROWS: gl.constexpr, COLUMNS: gl.constexpr, LAYOUT: gl.constexpr):
    """(columns, offset in out, whether it is inside) of the elements of a tile at (i, j), in a layout."""
    M, N = shape
    rows = i + gl.arange(0, ROWS, gl.SliceLayout(1, LAYOUT))[:, None]
    columns = j + gl.arange(0, COLUMNS, gl.SliceLayout(0, LAYOUT))[None, :]
    return columns, rows.to(gl.int64) * N + columns, (rows < M) & (columns < N)


@gluon.jit
def write(totals, out, room, i, j, extras, shape, FORM: gl.constexpr):
    """Finish half a tile of sums and store it at (i, j): by a bulk copy out of `room`, or each thread what it has.

    16-bit numbers that no bulk copy takes change hands first, so that a warp's lie side by side.
    """
    bias, residual = extras
    BULK: gl.constexpr = FORM[1]
    ACTIVATION: gl.constexpr = FORM[2]
    LAYOUT: gl.constexpr = totals.type.layout
    ROWS: gl.constexpr = totals.type.shape[0]
    COLUMNS: gl.constexpr = totals.type.shape[1]
    columns, at, inside = elements(i, j, shape, ROWS, COLUMNS, LAYOUT)
    if residual is not None:
        totals += gl.load(residual + at, mask=inside, other=0.0).to(gl.float32)
    if bias is not None:
        totals += gl.load(bias + columns, mask=columns < shape[1], other=0.0).to(gl.float32)
    totals = activate(totals, ACTIVATION)
    if BULK:
        tma.store_wait(0)
        room.store(totals.to(out.dtype))
        fence_async_shared()
        tma.async_copy_shared_to_global(out, [i, j], room)
    elif out.dtype.element_ty.primitive_bitwidth == 16:
        BESIDE: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [4, 1], [1, 0])
        columns, at, inside = elements(i, j, shape, ROWS, COLUMNS, BESIDE)
        gl.store(out + at, gl.convert_layout(totals.to(out.dtype.element_ty), BESIDE), mask=inside)
    else:
        gl.store(out + at, totals, mask=inside)


@gluon.jit
def consume(out, rooms, stages, extras, shape, BLOCKS: gl.constexpr, FORM: gl.constexpr, WHICH: gl.constexpr):
    """A multiplying warpgroup: its half of every tile of this program. FORM: limbs, bulk stores, activation."""
    a_tiles, b_tiles, full, empty = stages
    M, N, K = shape
    BM: gl.constexpr = BLOCKS[0]
    BN: gl.constexpr = BLOCKS[1]
    BULK: gl.constexpr = FORM[1]
    step = 0
    for tile in range(gl.program_id(0), gl.cdiv(M, BM) * gl.cdiv(N, BN), gl.num_programs(0)):
        i, j = place(tile, M, N, BLOCKS)
        if FORM[0] == 2:
            totals, step = multiply_limbs(a_tiles, b_tiles, full, empty, step, K, BLOCKS, WHICH)
        else:
            totals, step = multiply_one(a_tiles, b_tiles, full, empty, step, K, BLOCKS, WHICH)
        write(totals, out, rooms.index(WHICH), i + WHICH * HALF, j, extras, (M, N), FORM)
    if BULK:
        tma.store_wait(0)


@gluon.jit
def consume_first(out, rooms, stages, extras, shape, BLOCKS: gl.constexpr, FORM: gl.constexpr):
    """The warpgroup of the upper half."""
    consume(out, rooms, stages, extras, shape, BLOCKS, FORM, 0)


@gluon.jit
def consume_second(out, rooms, stages, extras, shape, BLOCKS: gl.constexpr, FORM: gl.constexpr):
    """The warpgroup of the lower half."""
    consume(out, rooms, stages, extras, shape, BLOCKS, FORM, 1)


@gluon.jit
def product(a, b, out, extras, shape, BLOCKS: gl.constexpr, STAGES: gl.constexpr, FORM: gl.constexpr):
    """out (M, N) = activation(a @ b^T + residual + bias) as `product.product`, or with limbs as `product.limb_product`.

    a, b: descriptors of boxes (HALF, BK) and (BN, BK). out: a descriptor of boxes (HALF, BN), or a pointer.
    FORM: limbs (1 or 2), whether out is a descriptor, activation.
    """
    LIMBS: gl.constexpr = FORM[0]
    a_tiles = gl.allocate_shared_memory(a.dtype, [STAGES * LIMBS * 2] + a.block_type.shape, a.layout)
    b_tiles = gl.allocate_shared_memory(b.dtype, [STAGES * LIMBS] + b.block_type.shape, b.layout)
    if FORM[1]:
        rooms = gl.allocate_shared_memory(out.dtype, [2] + out.block_type.shape, out.layout)
    else:
        rooms = a_tiles
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(empty.index(stage), count=2)
    fence_async_shared()
    stages = (a_tiles, b_tiles, full, empty)
    gl.warp_specialize(
        [
            (consume_first, (out, rooms, stages, extras, shape, BLOCKS, FORM)),
            (consume_second, (out, rooms, stages, extras, shape, BLOCKS, FORM)),
            (copy_in, (a, b, stages, shape, BLOCKS, LIMBS)),
        ],
        [4, 1],
        [240, 24],
    )
