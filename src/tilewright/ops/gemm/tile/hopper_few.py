"""out (M, N) = activation(x (M, K) @ weights (N, K)^T + residual + bias) for few rows on Hopper, in Gluon: computed as
its transpose, weights @ x^T.

An instruction of the matrix unit takes 64 rows of its left operand, but as few as 8 columns of the right one. With the
weights on the left, it multiplies 64 columns of out by 8, 16 or 32 rows. So no time is
spent on rows that do not exist. Sums need few registers, so those of two blocks of limbs are in flight at once. Each
sum has the same order as in `hopper`, and so the same bits.

The rows of float32 products arrive as they are. A warpgroup replaces them in shared memory by their limbs.

The limit is the bandwidth of a multiprocessor's shared memory: weights are written to it once, and read up to three
times. There are few tiles, and most multiprocessors would have none. With limbs each block of K has its own sum, so
several programs may share the K of a tile, and a second kernel adds the sums in order.
"""

import triton.experimental.gluon.language as gl
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.language.extra.cuda import gdc_launch_dependents

from tilewright.ops.gemm.tile.hopper import allocate_stages, barriers, load_tiles, multiply_one, share_of_depth
from tilewright.ops.gemm.tile.hopper_ends import (
    HALF_ROWS,
    PEAK,
    activate,
    larger,
    peaks_of,
    tile_corner,
    wait_for_inputs,
)
from tilewright.ops.gemm.tile.records import Stages

REGISTERS = 128  # per thread, of 3 x 128


@gluon.constexpr_function
def sum_layout(rows, dtype):
    """The layout of sums (64, rows) of operands of a dtype in the registers of a warpgroup."""
    return gl.NVMMADistributedLayout([3, 0], [4, 1], [16, rows, 256 // dtype.primitive_bitwidth])


@gluon.jit
def allocate_limbs(weights, x, block: gl.constexpr, STAGES: gl.constexpr):
    """(`Stages` of limbs, those of the rows before they are split). Both have the same memory for rows."""
    ROWS: gl.constexpr = block.BN
    LIMBS: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, 64], weights.dtype)
    full, empty = barriers(STAGES, 2), barriers(STAGES, 1)
    a_tiles = gl.allocate_shared_memory(weights.dtype, [4 * STAGES] + weights.block_type.shape, weights.layout)
    b_tiles = gl.allocate_shared_memory(weights.dtype, [4 * STAGES, ROWS, 64], LIMBS)
    whole = b_tiles._reinterpret(x.dtype, [4 * STAGES] + x.block_type.shape, x.layout)
    return Stages(a_tiles, b_tiles, full, empty), Stages(a_tiles, whole, barriers(STAGES, 1), empty)


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
    begin, end = share_of_depth(sizes.K, block)
    tiles = gl.cdiv(sizes.M, block.BM) * gl.cdiv(sizes.N, block.BN)
    for _ in range(gl.program_id(0), tiles, gl.num_programs(0)):
        for _ in range(begin, end, block.BK):
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
def queue_block(stages, box, part, PRODUCTS: gl.constexpr):
    """The limb products of the block of K whose first box is `box`, queued, in the order of `hopper.multiply_limbs`.
    part: registers for their sum."""
    high, low = stages.a_tiles.index(box), stages.a_tiles.index(box + 1)
    x_high, x_low = stages.b_tiles.index(box).permute((1, 0)), stages.b_tiles.index(box + 1).permute((1, 0))
    if PRODUCTS == 4:
        part = warpgroup_mma(low, x_low, part, use_acc=False, is_async=True)
    part = warpgroup_mma(high, x_low, part, use_acc=PRODUCTS == 4, is_async=True)
    part = warpgroup_mma(low, x_high, part, is_async=True)
    return warpgroup_mma(high, x_high, part, is_async=True)


