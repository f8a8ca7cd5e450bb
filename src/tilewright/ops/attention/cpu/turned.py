"""Softmax of 16 queries at once: keys along registers, queries along lanes.

Along a row, the largest of 16 numbers takes four shuffles that wait for each other, and so does their sum. Turned, the
largest of 16 rows takes 15 instructions and no shuffle, and turning takes 64. The results are those of
`words.odds_of_row`, bit for bit: a key's odds join the sum of the keys 16, 32, ... before it, and the 16 sums are added
by halves, as `reduce_add` does.
"""

import numpy as np

from tilewright import simd
from tilewright.ops.attention.cpu.words import RAMP

SIDE = 16  # queries, and keys of a square
SQUARE = SIDE * SIDE


@simd.inline
def turn(scratch, source, target):
    """The square of 32-bit words at `source` turned to `target`."""
    square = simd.block_load(simd.block_zeros(SIDE, 1, SIDE), scratch, source, SIDE, SIDE)
    simd.block_store(simd.block_transpose(square), scratch, target, SIDE, SIDE)


@simd.inline
def turn_scores(scratch, at, squares, seen):
    """Squares of scores, a row a query, become rows of keys, hidden ones -infinity. Returns the largest of each query.

    seen: (keys visible to the first query, how many more to each next one).
    """
    hidden, (visible, more) = simd.splat(np.float32(-np.inf), SIDE), seen
    ramp = simd.multiply(simd.splat(np.float32(more), SIDE), simd.load(RAMP, 0, SIDE))
    ends, best, other = simd.add(simd.splat(np.float32(visible), SIDE), ramp), hidden, hidden
    for c in range(squares):
        turn(scratch, at + c * SQUARE, at + c * SQUARE)
        if c * SIDE + SIDE > visible:
            for t in range(SIDE):
                x, here = simd.load(scratch, at + c * SQUARE + t * SIDE, SIDE), np.float32(c * SIDE + t)
                x = simd.select_greater(ends, simd.splat(here, SIDE), x, hidden)
                simd.store(scratch, at + c * SQUARE + t * SIDE, x)
        for t in range(0, SIDE, 2):  # a NaN among them makes the sum one
            x = simd.load(scratch, at + c * SQUARE + t * SIDE, SIDE)
            y = simd.load(scratch, at + c * SQUARE + t * SIDE + SIDE, SIDE)
            best, other = simd.select_greater(best, x, best, x), simd.select_greater(other, y, other, y)
    return simd.select_greater(best, other, best, other)


@simd.inline
def turned_odds(scratch, at, squares, best, scale, sums):
    """exp(scale * (score - best)) in place of the scores; at `sums`, a square, 1 / their sum for each query."""
    factor = simd.splat(scale, SIDE)
    for t in range(SIDE):
        total = simd.zeros(SIDE)
        for c in range(squares):
            place = at + c * SQUARE + t * SIDE
            x = simd.exp(simd.multiply(simd.subtract(simd.load(scratch, place, SIDE), best), factor))
            simd.store(scratch, place, x)
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
def odds_to_words(scratch, at, squares, words):
    """The odds, rounded to bfloat16, as squares of words at `words`: a row a query, 32 keys a square, then zeros."""
    half = SQUARE // 2
    for c in range(0, squares, 2):
        to = words + c * half
        for t in range(0, (min(squares, c + 2) - c) * SQUARE, 2 * SIDE):
            source = at + c * SQUARE + t
            pair = simd.pair_rounded(simd.load(scratch, source, SIDE), simd.load(scratch, source + SIDE, SIDE))
            simd.store(scratch, to + t // 2, pair)
        if c + 1 == squares:
            for t in range(half, SQUARE, SIDE):
                simd.store(scratch, to + t, simd.zeros(SIDE))
        turn(scratch, to, to)
