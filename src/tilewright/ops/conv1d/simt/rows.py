"""Each thread has a row of x in registers, over which the window slides. So the row is read once, for all taps
(elements of the filter) and all filters of a thread.

out[b, o, l] = relu(bias[o] + sum over c, t of weight[o, c, t] * x[b, c, l * stride + t * dilation - padding]).
"""

from functools import cache
from typing import NamedTuple

from numba import cuda, float32

from tilewright.ops.conv1d.simt.form import QUAD, THREADS, Form
from tilewright.ops.conv1d.simt.naive import finish, larger
from tilewright.ops.conv1d.simt.sums import add_products_for, unpack_for
from tilewright.ops.conv1d.simt.tiles import LOWEST
from tilewright.ops.core.gpu.registers import ALIGNMENT, ZERO, load, load4, store, store4
from tilewright.ops.core.gpu.simt import inline, kernel_of

REGISTERS = 255  # per thread, the maximum: two blocks share a multiprocessor


class Job(NamedTuple):
    """What a launch of `rows` adds to its arrays.

    pieces: of each sample, `form.positions` long. positions: of a sample. stride, padding, dilation: the window. relu:
    True if ReLU follows. pooled: True if out (B, O, pieces) receives the maximum over the positions of each piece.
    """

    pieces: int
    positions: int
    stride: int
    padding: int
    dilation: int
    relu: bool
    pooled: bool


