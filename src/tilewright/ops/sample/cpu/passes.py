"""Passes over a row in vectors: it comes in, its best score, its weights."""

import functools

import numpy as np

from tilewright import simd
from tilewright.ops.sample.operands import END, NUMBER, SHIFT, WORD

MOST = 1e300  # of 1 / temperature: more would make 0 * infinity of the best score


@functools.cache
def row_functions(lanes: int):
    """(load_row, highest, weigh): passes over a row, for a vector width."""
    half = lanes // 2

    @simd.inline
    def load_row(logits, at, V, room):
        """A row becomes room.scores; whether all are finite."""
        zero, check = simd.zeros(lanes), simd.zeros(lanes)
        c = 0
        while c + lanes <= V:
            x = simd.load(logits, at + c, lanes)
            check = simd.fma(x, zero, check)  # NaN behind an infinity or a NaN
            simd.store(room.scores, c, simd.add(x, zero))  # no negative zero: bits are in the order of numbers
            c += lanes
        if c < V:
            x = simd.load_first(logits, at + c, V - c, lanes)
            check = simd.fma(x, zero, check)
            simd.store(room.scores, c, simd.add(x, zero))
            for i in range(V, c + lanes):
                room.scores[i] = -np.inf
        return simd.reduce_add(check) == 0

    @simd.inline
    def highest(room, m):
        """The largest score; none is NaN."""
        s = t = simd.splat(np.float32(-np.inf), lanes)
        c = 0
        while c + 2 * lanes <= m:
            x, y = simd.load(room.scores, c, lanes), simd.load(room.scores, c + lanes, lanes)
            s, t = simd.select_greater(x, s, x, s), simd.select_greater(y, t, y, t)
            c += 2 * lanes
        while c < m:
            x = simd.load(room.scores, c, lanes)
            s = simd.select_greater(x, s, x, s)
            c += lanes
        return simd.reduce_max(simd.select_greater(s, t, s, t))

    @simd.inline
    def weigh(room, m, top, temperature):
        """Distances from the best score `top`, weights exp(-distance / temperature), and their sum."""
        highest, wide = simd.splat(top, lanes), simd.splat_double(np.float64(top), half)
        inverse = simd.splat_double(min(1.0 / temperature, MOST), half)
        s = t = simd.splat_double(0.0, half)
        for c in range(0, m, lanes):
            simd.store(room.distances, c, simd.subtract(highest, simd.load(room.scores, c, lanes)))
            x, y = simd.load_double(room.scores, c, half), simd.load_double(room.scores, c + half, half)
            x = simd.exp_double(simd.multiply(simd.subtract(x, wide), inverse))
            y = simd.exp_double(simd.multiply(simd.subtract(y, wide), inverse))
            simd.store(room.weights, c, x)
            simd.store(room.weights, c + half, y)
            s, t = simd.add(s, x), simd.add(t, y)
        return simd.reduce_add_double(simd.add(s, t))

    return load_row, highest, weigh


@simd.inline
def edit_row(room, numbers, words, ids):
    """Repetition penalty and min_tokens; numbers, words: the row's."""
    penalty = numbers[NUMBER.penalty]
    for i in range(words[WORD.seen], words[WORD.seen_end]):
        room.distances[ids[i]] = room.scores[ids[i]]
    for i in range(words[WORD.seen], words[WORD.seen_end]):  # a token seen twice: both writes are equal
        x = np.float64(room.distances[ids[i]])
        room.scores[ids[i]] = np.float32(x / penalty if x > 0 else x * penalty) + np.float32(0)
    for i in range(words[WORD.seen_end], words[WORD.banned_end]):
        room.scores[ids[i]] = -np.inf


@simd.inline
def shift_row(room, V, numbers, words, ids, shifts, ends):
    """`edit_row` where something is added to logits, or few tokens are allowed; ends: the row's."""
    scores, kept, penalty = room.scores, room.distances, numbers[NUMBER.penalty]
    for i in range(words[WORD.seen], ends[END.shifted_end]):
        kept[ids[i]] = scores[ids[i]]
    for i in range(words[WORD.seen], words[WORD.seen_end]):  # a token twice: both writes are equal
        x = np.float64(kept[ids[i]]) + shifts[i, SHIFT.before]
        x = x / penalty if x > 0 else x * penalty
        scores[ids[i]] = np.float32(x + shifts[i, SHIFT.after]) + np.float32(0)
    for i in range(words[WORD.banned_end], ends[END.shifted_end]):
        x = np.float64(kept[ids[i]]) + shifts[i, SHIFT.before]
        scores[ids[i]] = np.float32(x + shifts[i, SHIFT.after]) + np.float32(0)
    for i in range(words[WORD.seen_end], words[WORD.banned_end]):
        scores[ids[i]] = -np.inf
    if ends[END.shifted_end] < ends[END.allowed_end]:
        for i in range(ends[END.shifted_end], ends[END.allowed_end]):
            kept[ids[i]] = scores[ids[i]]
        for token in range(V):
            scores[token] = -np.inf
        for i in range(ends[END.shifted_end], ends[END.allowed_end]):
            scores[ids[i]] = kept[ids[i]]
