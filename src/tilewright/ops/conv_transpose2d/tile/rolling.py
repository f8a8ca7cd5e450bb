"""Transposed convolution to few channels on Hopper, in Gluon: each row of x is multiplied once, and rows of outputs that
need further rows of x stay in registers.

The stride is 2. A program walks down a strip of 8 images. A row of x contributes to KH rows of outputs: their channels
are the columns of one product. After it two rows are complete. The program writes them, and moves the sums of the others
by as many columns, which only renames registers. So x is read from shared memory once per column tap (element of the
filter), not once per tap, and from global memory once. The rows of the product are blocks of two columns of x, for 8
images. These are innermost in shared memory. So a block's neighbour is 1 KB further on, a unit of the swizzle pattern,
and one copy of x serves all taps. The limit is the bandwidth of global memory.

It loses if columns are few but images are narrower than a strip, or if there are few images.
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
from tilewright.ops.gemm.tile.hopper_ends import activate, copy_in, halves, split_columns

IMAGES, BLOCKS = gl.constexpr(records.IMAGES), gl.constexpr(records.BLOCKS)
POSITIONS = gl.constexpr(records.IMAGES * records.BLOCKS)


@gluon.jit
def strip_of(walk):
    """(image, block, first row, rows + first row) of this program's strip."""
    index = gl.program_id(0)
    strip = index // walk.across % walk.down
    first = walk.first + strip * walk.height
    last = gl.minimum(walk.last, first + walk.height)
    return index // (walk.across * walk.down) * IMAGES, index % walk.across * BLOCKS, first, last


