"""out (M, N) = activation(x (M, K) @ weights (N, K)^T + residual + bias) for few rows on Hopper, in Gluon: computed as
its transpose, weights @ x^T.

An instruction of the matrix unit takes 64 rows of its left operand, but as few as 8 columns of the right one. With the
weights on the left, it multiplies 64 columns of out by 8, 16 or 32 rows: no time goes into rows that do not exist, and
sums need so few registers that those of two blocks of limbs are in flight at once. Every sum has the order that it has
in `hopper`, so its bits are the same. The limit is the latency of the instructions: the blocks of K are multiplied one
after the other.

The rows of float32 products arrive as they are. A warpgroup replaces them in shared memory by their limbs.
"""

from typing import Any, NamedTuple

import triton.experimental.gluon.language as gl
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from triton.language.extra.cuda import gdc_launch_dependents

from tilewright.ops.gemm.tile.hopper import allocate_stages, barriers, load_tiles, multiply_one
from tilewright.ops.gemm.tile.hopper_ends import HALF_ROWS, PEAK, activate, larger, peaks_of, tile_corner, wait_for_inputs
from tilewright.ops.gemm.tile.records import Stages

REGISTERS = 128  # per thread, of at most 512


class Handed(NamedTuple):
    """Sums that a warpgroup hands to the other: one part (64, rows) for each stage, in shared memory. ready: barriers
    that complete when it is there."""

    parts: Any
    ready: Any


@gluon.constexpr_function
def sum_layout(rows, dtype):
    """The layout of sums (64, rows) of operands of a dtype in the registers of a warpgroup."""
    return gl.NVMMADistributedLayout([3, 0], [4, 1], [16, rows, 256 // dtype.primitive_bitwidth])


@gluon.jit
def allocate_limbs(weights, x, block: gl.constexpr, STAGES: gl.constexpr):
    """(`Stages` of limbs, those of the rows before they are split, in the same memory, `Handed`)."""
    ROWS: gl.constexpr = block.BN
    LIMBS: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, 64], weights.dtype)
    PLAIN: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    full, empty = barriers(STAGES, 2), barriers(STAGES, 1)
    a_tiles = gl.allocate_shared_memory(weights.dtype, [4 * STAGES] + weights.block_type.shape, weights.layout)
    b_tiles = gl.allocate_shared_memory(weights.dtype, [4 * STAGES, ROWS, 64], LIMBS)
    whole = b_tiles._reinterpret(x.dtype, [4 * STAGES] + x.block_type.shape, x.layout)
    parts = gl.allocate_shared_memory(gl.float32, [STAGES, HALF_ROWS, ROWS], PLAIN)
    unsplit = Stages(a_tiles, whole, barriers(STAGES, 1), empty)
    return Stages(a_tiles, b_tiles, full, empty), unsplit, Handed(parts, barriers(STAGES, 1))


