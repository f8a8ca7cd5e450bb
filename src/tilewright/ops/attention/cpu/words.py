"""Attention on words of two bfloat16, in vectors, with the sums of AMX's tile product, number for number.

TDPBF16PS multiplies 32 numbers of a row by a column as two chains of multiply-adds, the first numbers of the words in
one and the second in the other, and adds the two to its tile. Blocks of vectors that sum in the same order give the
same bits, so a position's do not depend on whether it came in a prompt, which `tiles` multiplies where a CPU has them,
or alone, which is this file's. (Numbers below 1e-38, which tiles take for zero, may differ, and what is not finite: a
later position's infinity times a share of zero is NaN in all rows of a block, and blocks have other heights.)

Odds are rounded to bfloat16 before they meet the values and divided by their sum afterwards. Source of the order: Intel
SDM, volume 2, TDPBF16PS.
"""

import functools

import numpy as np

from tilewright import simd
from tilewright.ops.attention.cpu.expect import asking
from tilewright.ops.attention.operands import PANEL_VECTORS

TILE_WORDS = 16  # words of a row that one tile product multiplies
LOW = 4  # rows up to which two vectors side by side, three sums each, stay in registers
INVERSES = 16  # numbers of scratch for 1 / the sum of a row's odds; the queries, widened, follow, then the scores
RAMP = np.arange(16, dtype=np.float32)


@functools.cache
def hider(lanes: int):
    """The inline function that hides what a query may not see."""

    @simd.inline
    def hide(scores, at, visible, end):
        """scores.flat[at : at + end], whole vectors, = -infinity behind the first `visible`. Returns the largest of all
        in every lane."""
        hidden, ramp = simd.splat(np.float32(-np.inf), lanes), simd.load(RAMP, 0, lanes)
        best = hidden
        for t in range(0, end, lanes):
            x = simd.load(scores, at + t, lanes)
            if t + lanes > visible:  # numbers stored one by one would have to reach the cache before they are loaded
                x = simd.select_greater(simd.splat(np.float32(visible - t), lanes), ramp, x, hidden)
                simd.store(scores, at + t, x)
            best = simd.select_greater(best, x, best, x)  # a NaN among them makes the sum one
        return simd.splat(simd.reduce_max(best), lanes)

    return hide


@functools.cache
def odds_of_row(lanes: int):
    """The inline function that turns a query's scores into odds."""
    hide = hider(lanes)

    @simd.inline
    def odds(scores, at, visible, end, scale):
        """scores.flat[at : at + end], whole vectors, = bfloat16(exp(scale * (score - the largest))) of the first
        `visible`, then zeros. Returns 1 / their sum before rounding."""
        most, factor = hide(scores, at, visible, end), simd.splat(scale, lanes)
        total = nothing = simd.zeros(lanes)
        for t in range(0, end, lanes):
            x = simd.exp(simd.multiply(simd.subtract(simd.load(scores, at + t, lanes), most), factor))
            simd.store(scores, at + t, simd.pair_rounded(nothing, x))  # a word with nothing below it is a float32
            total = simd.add(total, x)
        return np.float32(1) / simd.reduce_add(total)

    return odds


