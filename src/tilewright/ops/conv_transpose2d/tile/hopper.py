"""The products of `boxes.phases` in float32 on Hopper, in Gluon: two warps load boxes of x and weights by bulk copies,
two warpgroups multiply half of a tile's positions each.

One program per multiprocessor computes tile after tile. The loading warps run ahead, also into the next tile, and each
warpgroup waits only for its own products. So one warpgroup adds and stores sums while the other uses the matrix unit.
The barriers are those of `gemm.tile.hopper`. Operands are limbs, and sums of finite products
have the bits of `boxes.phases`.
"""

import triton.experimental.gluon.language as gl
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from tilewright.ops.conv_transpose2d.tile import boxes, phases
from tilewright.ops.conv_transpose2d.tile.records import Job, Task
from tilewright.ops.gemm.tile.hopper import barriers
from tilewright.ops.gemm.tile.hopper_ends import HALF_ROWS, activate, copy_in, halves
from tilewright.ops.gemm.tile.records import Stages

REGISTERS = 168  # per thread, see `gemm.tile.hopper`
BOTH = gl.constexpr(2)

# Triton functions, compiled again as Gluon
phase_of, rest_of = gluon.jit(phases.phase_of.fn), gluon.jit(phases.rest_of.fn)
taps_inside = gluon.jit(boxes.taps_inside.fn)


