"""Attention on AMX tiles: 16 queries of a head against 16 keys, and their weights times 32 values, are tile products.

The operands need no packing. A tile of queries is loaded from the rows of the batch, and the cache's words are tiles
already: panels of keys, 32 elements deep, and pairs of values, 16 elements wide. Scores and weights stay in L1. `words`
computes the same sums in vectors. Here a prompt of 16 tokens takes six products, a hundred cycles, instead of 2,000
multiply-adds, so the softmax of `transposed` is the limit. It is slow for single queries: 15 of 16 rows would be idle,
so `blocks` sends them to `words`.
"""

import functools
from typing import Any, NamedTuple

from tilewright import simd
from tilewright.hardware import cpu
from tilewright.ops.attention.cpu.records import query_block
from tilewright.ops.attention.cpu.transposed import SIDE, SQUARE, exponentiate, round_weights, transpose_scores
from tilewright.ops.attention.operands import SPAN

PANEL = 2 * SIDE  # keys of a panel: CPUs with tiles have vectors of 16 lanes
DEPTH = 2 * SIDE  # elements that one tile product multiplies
GROUP = 4  # tiles of results at once, 16 columns each
# offsets in scratch: simd.amx's state, results (16 x 64), sums, tiles of values, queries; then scores and weights
STATE = 9 * SQUARE
RESULTS, SUMS = STATE, STATE + GROUP * SQUARE
VALUES = SUMS + SQUARE
QUERIES = VALUES + GROUP * SQUARE


class Buffers(NamedTuple):
    """scratch: flat words. state: the part of it that `simd.amx` uses, (9, SIDE, SIDE)."""

    scratch: Any
    state: Any


class Queries(NamedTuple):
    """16 rows of words in `array`, from offset `at` on, `step` words apart."""

    array: Any
    at: int
    step: int


@functools.cache
def score_function(tiles):
    """The inline function that scores 16 queries."""
    zero, load, store, dot = tiles.zero, tiles.load, tiles.store, tiles.dot

    @simd.inline
    def score(queries, keys, keys_at, words, length, buffers, scores):
        """Score queries of `words` words and `length` keys from keys[keys_at] on; write squares to scratch at
        `scores`."""
        state = buffers.state
        for t in range(0, length, PANEL):
            both = length - t > SIDE
            zero(state, 0)
            zero(state, 1)
            for w in range(0, words, SIDE):
                at = keys_at + t * words + w * PANEL
                load(state, 4, queries.array, queries.at + w, queries.step)
                load(state, 5, keys, at, PANEL)
                dot(state, 0, 4, 5)
                if both:
                    load(state, 6, keys, at + SIDE, PANEL)
                    dot(state, 1, 4, 6)
            store(state, 0, buffers.scratch, scores + t * SIDE, SIDE)
            if both:
                store(state, 1, buffers.scratch, scores + t * SIDE + SQUARE, SIDE)

    return score


