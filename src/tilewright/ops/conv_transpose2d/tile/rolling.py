"""Transposed convolution to few channels at stride 2 on Hopper, in Gluon: each row of x is multiplied once, and sums of
unfinished rows of outputs stay in registers.

A program walks down a strip of 8 images. A row of x contributes to KH rows of outputs. Their channels are the columns
of one product, so x is read from shared memory once for all taps (elements of the filter) down. After each row of x two
rows of outputs are finished. The program writes them. The other sums move by as many columns, from one register to
another of the same thread.

A row of the product is a block of two columns of x: it reads four pixels. The images are innermost in shared memory: a
pixel of all 8 is 1 KB, one unit of the swizzle pattern. Even and odd columns lie apart. So the neighbour of a block is
the next unit, and one copy of x in shared memory serves all four pixels. The limit is the bandwidth of global memory.
Narrow images, and a number of images that is not a multiple of 8, leave tiles partly empty.
"""

import triton.experimental.gluon.language as gl
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from tilewright.ops.conv_transpose2d.tile import records
from tilewright.ops.gemm.tile.hopper import barriers
from tilewright.ops.gemm.tile.hopper_ends import activate, copy_in, split_columns

IMAGES, BLOCKS = gl.constexpr(records.IMAGES), gl.constexpr(records.BLOCKS)
POSITIONS = gl.constexpr(records.IMAGES * records.BLOCKS)
UNITS = gl.constexpr(records.BLOCKS + 1)  # of a stage: every other pixel of a row, one more than blocks


@gluon.jit
def strip_of(walk):
    """(image, block, first row, end of rows) of this program's strip."""
    index = gl.program_id(0)
    first = walk.first + index // walk.across % walk.down * walk.height
    last = gl.minimum(walk.last, first + walk.height)
    return index // (walk.across * walk.down) * IMAGES, index % walk.across * BLOCKS, first, last


