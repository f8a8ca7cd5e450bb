"""Attention on AMX tiles: 16 queries of a head against 16 keys, and their odds times 32 values, are tile products.

A tile of queries is read where it lies in the batch, and the cache's words are tiles as they are: keys side by side, 32
numbers deep, and pairs of values, 16 numbers wide. Scores and odds stay in L1. `words` computes the same sums in
vectors; here a prompt of 16 tokens takes six products, a hundred cycles, in place of 2,000 multiply-adds.
"""

import functools

from tilewright import simd
from tilewright.hardware import cpu
from tilewright.ops.attention.cpu.turned import SIDE, SQUARE, odds_to_words, turn_scores, turned_odds
from tilewright.ops.attention.operands import SPAN

PANEL = 2 * SIDE  # keys of a panel: tiles are there where vectors have 16 lanes
DEEP = 2 * SIDE  # numbers that one tile product multiplies
GROUP = 4  # tiles of results at once: columns of 16
# in scratch, in this order: simd.amx's state, results (16 x 64), sums, a tile of values, queries, scores, odds
STATE = 9 * SQUARE
RESULTS, SUMS = STATE, STATE + GROUP * SQUARE
VALUES = SUMS + SQUARE
QUERIES = VALUES + GROUP * SQUARE


@functools.cache
def score_function(tiles):
    """The inline function that scores 16 queries."""
    zero, load, store, dot = tiles.zero, tiles.load, tiles.store, tiles.dot

    @simd.inline
    def score(queries, q_at, q_step, keys, k_at, sizes, room, target):
        """Rows of words of q against the keys, in squares at `target`. sizes: (words of a head, keys); room: (scratch,
        the state of `simd.amx` in it)."""
        (scratch, state), (words, length) = room, sizes
        for t in range(0, length, PANEL):
            both = length - t > SIDE
            zero(state, 0)
            zero(state, 1)
            for w in range(0, words, SIDE):
                place = k_at + t * words + w * PANEL
                load(state, 4, queries, q_at + w, q_step)
                load(state, 5, keys, place, PANEL)
                dot(state, 0, 4, 5)
                if both:
                    load(state, 6, keys, place + SIDE, PANEL)
                    dot(state, 1, 4, 6)
            store(state, 0, scratch, target + t * SIDE, SIDE)
            if both:
                store(state, 1, scratch, target + t * SIDE + SQUARE, SIDE)

    return score


@functools.cache
def weigh_function(tiles):
    """The inline function that multiplies odds by values."""
    zero, load, store, dot = tiles.zero, tiles.load, tiles.store, tiles.dot

    @simd.inline
    def last_values(many, values, at, width, left, scratch):
        """The last tiles' worth of values, `left` positions, copied with zeros in place of what was never written."""
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
    def step(many, array, at, stride, state):
        """Results += the tile of odds times `many` tiles of values."""
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
    def weigh(many, values, at, width, length, room, odds):
        """`many` tiles of results, 4 or 2, side by side at RESULTS; room: as `score_function`'s."""
        scratch, state = room
        zero(state, 0)
        zero(state, 1)
        if many == GROUP:
            zero(state, 2)
            zero(state, 3)
        for t in range(0, length, DEEP):
            load(state, 4, scratch, odds + t * SIDE // 2, SIDE)
            if length - t < DEEP:
                last_values(many, values, at + t // 2 * width, width, length - t, scratch)
                step(many, scratch, VALUES, many * SIDE, state)
            else:
                step(many, values, at + t // 2 * width, width, state)
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
    def put_results(many, height, scratch, out, at, step):
        """Rows of results, each times 1 / the sum of its odds."""
        for i in range(height):
            inverse = simd.broadcast(scratch, SUMS + i, SIDE)
            for d in range(0, many * SIDE, SIDE):
                x = simd.load(scratch, RESULTS + i * many * SIDE + d, SIDE)
                put(out, at + i * step + d, simd.multiply(x, inverse))

    @simd.inline
    def attend_block(height, arrays, at, seen, scale, job, room):
        """Up to 16 queries; at: of the first in (q, keys, values, out). seen: as `turned.turn_scores`."""
        (q, keys, values, out), (q_at, k_at, v_at, o_at), (visible, more) = arrays, at, seen
        D, length, scratch = job.head_size, visible + more * (height - 1), room[0]
        words, squares = D // 2, (length + SIDE - 1) // SIDE
        scores = QUERIES + SIDE * words
        odds = scores + squares * SQUARE
        if height == SIDE:
            score(q, q_at, job.q_step, keys, k_at, (words, length), room, scores)
        else:
            for i in range(height):
                for w in range(0, words, SIDE):
                    simd.store(scratch, QUERIES + i * words + w, simd.load(q, q_at + i * job.q_step + w, SIDE))
            score(scratch, QUERIES, words, keys, k_at, (words, length), room, scores)
        best = turn_scores(scratch, scores, squares, seen)
        turned_odds(scratch, scores, squares, best, scale, SUMS)
        odds_to_words(scratch, scores, squares, odds)
        for d in range(0, D, GROUP * SIDE):
            if D - d >= GROUP * SIDE:
                weigh(GROUP, values, v_at + d, job.width, length, room, odds)
                put_results(GROUP, height, scratch, out, o_at + d, job.out_step)
            else:
                weigh(2, values, v_at + d, job.width, length, room, odds)
                put_results(2, height, scratch, out, o_at + d, job.out_step)

    @simd.inline
    def attend_queries(arrays, spans, s, head, scale, job, room):
        """As `blocks.head_functions`' second; room: as `score_function`'s."""
        D, causal, slot, count = (
            job.head_size,
            job.causal,
            spans[s + SPAN.slot] * job.heads + head,
            spans[s + SPAN.length],
        )
        k_at, v_at = slot * job.head_keys, slot * job.head_values
        for i in range(0, count, SIDE):
            row, visible = spans[s + SPAN.row] + i, spans[s + SPAN.first] + (i + 1 if causal else count)
            at = (row * job.q_step + head * (D // 2), k_at, v_at, row * job.out_step + head * D)
            attend_block(min(SIDE, count - i), arrays, at, (visible, causal), scale, job, room)

    return attend_queries


def tile_scratch(length: int, D: int) -> int:
    """Numbers of scratch where queries see up to `length` positions."""
    squares = -(-length // PANEL) * 2
    return QUERIES + SIDE * D // 2 + squares * SQUARE * 3 // 2