@functools.cache
def weigh_function(tiles):
    """The inline function that multiplies weights by values."""
    zero, load, store, dot = tiles.zero, tiles.load, tiles.store, tiles.dot

    @simd.inline
    def copy_last_values(many, values, at, width, left, scratch):
        """The last `left` positions of values, fewer than a tile's, to VALUES, with zeros after them."""
        row = many * SIDE
        for r in range(left // 2):
            for d in range(0, row, SIDE):
                simd.store(scratch, VALUES + r * row + d, simd.load(values, at + r * width + d, SIDE))
        if left % 2:
            for d in range(0, row, SIDE):
                pair = simd.join_firsts(simd.load(values, at + left // 2 * width + d, SIDE), simd.zeros(SIDE))
                simd.store(scratch, VALUES + left // 2 * row + d, pair)
        for d in range((left + 1) // 2 * row, SIDE * row, SIDE):
            simd.store(scratch, VALUES + d, simd.zeros(SIDE))

    @simd.inline
    def multiply(many, array, at, stride, state):
        """Add the tile of weights times `many` tiles of values to the results."""
        load(state, 5, array, at, stride)
        dot(state, 0, 4, 5)
        load(state, 6, array, at + SIDE, stride)
        dot(state, 1, 4, 6)
        if many == GROUP:
            load(state, 7, array, at + 2 * SIDE, stride)
            dot(state, 2, 4, 7)
            load(state, 5, array, at + 3 * SIDE, stride)
            dot(state, 3, 4, 5)

    @simd.inline
    def weigh(many, values, at, width, length, buffers, weights):
        """`many` tiles of results, 4 or 2, side by side at RESULTS: weights at `weights` times `length` positions of
        values from values[at] on, `width` words apart."""
        scratch, state = buffers.scratch, buffers.state
        zero(state, 0)
        zero(state, 1)
        if many == GROUP:
            zero(state, 2)
            zero(state, 3)
        for t in range(0, length, DEPTH):
            load(state, 4, scratch, weights + t * SIDE // 2, SIDE)
            if length - t < DEPTH:
                copy_last_values(many, values, at + t // 2 * width, width, length - t, scratch)
                multiply(many, scratch, VALUES, many * SIDE, state)
            else:
                multiply(many, values, at + t // 2 * width, width, state)
        store(state, 0, scratch, RESULTS, many * SIDE)
        store(state, 1, scratch, RESULTS + SIDE, many * SIDE)
        if many == GROUP:
            store(state, 2, scratch, RESULTS + 2 * SIDE, many * SIDE)
            store(state, 3, scratch, RESULTS + 3 * SIDE, many * SIDE)

    return weigh


@functools.cache
def tile_queries(tiles, rounds: bool):
    """The inline function for all queries of a span for one head; rounds: results are bfloat16."""
    score, weigh = score_function(tiles), weigh_function(tiles)
    put = simd.store if not rounds else simd.store_converted if cpu().has("avx512bf16") else simd.store_rounded

    @simd.inline
    def write_results(many, height, scratch, out, at, step):
        """Rows of results, each times 1 / the sum of its weights."""
        for i in range(height):
            inverse = simd.broadcast(scratch, SUMS + i, SIDE)
            for d in range(0, many * SIDE, SIDE):
                x = simd.load(scratch, RESULTS + i * many * SIDE + d, SIDE)
                put(out, at + i * step + d, simd.multiply(x, inverse))

    @simd.inline
    def attend_block(height, arrays, block, scale, job, buffers):
        """Attend from up to 16 queries. Fewer than 16 are first copied to a whole tile in scratch."""
        at, words, scratch = block.at, job.head_words, buffers.scratch
        length = block.visible + block.more * (height - 1)
        squares = (length + SIDE - 1) // SIDE
        scores = QUERIES + SIDE * words
        weights = scores + squares * SQUARE
        if height == SIDE:
            score(Queries(arrays.q, at.q, job.q_step), arrays.keys, at.keys, words, length, buffers, scores)
        else:
            for i in range(height):
                for w in range(0, words, SIDE):
                    simd.store(scratch, QUERIES + i * words + w, simd.load(arrays.q, at.q + i * job.q_step + w, SIDE))
            score(Queries(scratch, QUERIES, words), arrays.keys, at.keys, words, length, buffers, scores)
        best = transpose_scores(scratch, scores, squares, block)
        exponentiate(scratch, scores, squares, best, scale, SUMS)
        round_weights(scratch, scores, squares, weights)
        for d in range(0, job.head_size, GROUP * SIDE):
            if job.head_size - d >= GROUP * SIDE:
                weigh(GROUP, arrays.values, at.values + d, job.width, length, buffers, weights)
                write_results(GROUP, height, scratch, arrays.out, at.out + d, job.out_step)
            else:
                weigh(2, arrays.values, at.values + d, job.width, length, buffers, weights)
                write_results(2, height, scratch, arrays.out, at.out + d, job.out_step)

    @simd.inline
    def attend_queries(arrays, spans, s, head, scale, job, buffers):
        count = spans[s + SPAN.length]
        for i in range(0, count, SIDE):
            attend_block(min(SIDE, count - i), arrays, query_block(spans, s, head, i, job), scale, job, buffers)

    return attend_queries


def tile_scratch(length: int, D: int) -> int:
    """Words of scratch for queries that attend to up to `length` positions."""
    squares = -(-length // PANEL) * 2
    return QUERIES + SIDE * D // 2 + squares * SQUARE * 3 // 2