@functools.cache
def product_functions(lanes: int):
    """(queries widened, their scores, odds times values): inline functions of a block of `height` rows."""
    PANEL, ask = PANEL_VECTORS * lanes, asking(lanes)

    @simd.inline
    def widen(height, q, at, step, words, room, scratch):
        """Row i of q: its first numbers to scratch[INVERSES + 2 * i * room :], the second `room` further."""
        for i in range(height):
            for w in range(0, words, lanes):
                pairs, to = simd.load_first(q, at + i * step + w, words - w, lanes), INVERSES + 2 * i * room + w
                simd.store(scratch, to, simd.first_halves(pairs))
                simd.store(scratch, to + room, simd.second_halves(pairs))

    @simd.inline
    def score(height, vectors, keys, place, sizes, scratch, target, ahead):
        """The widened rows against `vectors` vectors of keys. place: (where, step between the rows' keys); sizes:
        (words of a row, room for them); target: (where, step); ahead: as `expect.asking`."""
        total, (at, step), (words, room) = simd.block_zeros(height, vectors, lanes), place, sizes
        for begin in range(0, words, TILE_WORDS):
            firsts, seconds = simd.block_zeros(height, vectors, lanes), simd.block_zeros(height, vectors, lanes)
            for w in range(begin, min(begin + TILE_WORDS, words)):
                q_at, k_at = INVERSES + w, at + w * PANEL
                firsts = simd.block_rank1_first(firsts, scratch, q_at, 2 * room, keys, k_at, step)
                seconds = simd.block_rank1_second(seconds, scratch, q_at + room, 2 * room, keys, k_at, step)
                ask(height, ahead, w)
            total = simd.block_sum(total, simd.block_sum(firsts, seconds))
        simd.block_store(total, scratch, target[0], target[1], vectors * lanes)

    @simd.inline
    def weigh(height, vectors, values, place, width, length, scratch, source):
        """`vectors` vectors of `height` results: rows of odds times values. place: (where, step between the rows'
        values); source: (where the odds lie, step)."""
        total, (at, step), (odds_at, end) = simd.block_zeros(height, vectors, lanes), place, source
        for begin in range(0, length, 2 * TILE_WORDS):
            firsts, seconds = simd.block_zeros(height, vectors, lanes), simd.block_zeros(height, vectors, lanes)
            last = min(begin + 2 * TILE_WORDS, length)
            for t in range(begin, last - 1, 2):
                v_at = at + t // 2 * width
                firsts = simd.block_rank1_first(firsts, scratch, odds_at + t, end, values, v_at, step)
                seconds = simd.block_rank1_second(seconds, scratch, odds_at + t + 1, end, values, v_at, step)
            if (last - begin) % 2:  # what lies beside its value was never written
                v_at = at + last // 2 * width
                firsts = simd.block_rank1_first(firsts, scratch, odds_at + last - 1, end, values, v_at, step)
            total = simd.block_sum(total, simd.block_sum(firsts, seconds))
        return simd.block_scale_rows(total, scratch, 0)

    return widen, score, weigh


@functools.cache
def word_block_function(lanes: int):
    """The inline function that computes a block: scores, odds, values; see `blocks.block_function`."""
    PANEL, odds, (widen, score, weigh) = PANEL_VECTORS * lanes, odds_of_row(lanes), product_functions(lanes)

    @simd.inline
    def attend_block(height, arrays, at, steps, seen, scale, job, scratch):
        (q, keys, values, out), (q_at, k_at, v_at, o_at), (q_step, k_step, v_step, o_step) = arrays, at, steps
        (visible, more, coming), D = seen, job.head_size
        words, length = D // 2, visible + more * (height - 1)
        room, end = (words + lanes - 1) // lanes * lanes, (length + lanes - 1) // lanes * lanes
        scores = INVERSES + 2 * height * room
        widen(height, q, q_at, q_step, words, room, scratch)
        t = 0
        while t < end:
            panel = t // PANEL * PANEL
            place, target = (k_at + panel * words + t % PANEL, k_step), (scores + t, end)
            v_next, k_next = v_at + panel // 2 * job.width, coming[1] + panel * words
            ahead = (coming[0], keys, k_next, k_step, values, v_next, v_step)
            if height <= LOW and end - t > lanes:
                score(height, PANEL_VECTORS, keys, place, (words, room), scratch, target, ahead)
                t += PANEL
            else:
                score(height, 1, keys, place, (words, room), scratch, target, ahead)
                t += lanes
        for i in range(height):
            simd.put(scratch, i, odds(scratch, scores + i * end, visible + i * more, end, scale))
        d = 0
        while d < D:
            place, source = (v_at + d, v_step), (scores, end)
            if height <= LOW and D - d > lanes:
                sums = weigh(height, PANEL_VECTORS, values, place, job.width, length, scratch, source)
                simd.block_put(sums, out, o_at + d, o_step, D - d)
                d += PANEL
            else:
                sums = weigh(height, 1, values, place, job.width, length, scratch, source)
                simd.block_put(sums, out, o_at + d, o_step, D - d)
                d += lanes

    return attend_block


def scratch_words(height: int, length: int, D: int, lanes: int) -> int:
    """Numbers of scratch for blocks of up to `height` rows that see up to `length` positions."""
    words = (D + 1) // 2
    room, end = (-(-n // lanes) * lanes for n in (words, length))
    return INVERSES + height * (2 * room + end)
