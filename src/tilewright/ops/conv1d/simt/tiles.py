"""A tile of filters and a tile of windows in shared memory: a matrix product whose left matrix is never written.

out[b, o, l] = relu(bias[o] + sum over r of weight[o, r] * window[b, l, r]), where element r of a window is tap r % K of
channel r // K. Column m of the product is position m % P of sentence m // P. Changes from `naive`: an element is loaded
from device memory once per block. It is slow where filters or positions do not fill a block.
"""

import math

from numba import cuda, float32

from tilewright.ops.conv1d.simt.naive import finish, larger
from tilewright.ops.core.gpu.registers import ALIGNMENT
from tilewright.ops.core.gpu.simt import inline, kernel

TILE = 16  # filters, positions and elements of a window in a block of `tiles`
FILTERS, GROUPS, EACH, DEPTH = 32, 4, 16, 16  # a block of `registers` has FILTERS x (GROUPS * EACH) outputs
THREADS = FILTERS * GROUPS
LOWEST = float32(-math.inf)
PITCH = FILTERS + 1  # row of the filters' tile: threads that write a column have no bank conflicts
POSITIONS = GROUPS * EACH


@inline
def window_element(x, b, r, l, K, stride, padding, dilation):
    """Element r of the window of position l of sentence b; 0 outside x."""
    c, at = r // K, l * stride + r % K * dilation - padding
    inside = b < x.shape[0] and c < x.shape[1] and 0 <= at < x.shape[2]
    return x[b, c, at] if inside else float32(0)


@inline
def filter_element(weight, o, r):
    """Element r of filter o; 0 outside."""
    K = weight.shape[2]
    return weight[o, r // K, r % K] if o < weight.shape[0] and r // K < weight.shape[1] else float32(0)


@kernel
def tiles(x, weight, bias, out, stride, padding, dilation, relu):
    """A block computes 16 filters x 16 positions; a thread loads one element of each tile, then multiplies 16 pairs.

    It has a 16th of the naive loads from device memory. The limit is two loads from shared memory per multiply-add.
    """
    w_tile = cuda.shared.array((TILE, TILE), float32)
    x_tile = cuda.shared.array((TILE, TILE), float32)
    i, j = cuda.threadIdx.x, cuda.threadIdx.y
    B, O, P = out.shape
    m, o = cuda.blockIdx.x * TILE + i, cuda.blockIdx.y * TILE + j
    K = weight.shape[2]
    total = float32(0)
    for start in range(0, weight.shape[1] * K, TILE):
        w_tile[j, i] = filter_element(weight, o, start + i)
        x_tile[j, i] = window_element(x, m // P, start + j, m % P, K, stride, padding, dilation)
        cuda.syncthreads()
        for r in range(TILE):
            total += w_tile[j, r] * x_tile[r, i]
        cuda.syncthreads()
    if m < B * P and o < O:
        out[m // P, o, m % P] = finish(total, o, bias, relu)


@inline
def add_products(totals, w_tile, x_tile, f, g):
    """totals[i] += the products of filter f and position g * EACH + i in the tiles."""
    for r in range(DEPTH):
        w = w_tile[r, f]
        for i in range(EACH):
            totals[i] += w * x_tile[r, g * EACH + i]


@kernel
def registers(x, weight, bias, out, stride, padding, dilation, relu):
    """A thread computes 16 positions of one filter, so a weight in a register is used 16 times.

    A warp's threads have the same positions, so an element of x is a broadcast. 16 multiply-adds take one load of a
    weight and four 16-byte loads of x.
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
            w_tile[n % DEPTH, n // DEPTH] = filter_element(weight, o + n // DEPTH, start + n % DEPTH)
        for n in range(thread, POSITIONS * DEPTH, THREADS):
            m, r = left + n % POSITIONS, n // POSITIONS
            x_tile[r, n % POSITIONS] = window_element(x, m // P, start + r, m % P, K, stride, padding, dilation)
        cuda.syncthreads()
        add_products(totals, w_tile, x_tile, f, g)
        cuda.syncthreads()
    for i in range(EACH):
        m = left + g * EACH + i
        if m < B * P and o + f < O:
            out[m // P, o + f, m % P] = finish(totals[i], o + f, bias, relu)


@kernel
def fused(x, weight, bias, out, stride, padding, dilation, relu):
    """out (B, O, 1) = the maximum over positions. A thread has one filter of one sentence, 16 positions at a time.

    Only the maximum is written. It is slow where the number of positions is not a multiple of 16: sums are computed in
    vain.
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
                w_tile[n % DEPTH, n // DEPTH] = filter_element(weight, o + n // DEPTH, start + n % DEPTH)
            for n in range(thread, POSITIONS * DEPTH, THREADS):
                m, r = n % POSITIONS, n // POSITIONS
                l = left + m % EACH
                x_tile[r, m] = window_element(x, b + m // EACH, start + r, l, K, stride, padding, dilation)
            cuda.syncthreads()
            add_products(totals, w_tile, x_tile, f, g)
            cuda.syncthreads()
        for i in range(EACH):
            if left + i < P and o + f < weight.shape[0]:
                best = larger(best, finish(totals[i], o + f, bias, relu))
    if b + g < out.shape[0] and o + f < out.shape[1]:
        out[b + g, o + f, 0] = best
