"""A marching kernel for outer products of three vectors: three short sums instead of one long sum."""

from functools import cache

from numba import cuda, float32, int32

from tilewright.ops.conv3d.simt.border import CONSTANT
from tilewright.ops.conv3d.simt.planes import base_of, edges_for, offsets_for, writer_for
from tilewright.ops.conv3d.simt.window import QUAD, Form, gather_for, line_for, separable_step_for, store_tile_for
from tilewright.ops.core.gpu.registers import ALIGNMENT, store4
from tilewright.ops.core.gpu.simt import kernel_of


@cache
def separable(form: Form):
    """kernel(x (D, H, P), out, factors, first, chunk, modes, fill): `march` for a kernel that is an outer product.

    factors: wz, wy and wx in one tuple. Rows of a plane are convolved along x once, from one buffer in shared memory to
    another. A thread sums those along y, and adds the result to KD unfinished sums along z. An output takes KW + KH +
    KD products, and a few for the halo. It is slower than `march` where KH * KW is small: each plane needs one more
    barrier.
    """
    KD, (BY, BX), lanes, rows = form.sizes[0], form.tile, form.lanes, form.rows
    stage, pitch, wide = form.shares * form.threads * QUAD, form.across * QUAD, BX + form.sizes[2] - 1
    finished, zeros, threads = (KD - 1) * rows * QUAD, (float32(0),) * form.sums, form.threads
    quads_of_lines = (BY + form.sizes[1] - 1) * lanes
    line_elements = quads_of_lines * QUAD
    offsets, write, lead = offsets_for(form, form.shares), writer_for(rows, form.adds), form.lead
    edge_offsets, fetch_edge, put_edge = edges_for(form)
    gather, store_tile, line, step = gather_for(form), store_tile_for(form), line_for(form), separable_step_for(form)

    @kernel_of(form.registers)
    def convolve(x, out, factors, job, fill):
        tile = cuda.shared.array(stage, float32, alignment=ALIGNMENT)
        lines = cuda.shared.array(line_elements, float32, alignment=ALIGNMENT)
        (D, H, P), (planes, height, width) = x.shape, out.shape
        thread, across = cuda.threadIdx.x, (width + BX - 1) // BX
        top, left = cuda.blockIdx.x // across * BY, cuda.blockIdx.x % across * BX
        z_before, y_before, x_before, mode, row_mode = job.z, job.y, job.x, job.mode, job.row_mode
        z, start = cuda.blockIdx.y * job.chunk, left + lead - x_before  # the first column under a window
        corner = top - y_before, left - x_before
        at_edge = row_mode != CONSTANT and (start < 0 or start + wide > P)
        quad_offsets = offsets(top - y_before, left - x_before, H, P, mode)
        row, column = thread // lanes * rows, thread % lanes * QUAD
        at, sums = row * BX + column, zeros
        base = base_of(z - z_before, D, H * P, mode)
        edges = edge_offsets(corner, x_before - lead, H, P, row_mode, at_edge)
        quads, beyond = gather(x, base, quad_offsets), fetch_edge(x, base, edges)
        y, column = top + row, left + column
        remaining, target = (int32(height - y), int32(width - column)), (z * height + y) * width + column
        for p in range(min(job.chunk, planes - z) + KD - 1):
            store_tile(tile, QUAD * thread, quads, base, quad_offsets, fill)
            cuda.syncthreads()
            if at_edge:
                put_edge(tile, 0, edges, beyond)
                cuda.syncthreads()
            base = base_of(z - z_before + p + 1, D, H * P, mode)
            quads, beyond = gather(x, base, quad_offsets), fetch_edge(x, base, edges)
            for quad in range(thread, quads_of_lines, threads):
                store4(lines, quad * QUAD, line(tile, quad // lanes * pitch + quad % lanes * QUAD, factors))
            cuda.syncthreads()
            sums = step(sums, lines, at, factors)
            if p >= KD - 1:
                write(out, target, width, remaining, sums[finished:])
                target += height * width

    return convolve