@gluon.jit
def load_rows(x, edge, weights, stages, walk, form: gl.constexpr):
    """The loading warp: all weights, then each row of the strip, once a stage is empty. A stage holds every other pixel
    of a row, a LINE of its channels."""
    image, block, first, last = strip_of(walk)
    DEPTH: gl.constexpr = x.block_type.shape[3]
    STAGES: gl.constexpr = stages.full.type.shape[0]
    COUNT: gl.constexpr = stages.weights.type.shape[0]
    DEEP: gl.constexpr = form.deep
    PARTS: gl.constexpr = 2 * form.deep
    mbarrier.expect(stages.loaded, COUNT * weights.block_type.nbytes)
    for tap in gl.static_range(COUNT):
        copy_in(weights, [tap * weights.block_type.shape[0], 0], stages.loaded, stages.weights.index(tap))
    step = 0
    for row in range(gl.maximum(first - form.above, 0), last):
        for part in gl.static_range(PARTS):
            pixel = walk.left + part // DEEP + 2 * walk.back  # not negative
            at, channel = block + pixel // 2 - walk.back, pixel % 2 * walk.channels + part % DEEP * DEPTH
            stage = step % STAGES
            full, unit = stages.full.index(stage), stage * UNITS
            mbarrier.wait(stages.empty.index(stage), (step // STAGES & 1) ^ 1)
            mbarrier.expect(full, x.block_type.nbytes + edge.block_type.nbytes)
            most = stages.rows.index(unit)._reinterpret(x.dtype, x.block_type.shape, x.layout)
            rest = stages.rows.index(unit + BLOCKS)._reinterpret(x.dtype, edge.block_type.shape, edge.layout)
            copy_in(x, [row, at, image, channel], full, most)
            copy_in(edge, [row, at + BLOCKS, image, channel], full, rest)
            step += 1


@gluon.jit
def multiply_row(totals, stages, step, PARTS: gl.constexpr):
    """totals + the products of a row of x: PARTS stages."""
    STAGES: gl.constexpr = stages.full.type.shape[0]
    SHAPE: gl.constexpr = [POSITIONS, stages.rows.type.shape[2]]
    LAYOUT: gl.constexpr = gl.NVMMASharedLayout(128, stages.rows.dtype.primitive_bitwidth, 2)
    for part in gl.static_range(PARTS):
        stage = (step + part) % STAGES
        mbarrier.wait(stages.full.index(stage), (step + part) // STAGES & 1)
        for shift in gl.static_range(2):
            unit = stages.rows.index(stage * UNITS + shift)
            left = unit._reinterpret(unit.dtype, SHAPE, LAYOUT)  # from this unit on: slices cannot begin there
            right = stages.weights.index(2 * part + shift).permute((1, 0))
            totals = warpgroup_mma(left, right, totals, is_async=True)
        if part > 0:
            totals = warpgroup_mma_wait(2, deps=(totals,))
            mbarrier.arrive(stages.empty.index((step + part - 1) % STAGES))
    totals = warpgroup_mma_wait(0, deps=(totals,))
    mbarrier.arrive(stages.empty.index((step + PARTS - 1) % STAGES))
    return totals


@gluon.jit
def multiply_limbs(totals, stages, step, PARTS: gl.constexpr):
    """As `multiply_row`, for float32. Each stage has its own sum, see `phases.products`. The second stage of a pair is
    split while the first is multiplied."""
    for part in range(0, PARTS, 2):
        one = limb_products(stages, step, part, totals, PARTS)
        two = limb_products(stages, step, part + 1, totals, PARTS)
        totals += warpgroup_mma_wait(6, deps=(one,))
        totals += warpgroup_mma_wait(0, deps=(two,))
    return totals


@gluon.jit
def limb_products(stages, step, part, like, PARTS: gl.constexpr):
    """Three products of limbs for a stage and both its shifts, in flight. like: tensor of the shape and layout of the
    sums."""
    STAGES: gl.constexpr = stages.full.type.shape[0]
    SHAPE: gl.constexpr = [POSITIONS, stages.rows.type.shape[2]]
    LAYOUT: gl.constexpr = gl.NVMMASharedLayout(128, 32, 2)
    OPERAND: gl.constexpr = gl.DotOperandLayout(0, like.type.layout, 2)
    stage = (step + part) % STAGES
    mbarrier.wait(stages.full.index(stage), (step + part) // STAGES & 1)
    x_0 = stages.rows.index(stage * UNITS)._reinterpret(gl.float32, SHAPE, LAYOUT).load(OPERAND)
    x_1 = stages.rows.index(stage * UNITS + 1)._reinterpret(gl.float32, SHAPE, LAYOUT).load(OPERAND)
    mbarrier.arrive(stages.empty.index(stage))
    high_0, low_0 = limbs_of(x_0)
    high_1, low_1 = limbs_of(x_1)
    tap, low = 2 * part, 2 * (PARTS + part)
    w_0, w_1 = stages.weights.index(tap).permute((1, 0)), stages.weights.index(tap + 1).permute((1, 0))
    w_low_0, w_low_1 = stages.weights.index(low).permute((1, 0)), stages.weights.index(low + 1).permute((1, 0))
    sums = warpgroup_mma(low_0, w_0, gl.zeros_like(like), use_acc=False, is_async=True)
    sums = warpgroup_mma(low_1, w_1, sums, is_async=True)
    sums = warpgroup_mma(high_0, w_low_0, sums, is_async=True)
    sums = warpgroup_mma(high_1, w_low_1, sums, is_async=True)
    sums = warpgroup_mma(high_0, w_0, sums, is_async=True)
    return warpgroup_mma(high_1, w_1, sums, is_async=True)


@gluon.jit
def limbs_of(x):
    """(high, low) bfloat16 limbs of float32."""
    high = x.to(gl.bfloat16)
    return high, (x - high.to(gl.float32)).to(gl.bfloat16)


@gluon.jit
def joined(parts, COUNT: gl.constexpr):
    """The inverse of `split_columns`: one tile of a tuple of COUNT. The elements stay in their registers."""
    if COUNT == 1:
        (part,) = parts
        return part
    else:
        HALF: gl.constexpr = COUNT // 2
        left, right = joined(parts[:HALF], HALF), joined(parts[HALF:], HALF)
        return gl.join(left, right).permute(0, 2, 1).reshape([left.type.shape[0], 2 * left.type.shape[1]])


@gluon.jit
def bias_of(target, like, O: gl.constexpr):
    """The bias of each of O tiles of 8 columns, as a tuple. like: such a tile."""
    found = ()
    for t in gl.static_range(O):
        if target.bias is None:
            found = found + (0.0,)
        else:
            n = 8 * t + gl.arange(0, 8, gl.SliceLayout(0, like.type.layout))
            found = found + (gl.load(target.bias + n % O).to(gl.float32)[None, :],)
    return found


@gluon.jit
def write(parts, bias, target, image, block, row, walk, form: gl.constexpr):
    """Finish and write two rows of outputs, `row` and the next, perhaps outside. parts: their 8 O columns in tiles of
    8. Threads exchange elements through shared memory, so that each stores 4 adjacent ones and a warp longer runs."""
    O: gl.constexpr = form.O
    RUN: gl.constexpr = 4 * O  # elements of a block in a row of outputs
    WIDE: gl.constexpr = 4 if O == 3 else O  # tiles: a power of two
    ACROSS: gl.constexpr = min(BLOCKS, 16 // WIDE)
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 1, 4], [ACROSS, 16 // WIDE // ACROSS, 2 * WIDE], [1, 4, 1], [2, 0, 1])
    ACTIVATION: gl.constexpr = form.activation
    done = ()
    for t in gl.static_range(WIDE):
        if t < O:
            done = done + (activate(parts[t] + bias[t], ACTIVATION).to(target.out.dtype.element_ty),)
        else:
            done = done + (done[0],)
    tile = gl.convert_layout(joined(done, WIDE).reshape([BLOCKS, IMAGES, 8 * WIDE]), LAYOUT)
    k = block + gl.arange(0, BLOCKS, gl.SliceLayout(1, gl.SliceLayout(2, LAYOUT)))[:, None, None]
    b = image + gl.arange(0, IMAGES, gl.SliceLayout(0, gl.SliceLayout(2, LAYOUT)))[None, :, None]
    n = gl.arange(0, 8 * WIDE, gl.SliceLayout(0, gl.SliceLayout(1, LAYOUT)))[None, None, :]
    width = walk.OW * O
    rows, columns = row + n // RUN, k * RUN + n % RUN
    inside = (b < walk.B) & (columns < width) & (n < 2 * RUN) & (rows >= 0) & (rows < walk.OH)
    gl.store(target.out + ((b.to(gl.int64) * walk.OH + rows) * width + columns), tile, mask=inside)


@gluon.jit
def sum_rows(target, stages, walk, N: gl.constexpr, form: gl.constexpr):
    """The multiplying warpgroup: all rows of the strip."""
    BITS: gl.constexpr = stages.weights.dtype.primitive_bitwidth
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, N, 256 // BITS])
    PARTS: gl.constexpr = 2 * form.deep
    O: gl.constexpr = form.O
    image, block, first, last = strip_of(walk)
    totals = gl.zeros((POSITIONS, N), gl.float32, LAYOUT)
    none = gl.zeros_like(split_columns(totals, N // 8)[0])
    bias = bias_of(target, none, O)
    mbarrier.wait(stages.loaded, 0)
    step = 0
    for row in range(gl.maximum(first - form.above, 0), last):
        if form.limbs == 2:
            totals = multiply_limbs(totals, stages, step, PARTS)
        else:
            totals = multiply_row(totals, stages, step, PARTS)
        step += PARTS
        parts = split_columns(totals, N // 8)
        if row >= first:
            write(parts, bias, target, image, block, 2 * row - walk.top, walk, form)
        rest = parts[O:]
        for _ in gl.static_range(O):
            rest = rest + (none,)
        totals = gl.convert_layout(joined(rest, N // 8), LAYOUT, assert_trivial=True)


@gluon.jit
def rolling(x, edge, weights, target, walk, form: gl.constexpr):
    """out (B, OH, OW, O) at stride 2 for few channels: 4 KH O, a column for each, fit in N.

    x, edge: descriptors of boxes (1, BLOCKS, IMAGES, LINE) and (1, 1, IMAGES, LINE) of x as (H, W / 2, B, 2 C).
    weights: of boxes (N, depth) of what `weights.pack_rolling` returns. target, walk, form: `records.Target`, `Walk`,
    `Rolling`.
    """
    N: gl.constexpr = weights.block_type.shape[0]
    COUNT: gl.constexpr = 4 * form.deep * form.limbs
    UNIT: gl.constexpr = [IMAGES, x.block_type.shape[3]]
    FLAT: gl.constexpr = gl.NVMMASharedLayout(128, x.dtype.primitive_bitwidth, 2)
    tiles = gl.allocate_shared_memory(weights.dtype, [COUNT] + weights.block_type.shape, weights.layout)
    rows = gl.allocate_shared_memory(x.dtype, [form.stages * UNITS] + UNIT, FLAT)
    full, empty = barriers(form.stages, 1), barriers(form.stages, 1)
    stages = records.RollingStages(rows, tiles, full, empty, barriers(1, 1).index(0))
    fence_async_shared()
    gl.warp_specialize(
        [(sum_rows, (target, stages, walk, N, form)), (load_rows, (x, edge, weights, stages, walk, form))], [1], [24]
    )
