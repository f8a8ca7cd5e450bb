"""Layer normalisation: a thread a row, a block a row, a warp a row, and a warp with loads of 16 bytes."""

import math

import numpy as np
from numba import cuda, float32

from tilewright.ops.core.gpu.registers import load4, store4
from tilewright.ops.core.gpu.simt import kernel, launch
from tilewright.ops.core.gpu.warp import THREADS, WARP, WARPS, block_sum, tree_sum, warp_sum

ZERO, ONE = float32(0), float32(1)


def over_rows(rows: int):
    """A decorator: the function that launches the kernel on x and out (M, C), in blocks that take `rows` rows each."""

    def launching(function):
        def run(x, weight, bias, eps: float, out) -> None:
            numbers = np.float32(1 / x.shape[1]), np.float32(eps)
            launch(function, -(-x.shape[0] // rows), THREADS, (x, weight, bias, out), *numbers)

        return run

    return launching


@over_rows(THREADS)
@kernel
def naive(x, weight, bias, out, share, eps):
    """A thread a row: mean, variance, result; three passes. share: 1 / C.

    The lowest rung. The threads of a warp read 32 rows at once, a number of each: 32 lines of memory for 128 bytes.
    """
    i = cuda.grid(1)
    if i < x.shape[0]:
        total, squares = ZERO, ZERO
        for c in range(x.shape[1]):
            total += x[i, c]
        mean = total * share
        for c in range(x.shape[1]):
            squares += (x[i, c] - mean) * (x[i, c] - mean)
        factor = ONE / float32(math.sqrt(squares * share + eps))
        for c in range(x.shape[1]):
            out[i, c] = (x[i, c] - mean) * factor * weight[c] + bias[c]


@over_rows(1)
@kernel
def shared(x, weight, bias, out, share, eps):
    """A block a row: neighbouring threads read neighbouring numbers; their sums meet in shared memory, as a tree.

    Loses where rows are short: most of the block has nothing to do, and waits at twenty barriers.
    """
    room = cuda.shared.array(THREADS, float32)
    i, thread = cuda.blockIdx.x, cuda.threadIdx.x
    total, squares = ZERO, ZERO
    for c in range(thread, x.shape[1], THREADS):
        total += x[i, c]
    mean = tree_sum(total, room) * share
    for c in range(thread, x.shape[1], THREADS):
        squares += (x[i, c] - mean) * (x[i, c] - mean)
    factor = ONE / float32(math.sqrt(tree_sum(squares, room) * share + eps))
    for c in range(thread, x.shape[1], THREADS):
        out[i, c] = (x[i, c] - mean) * factor * weight[c] + bias[c]


@over_rows(1)
@kernel
def shuffles(x, weight, bias, out, share, eps):
    """A block a row; the threads of a warp exchange registers: two barriers a sum in place of ten."""
    room = cuda.shared.array(WARPS, float32)
    i, thread = cuda.blockIdx.x, cuda.threadIdx.x
    total, squares = ZERO, ZERO
    for c in range(thread, x.shape[1], THREADS):
        total += x[i, c]
    mean = block_sum(total, room) * share
    for c in range(thread, x.shape[1], THREADS):
        squares += (x[i, c] - mean) * (x[i, c] - mean)
    factor = ONE / float32(math.sqrt(block_sum(squares, room) * share + eps))
    for c in range(thread, x.shape[1], THREADS):
        out[i, c] = (x[i, c] - mean) * factor * weight[c] + bias[c]


@over_rows(WARPS)
@kernel
def warps(x, weight, bias, out, share, eps):
    """A warp a row: no shared memory and no barrier. Loses on long rows, of which 32 threads read a number at a time.

    Every lane goes through the motions of some row, the last one if need be: shuffles want all 32.
    """
    own, lane = cuda.grid(1) // WARP, cuda.threadIdx.x % WARP
    i = min(own, x.shape[0] - 1)
    total, squares = ZERO, ZERO
    for c in range(lane, x.shape[1], WARP):
        total += x[i, c]
    mean = warp_sum(total) * share
    for c in range(lane, x.shape[1], WARP):
        squares += (x[i, c] - mean) * (x[i, c] - mean)
    factor = ONE / float32(math.sqrt(warp_sum(squares) * share + eps))
    if own == i:
        for c in range(lane, x.shape[1], WARP):
            out[i, c] = (x[i, c] - mean) * factor * weight[c] + bias[c]


@over_rows(WARPS)
@kernel
def vectors(x, weight, bias, out, share, eps):
    """A warp a row, four numbers a load; C is a multiple of four.

    A quarter of the loads, each of 512 bytes a warp. Loses on rows of fewer than 128 numbers, where lanes have nothing.
    """
    own, lane, C = cuda.grid(1) // WARP, cuda.threadIdx.x % WARP, x.shape[1]
    i = min(own, x.shape[0] - 1)
    first, end = i * C + 4 * lane, (i + 1) * C
    total, squares = ZERO, ZERO
    for at in range(first, end, 4 * WARP):
        a, b, c, d = load4(x, at)
        total += (a + b) + (c + d)
    mean = warp_sum(total) * share
    for at in range(first, end, 4 * WARP):
        a, b, c, d = load4(x, at)
        a, b, c, d = a - mean, b - mean, c - mean, d - mean
        squares += (a * a + b * b) + (c * c + d * d)
    factor = ONE / float32(math.sqrt(warp_sum(squares) * share + eps))
    if own == i:
        for at in range(first, end, 4 * WARP):
            a, b, c, d = load4(x, at)
            p, q, r, s = load4(weight, at - i * C)
            w, y, z, v = load4(bias, at - i * C)
            p, q = (a - mean) * factor * p + w, (b - mean) * factor * q + y
            store4(out, at, (p, q, (c - mean) * factor * r + z, (d - mean) * factor * s + v))
