"""softmax in numba-cuda: out[i, c] = exp(x[i, c] - max of row i) / sum of those exps.

x and out: float32 (M, C), contiguous; out may be x. The kernels differ in which threads share a row, and in how those
threads combine their maxima and sums. All are limited by memory: 8 bytes per element against about 20 operations. The
order of a sum depends on the kernel and on C alone.
"""

import math
from functools import cache

from numba import cuda, float32, float64

from tilewright.ops.core.gpu.limits import check_threads, threads_for_row
from tilewright.ops.core.gpu.registers import load4, store4
from tilewright.ops.core.gpu.simt import inline, kernel, launch
from tilewright.ops.core.gpu.warp import (
    LOWEST,
    THREADS,
    WARP,
    WARPS,
    block_largest,
    block_sum,
    larger,
    over_tree,
    plus,
    warp_largest,
    warp_sum,
)

ZERO, ONE = float32(0), float32(1)


def over_rows(rows: int, threads: int = THREADS):
    """A decorator: the function that launches the kernel on x and out (M, C), `rows` rows per block."""
    return lambda function: lambda x, out: launch(function, -(-x.shape[0] // rows), threads, (x, out))


@inline
def power(value, largest):
    """exp(value - largest)."""
    return float32(math.exp(value - largest))


@over_rows(THREADS)
@kernel
def naive(x, out):
    """One thread per row, in three passes: the largest element, exp with its sum, the division.

    The lowest rung. A warp reads 32 rows at once, one element of each: 32 cache lines for 128 bytes.
    """
    i = cuda.grid(1)
    if i < x.shape[0]:
        largest = LOWEST
        for c in range(x.shape[1]):
            largest = max(largest, x[i, c])
        total = float64(0)  # float32 would lose the small ones of 100,000
        for c in range(x.shape[1]):
            value = power(x[i, c], largest)
            out[i, c] = value
            total += value
        for c in range(x.shape[1]):
            out[i, c] = float32(out[i, c] / total)


def row_per_block(block_largest, block_sum, size: int, threads: int = THREADS):
    """A kernel with one block per row, in the passes of `naive`; neighbouring threads read neighbouring elements.

    block_largest, block_sum: reduce(value, shared) combines the values of all threads of a block. size: float32 of
    shared memory that they use. threads: per block. It is slow where rows are shorter than the block: idle threads wait
    at every barrier.
    """

    @over_rows(1, threads)
    @kernel
    def normalise(x, out):
        shared = cuda.shared.array(size, float32)
        i, thread = cuda.blockIdx.x, cuda.threadIdx.x
        largest = LOWEST
        for c in range(thread, x.shape[1], threads):
            largest = max(largest, x[i, c])
        largest = block_largest(largest, shared)
        total = ZERO
        for c in range(thread, x.shape[1], threads):
            value = power(x[i, c], largest)
            out[i, c] = value
            total += value
        inverse = ONE / block_sum(total, shared)
        for c in range(thread, x.shape[1], threads):
            out[i, c] *= inverse

    return normalise


@cache
def _tree(block: int):
    return row_per_block(over_tree(larger, block), over_tree(plus, block), block, block)


def shared(x, out, *, block: int | None = None) -> None:
    """Combines as a tree in shared memory: eight barriers per reduction of 64 values.

    block: threads per block, a power of two; by default `threads_for_row` chooses it. Another number adds in another
    order, so it may change bits. Raises Refused for a block that cannot run.
    """
    block = threads_for_row(x.shape[1]) if block is None else block
    check_threads(block, power=True)
    _tree(block)(x, out)


# combines by warp shuffles, then one value per warp in shared memory: two barriers per reduction
shuffles = row_per_block(block_largest, block_sum, WARPS)


@over_rows(WARPS)
@kernel
def warps(x, out):
    """One warp per row: no shared memory and no barrier. It is slow on long rows, which 32 threads read 4 bytes at a
    time.

    Shuffles need all 32 lanes, so a warp without a row of its own computes the last row and stores nothing.
    """
    own, lane = cuda.grid(1) // WARP, cuda.threadIdx.x % WARP
    i = min(own, x.shape[0] - 1)
    largest = LOWEST
    for c in range(lane, x.shape[1], WARP):
        largest = max(largest, x[i, c])
    largest = warp_largest(largest)
    total = ZERO
    for c in range(lane, x.shape[1], WARP):
        total += power(x[i, c], largest)
    inverse = ONE / warp_sum(total)
    if own == i:
        for c in range(lane, x.shape[1], WARP):
            out[i, c] = power(x[i, c], largest) * inverse


@over_rows(WARPS)
@kernel
def vectors(x, out):
    """`warps` with loads and stores of 16 bytes; C is a multiple of four.

    It needs a quarter of the loads: 512 bytes per warp each. It is slow on rows of fewer than 128 elements, where lanes
    are idle.
    """
    own, lane, C = cuda.grid(1) // WARP, cuda.threadIdx.x % WARP, x.shape[1]
    i = min(own, x.shape[0] - 1)
    first, end = i * C + 4 * lane, (i + 1) * C
    largest = LOWEST
    for at in range(first, end, 4 * WARP):
        a, b, c, d = load4(x, at)
        largest = max(largest, max(max(a, b), max(c, d)))
    top = warp_largest(largest)
    total = ZERO
    for at in range(first, end, 4 * WARP):
        a, b, c, d = load4(x, at)
        total += (power(a, top) + power(b, top)) + (power(c, top) + power(d, top))
    inverse = ONE / warp_sum(total)
    if own == i:
        for at in range(first, end, 4 * WARP):
            a, b, c, d = load4(x, at)
            p, q = power(a, top) * inverse, power(b, top) * inverse
            store4(out, at, (p, q, power(c, top) * inverse, power(d, top) * inverse))


@inline
def rescaled(total, largest, value):
    """(sum, largest) after one more element."""
    if value > largest:
        return total * power(largest, value) + ONE, value
    return (total + power(value, largest) if value != LOWEST else total), largest


@over_rows(1)
@kernel
def online(x, out):
    """One block per row; a thread computes its maximum and sum in one pass, and rescales the sum if the maximum grows.

    Two passes instead of three, for one more exp per element. A thread loads four elements before it uses the first. It
    is slow where rows stay in a cache. Source: Milakov and Gimelshein, "Online normalizer calculation for softmax",
    2018.
    """
    shared = cuda.shared.array(WARPS, float32)
    i, thread, C = cuda.blockIdx.x, cuda.threadIdx.x, x.shape[1]
    whole = C // (4 * THREADS) * (4 * THREADS)
    largest, total = LOWEST, ZERO
    for first in range(thread, whole, 4 * THREADS):
        a, b, c, d = x[i, first], x[i, first + THREADS], x[i, first + 2 * THREADS], x[i, first + 3 * THREADS]
        top = max(max(a, b), max(c, d))
        if top > largest:
            total *= power(largest, top)
            largest = top
        if top != LOWEST or a + b + c + d != LOWEST:  # four times -inf adds nothing; a NaN, which max may drop, does
            total += (power(a, largest) + power(b, largest)) + (power(c, largest) + power(d, largest))
    for at in range(whole + thread, C, THREADS):
        total, largest = rescaled(total, largest, x[i, at])
    row_largest = block_largest(largest, shared)
    if total > ZERO:
        total *= power(largest, row_largest)
    inverse = ONE / block_sum(total, shared)
    for first in range(thread, whole, 4 * THREADS):
        a, b, c, d = x[i, first], x[i, first + THREADS], x[i, first + 2 * THREADS], x[i, first + 3 * THREADS]
        out[i, first] = power(a, row_largest) * inverse
        out[i, first + THREADS] = power(b, row_largest) * inverse
        out[i, first + 2 * THREADS] = power(c, row_largest) * inverse
        out[i, first + 3 * THREADS] = power(d, row_largest) * inverse
    for at in range(whole + thread, C, THREADS):
        out[i, at] = power(x[i, at], row_largest) * inverse
