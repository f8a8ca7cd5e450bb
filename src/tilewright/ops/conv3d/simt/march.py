"""A block marches along z with planes in shared memory; each loaded element feeds KD sums for each window row."""

from functools import cache

from numba import cuda, float32, int32

from tilewright.ops.conv3d.simt.border import CONSTANT
from tilewright.ops.conv3d.simt.forms import QUAD, Form
from tilewright.ops.conv3d.simt.planes import base_of, edges_for, offsets_for, writer_for
from tilewright.ops.conv3d.simt.window import gather_for, step_for, store_tile_for
from tilewright.ops.core.gpu.registers import ALIGNMENT
from tilewright.ops.core.gpu.simt import kernel_of


@cache
def march(form: Form):
    """kernel(x (D, H, P), out, weights, job, fill): a block marches along `job.chunk` planes of its tile.

    P is a multiple of 4, x is aligned to 16 bytes. weights: a tuple of float32 (KD * KH * KW). job: a `March`, whose x
    is `form.lead` more than the window's. fill: float32, the border's value. With form.adds, results are added to out.

    While a block multiplies one plane, loads of the next into registers are in flight; after a barrier the block writes
    them to shared memory. Each plane is multiplied by all KD planes of the weights, so each output column has KD
    unfinished sums, and a plane completes the oldest. It is slow on small volumes: a block computes KD - 1 planes more
    than it writes, and there are few blocks.
    """
    KD, (BY, BX), lanes, rows = form.sizes[0], form.tile, form.lanes, form.rows
    stage, pitch, wide = form.shares * form.threads * QUAD, form.across * QUAD, BX + form.sizes[2] - 1
    both, finished, zeros = 2 * stage, (KD - 1) * rows * QUAD, (float32(0),) * form.sums
    offsets, write, lead = offsets_for(form, form.shares), writer_for(rows, form.adds), form.lead
    edge_offsets, fetch_edge, put_edge = edges_for(form)
    gather, store_tile, step = gather_for(form), store_tile_for(form), step_for(form)

    @kernel_of(form.registers)
    def convolve(x, out, weights, job, fill):
        tile = cuda.shared.array(both, float32, alignment=ALIGNMENT)
        (D, H, P), (planes, height, width) = x.shape, out.shape
        thread, across = cuda.threadIdx.x, (width + BX - 1) // BX
        top, left = cuda.blockIdx.x // across * BY, cuda.blockIdx.x % across * BX
        z_before, y_before, x_before, mode, row_mode = job.z, job.y, job.x, job.mode, job.row_mode
        z, start = cuda.blockIdx.y * job.chunk, left + lead - x_before  # the first column under a window
        corner = top - y_before, left - x_before
        at_edge = row_mode != CONSTANT and (start < 0 or start + wide > P)
        quad_offsets = offsets(top - y_before, left - x_before, H, P, mode)
        row, column = thread // lanes * rows, thread % lanes * QUAD
        at, now, sums = row * pitch + column, 0, zeros
        base = base_of(z - z_before, D, H * P, mode)
        edges = edge_offsets(corner, x_before - lead, H, P, row_mode, at_edge)
        quads, beyond = gather(x, base, quad_offsets), fetch_edge(x, base, edges)
        y, column = top + row, left + column
        remaining, target = (int32(height - y), int32(width - column)), (z * height + y) * width + column
        for p in range(min(job.chunk, planes - z) + KD - 1):
            store_tile(tile, now + QUAD * thread, quads, base, quad_offsets, fill)
            cuda.syncthreads()
            if at_edge:
                put_edge(tile, now, edges, beyond)
                cuda.syncthreads()
            base = base_of(z - z_before + p + 1, D, H * P, mode)
            quads, beyond = gather(x, base, quad_offsets), fetch_edge(x, base, edges)
            sums = step(sums, tile, now + at, weights)
            now = stage - now
            if p >= KD - 1:
                write(out, target, width, remaining, sums[finished:])
                target += height * width

    return convolve