@gluon.jit
def task_of(index, job, tile: gl.constexpr):
    """The `records.Task` with this number. All tiles of the phases with most taps come first, so that programs finish
    at about the same time."""
    sizes, grid = job.sizes, job.grid
    sides = gl.cdiv(sizes.N, tile.BN)
    tiles = gl.cdiv(sizes.B, tile.images) * grid.high * grid.wide * sides
    phase, rest = phase_of(job.table, index // tiles), index % tiles
    n, spot = rest % sides * tile.BN, rest // sides
    image, spot = spot // (grid.high * grid.wide) * tile.images, spot % (grid.high * grid.wide)
    row, column = spot // grid.wide * tile.rows, spot % grid.wide * tile.columns
    u, high = taps_inside(row, sizes.H, phase.down, phase.above, tile.rows)
    v, wide = taps_inside(column, sizes.W, phase.across, phase.left, tile.columns)
    return Task(phase, n, image, row, column, u, high, v, wide)


@gluon.jit
def count_of(job, tile: gl.constexpr):
    """The number of tasks."""
    sizes, grid = job.sizes, job.grid
    return gl.cdiv(sizes.B, tile.images) * grid.high * grid.wide * gl.cdiv(sizes.N, tile.BN) * grid.products


@gluon.jit
def load_pixels(x, buffers, stages, job, tile: gl.constexpr):
    """A loading warp: load both limbs of each block of x for each task of this program, in order, once a stage is
    empty. x: its descriptor. buffers: two boxes for each stage."""
    STAGES: gl.constexpr = stages.full.type.shape[0]
    step = 0
    for index in range(gl.program_id(0), count_of(job, tile), gl.num_programs(0)):
        task = task_of(index, job, tile)
        for block in range(task.high * task.wide * job.grid.deep):
            tap, p = block // job.grid.deep, block % job.grid.deep * tile.BK
            h = task.row + task.phase.above + task.u + tap // task.wide
            w = task.column + task.phase.left + task.v + tap % task.wide
            stage = step % STAGES
            full = stages.full.index(stage)
            mbarrier.wait(stages.empty.index(stage), (step // STAGES & 1) ^ 1)
            mbarrier.expect(full, 2 * x.block_type.nbytes)
            copy_in(x, [task.image, h, w, p], full, buffers.index(2 * stage))
            copy_in(x, [task.image, h, w, p + job.grid.deep * tile.BK], full, buffers.index(2 * stage + 1))
            step += 1


@gluon.jit
def load_weights(weights, buffers, stages, job, tile: gl.constexpr, form: gl.constexpr):
    """As `load_pixels`, for the weights. weights: descriptor of boxes of half the columns. buffers: four for each
    stage."""
    STAGES: gl.constexpr = stages.full.type.shape[0]
    ROWS: gl.constexpr = weights.block_type.shape[0]
    step = 0
    for index in range(gl.program_id(0), count_of(job, tile), gl.num_programs(0)):
        task = task_of(index, job, tile)
        for block in range(task.high * task.wide * job.grid.deep):
            tap, p = block // job.grid.deep, block % job.grid.deep * tile.BK
            u, v = task.u + tap // task.wide, task.v + tap % task.wide
            q = ((task.phase.top + u) * job.grid.across + task.phase.side + v) * job.grid.deep * tile.BK + p
            stage = step % STAGES
            full = stages.full.index(stage)
            mbarrier.wait(stages.empty.index(stage), (step // STAGES & 1) ^ 1)
            side = side_of(v, form)
            if side == BOTH:
                mbarrier.expect(full, 4 * weights.block_type.nbytes)
                for i in gl.static_range(4):
                    at = [task.n + i // 2 * job.sizes.N + i % 2 * ROWS, q]
                    copy_in(weights, at, full, buffers.index(4 * stage + i))
            else:
                mbarrier.expect(full, 2 * weights.block_type.nbytes)
                for limb in gl.static_range(2):
                    row = task.n + limb * job.sizes.N + side * ROWS
                    copy_in(weights, [row, q], full, buffers.index(4 * stage + 2 * limb))
            step += 1


@gluon.jit
def side_of(v, form: gl.constexpr):
    """Which half of a tile's columns has weights for tap v across: 0, 1 or BOTH. See `records.Sides`."""
    if form.sides is None:
        return BOTH
    else:
        return gl.where(form.sides.right >> v & 1 == 0, 0, gl.where(form.sides.left >> v & 1 == 0, 1, BOTH))


@gluon.jit
def multiply_limbs(pixels, x, weights, high, low):
    """x (64 positions, 64) by weights (columns, 64), in the order of `phases.products`. Waits for the result. x, high,
    low: indices of boxes in `pixels` and `weights`."""
    BN: gl.constexpr = weights.type.shape[1]
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BN, 16])
    part = gl.zeros((HALF_ROWS, BN), gl.float32, LAYOUT)
    x_high, x_low = pixels.index(x), pixels.index(x + 2)
    w_high, w_low = weights.index(high).permute((1, 0)), weights.index(low).permute((1, 0))
    part = warpgroup_mma(x_high, w_low, part, use_acc=False, is_async=True)
    part = warpgroup_mma(x_low, w_high, part, is_async=True)
    part = warpgroup_mma(x_high, w_high, part, is_async=True)
    return warpgroup_mma_wait(0, deps=(part,))


@gluon.jit
def multiply(stages, wide_tiles, step, task, deep, form: gl.constexpr, HALF: gl.constexpr):
    """(sums of the left half of the columns, those of the right half, step) for half a tile's positions. step: blocks
    read so far, also in earlier tiles. wide_tiles: the boxes of weights, two at a time."""
    BN: gl.constexpr = stages.b_tiles.type.shape[1]
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BN, 16])
    STAGES: gl.constexpr = stages.full.type.shape[0]
    left = gl.zeros((HALF_ROWS, BN), gl.float32, LAYOUT)
    right = gl.zeros((HALF_ROWS, BN), gl.float32, LAYOUT)
    for block in range(task.high * task.wide * deep):
        stage = step % STAGES
        side = side_of(task.v + block // deep % task.wide, form)
        mbarrier.wait(stages.full.index(stage), step // STAGES & 1)
        if side == BOTH:
            both = multiply_limbs(stages.a_tiles, 4 * stage + HALF, wide_tiles, 2 * stage, 2 * stage + 1)
            mbarrier.arrive(stages.empty.index(stage))
            one, other = halves(both)
            left += gl.convert_layout(one, LAYOUT, assert_trivial=True)
            right += gl.convert_layout(other, LAYOUT, assert_trivial=True)
        else:
            single = multiply_limbs(stages.a_tiles, 4 * stage + HALF, stages.b_tiles, 4 * stage, 4 * stage + 2)
            mbarrier.arrive(stages.empty.index(stage))
            if side == 0:
                left += single
            else:
                right += single
        step += 1
    return left, right, step


@gluon.jit
def multiply_tiles(stages, wide_tiles, job, tile: gl.constexpr, form: gl.constexpr, HALF: gl.constexpr):
    """A multiplying warpgroup: compute and store half of each tile of this program."""
    step = 0
    for index in range(gl.program_id(0), count_of(job, tile), gl.num_programs(0)):
        task = task_of(index, job, tile)
        left, right, step = multiply(stages, wide_tiles, step, task, job.grid.deep, form, HALF)
        store(left, job, task, 0, tile, form, HALF)
        store(right, job, task, tile.BN // 2, tile, form, HALF)


@gluon.jit
def store(totals, job, task, shift, tile: gl.constexpr, form: gl.constexpr, HALF: gl.constexpr):
    """Finish sums (64 positions, columns from `shift` on) and write them or their limbs, as `phases.store` does."""
    LAYOUT: gl.constexpr = totals.type.layout
    ACTIVATION: gl.constexpr = form.activation
    COLUMNS: gl.constexpr = totals.type.shape[1]
    target, sizes = job.target, job.sizes
    if target.bias is not None:
        n = task.n + shift + gl.arange(0, COLUMNS, gl.SliceLayout(0, LAYOUT))[None, :]
        totals += gl.load(target.bias + n % form.O, mask=n < sizes.N, other=0.0).to(gl.float32)
    totals = activate(totals, ACTIVATION)
    if target.out.dtype.element_ty == gl.bfloat16:  # 16 bytes per thread: pairs of limbs would be half of a sector
        LINES: gl.constexpr = gl.BlockedLayout([1, 8], [256 // COLUMNS, COLUMNS // 8], [4, 1], [1, 0])
        high = totals.to(gl.bfloat16)
        low = rest_of(totals, high).to(gl.bfloat16)
        write(gl.convert_layout(high, LINES), target.out, task, shift, sizes, tile, form, HALF)
        write(gl.convert_layout(low, LINES), target.out + form.O, task, shift, sizes, tile, form, HALF)
    else:
        write(totals, target.out, task, shift, sizes, tile, form, HALF)


@gluon.jit
def write(results, out, task, shift, sizes, tile: gl.constexpr, form: gl.constexpr, HALF: gl.constexpr):
    """Store results (64 positions, columns from `shift` on) to out: float32, or one limb of each pixel's two."""
    PIXEL: gl.constexpr = form.O * (2 if out.dtype.element_ty == gl.bfloat16 else 1)
    LAYOUT: gl.constexpr = results.type.layout
    OH, OW, s, t, run = sizes.OH, sizes.OW, sizes.s, sizes.t, form.run
    m = HALF * HALF_ROWS + gl.arange(0, HALF_ROWS, gl.SliceLayout(1, LAYOUT))[:, None]
    n = task.n + shift + gl.arange(0, results.type.shape[1], gl.SliceLayout(0, LAYOUT))[None, :]
    b, j = task.image + m // (tile.rows * tile.columns), task.row + m // tile.columns % tile.rows
    k = task.column + m % tile.columns
    row, column = j * s + task.phase.i, k * t + task.phase.l
    inside = (b < sizes.B) & (j * s < OH) & (k * t < OW) & (n < sizes.N)
    if not form.even:
        inside = inside & (row + n // run < OH) & (column + n // form.O % t < OW)
    first = (b.to(gl.int64) * OH + row) * OW + column
    after = n // run * OW + n % run // form.O
    gl.store(out + PIXEL * first + (PIXEL * after + n % form.O), results, mask=inside)


@gluon.jit(do_not_specialize=["sizes", "grid"])
def products(x, weights, table, target, sizes, grid, tile: gl.constexpr, form: gl.constexpr):
    """out as in `boxes.phases`, with its arguments. Boxes of x have 128 positions, those of weights half of the
    columns."""
    STAGES: gl.constexpr = tile.stages
    FLAT: gl.constexpr = gl.NVMMASharedLayout(x.layout.swizzle_byte_width, 16, 2)
    pixels = gl.allocate_shared_memory(x.dtype, [STAGES * 2] + x.block_type.shape, x.layout)
    columns = gl.allocate_shared_memory(weights.dtype, [STAGES * 4] + weights.block_type.shape, weights.layout)
    wide = columns._reinterpret(weights.dtype, [STAGES * 2, tile.BN, tile.BK], weights.layout)
    rows = pixels._reinterpret(x.dtype, [STAGES * 4, HALF_ROWS, tile.BK], FLAT)
    stages = Stages(rows, columns, barriers(STAGES, 2), barriers(STAGES, 2))
    job = Job(table, target, sizes, grid)
    fence_async_shared()
    gl.warp_specialize(
        [
            (multiply_tiles, (stages, wide, job, tile, form, 0)),
            (multiply_tiles, (stages, wide, job, tile, form, 1)),
            (load_pixels, (x, pixels, stages, job, tile)),
            (load_weights, (weights, columns, stages, job, tile, form)),
        ],
        [4, 1, 1],
        [240, 24, 24],
    )