@inline
def corner(rows):
    """(row, group of filters) of this thread: a warp has 8 rows x 4 groups."""
    lane, warp = cuda.threadIdx.x % 32, cuda.threadIdx.x // 32
    return warp % (rows // 8) * 8 + lane % 8, warp // (rows // 8) * 4 + lane // 8


@cache
def _copier(form: Form):
    """(fetch, keep, size): fetch(x, source, start, job, mine) reads this thread's share of `form.depth` rows of x into
    `mine`, keep(mine, tile, at) writes it to the tile. size: elements of a share."""
    rows, pitch, split = form.rows, form.pitch, form.split
    # elements of a row are job.stride apart: each tap is a channel, also where there is only one tap
    apart = split > 1 or (form.taps == form.stride == 1 and not form.aligned)
    group = QUAD if form.aligned else 1  # elements per load
    across, sharing = form.quads * QUAD // group, THREADS // rows  # loads per row, threads that share them
    count = form.depth * across
    share, even = -(-count // sharing), count % sharing == 0

    @inline
    def fetch(x, source, start, job, mine):
        C, L = x.shape[1], x.shape[2]
        b, first = source
        for i in range(share):
            item = cuda.threadIdx.x % sharing + i * sharing
            step, j = start + item // across, item % across * group
            c, jump = step, 1
            at = first * job.stride - job.padding
            if apart:
                c, jump = step // split, job.stride
                at += step % split * job.dilation
            at += j * jump
            inside = c < C and 0 <= at < L
            offset = (b * C + c) * L + at
            if group == QUAD:
                quad = load4(x, offset) if inside else (ZERO, ZERO, ZERO, ZERO)
                mine[4 * i], mine[4 * i + 1], mine[4 * i + 2], mine[4 * i + 3] = quad
            else:
                mine[i] = load(x, offset) if inside else ZERO

    @inline
    def keep(mine, tile, at):
        row = cuda.threadIdx.x // sharing
        for i in range(share):
            item = cuda.threadIdx.x % sharing + i * sharing
            target = at + (item // across * rows + row) * pitch + item % across * group
            if even or item < count:
                if group == QUAD:
                    store4(tile, target, (mine[4 * i], mine[4 * i + 1], mine[4 * i + 2], mine[4 * i + 3]))
                else:
                    store(tile, target, mine[i])

    return fetch, keep, share * group


@cache
def _weights_copier(form: Form):
    """(fetch, keep, size): fetch(weights, at, mine) reads this thread's share of the weights of a step into `mine`,
    keep(mine, tile, at) writes it to the tile. size: elements of a share."""
    apart = THREADS * QUAD // form.width  # rows of weights that the block loads at once
    share = -(-form.depth * form.taps // apart)

    @inline
    def fetch(weights, at, mine):
        for i in range(share):
            quad = load4(weights, at + i * apart * weights.shape[1])
            mine[4 * i], mine[4 * i + 1], mine[4 * i + 2], mine[4 * i + 3] = quad

    @inline
    def keep(mine, tile, at):
        for i in range(share):
            quad = mine[4 * i], mine[4 * i + 1], mine[4 * i + 2], mine[4 * i + 3]
            store4(tile, at + i * THREADS * QUAD, quad)

    return fetch, keep, share * QUAD


@cache
def _writer(form: Form):
    """write(results, out, bias, job, first, o): finish and store a thread's sums, from filter o on; first: its row."""
    F, P, apart = form.filters, form.positions, form.groups * QUAD

    @inline
    def write(results, out, bias, job, first, o):
        b, piece = first // job.pieces, first % job.pieces
        if b >= out.shape[0]:
            return
        left = piece * P
        for f in range(F):
            own = o + f // QUAD * apart + f % QUAD
            if own < out.shape[1]:
                best = LOWEST
                for l in range(P):
                    if left + l < job.positions:
                        total = finish(results[f * P + l], own, bias, job.relu)
                        if job.pooled:
                            best = larger(best, total)
                        else:
                            out[b, own, left + l] = total
                if job.pooled:
                    out[b, own, piece] = best

    return write


@cache
def rows(form: Form):
    """kernel(x (B, C, L), weights, bias, out, job, steps) on 128 threads: out (B, O, positions), or (B, O, pieces).

    weights: (rows, columns) from `lay_out`. steps: channels, a multiple of `form.depth`, each once or K times. A thread
    computes `form.filters` filters at `form.positions` positions of a sample. Per channel it loads its row of x and the
    taps of its filters, 4 + 2 K loads of 16 bytes for 112 K multiply-adds at TextCNN's K = 3; `registers` has five for
    16. The next channels are loaded while these are multiplied. It is slow if there are too few samples to give all
    multiprocessors a block.
    """
    depth, block_rows, pitch, width = form.depth, form.rows, form.pitch, form.width
    P, taps, wide, sharing = form.positions, form.taps, form.width // QUAD, THREADS // form.rows
    fetch, keep, x_share = _copier(form)
    fetch_weights, keep_weights, w_share = _weights_copier(form)
    w_size, x_size = w_share * THREADS, depth * block_rows * pitch
    both_w, both_x, sums_size, zeros = 2 * w_size, 2 * x_size, form.sums, (ZERO,) * form.sums
    add_products, unpack, write = add_products_for(form), unpack_for(form), _writer(form)

    @kernel_of(REGISTERS)
    def convolve(x, weights, bias, out, job, steps):
        w_tile = cuda.shared.array(both_w, float32, alignment=ALIGNMENT)
        x_tile = cuda.shared.array(both_x, float32, alignment=ALIGNMENT)
        w_own, x_own = cuda.local.array(w_share, float32), cuda.local.array(x_share, float32)
        thread, columns = cuda.threadIdx.x, weights.shape[1]
        first, left = cuda.blockIdx.x * block_rows, cuda.blockIdx.y * width
        m = min(first + thread // sharing, x.shape[0] * job.pieces - 1)
        source, w_at = (m // job.pieces, m % job.pieces * P), thread // wide * columns + left + thread % wide * QUAD
        fetch_weights(weights, w_at, w_own)
        fetch(x, source, 0, job, x_own)
        keep_weights(w_own, w_tile, thread * QUAD)
        keep(x_own, x_tile, 0)
        cuda.syncthreads()
        row, group = corner(block_rows)
        sums, now = zeros, 0
        for start in range(0, steps, depth):
            following = min(start + depth, steps - depth)  # the last step loads its own tiles again, unused
            fetch_weights(weights, w_at + following * taps * columns, w_own)
            fetch(x, source, following, job, x_own)
            sums = add_products(sums, w_tile, now * w_size + group * QUAD, x_tile, now * x_size + row * pitch)
            now = 1 - now
            keep_weights(w_own, w_tile, now * w_size + thread * QUAD)
            keep(x_own, x_tile, now * x_size)
            cuda.syncthreads()
        results = cuda.local.array(sums_size, float32)
        unpack(sums, results)
        write(results, out, bias, job, first + row, left + group * QUAD)

    return convolve
