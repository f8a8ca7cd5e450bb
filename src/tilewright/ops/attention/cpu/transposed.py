"""Softmax of 16 queries at once: keys along registers, queries along lanes.

Computes exp(scale * (score - largest score)) of each query, and 1 / their sum. Along a row, the largest of 16 elements
takes four shuffles that wait for each other, and so does their sum. After a transposition, the largest of 16 rows takes
15 instructions and no shuffle; the transposition takes 64. The bits are those of `words.weights_of_row`: the weight of
a key is added to the sum of the keys 16, 32, ... before it, and the 16 sums are added by halves, as `reduce_add` does.
It is slow where there are fewer than 16 queries: the other lanes are idle.

A square is 16 x 16 words in scratch: one row per query, or one row per key once it is transposed.
"""

import numpy as np

from tilewright import simd
from tilewright.ops.attention.cpu.words import RAMP

SIDE = 16  # queries, and keys of a square
SQUARE = SIDE * SIDE


@simd.inline
def transpose(scratch, source, target):
    """Transpose the square of words at `source` to `target`."""
    square = simd.block_load(simd.block_zeros(SIDE, 1, SIDE), scratch, source, SIDE, SIDE)
    simd.block_store(simd.block_transpose(square), scratch, target, SIDE, SIDE)


@simd.inline
def transpose_scores(scratch, at, squares, block):
    """Transpose square blocks of scores in place and set masked scores to -infinity. Returns each query's largest."""
    hidden, visible = simd.splat(np.float32(-np.inf), SIDE), block.visible
    ramp = simd.multiply(simd.splat(np.float32(block.more), SIDE), simd.load(RAMP, 0, SIDE))
    ends, best, other = simd.add(simd.splat(np.float32(visible), SIDE), ramp), hidden, hidden
    for c in range(squares):
        transpose(scratch, at + c * SQUARE, at + c * SQUARE)
        if c * SIDE + SIDE > visible:
            for t in range(SIDE):
                x, key = simd.load(scratch, at + c * SQUARE + t * SIDE, SIDE), np.float32(c * SIDE + t)
                x = simd.select_greater(ends, simd.splat(key, SIDE), x, hidden)
                simd.store(scratch, at + c * SQUARE + t * SIDE, x)
        for t in range(0, SIDE, 2):  # a NaN among them makes the sum one
            x = simd.load(scratch, at + c * SQUARE + t * SIDE, SIDE)
            y = simd.load(scratch, at + c * SQUARE + t * SIDE + SIDE, SIDE)
            best, other = simd.select_greater(best, x, best, x), simd.select_greater(other, y, other, y)
    return simd.select_greater(best, other, best, other)


@simd.inline
def exponentiate(scratch, at, squares, best, scale, sums):
    """Replace scores by exp(scale * (score - best)). Write 1 / the sum of each query to the square at `sums`."""
    factor = simd.splat(scale, SIDE)
    for t in range(SIDE):
        total = simd.zeros(SIDE)
        for c in range(squares):
            row = at + c * SQUARE + t * SIDE
            x = simd.exp(simd.multiply(simd.subtract(simd.load(scratch, row, SIDE), best), factor))
            simd.store(scratch, row, x)
            total = simd.add(total, x)
        simd.store(scratch, sums + t * SIDE, total)
    half = SIDE // 2
    while half:
        for t in range(half):
            low = simd.load(scratch, sums + t * SIDE, SIDE)
            simd.store(scratch, sums + t * SIDE, simd.add(low, simd.load(scratch, sums + (t + half) * SIDE, SIDE)))
        half //= 2
    one = simd.splat(np.float32(1), SIDE)
    simd.store(scratch, sums, simd.divide(one, simd.load(scratch, sums, SIDE)))


@simd.inline
def round_weights(scratch, at, squares, words):
    """Round weights to bfloat16, as squares of words at `words`: one row per query, 32 keys per square, then zeros."""
    half = SQUARE // 2
    for c in range(0, squares, 2):
        target = words + c * half
        for t in range(0, (min(squares, c + 2) - c) * SQUARE, 2 * SIDE):
            source = at + c * SQUARE + t
            pair = simd.pair_rounded(simd.load(scratch, source, SIDE), simd.load(scratch, source + SIDE, SIDE))
            simd.store(scratch, target + t // 2, pair)
        if c + 1 == squares:
            for t in range(half, SQUARE, SIDE):
                simd.store(scratch, target + t, simd.zeros(SIDE))
        transpose(scratch, target, target)
