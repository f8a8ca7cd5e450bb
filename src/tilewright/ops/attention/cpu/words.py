"""Attention on words of two bfloat16, in vectors, with the sums of AMX's tile product in the same order.

TDPBF16PS multiplies 32 elements of a row by a column in two chains of multiply-adds: one for the first elements of the
words, one for the second. Then it adds both sums to its tile. Vectors that sum in the same order give the same bits. So
a position has the same bits in a prompt, which `tiles` multiplies where a CPU has AMX, and alone, which this file
multiplies. There are two exceptions. Tiles take elements below 1e-38 for zero. A block computes 0 * infinity = NaN for
all its rows if a later position holds an infinity, and the blocks of both files have other heights.

Weights are exp(scale * (score - largest)), rounded to bfloat16 for the product with the values. The results are divided
by the sum of the weights before rounding. As in `blocks`, prompts are limited by multiply-adds and single queries by
the bandwidth of the cache; against float32 the cache has half the bytes. It is slower than `tiles` for prompts where a
CPU has AMX. Source of the order: Intel SDM, volume 2, TDPBF16PS.
"""

import functools
from typing import NamedTuple

import numpy as np

from tilewright import simd
from tilewright.ops.attention.cpu.prefetch import panel_prefetcher
from tilewright.ops.attention.operands import PANEL_VECTORS

TILE_WORDS = 16  # words of a row that one tile product multiplies
LOW = 4  # rows up to which two vectors side by side, with three sums each, stay in registers
QUERIES = 16  # offset of the widened queries in scratch; before them, 1 / the sum of each row's weights
RAMP = np.arange(16, dtype=np.float32)


class Layout(NamedTuple):
    """Scratch of a block. padded: words of a head, rounded up to whole vectors. scores: offset of the scores, which
    become weights. end: keys, rounded up to whole vectors, which is the stride of the scores' rows. length: keys that
    the last row may attend to."""

    padded: int
    scores: int
    end: int
    length: int


@functools.cache
def masker(lanes: int):
    """The inline function that hides the keys that a query may not attend to."""

    @simd.inline
    def mask(scores, at, visible, end):
        """scores[at : at + end], whole vectors, = -infinity after the first `visible`. Returns the largest of all in
        every lane."""
        hidden, ramp = simd.splat(np.float32(-np.inf), lanes), simd.load(RAMP, 0, lanes)
        best = hidden
        for t in range(0, end, lanes):
            x = simd.load(scores, at + t, lanes)
            if t + lanes > visible:  # a vector: the load of elements just stored one by one would wait for the cache
                x = simd.select_greater(simd.splat(np.float32(visible - t), lanes), ramp, x, hidden)
                simd.store(scores, at + t, x)
            best = simd.select_greater(best, x, best, x)  # a NaN among them makes the sum one
        return simd.splat(simd.reduce_max(best), lanes)

    return mask


@functools.cache
def weights_of_row(lanes: int):
    """The inline function that replaces a query's scores by weights."""
    mask = masker(lanes)

    @simd.inline
    def exponentiate(scores, at, visible, end, scale):
        """scores[at : at + end], whole vectors, = bfloat16(exp(scale * (score - the largest))) of the first `visible`,
        then zeros. Returns 1 / their sum before rounding."""
        most, factor = mask(scores, at, visible, end), simd.splat(scale, lanes)
        total = zero = simd.zeros(lanes)
        for t in range(0, end, lanes):
            x = simd.exp(simd.multiply(simd.subtract(simd.load(scores, at + t, lanes), most), factor))
            simd.store(scores, at + t, simd.pair_rounded(zero, x))  # a word whose first element is 0 is a float32
            total = simd.add(total, x)
        return np.float32(1) / simd.reduce_add(total)

    return exponentiate


