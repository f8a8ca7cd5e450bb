"""out (M, N) = activation(x (M, K) @ weights (N, K)^T + residual + bias) for few rows on Hopper, in Gluon: computed as
its transpose, weights @ x^T.

An instruction of the matrix unit takes 64 rows of its left operand, but as few as 8 columns of the right one. With the
weights on the left, it multiplies 64 columns of out by 8, 16 or 32 rows: no time goes into rows that do not exist, and
sums need so few registers that those of two blocks of limbs are in flight at once. Every sum has the order that it has
in `hopper`, so its bits are the same. The limit is the latency of the instructions: the blocks of K are multiplied one
after the other.

The rows of float32 products arrive as they are. A warpgroup replaces them in shared memory by their limbs.
"""

import triton.experimental.gluon.language as gl
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)

from tilewright.ops.gemm.tile.hopper import barriers, load_tiles, multiply_one
from tilewright.ops.gemm.tile.hopper_ends import HALF_ROWS, PEAK, activate, larger, peaks_of, tile_corner, wait_for_inputs
from tilewright.ops.gemm.tile.records import Stages

REGISTERS = 168  # per thread


@gluon.jit
def allocate_few(weights, x, block: gl.constexpr, form: gl.constexpr):
    """(`Stages` for tiles of weights and of x, those of x's rows before they are split; the same if they are not)."""
    BOXES: gl.constexpr = form.stages * (block.BK // weights.block_type.shape[1])
    full, empty = barriers(form.stages, 2), barriers(form.stages, 1)
    if form.products == 1:
        a_tiles = gl.allocate_shared_memory(weights.dtype, [BOXES] + weights.block_type.shape, weights.layout)
        b_tiles = gl.allocate_shared_memory(x.dtype, [BOXES] + x.block_type.shape, x.layout)
        stages = Stages(a_tiles, b_tiles, full, empty)
        return stages, stages
    else:
        LIMBS: gl.constexpr = gl.NVMMASharedLayout.get_default_for(x.block_type.shape, weights.dtype)
        a_tiles = gl.allocate_shared_memory(weights.dtype, [2 * BOXES] + weights.block_type.shape, weights.layout)
        b_tiles = gl.allocate_shared_memory(weights.dtype, [2 * BOXES] + x.block_type.shape, LIMBS)
        whole = b_tiles._reinterpret(x.dtype, [BOXES] + x.block_type.shape, x.layout)
        return Stages(a_tiles, b_tiles, full, empty), Stages(a_tiles, whole, barriers(form.stages, 1), empty)


@gluon.jit
def store_limbs(x, tiles, box):
    """Split x (rows, 64) float32 in two limbs, as `product.split`, and store them in two boxes of shared memory."""
    high = x.to(gl.bfloat16)
    tiles.index(box).store(high)
    tiles.index(box + 1).store((x - high.to(gl.float32)).to(gl.bfloat16))


@gluon.jit
def split_rows(whole, stages, sizes, block: gl.constexpr):
    """The splitting warpgroup: replace the float32 rows of each stage by their limbs, which take the same memory."""
    STAGES: gl.constexpr = stages.full.type.shape[0]
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 4], [2, 16], [4, 1], [1, 0])
    step = 0
    tiles = gl.cdiv(sizes.M, block.BM) * gl.cdiv(sizes.N, block.BN)
    for _ in range(gl.program_id(0), tiles, gl.num_programs(0)):
        for _ in range(0, sizes.K, block.BK):
            stage = step % STAGES
            mbarrier.wait(whole.full.index(stage), step // STAGES & 1)
            first, second = whole.b_tiles.index(2 * stage).load(LAYOUT), whole.b_tiles.index(2 * stage + 1).load(LAYOUT)
            store_limbs(first, stages.b_tiles, 4 * stage)
            store_limbs(second, stages.b_tiles, 4 * stage + 2)
            fence_async_shared()
            mbarrier.arrive(stages.full.index(stage))
            step += 1


@gluon.jit
def queue_block(stages, box, part, PRODUCTS: gl.constexpr):
    """part, into which the limb products of the block of K at `box` are being summed, in the order of
    `hopper.multiply_limbs`."""
    high, low = stages.a_tiles.index(box), stages.a_tiles.index(box + 1)
    x_high, x_low = stages.b_tiles.index(box).permute((1, 0)), stages.b_tiles.index(box + 1).permute((1, 0))
    if PRODUCTS == 4:
        part = warpgroup_mma(low, x_low, part, use_acc=False, is_async=True)
    part = warpgroup_mma(high, x_low, part, use_acc=PRODUCTS == 4, is_async=True)
    part = warpgroup_mma(low, x_high, part, is_async=True)
    return warpgroup_mma(high, x_high, part, is_async=True)


@gluon.jit
def add_stages(stages, step, totals, COUNT: gl.constexpr, PRODUCTS: gl.constexpr):
    """(totals + limb products of COUNT stages, block by block; step). While one block's products are in flight, the sum
    of the block before is added."""
    STAGES: gl.constexpr = stages.full.type.shape[0]
    waited, queued = totals, totals
    for block in gl.static_range(2 * COUNT + 1):
        if block < 2 * COUNT:
            stage = step % STAGES
            if block % 2 == 0:
                mbarrier.wait(stages.full.index(stage), step // STAGES & 1)
            following = queue_block(stages, 4 * stage + block % 2 * 2, waited, PRODUCTS)
            step += block % 2
        if block > 0:
            waited = warpgroup_mma_wait(PRODUCTS if block < 2 * COUNT else 0, deps=(queued,))
            if block % 2 == 0:
                mbarrier.arrive(stages.empty.index((step + STAGES - 1) % STAGES))
            totals += waited
        queued = following
    return totals, step


@gluon.jit
def multiply_pairs(stages, step, K, block: gl.constexpr, PRODUCTS: gl.constexpr, LAYOUT: gl.constexpr):
    """(sums, step): limb products of the two blocks of K in each stage. The second block of the last stage may be
    zeros."""
    ROWS: gl.constexpr = block.BN
    AT_ONCE: gl.constexpr = 3
    totals = gl.zeros((HALF_ROWS, ROWS), gl.float32, LAYOUT)
    count = gl.cdiv(K, block.BK)
    for _ in range(count // AT_ONCE):
        totals, step = add_stages(stages, step, totals, AT_ONCE, PRODUCTS)
    for _ in range(count % AT_ONCE):
        totals, step = add_stages(stages, step, totals, 1, PRODUCTS)
    return totals, step


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
def multiply_few(out, residual, extras, stages, sizes, block: gl.constexpr, form: gl.constexpr):
    """The multiplying warpgroup. It loads the residual and the bias of a tile before the products, which hide their
    latency."""
    DEPTH: gl.constexpr = 256 // stages.a_tiles.dtype.primitive_bitwidth
    ROWS: gl.constexpr = block.BN
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, ROWS, DEPTH])
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
            totals, step = multiply_pairs(stages, step, sizes.K, block, form.products, LAYOUT)
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
    boxes of block.BN rows, in the weights' dtype, or with limbs float32, 64 columns wide. out, residual: pointers.
    extras: `records.Extras` without the residual. sizes, block: of out's transpose, see `records`; with limbs, BK is
    128. form: its end is "stores".
    """
    LIMBS: gl.constexpr = 1 if form.products == 1 else 2
    stages, whole = allocate_few(weights, x, block, form)
    fence_async_shared()
    if LIMBS == 1:
        gl.warp_specialize(
            [
                (multiply_few, (out, residual, extras, stages, sizes, block, form)),
                (load_tiles, (weights, stages.a_tiles, stages, sizes, block, 1, True, False)),
                (load_tiles, (x, stages.b_tiles, stages, sizes, block, 1, False, True)),
            ],
            [1, 1],
            [24, 24],
        )
    else:
        gl.warp_specialize(
            [
                (multiply_few, (out, residual, extras, stages, sizes, block, form)),
                (split_rows, (whole, stages, sizes, block)),
                (load_tiles, (weights, stages.a_tiles, stages, sizes, block, 2, True, False)),
                (load_tiles, (x, whole.b_tiles, whole, sizes, block, 1, False, True)),
            ],
            [4, 1, 1],
            [64, 24, 24],
        )