@gluon.jit
def load_rows(x, edge, weights, ring, walk, form: gl.constexpr):
    """The loading warp: all weights, then each row of the strip, once a stage is empty. A stage holds every other pixel
    of a row, in a LINE of channels: BLOCKS + 1 of them."""
    image, block, first, last = strip_of(walk)
    DEPTH: gl.constexpr = x.block_type.shape[3]
    STAGES: gl.constexpr = ring.full.type.shape[0]
    COUNT: gl.constexpr = ring.weights.type.shape[0]
    DEEP: gl.constexpr = form.deep
    mbarrier.expect(ring.loaded, COUNT * weights.block_type.nbytes)
    for tap in gl.static_range(COUNT):
        copy_in(weights, [tap * weights.block_type.shape[0], 0], ring.loaded, ring.weights.index(tap))
    step = 0
    for row in range(gl.maximum(first - form.behind, 0), last):
        for plane in gl.static_range(2):
            pixel = walk.left + plane + 2 * walk.behind  # not negative
            at, channel = block + pixel // 2 - walk.behind, pixel % 2 * walk.channels
            for p in gl.static_range(DEEP):
                stage = step % STAGES
                full = ring.full.index(stage)
                mbarrier.wait(ring.empty.index(stage), (step // STAGES & 1) ^ 1)
                mbarrier.expect(full, x.block_type.nbytes + edge.block_type.nbytes)
                most = ring.rows.index(stage * (BLOCKS + 1))._reinterpret(x.dtype, x.block_type.shape, x.layout)
                one = ring.rows.index(stage * (BLOCKS + 1) + BLOCKS)._reinterpret(
                    x.dtype, edge.block_type.shape, edge.layout
                )
                copy_in(x, [row, at, image, channel + p * DEPTH], full, most)
                copy_in(edge, [row, at + BLOCKS, image, channel + p * DEPTH], full, one)
                step += 1


@gluon.jit
def multiply_row(totals, ring, step, form: gl.constexpr):
    """totals + the products of a row of x."""
    if form.limbs == 2:
        return multiply_limbs(totals, ring, step, form)
    else:
        return multiply_one(totals, ring, step, form)


@gluon.jit
def multiply_one(totals, ring, step, form: gl.constexpr):
    """`multiply_row` for 16-bit operands."""
    STAGES: gl.constexpr = ring.full.type.shape[0]
    DEPTH: gl.constexpr = ring.rows.type.shape[2]
    PLANES: gl.constexpr = 2 * form.deep
    LAYOUT: gl.constexpr = gl.NVMMASharedLayout(128, ring.rows.dtype.primitive_bitwidth, 2)
    for plane in gl.static_range(PLANES):
        stage = (step + plane) % STAGES
        mbarrier.wait(ring.full.index(stage), (step + plane) // STAGES & 1)
        for tap in gl.static_range(2):
            left = ring.rows.index(stage * (BLOCKS + 1) + tap)._reinterpret(
                ring.rows.dtype, [POSITIONS, DEPTH], LAYOUT
            )
            right = ring.weights.index(2 * plane + tap).permute((1, 0))
            totals = warpgroup_mma(left, right, totals, is_async=True)
    totals = warpgroup_mma_wait(0, deps=(totals,))
    for plane in gl.static_range(PLANES):
        mbarrier.arrive(ring.empty.index((step + plane) % STAGES))
    return totals


@gluon.jit
def multiply_limbs(totals, ring, step, form: gl.constexpr):
    """`multiply_row` for float32: three products of bfloat16 limbs, see `phases.products`. x is split in registers."""
    STAGES: gl.constexpr = ring.full.type.shape[0]
    DEPTH: gl.constexpr = ring.rows.type.shape[2]
    PLANES: gl.constexpr = 2 * form.deep
    LAYOUT: gl.constexpr = gl.NVMMASharedLayout(128, 32, 2)
    OPERAND: gl.constexpr = gl.DotOperandLayout(0, totals.type.layout, 2)
    part = gl.zeros_like(totals)
    for plane in range(PLANES):
        stage = (step + plane) % STAGES
        mbarrier.wait(ring.full.index(stage), (step + plane) // STAGES & 1)
        for tap in gl.static_range(2):
            left = ring.rows.index(stage * (BLOCKS + 1) + tap)._reinterpret(gl.float32, [POSITIONS, DEPTH], LAYOUT)
            x = left.load(OPERAND)
            high = x.to(gl.bfloat16)
            low = (x - high.to(gl.float32)).to(gl.bfloat16)
            w_high = ring.weights.index(2 * plane + tap).permute((1, 0))
            w_low = ring.weights.index(2 * (PLANES + plane) + tap).permute((1, 0))
            part = warpgroup_mma(low, w_high, part, use_acc=False, is_async=True)
            part = warpgroup_mma(high, w_low, part, is_async=True)
            part = warpgroup_mma(high, w_high, part, is_async=True)
            part = warpgroup_mma_wait(0, deps=(part,))
            totals += part
        mbarrier.arrive(ring.empty.index(stage))
    return totals


@gluon.jit
def joined(parts, COUNT: gl.constexpr):
    """The inverse of `split_columns`: one tile of a tuple of COUNT. The elements stay in their registers."""
    if COUNT == 1:
        return parts[0]
    else:
        HALF: gl.constexpr = COUNT // 2
        left, right = joined(parts[:HALF], HALF), joined(parts[HALF:], HALF)
        both = gl.join(left, right).permute(0, 2, 1)
        return both.reshape([left.type.shape[0], 2 * left.type.shape[1]])


@gluon.jit
def write(sums, target, image, block, row, first, walk, form: gl.constexpr):
    """Finish and write 8 columns of two complete rows of outputs. sums: (POSITIONS, 8). first: the first column. row:
    of outputs, perhaps outside."""
    LAYOUT: gl.constexpr = sums.type.layout
    RUN: gl.constexpr = form.run
    ACTIVATION: gl.constexpr = form.activation
    m, n = gl.arange(0, POSITIONS, gl.SliceLayout(1, LAYOUT)), first + gl.arange(0, 8, gl.SliceLayout(0, LAYOUT))
    if target.bias is not None:
        sums += gl.load(target.bias + n % RUN % walk.O).to(gl.float32)[None, :]
    b, rows = image + m % IMAGES, row + n // RUN
    inside = (b < walk.B)[:, None] & ((rows >= 0) & (rows < walk.OH))[None, :]
    columns = ((block + m // IMAGES) * RUN)[:, None] + (n % RUN)[None, :]
    at = (b.to(gl.int64) * walk.OH * walk.OW * walk.O)[:, None] + (rows * (walk.OW * walk.O))[None, :] + columns
    inside = inside & (columns < walk.OW * walk.O)
    gl.store(target.out + at, activate(sums, ACTIVATION).to(target.out.dtype.element_ty), mask=inside)


@gluon.jit
def sum_rows(target, ring, walk, N: gl.constexpr, form: gl.constexpr):
    """The multiplying warpgroup: sums of all rows of the strip."""
    BITS: gl.constexpr = 16 if form.limbs == 2 else ring.rows.dtype.primitive_bitwidth
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, N, 256 // BITS])
    STEPS: gl.constexpr = 2 * form.deep
    COMPLETE: gl.constexpr = 2 * form.run // 8  # tiles of 8 columns
    image, block, first, last = strip_of(walk)
    totals = gl.zeros((POSITIONS, N), gl.float32, LAYOUT)
    mbarrier.wait(ring.loaded, 0)
    step = 0
    for row in range(gl.maximum(first - form.behind, 0), last):
        totals = multiply_row(totals, ring, step, form)
        step += STEPS
        parts = split_columns(totals, N // 8)
        if row >= first:
            for part in gl.static_range(COMPLETE):
                write(parts[part], target, image, block, 2 * row - walk.top, 8 * part, walk, form)
        rest = parts[COMPLETE:]
        for _ in gl.static_range(COMPLETE):
            rest = rest + (gl.zeros_like(parts[0]),)
        totals = gl.convert_layout(joined(rest, N // 8), LAYOUT, assert_trivial=True)


@gluon.jit
def rolling(x, edge, weights, target, walk, form: gl.constexpr):
    """out for few channels.

    x, edge: descriptors of boxes (1, BLOCKS, IMAGES, LINE) and (1, 1, IMAGES, LINE) of x as (H, W / 2, B, 2 C).
    weights: of boxes (N, depth) of (taps N, depth), see `weights.pack_rolling`. target, walk, form: `records.Target`,
    `Walk`, `Rolling`.
    """
    N: gl.constexpr = weights.block_type.shape[0]
    COUNT: gl.constexpr = 4 * form.deep * form.limbs
    tiles = gl.allocate_shared_memory(weights.dtype, [COUNT] + weights.block_type.shape, weights.layout)
    FLAT: gl.constexpr = gl.NVMMASharedLayout(128, x.dtype.primitive_bitwidth, 2)
    LINE: gl.constexpr = [IMAGES, x.block_type.shape[3]]
    rows = gl.allocate_shared_memory(x.dtype, [form.stages * (BLOCKS + 1)] + LINE, FLAT)
    ring = records.Ring(rows, tiles, barriers(form.stages, 1), barriers(form.stages, 1), barriers(1, 1).index(0))
    fence_async_shared()
    gl.warp_specialize(
        [(sum_rows, (target, ring, walk, N, form)), (load_rows, (x, edge, weights, ring, walk, form))], [1], [24]
    )
