"""A tile of filters and one of windows in shared memory: the convolution as a product whose left matrix is never
written. Number r of a window is tap r % K of channel r // K; position m of the batch is l of sentence m // P."""

import math

from numba import cuda, float32

from tilewright.ops.conv1d.simt.naive import finish, larger
from tilewright.ops.core.gpu.registers import ALIGNMENT
from tilewright.ops.core.gpu.simt import inline, kernel

TILE = 16  # outputs each way and numbers of a window, of `tiles`
FILTERS, GROUPS, EACH, DEPTH = 32, 4, 16, 16  # of `registers`: a thread has EACH positions, a block GROUPS * EACH
THREADS = FILTERS * GROUPS
LOWEST = float32(-math.inf)
PITCH = FILTERS + 1  # of the filters' tile: threads that write a column of it meet in no bank
POSITIONS = GROUPS * EACH


@inline
def number(x, b, r, l, K, stride, padding, dilation):
    """Number r of the window under position l of sentence b; 0 outside."""
    c, at = r // K, l * stride + r % K * dilation - padding
    inside = b < x.shape[0] and c < x.shape[1] and 0 <= at < x.shape[2]
    return x[b, c, at] if inside else float32(0)


@inline
def filter_number(weight, o, r):
    """Number r of filter o; 0 outside."""
    K = weight.shape[2]
    return weight[o, r // K, r % K] if o < weight.shape[0] and r // K < weight.shape[1] else float32(0)


@kernel
def tiles(x, weight, bias, out, stride, padding, dilation, relu):
    """A block has 16 filters x 16 positions; a thread loads a number of either tile, then multiplies 16 pairs.

    A 16th of the naive loads from device memory; two loads from shared memory a multiply-add are the next limit.
    """
    w_tile = cuda.shared.array((TILE, TILE), float32)
    x_tile = cuda.shared.array((TILE, TILE), float32)
    i, j = cuda.threadIdx.x, cuda.threadIdx.y
    B, O, P = out.shape
    m, o = cuda.blockIdx.x * TILE + i, cuda.blockIdx.y * TILE + j
    K = weight.shape[2]
    total = float32(0)
    for start in range(0, weight.shape[1] * K, TILE):
        w_tile[j, i] = filter_number(weight, o, start + i)
        x_tile[j, i] = number(x, m // P, start + j, m % P, K, stride, padding, dilation)
        cuda.syncthreads()
        for r in range(TILE):
            total += w_tile[j, r] * x_tile[r, i]
        cuda.syncthreads()
    if m < B * P and o < O:
        out[m // P, o, m % P] = finish(total, o, bias, relu)


@inline
def add_products(totals, w_tile, x_tile, f, g):
    """totals[i] += the tiles' numbers of filter f and position g * EACH + i."""
    for r in range(DEPTH):
        w = w_tile[r, f]
        for i in range(EACH):
            totals[i] += w * x_tile[r, g * EACH + i]


@kernel
def registers(x, weight, bias, out, stride, padding, dilation, relu):
    """A thread has 16 positions of a filter, of one sentence or of several: a weight in a register serves them all.

    A warp's threads have the same positions, so a number of x is one broadcast; 17 loads for 16 multiply-adds, of which
    the 16 are four, 16 bytes each.
    """
    w_tile = cuda.shared.array((DEPTH, PITCH), float32)
    x_tile = cuda.shared.array((DEPTH, POSITIONS), float32, alignment=ALIGNMENT)
    totals = cuda.local.array(EACH, float32)
    thread = cuda.threadIdx.x
    f, g = thread % FILTERS, thread // FILTERS
    B, O, P = out.shape
    left, o = cuda.blockIdx.x * POSITIONS, cuda.blockIdx.y * FILTERS
    K = weight.shape[2]
    for i in range(EACH):
        totals[i] = 0
    for start in range(0, weight.shape[1] * K, DEPTH):
        for n in range(thread, FILTERS * DEPTH, THREADS):
            w_tile[n % DEPTH, n // DEPTH] = filter_number(weight, o + n // DEPTH, start + n % DEPTH)
        for n in range(thread, POSITIONS * DEPTH, THREADS):
            m, r = left + n % POSITIONS, n // POSITIONS
            x_tile[r, n % POSITIONS] = number(x, m // P, start + r, m % P, K, stride, padding, dilation)
        cuda.syncthreads()
        add_products(totals, w_tile, x_tile, f, g)
        cuda.syncthreads()
    for i in range(EACH):
        m = left + g * EACH + i
        if m < B * P and o + f < O:
            out[m // P, o + f, m % P] = finish(totals[i], o + f, bias, relu)


@kernel
def fused(x, weight, bias, out, stride, padding, dilation, relu):
    """out (B, O, 1) = the largest over positions. A thread has a filter of one sentence, 16 positions at a time.

    What is written is the maximum: one number for the positions of a sentence. Loses some of its sums where these are
    no multiple of 16.
    """
    w_tile = cuda.shared.array((DEPTH, PITCH), float32)
    x_tile = cuda.shared.array((DEPTH, POSITIONS), float32, alignment=ALIGNMENT)
    totals = cuda.local.array(EACH, float32)
    thread = cuda.threadIdx.x
    f, g = thread % FILTERS, thread // FILTERS
    b, o = cuda.blockIdx.x * GROUPS, cuda.blockIdx.y * FILTERS
    K = weight.shape[2]
    P = (x.shape[2] + 2 * padding - dilation * (K - 1) - 1) // stride + 1
    best = LOWEST
    for left in range(0, P, EACH):
        for i in range(EACH):
            totals[i] = 0
        for start in range(0, weight.shape[1] * K, DEPTH):
            for n in range(thread, FILTERS * DEPTH, THREADS):
                w_tile[n % DEPTH, n // DEPTH] = filter_number(weight, o + n // DEPTH, start + n % DEPTH)
            for n in range(thread, POSITIONS * DEPTH, THREADS):
                m, r = n % POSITIONS, n // POSITIONS
                l = left + m % EACH
                x_tile[r, m] = number(x, b + m // EACH, start + r, l, K, stride, padding, dilation)
            cuda.syncthreads()
            add_products(totals, w_tile, x_tile, f, g)
            cuda.syncthreads()
        for i in range(EACH):
            if left + i < P and o + f < weight.shape[0]:
                best = larger(best, finish(totals[i], o + f, bias, relu))
    if b + g < out.shape[0] and o + f < out.shape[1]:
        out[b + g, o + f, 0] = best
