"""layernorm in numba-cuda: out[i, c] = (x[i, c] - mean[i]) / sqrt(variance[i] + eps) * weight[c] + bias[c].

x and out: float32 (M, C), contiguous; out may be x. weight, bias: float32 (C,). inverse_C: 1 / C as float32. Each
kernel takes three passes over a row: mean, variance, result. They differ in which threads share a row, and in how
those threads combine their sums. All are limited by memory: 8 bytes per element. The order of a sum depends on the
kernel and on C alone.
"""

import math
from functools import cache

import numpy as np
from numba import cuda, float32

from tilewright.ops.core.gpu.limits import check_threads, threads_for_row
from tilewright.ops.core.gpu.registers import load4, store4
from tilewright.ops.core.gpu.simt import kernel, launch
from tilewright.ops.core.gpu.warp import THREADS, WARP, WARPS, block_sum, over_tree, plus, warp_sum

ZERO, ONE = float32(0), float32(1)


def over_rows(rows: int, threads: int = THREADS):
    """A decorator: the function that launches the kernel on x and out (M, C), `rows` rows per block."""

    def launching(function):
        def run(x, weight, bias, eps: float, out) -> None:
            scalars = np.float32(1 / x.shape[1]), np.float32(eps)
            launch(function, -(-x.shape[0] // rows), threads, (x, weight, bias, out), *scalars)

        return run

    return launching


@over_rows(THREADS)
@kernel
def naive(x, weight, bias, out, inverse_C, eps):
    """One thread per row. It is the lowest rung.

    A warp reads 32 rows at once, one element of each: 32 cache lines for 128 bytes.
    """
    i = cuda.grid(1)
    if i < x.shape[0]:
        total, squares = ZERO, ZERO
        for c in range(x.shape[1]):
            total += x[i, c]
        mean = total * inverse_C
        for c in range(x.shape[1]):
            squares += (x[i, c] - mean) * (x[i, c] - mean)
        factor = ONE / float32(math.sqrt(squares * inverse_C + eps))
        for c in range(x.shape[1]):
            out[i, c] = (x[i, c] - mean) * factor * weight[c] + bias[c]


def row_per_block(block_sum, size: int, threads: int = THREADS):
    """A kernel with one block per row; neighbouring threads read neighbouring elements.

    block_sum: reduce(value, shared) adds the values of all threads of a block. size: float32 of shared memory that it
    uses. threads: per block. It is slow where rows are shorter than the block: idle threads wait at every barrier.
    """

    @over_rows(1, threads)
    @kernel
    def normalise(x, weight, bias, out, inverse_C, eps):
        shared = cuda.shared.array(size, float32)
        i, thread = cuda.blockIdx.x, cuda.threadIdx.x
        total, squares = ZERO, ZERO
        for c in range(thread, x.shape[1], threads):
            total += x[i, c]
        mean = block_sum(total, shared) * inverse_C
        for c in range(thread, x.shape[1], threads):
            squares += (x[i, c] - mean) * (x[i, c] - mean)
        factor = ONE / float32(math.sqrt(block_sum(squares, shared) * inverse_C + eps))
        for c in range(thread, x.shape[1], threads):
            out[i, c] = (x[i, c] - mean) * factor * weight[c] + bias[c]

    return normalise


@cache
def _tree(block: int):
    return row_per_block(over_tree(plus, block), block, block)


def shared(x, weight, bias, eps: float, out, *, block: int | None = None) -> None:
    """Adds as a tree in shared memory: eight barriers per sum of 64 values.

    block: threads per block, a power of two; by default `threads_for_row` chooses it. Another number adds in another
    order, so it may change bits. Raises Refused for a block that cannot run.
    """
    block = threads_for_row(x.shape[1]) if block is None else block
    check_threads(block, power=True)
    _tree(block)(x, weight, bias, eps, out)


shuffles = row_per_block(block_sum, WARPS)  # adds by warp shuffles, then one value per warp: two barriers per sum


@over_rows(WARPS)
@kernel
def warps(x, weight, bias, out, inverse_C, eps):
    """One warp per row: no shared memory and no barrier. It is slow on long rows, which 32 threads read 4 bytes at a
    time.

    Shuffles need all 32 lanes, so a warp without a row of its own computes the last row and stores nothing.
    """
    own, lane = cuda.grid(1) // WARP, cuda.threadIdx.x % WARP
    i = min(own, x.shape[0] - 1)
    total, squares = ZERO, ZERO
    for c in range(lane, x.shape[1], WARP):
        total += x[i, c]
    mean = warp_sum(total) * inverse_C
    for c in range(lane, x.shape[1], WARP):
        squares += (x[i, c] - mean) * (x[i, c] - mean)
    factor = ONE / float32(math.sqrt(warp_sum(squares) * inverse_C + eps))
    if own == i:
        for c in range(lane, x.shape[1], WARP):
            out[i, c] = (x[i, c] - mean) * factor * weight[c] + bias[c]


@over_rows(WARPS)
@kernel
def vectors(x, weight, bias, out, inverse_C, eps):
    """`warps` with loads and stores of 16 bytes; C is a multiple of four.

    It needs a quarter of the loads: 512 bytes per warp each. It is slow on rows of fewer than 128 elements, where lanes
    are idle.
    """
    own, lane, C = cuda.grid(1) // WARP, cuda.threadIdx.x % WARP, x.shape[1]
    i = min(own, x.shape[0] - 1)
    first, end = i * C + 4 * lane, (i + 1) * C
    total, squares = ZERO, ZERO
    for at in range(first, end, 4 * WARP):
        a, b, c, d = load4(x, at)
        total += (a + b) + (c + d)
    mean = warp_sum(total) * inverse_C
    for at in range(first, end, 4 * WARP):
        a, b, c, d = load4(x, at)
        a, b, c, d = a - mean, b - mean, c - mean, d - mean
        squares += (a * a + b * b) + (c * c + d * d)
    factor = ONE / float32(math.sqrt(warp_sum(squares) * inverse_C + eps))
    if own == i:
        for at in range(first, end, 4 * WARP):
            a, b, c, d = load4(x, at)
            p, q, r, s = load4(weight, at - i * C)
            w, y, z, v = load4(bias, at - i * C)
            p, q = (a - mean) * factor * p + w, (b - mean) * factor * q + y
            store4(out, at, (p, q, (c - mean) * factor * r + z, (d - mean) * factor * s + v))