@functools.cache
def product_functions(lanes: int):
    """(widen queries, score keys, multiply weights by values): inline functions of a block of `height` rows, with
    `vectors` vectors per row."""
    PANEL, prefetch_panel = PANEL_VECTORS * lanes, panel_prefetcher(lanes)

    @simd.inline
    def widen(height, arrays, block, layout, job, scratch):
        """Write the first elements of query i's words to scratch[QUERIES + 2 * i * padded :], the second elements
        `padded` later."""
        for i in range(height):
            for w in range(0, job.head_words, lanes):
                words = simd.load_first(arrays.q, block.at.q + i * block.step.q + w, job.head_words - w, lanes)
                target = QUERIES + 2 * i * layout.padded + w
                simd.store(scratch, target, simd.first_halves(words))
                simd.store(scratch, target + layout.padded, simd.second_halves(words))

    @simd.inline
    def score(height, vectors, arrays, block, t, layout, job, scratch):
        """The widened queries against the keys from key t on."""
        words, panel, stride, step = job.head_words, t // PANEL * PANEL, 2 * layout.padded, block.step.keys
        keys_at = block.at.keys + panel * words + t % PANEL
        next_at, values_at = block.next_keys + panel * words, block.at.values + panel // 2 * job.width
        total = simd.block_zeros(height, vectors, lanes)
        for start in range(0, words, TILE_WORDS):
            firsts, seconds = simd.block_zeros(height, vectors, lanes), simd.block_zeros(height, vectors, lanes)
            for w in range(start, min(start + TILE_WORDS, words)):
                q_at, k_at = QUERIES + w, keys_at + w * PANEL
                firsts = simd.block_rank1_first(firsts, scratch, q_at, stride, arrays.keys, k_at, step)
                seconds = simd.block_rank1_second(
                    seconds, scratch, q_at + layout.padded, stride, arrays.keys, k_at, step
                )
                prefetch_panel(height, arrays, block, next_at + w * PANEL, values_at + w * PANEL)
            total = simd.block_sum(total, simd.block_sum(firsts, seconds))
        simd.block_store(total, scratch, layout.scores + t, layout.end, vectors * lanes)

    @simd.inline
    def weigh(height, vectors, arrays, block, d, layout, job, scratch):
        """Results from element d on: weights times values."""
        at, step, weights_at, end = block.at.values + d, block.step.values, layout.scores, layout.end
        total = simd.block_zeros(height, vectors, lanes)
        for start in range(0, layout.length, 2 * TILE_WORDS):
            firsts, seconds = simd.block_zeros(height, vectors, lanes), simd.block_zeros(height, vectors, lanes)
            last = min(start + 2 * TILE_WORDS, layout.length)
            for t in range(start, last - 1, 2):
                v_at = at + t // 2 * job.width
                firsts = simd.block_rank1_first(firsts, scratch, weights_at + t, end, arrays.values, v_at, step)
                seconds = simd.block_rank1_second(seconds, scratch, weights_at + t + 1, end, arrays.values, v_at, step)
            if (last - start) % 2:  # the other half of its word was never written
                v_at = at + last // 2 * job.width
                firsts = simd.block_rank1_first(firsts, scratch, weights_at + last - 1, end, arrays.values, v_at, step)
            total = simd.block_sum(total, simd.block_sum(firsts, seconds))
        total = simd.block_scale_rows(total, scratch, 0)
        simd.block_put(total, arrays.out, block.at.out + d, block.step.out, job.head_size - d)

    return widen, score, weigh


@functools.cache
def word_block_function(lanes: int):
    """The inline function that computes a block of bfloat16: scores, weights, weights times values."""
    PANEL, exponentiate, (widen, score, weigh) = PANEL_VECTORS * lanes, weights_of_row(lanes), product_functions(lanes)

    @simd.inline
    def attend_block(height, arrays, block, scale, job, scratch):
        length = block.visible + block.more * (height - 1)
        padded, end = (job.head_words + lanes - 1) // lanes * lanes, (length + lanes - 1) // lanes * lanes
        layout = Layout(padded, QUERIES + 2 * height * padded, end, length)
        widen(height, arrays, block, layout, job, scratch)
        t = 0
        while t < end:
            if height <= LOW and end - t > lanes:
                score(height, PANEL_VECTORS, arrays, block, t, layout, job, scratch)
                t += PANEL
            else:
                score(height, 1, arrays, block, t, layout, job, scratch)
                t += lanes
        for i in range(height):
            visible = block.visible + i * block.more
            simd.put(scratch, i, exponentiate(scratch, layout.scores + i * end, visible, end, scale))
        d = 0
        while d < job.head_size:
            if height <= LOW and job.head_size - d > lanes:
                weigh(height, PANEL_VECTORS, arrays, block, d, layout, job, scratch)
                d += PANEL
            else:
                weigh(height, 1, arrays, block, d, layout, job, scratch)
                d += lanes

    return attend_block


def scratch_words(height: int, length: int, D: int, lanes: int) -> int:
    """Words of scratch for blocks of up to `height` rows that attend to up to `length` positions."""
    padded, end = (-(-n // lanes) * lanes for n in ((D + 1) // 2, length))
    return QUERIES + height * (2 * padded + end)