@gluon.jit
def add_stages(stages, step, totals, COUNT: gl.constexpr, PRODUCTS: gl.constexpr):
    """(totals, step) after the two blocks of K in each of COUNT stages. While the products of one block are in flight,
    the sum of the block before is added to the totals.

    The loop has to be unrolled: ptxas keeps no sum in flight from one iteration to the next.
    """
    STAGES: gl.constexpr = stages.full.type.shape[0]
    BLOCKS: gl.constexpr = 2 * COUNT
    done, queued, following = totals, totals, totals
    for block in gl.static_range(BLOCKS + 1):
        if block < BLOCKS:
            stage = step % STAGES
            if block % 2 == 0:
                mbarrier.wait(stages.full.index(stage), step // STAGES & 1)
            following = queue_block(stages, 4 * stage + block % 2 * 2, done, PRODUCTS)
            step += block % 2
        if block > 0:
            done = warpgroup_mma_wait(PRODUCTS if block < BLOCKS else 0, deps=(queued,))
            if block % 2 == 0:
                mbarrier.arrive(stages.empty.index((step + STAGES - 1) % STAGES))
            totals += done
        queued = following
    return totals, step


@gluon.jit
def multiply_limbs(stages, step, K, block: gl.constexpr, PRODUCTS: gl.constexpr):
    """(sums, step): limb products. The second block of the last stage may be zeros."""
    ROWS: gl.constexpr = block.BN
    AT_ONCE: gl.constexpr = 3  # stages without a wait for the last sum: half of a K of 768
    totals = gl.zeros((HALF_ROWS, ROWS), gl.float32, sum_layout(ROWS, gl.bfloat16))
    count = gl.cdiv(K, block.BK)
    for _ in range(count // AT_ONCE):
        totals, step = add_stages(stages, step, totals, AT_ONCE, PRODUCTS)
    for _ in range(count % AT_ONCE):
        totals, step = add_stages(stages, step, totals, 1, PRODUCTS)
    return totals, step


@gluon.jit
def store_parts(pointers, inside, stages, step, sizes, block: gl.constexpr, PRODUCTS: gl.constexpr):
    """step, after the sum of each block of this program's share of K has been stored. pointers, inside: of the tile
    (64, rows) in the first of the parts, float32 (blocks of K, rows, columns of out)."""
    STAGES: gl.constexpr = stages.full.type.shape[0]
    ROWS: gl.constexpr = block.BN
    DEPTH: gl.constexpr = block.BK // 2
    begin, end = share_of_depth(sizes.K, block)
    first = gl.zeros((HALF_ROWS, ROWS), gl.float32, sum_layout(ROWS, gl.bfloat16))
    second = first
    for p in range(begin, end, block.BK):
        stage = step % STAGES
        mbarrier.wait(stages.full.index(stage), step // STAGES & 1)
        first = queue_block(stages, 4 * stage, first, PRODUCTS)
        second = queue_block(stages, 4 * stage + 2, second, PRODUCTS)
        first = warpgroup_mma_wait(PRODUCTS, deps=(first,))
        at = pointers + p // DEPTH * sizes.N * sizes.M
        gl.store(at, first, mask=inside)
        second = warpgroup_mma_wait(0, deps=(second,))
        mbarrier.arrive(stages.empty.index(stage))
        gl.store(at + sizes.N * sizes.M, second, mask=inside & (p + DEPTH < sizes.K))
        step += 1
    return step


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
def multiply_tiles(out, residual, extras, stages, sizes, block: gl.constexpr, form: gl.constexpr):
    """The multiplying warpgroup. It loads the residual and the bias of a tile before the products, which hide their
    latency."""
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
        pointers = out + rows.to(gl.int64) * sizes.stride + columns
        if form.end == "parts":
            step = store_parts(pointers, inside, stages, step, sizes, block, form.products)
        else:
            if residual is not None:
                added = gl.load(residual + rows.to(gl.int64) * sizes.M + columns, mask=inside, other=0.0)
            if extras.bias is not None:
                bias = gl.load(extras.bias + columns, mask=columns < sizes.M, other=0.0)
            if form.products == 1:
                totals, step = multiply_one(stages, step, sizes.K, block, 0)
            else:
                totals, step = multiply_limbs(stages, step, sizes.K, block, form.products)
            if residual is not None:
                totals += added.to(gl.float32)
            if extras.bias is not None:
                totals += bias.to(gl.float32)
            totals = activate(totals, ACTIVATION)
            if extras.peaks is not None:
                store_peaks(totals, extras.peaks, columns, rows, j, sizes)
            gl.store(pointers, totals.to(out.dtype.element_ty), mask=inside)


@gluon.jit
def product_of_few(weights, x, out, extras, residual, sizes, block: gl.constexpr, form: gl.constexpr):
    """out (M, N) = activation(x @ weights^T + residual + bias), float32 sums.

    weights: descriptor of boxes of HALF_ROWS rows, 128 bytes wide; limbs as for `product.product`. x: descriptor of
    boxes of block.BN rows, 128 bytes wide, in the weights' dtype, or with limbs in float32. out, residual: pointers.
    extras: `records.Extras` without the residual. sizes, block: of out's transpose, see `records`; with limbs, BK is
    128. form: its end is "stores", or with limbs "parts": out is float32 (blocks of K, M, N) then, the sum of each
    block is stored, and `product.add_parts` adds them. The second axis of the grid divides K.
    """
    gdc_launch_dependents()  # before the barriers are made, which takes some time
    if form.products == 1:
        stages = allocate_stages(weights, x, block, form)
        fence_async_shared()
        gl.warp_specialize(
            [
                (multiply_tiles, (out, residual, extras, stages, sizes, block, form)),
                (load_tiles, (weights, stages.a_tiles, stages, sizes, block, 1, True, False)),
                (load_tiles, (x, stages.b_tiles, stages, sizes, block, 1, False, True)),
            ],
            [1, 1],
            [24, 24],
        )
    else:
        stages, whole = allocate_limbs(weights, x, block, form.stages)
        fence_async_shared()
        gl.warp_specialize(
            [
                (multiply_tiles, (out, residual, extras, stages, sizes, block, form)),
                (split_rows, (whole, stages, sizes, block)),
                (load_tiles, (weights, stages.a_tiles, stages, sizes, block, 2, True, False)),
                (load_tiles, (x, whole.b_tiles, whole, sizes, block, 1, False, True)),
            ],
            [4, 1, 1],
            [64, 24, 24],
        )
