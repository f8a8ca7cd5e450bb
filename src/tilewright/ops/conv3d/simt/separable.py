"""A marching kernel for outer products of three vectors: three short sums instead of one long sum."""

from functools import cache

from numba import cuda, float32, int32

from tilewright.ops.conv3d.simt.border import CONSTANT
from tilewright.ops.conv3d.simt.columns import column_step_for, pair_for
from tilewright.ops.conv3d.simt.copies import blank_for, copy_for, copy_group_for
from tilewright.ops.conv3d.simt.forms import PAIR, QUAD, SIDE, ColumnForm
from tilewright.ops.conv3d.simt.planes import base_of, column_writer_for, edges_for, offsets_for
from tilewright.ops.core.gpu.registers import ALIGNMENT
from tilewright.ops.core.gpu.simt import inline, kernel_of


def _fetch_for(form: ColumnForm):
    """fetch(tile, at, x, plane, offsets, mode, fill): start to copy a plane of x to element `at` of the tile, or the
    border's values if it is outside of x."""
    copy, blank = copy_for(form), blank_for(form)

    @inline
    def fetch(tile, at, x, plane, offsets, mode, fill):
        base = base_of(plane, x.shape[0], x.shape[1] * x.shape[2], mode)
        if base >= 0:
            copy(tile, at + QUAD * cuda.threadIdx.x, x, base, offsets, fill)
        else:
            blank(tile, at + QUAD * cuda.threadIdx.x, offsets, fill)

    return fetch


@cache
def separable(form: ColumnForm):
    """kernel(x (D, H, P), out, factors, first, chunk, modes, fill): `march` for a kernel that is an outer product.

    factors: wz, wy and wx in one tuple. Shared memory has a ring of planes. Rows are convolved along x into `lines`; a
    thread convolves a piece of a column of `lines` along y, and adds it to KD unfinished sums along z.
    """
    (KD, _, KW), (BY, BX), rows, stage, stages = form.sizes, form.tile, form.rows, form.stage, form.stages
    ring, last, wide, high, pitch = stages * stage, KD - 1, BX + KW - 1, form.height, form.across * QUAD
    line_elements, finished, zeros = high * BX, last * rows, (float32(0),) * form.sums
    sides, pairs, threads = form.sides, form.pairs, form.threads
    offsets, write, lead = offsets_for(form, form.shares), column_writer_for(rows), form.lead
    edge_offsets, fetch_edge, put_edge = edges_for(form)
    (commit, wait), fetch, pair, step = copy_group_for(form), _fetch_for(form), pair_for(form), column_step_for(form)

    @kernel_of(form.registers)
    def convolve(x, out, factors, job, fill):
        tile = cuda.shared.array(ring, float32, alignment=ALIGNMENT)
        lines = cuda.shared.array(line_elements, float32, alignment=ALIGNMENT)
        (D, H, P), (planes, height, width) = x.shape, out.shape
        thread, across = cuda.threadIdx.x, (width + BX - 1) // BX
        top, left = cuda.blockIdx.x // across * BY, cuda.blockIdx.x % across * BX
        z_before, y_before, x_before, mode, row_mode = job.z, job.y, job.x, job.mode, job.row_mode
        z, start = cuda.blockIdx.y * job.chunk, left + lead - x_before  # the first column under a window
        corner = top - y_before, left - x_before
        at_edge = row_mode != CONSTANT and (start < 0 or start + wide > P)
        quad_offsets = offsets(top - y_before, left - x_before, H, P, mode)
        edges = edge_offsets(corner, x_before - lead, H, P, row_mode, at_edge)
        length, first, now, sums = min(job.chunk, planes - z), z - z_before, 0, zeros
        beyond = fetch_edge(x, base_of(first, D, H * P, mode), edges)
        row, column = thread // BX * rows, thread % BX
        even, odd = row * BX + column, row * BX + (column ^ QUAD)
        target = (z * height + top + row) * width + left + column
        rows_left = int32(height - top - row if left + column < width else 0)
        for p in range(stages - 1):
            fetch(tile, p * stage, x, first + p, quad_offsets, mode, fill)
            commit()
        for p in range(length + last):
            wait()
            cuda.syncthreads()
            if at_edge:
                put_edge(tile, now, edges, beyond)
                cuda.syncthreads()
                beyond = fetch_edge(x, base_of(first + p + 1, D, H * P, mode), edges)
            if p + stages <= length + last:
                fetch(tile, (now if now > 0 else ring) - stage, x, first + p + stages - 1, quad_offsets, mode, fill)
            commit()
            for i in range(pairs):
                task = thread + i * threads
                line = task // (2 * SIDE * sides) * 2 + task // SIDE % 2
                at = (task // (2 * SIDE) % sides * SIDE + task % SIDE) * PAIR
                if line < high:
                    pair(tile, now + line * pitch + at, lines, line * BX + at, line % 2 * QUAD, factors)
            cuda.syncthreads()
            sums = step(sums, lines, even, odd, factors)
            now = now + stage if now + stage < ring else 0
            if p >= last:
                write(out, target, width, rows_left, sums[finished:])
                target += height * width

    return convolve
