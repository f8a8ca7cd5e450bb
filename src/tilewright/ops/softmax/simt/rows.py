"""Softmax: a thread a row, a block a row, a warp a row, and a warp with loads of 16 bytes; and the sum in one pass."""

import math

from numba import cuda, float32, float64

from tilewright.ops.core.gpu.registers import load4, store4
from tilewright.ops.core.gpu.simt import inline, kernel, launch
from tilewright.ops.core.gpu.warp import (
    LOWEST,
    THREADS,
    WARP,
    WARPS,
    block_largest,
    block_sum,
    tree_largest,
    tree_sum,
    warp_largest,
    warp_sum,
)

ZERO, ONE = float32(0), float32(1)


def over_rows(rows: int):
    """A decorator: the function that launches the kernel on x and out (M, C), in blocks that take `rows` rows each."""
    return lambda function: lambda x, out: launch(function, -(-x.shape[0] // rows), THREADS, (x, out))


@over_rows(THREADS)
@kernel
def naive(x, out):
    """A thread a row: the largest, exp with its sum, the division; three passes.

    The lowest rung. The threads of a warp read 32 rows at once, a number of each: 32 lines of memory for 128 bytes.
    """
    i = cuda.grid(1)
    if i < x.shape[0]:
        largest = LOWEST
        for c in range(x.shape[1]):
            largest = max(largest, x[i, c])
        total = float64(0)  # float32 would lose the small ones of 100,000
        for c in range(x.shape[1]):
            power = float32(math.exp(x[i, c] - largest))
            out[i, c] = power
            total += power
        for c in range(x.shape[1]):
            out[i, c] = float32(out[i, c] / total)


@over_rows(1)
@kernel
def shared(x, out):
    """A block a row: neighbouring threads read neighbouring numbers; their results meet in shared memory, as a tree.

    Loses where rows are short: most of the block has nothing to do, and waits at twenty barriers.
    """
    room = cuda.shared.array(THREADS, float32)
    i, thread = cuda.blockIdx.x, cuda.threadIdx.x
    largest = LOWEST
    for c in range(thread, x.shape[1], THREADS):
        largest = max(largest, x[i, c])
    largest = tree_largest(largest, room)
    total = ZERO
    for c in range(thread, x.shape[1], THREADS):
        power = float32(math.exp(x[i, c] - largest))
        out[i, c] = power
        total += power
    inverse = ONE / tree_sum(total, room)
    for c in range(thread, x.shape[1], THREADS):
        out[i, c] *= inverse


@over_rows(1)
@kernel
def shuffles(x, out):
    """A block a row; the threads of a warp exchange registers: two barriers a reduction in place of ten.

    Loses where rows are shorter than the block: most of its warps bring nothing, and all wait.
    """
    room = cuda.shared.array(WARPS, float32)
    i, thread = cuda.blockIdx.x, cuda.threadIdx.x
    largest = LOWEST
    for c in range(thread, x.shape[1], THREADS):
        largest = max(largest, x[i, c])
    largest = block_largest(largest, room)
    total = ZERO
    for c in range(thread, x.shape[1], THREADS):
        power = float32(math.exp(x[i, c] - largest))
        out[i, c] = power
        total += power
    inverse = ONE / block_sum(total, room)
    for c in range(thread, x.shape[1], THREADS):
        out[i, c] *= inverse


@over_rows(WARPS)
@kernel
def warps(x, out):
    """A warp a row: no shared memory and no barrier. Loses on long rows, of which 32 threads read a number at a time.

    Every lane goes through the motions of some row, the last one if need be: shuffles want all 32.
    """
    own, lane = cuda.grid(1) // WARP, cuda.threadIdx.x % WARP
    i = min(own, x.shape[0] - 1)
    largest = LOWEST
    for c in range(lane, x.shape[1], WARP):
        largest = max(largest, x[i, c])
    largest = warp_largest(largest)
    total = ZERO
    for c in range(lane, x.shape[1], WARP):
        total += float32(math.exp(x[i, c] - largest))
    inverse = ONE / warp_sum(total)
    if own == i:
        for c in range(lane, x.shape[1], WARP):
            out[i, c] = float32(math.exp(x[i, c] - largest)) * inverse


@inline
def power(number, largest):
    """exp(number - largest)."""
    return float32(math.exp(number - largest))


@over_rows(WARPS)
@kernel
def vectors(x, out):
    """A warp a row, four numbers a load; C is a multiple of four.

    A quarter of the loads, each of 512 bytes a warp. Loses on rows of fewer than 128 numbers, where lanes have nothing.
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
def rescaled(total, largest, number):
    """(sum, largest) with one number more."""
    if number > largest:
        return total * power(largest, number) + ONE, number
    return (total + power(number, largest) if number != LOWEST else total), largest


@over_rows(1)
@kernel
def online(x, out):
    """A block a row; each thread takes largest and sum in one pass, and rescales its sum when its largest grows.

    Two passes in place of three, for one exp more a number; a thread loads four numbers before it needs the first.
    Loses where rows stay in a cache. Source: Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018.
    """
    room = cuda.shared.array(WARPS, float32)
    i, thread, C = cuda.blockIdx.x, cuda.threadIdx.x, x.shape[1]
    whole = C // (4 * THREADS) * (4 * THREADS)
    largest, total = LOWEST, ZERO
    for first in range(thread, whole, 4 * THREADS):
        a, b, c, d = x[i, first], x[i, first + THREADS], x[i, first + 2 * THREADS], x[i, first + 3 * THREADS]
        top = max(max(a, b), max(c, d))
        if top > largest:
            total *= power(largest, top)
            largest = top
        if top != LOWEST or a + b + c + d != LOWEST:  # four of -inf add nothing; a NaN, which top may pass over, does
            total += (power(a, largest) + power(b, largest)) + (power(c, largest) + power(d, largest))
    for at in range(whole + thread, C, THREADS):
        total, largest = rescaled(total, largest, x[i, at])
    over_all = block_largest(largest, room)
    if total > ZERO:
        total *= power(largest, over_all)
    inverse = ONE / block_sum(total, room)
    for first in range(thread, whole, 4 * THREADS):
        a, b, c, d = x[i, first], x[i, first + THREADS], x[i, first + 2 * THREADS], x[i, first + 3 * THREADS]
        out[i, first] = power(a, over_all) * inverse
        out[i, first + THREADS] = power(b, over_all) * inverse
        out[i, first + 2 * THREADS] = power(c, over_all) * inverse
        out[i, first + 3 * THREADS] = power(d, over_all) * inverse
    for at in range(whole + thread, C, THREADS):
        out[i, at] = power(x[i, at], over_all) * inverse