@gluon.jit
def split_rows(whole, stages, sizes, block: gl.constexpr):
    """The splitting warpgroup: replace the float32 rows of each stage by their limbs, split as by `product.split`.

    A stage has four boxes of 32 columns: two for each block of K. They become four boxes of 64: for each block the high
    limbs, then the low ones.
    """
    STAGES: gl.constexpr = stages.full.type.shape[0]
    ROWS: gl.constexpr = block.BN
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 4], [4, 8], [4, 1], [1, 0])
    WHOLE: gl.constexpr = whole.b_tiles.layout
    LIMBS: gl.constexpr = stages.b_tiles.layout
    before = whole.b_tiles._reinterpret(gl.float32, [STAGES, 4 * ROWS, 32], WHOLE)
    after = stages.b_tiles._reinterpret(gl.bfloat16, [STAGES, 4 * ROWS, 64], LIMBS)
    step = 0
    tiles = gl.cdiv(sizes.M, block.BM) * gl.cdiv(sizes.N, block.BN)
    for _ in range(gl.program_id(0), tiles, gl.num_programs(0)):
        for _ in range(0, sizes.K, block.BK):
            stage = step % STAGES
            mbarrier.wait(whole.full.index(stage), step // STAGES & 1)
            x = before.index(stage).load(LAYOUT)
            high = x.to(gl.bfloat16)
            limbs = gl.join(high, (x - high.to(gl.float32)).to(gl.bfloat16)).reshape([2, 2, ROWS, 32, 2])
            after.index(stage).store(limbs.permute(0, 4, 2, 1, 3).reshape([4 * ROWS, 64]))
            fence_async_shared()
            mbarrier.arrive(stages.full.index(stage))
            step += 1


@gluon.jit
def multiply_block(stages, box, part, PRODUCTS: gl.constexpr):
    """The limb products of the block of K whose first box is `box`, summed in the order of `hopper.multiply_limbs`.
    part: registers for the sum."""
    high, low = stages.a_tiles.index(box), stages.a_tiles.index(box + 1)
    x_high, x_low = stages.b_tiles.index(box).permute((1, 0)), stages.b_tiles.index(box + 1).permute((1, 0))
    if PRODUCTS == 4:
        part = warpgroup_mma(low, x_low, part, use_acc=False, is_async=True)
    part = warpgroup_mma(high, x_low, part, use_acc=PRODUCTS == 4, is_async=True)
    part = warpgroup_mma(low, x_high, part, is_async=True)
    part = warpgroup_mma(high, x_high, part, is_async=True)
    return warpgroup_mma_wait(0, deps=(part,))


@gluon.jit
def multiply_limbs(stages, handed, step, K, block: gl.constexpr, PRODUCTS: gl.constexpr):
    """(sums, step): the first block of each stage is multiplied here, the second one by `multiply_second`. Their sums
    are added in the order of the blocks."""
    STAGES: gl.constexpr = stages.full.type.shape[0]
    ROWS: gl.constexpr = block.BN
    LAYOUT: gl.constexpr = sum_layout(ROWS, gl.bfloat16)
    totals = gl.zeros((HALF_ROWS, ROWS), gl.float32, LAYOUT)
    part = totals
    for _ in range(0, K, block.BK):
        stage = step % STAGES
        mbarrier.wait(stages.full.index(stage), step // STAGES & 1)
        part = multiply_block(stages, 4 * stage, part, PRODUCTS)
        mbarrier.wait(handed.ready.index(stage), step // STAGES & 1)
        totals = totals + part + handed.parts.index(stage).load(LAYOUT)
        mbarrier.arrive(stages.empty.index(stage))
        step += 1
    return totals, step


@gluon.jit
def multiply_second(stages, handed, sizes, block: gl.constexpr, form: gl.constexpr):
    """A warpgroup that multiplies the second block of each stage and hands over the sum. The second block of the last
    stage may be zeros."""
    STAGES: gl.constexpr = stages.full.type.shape[0]
    ROWS: gl.constexpr = block.BN
    LAYOUT: gl.constexpr = sum_layout(ROWS, gl.bfloat16)
    part = gl.zeros((HALF_ROWS, ROWS), gl.float32, LAYOUT)
    step = 0
    tiles = gl.cdiv(sizes.M, block.BM) * gl.cdiv(sizes.N, block.BN)
    for _ in range(gl.program_id(0), tiles, gl.num_programs(0)):
        for _ in range(0, sizes.K, block.BK):
            stage = step % STAGES
            mbarrier.wait(stages.full.index(stage), step // STAGES & 1)
            part = multiply_block(stages, 4 * stage + 2, part, form.products)
            handed.parts.index(stage).store(part)
            mbarrier.arrive(handed.ready.index(stage))
            step += 1


@gluon.jit
def store_peaks(totals, peaks, columns, rows, j, sizes):
    """Store the largest of each PEAK columns of out, see `records.Extras`. totals (64, rows): a tile's transpose at
    column j of out. columns, rows: its indices in out. sizes: of the transpose."""
    GROUPS: gl.constexpr = totals.type.shape[0] // PEAK
    x = gl.where(columns < sizes.M, totals + totals * 0.0, float("-inf"))  # NaN for an infinity
    best = gl.reduce(x.reshape([GROUPS, PEAK, x.type.shape[1]]), 1, larger)
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [1, 4], [1, 0])
    best = gl.convert_layout(best, LAYOUT)
    groups = j // PEAK + gl.arange(0, GROUPS, gl.SliceLayout(1, LAYOUT))[:, None]
    i = gl.min(gl.min(rows, 1), 0)
    down = i + gl.arange(0, x.type.shape[1], gl.SliceLayout(0, LAYOUT))[None, :]
    gl.store(peaks + down.to(gl.int64) * peaks_of(sizes.M) + groups, best, mask=down < sizes.N)


@gluon.jit
def multiply_tiles(out, residual, extras, stages, handed, sizes, block: gl.constexpr, form: gl.constexpr):
    """The warpgroup that computes and writes tiles. It loads the residual and the bias of a tile before the products,
    which hide their latency."""
    ROWS: gl.constexpr = block.BN
    LAYOUT: gl.constexpr = sum_layout(ROWS, stages.a_tiles.dtype)
    ACTIVATION: gl.constexpr = form.activation
    wait_for_inputs()
    step = 0
    tiles = gl.cdiv(sizes.M, block.BM) * gl.cdiv(sizes.N, block.BN)
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        j, i = tile_corner(tile, sizes.M, sizes.N, block)
        columns = j + gl.arange(0, HALF_ROWS, gl.SliceLayout(1, LAYOUT))[:, None]
        rows = i + gl.arange(0, ROWS, gl.SliceLayout(0, LAYOUT))[None, :]
        inside = (columns < sizes.M) & (rows < sizes.N)
        if residual is not None:
            added = gl.load(residual + rows.to(gl.int64) * sizes.M + columns, mask=inside, other=0.0).to(gl.float32)
        if extras.bias is not None:
            bias = gl.load(extras.bias + columns, mask=columns < sizes.M, other=0.0).to(gl.float32)
        if form.products == 1:
            totals, step = multiply_one(stages, step, sizes.K, block, 0)
        else:
            totals, step = multiply_limbs(stages, handed, step, sizes.K, block, form.products)
        if residual is not None:
            totals += added
        if extras.bias is not None:
            totals += bias
        totals = activate(totals, ACTIVATION)
        if extras.peaks is not None:
            store_peaks(totals, extras.peaks, columns, rows, j, sizes)
        pointers = out + rows.to(gl.int64) * sizes.stride + columns
        gl.store(pointers, totals.to(out.dtype.element_ty), mask=inside)


@gluon.jit
def product_of_few(weights, x, out, extras, residual, sizes, block: gl.constexpr, form: gl.constexpr):
    """out (M, N) = activation(x @ weights^T + residual + bias), float32 sums.

    weights: descriptor of boxes of HALF_ROWS rows, 128 bytes wide; limbs as for `product.product`. x: descriptor of
    boxes of block.BN rows, 128 bytes wide, in the weights' dtype, or with limbs in float32. out, residual: pointers.
    extras: `records.Extras` without the residual. sizes, block: of out's transpose, see `records`; with limbs, BK is
    128. form: its end is "stores".
    """
    gdc_launch_dependents()  # before the barriers are made, which takes some time
    if form.products == 1:
        stages = allocate_stages(weights, x, block, form)
        fence_async_shared()
        gl.warp_specialize(
            [
                (multiply_tiles, (out, residual, extras, stages, None, sizes, block, form)),
                (load_tiles, (weights, stages.a_tiles, stages, sizes, block, 1, True, False)),
                (load_tiles, (x, stages.b_tiles, stages, sizes, block, 1, False, True)),
            ],
            [1, 1],
            [24, 24],
        )
    else:
        stages, whole, handed = allocate_limbs(weights, x, block, form.stages)
        fence_async_shared()
        gl.warp_specialize(
            [
                (multiply_tiles, (out, residual, extras, stages, handed, sizes, block, form)),
                (multiply_second, (stages, handed, sizes, block, form)),
                (split_rows, (whole, stages, sizes, block)),
                (load_tiles, (weights, stages.a_tiles, stages, sizes, block, 2, True, False)),
                (load_tiles, (x, whole.b_tiles, whole, sizes, block, 1, False, True)),
            ],
            [4, 4, 1, 1],
            [96, 64, 24, 24],
        )
