"""Passes over a long row of scores: they find at most SIZE tokens among which a target is reached, or one score.

A target is a cumulative weight, or a number of tokens. A pass, the survey, sums the weights of the tokens at or above
each of four keys. The target is reached between two of these keys, and the next survey looks only there.

Where to cut is guessed. Suppose that the scores have a normal distribution with mean m and deviation d. Then scores
that are counted by their weights have one with mean m + d * d / temperature and the same deviation. So the score is
known at which such a row reaches the target. Two of the keys enclose it, and few tokens lie between them. A wrong guess
costs further surveys; except within rounding, the token is the same. In every second further survey the keys are at
equal distances. So a target takes at most 32 of them: 16 divide the range of 2^32 keys by four, with a guess before
each.

A row is read in LANES lanes, one per thread: lane i has the tokens i, i + LANES and so on. A survey also counts the
tokens of each lane. So every lane knows where its ids begin in the workspace, and the loop of the copy needs no sum
over the block.

The limit is the rate of instructions: per score, a survey takes some 20 for the weight, six for each key, and eight to
load. It is slow if many scores are finite but far below the others, such as banned tokens at -1e4: they make the mean
and the deviation useless, and a target takes about ten surveys.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from tilewright.ops.sample.tile.records import key_of, load_scores

CUTS = tl.constexpr(4)  # keys of a survey: the start of the range, and three inside
LANES = tl.constexpr(512)  # 32 for each warp that `narrow` uses for a long row
UNROLLED = tl.constexpr(4)  # tokens of a lane without a branch
ROUNDER = tl.constexpr(1.5 * 2.0**52)  # added to a float64, it rounds to an integer, which the last bits hold


class Row(NamedTuple):
    """A row and its rules. start: pointer to V float32 scores. most: the highest, float64. scale: log2(e) /
    temperature, float64. lowest: lowest key of a finite score, int64. mean, deviation: of the finite scores, float32.
    shift: deviation / temperature, float32. workspace: pointer to SIZE int32."""

    start: Any
    V: Any
    most: Any
    scale: Any
    lowest: Any
    mean: Any
    deviation: Any
    shift: Any
    workspace: Any


class Survey(NamedTuple):
    """Sums over the tokens at or above each of `cuts`, int32 (CUTS,) rising keys. weights: float64 (CUTS,). counts:
    tokens of each lane, int32 (CUTS, LANES)."""

    cuts: Any
    weights: Any
    counts: Any


class Span(NamedTuple):
    """Keys from `low` on and below `end`, both int64. weight, inside_weight: of the tokens from `end` on, and of those
    in the span, float64. above, inside: their numbers, int64. lanes_above, lanes_inside: their numbers in each lane,
    int32 (LANES,)."""

    low: Any
    end: Any
    weight: Any
    inside_weight: Any
    above: Any
    inside: Any
    lanes_above: Any
    lanes_inside: Any


@triton.jit
def score_of(key):
    """The float32 scores of integer keys: the inverse of `key_of`."""
    bits = key.to(tl.int32)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def step(p, f, c: tl.constexpr):
    """p * f + c in float64: a step of Horner's rule."""
    return tl.fma(p, f, tl.full((), c, tl.float64))


@triton.jit
def weights_of(x, row):
    """The weight of each score: float64 exp((x - most) / temperature). Where this is below 2^-1022, also for a score of
    -inf, it is about 2^-1022.

    The exponent to the base 2 is split into an integer n and a fraction f from -0.5 to 0.5. A polynomial equals 2^f at
    Chebyshev's nodes; its relative error is 3e-16. Adding n to its exponent bits multiplies it by 2^n. This takes half
    of the instructions of a division and tl.exp. The rounding of the exponent adds 2e-16 for each unit of it: 7e-15 for
    a weight of 1e-13.
    """
    least = -1022.0 / row.scale
    distance = x.to(tl.float64) - row.most
    distance = tl.where(distance > least, distance, least)
    rounder = tl.full((), ROUNDER, tl.float64)
    shifted = tl.fma(distance, row.scale, rounder)  # n, in the last bits
    f = tl.fma(distance, row.scale, rounder - shifted)
    p = step(tl.full((), 7.072585949269223e-09, tl.float64), f, 1.0208690299958306e-07)
    p = step(step(p, f, 1.321544258792169e-06), f, 1.5252657260200837e-05)
    p = step(step(p, f, 0.0001540353044173605), f, 0.0013333558230164974)
    p = step(step(p, f, 0.009618129107606888), f, 0.05550410866444772)
    p = step(step(p, f, 0.24022650695910097), f, 0.69314718055995)
    bits = step(p, f, 1.0).to(tl.int64, bitcast=True) + (shifted.to(tl.int64, bitcast=True) << 52)
    return bits.to(tl.float64, bitcast=True)


@triton.jit
def tail(z):
    """The share of a normal distribution above z deviations from its mean, float32."""
    return 0.5 - 0.5 * tl.erf(z * 0.70710678)


@triton.jit
def tail_point(share):
    """The inverse of `tail`, for shares from 1e-7 to 1 - 1e-7, with an error below 0.00045 (Abramowitz and Stegun,
    Handbook of Mathematical Functions, 26.2.23)."""
    share = tl.minimum(tl.maximum(share, 1e-7), 1 - 1e-7)
    t = tl.sqrt(-2.0 * tl.log(tl.minimum(share, 1 - share)))
    z = t - (2.515517 + t * (0.802853 + t * 0.010328)) / (1 + t * (1.432788 + t * (0.189269 + t * 0.001308)))
    return tl.where(share < 0.5, z, -z)


@triton.jit
def guessed_cuts(row, low, end, part, counts, SIZE: tl.constexpr):
    """int32 (CUTS,) keys around the guess for a target: `low`, and three more, none below it, and below `end`. part:
    the fraction of the sum from `low` to `end` at which the target lies, about, float32. counts: the target is a number
    of tokens. low, end: int64."""
    shift = tl.where(counts, 0.0, row.shift)
    top = tail((score_of(end - 1) - row.mean) / row.deviation - shift)
    bottom = tail((score_of(low) - row.mean) / row.deviation - shift)
    share = tail(shift + tail_point(top + part * (bottom - top)))  # of the tokens
    indices = tl.arange(0, CUTS)
    share += SIZE * (2.0 - 0.8 * indices.to(tl.float32)) / row.V  # the guess lies midway between keys 2 and 3
    keys = key_of(row.mean + row.deviation * tail_point(share)).to(tl.int64)
    keys = tl.where(indices == 0, low, tl.minimum(tl.maximum(keys, low), end - 1))
    before = indices[None, :] <= indices[:, None]
    return tl.max(tl.where(before, keys[None, :], low), 1).to(tl.int32)  # however the guess was rounded, they rise


@triton.jit
def equal_cuts(low, end):
    """int32 (CUTS,) keys from `low` on and below `end`, both int64, at equal distances."""
    return tl.minimum(low + (end - low + CUTS - 1) // CUTS * tl.arange(0, CUTS), end - 1).to(tl.int32)


@triton.jit
def surveyed(row, cuts):
    """The `Survey` of a row at these int32 (CUTS,) keys, all at or above its lowest: one pass."""
    sums, counts = tl.zeros((CUTS, LANES), tl.float64), tl.zeros((CUTS, LANES), tl.int32)
    least = score_of(cuts)[:, None]
    for first in range(0, row.V, LANES * UNROLLED):
        for i in tl.static_range(UNROLLED):
            _, x = load_scores(row.start, first + i * LANES, row.V, LANES)
            higher = x[None, :] >= least
            sums += tl.where(higher, weights_of(x, row)[None, :], 0.0)
            counts += higher.to(tl.int32)
    return Survey(cuts, tl.sum(sums, 1), counts)


@triton.jit
def between(survey, span, target, counts: tl.constexpr):
    """(the `Span` between two cuts in which the target is reached, target). span: what `survey` covers; its end and
    sums apply after the last cut. target: float64; above the sum of all it becomes that sum. counts: the target is a
    number of tokens, not a weight."""
    indices = tl.arange(0, CUTS)
    tokens = tl.sum(survey.counts.to(tl.int64), 1)
    sums = tokens.to(tl.float64) if counts else survey.weights
    target = tl.minimum(target, tl.max(sums, 0))
    cut = tl.sum((sums >= target).to(tl.int32), 0) - 1  # sums never rise, so the first ones reach the target
    last, here, after = cut == CUTS - 1, indices == cut, indices == cut + 1
    low = tl.sum(tl.where(here, survey.cuts, 0), 0).to(tl.int64)
    end = tl.where(last, span.end, tl.sum(tl.where(after, survey.cuts, 0), 0).to(tl.int64))
    weight = tl.where(last, span.weight, tl.sum(tl.where(after, survey.weights, 0.0), 0))
    inside_weight = tl.sum(tl.where(here, survey.weights, 0.0), 0) - weight
    above = tl.where(last, span.above, tl.sum(tl.where(after, tokens, 0), 0))
    inside = tl.sum(tl.where(here, tokens, 0), 0) - above
    lanes_above = tl.where(last, span.lanes_above, tl.sum(tl.where(after[:, None], survey.counts, 0), 0))
    lanes_inside = tl.sum(tl.where(here[:, None], survey.counts, 0), 0) - lanes_above
    return Span(low, end, weight, inside_weight, above, inside, lanes_above, lanes_inside), target


@triton.jit
def whole(row, low):
    """The `Span` from the key `low` to the best one, with sums of 0 inside."""
    none, zero, lanes = tl.full((), 0, tl.int64), tl.full((), 0, tl.float64), tl.zeros((LANES,), tl.int32)
    highest = key_of(row.most.to(tl.float32)).to(tl.int64)
    return Span(low, highest + 1, zero, zero, none, none, lanes, lanes)


@triton.jit
def narrowed(row, survey, low, target, counts: tl.constexpr, SIZE: tl.constexpr):
    """(the `Span` in which the target is reached, target): at most SIZE tokens inside, or one key. survey: of the whole
    row. low: the lowest key that may be the result; further surveys begin there. target: as in `between`."""
    span, target = between(survey, whole(row, low), target, counts)
    guessing = tl.full((), 1, tl.int32)
    while (span.inside > SIZE) & (span.end - span.low > 1):
        first = tl.maximum(span.low, tl.minimum(low, span.end - 1))
        if counts:
            part = (target - span.above) / span.inside
        else:
            part = (target - span.weight) / span.inside_weight
        if guessing > 0:
            cuts = guessed_cuts(row, first, span.end, part.to(tl.float32), counts, SIZE)
        else:
            cuts = equal_cuts(first, span.end)
        span, target = between(surveyed(row, cuts), span, target, counts)
        guessing = 1 - guessing
    return span, target


@triton.jit
def gather(row, span):
    """Write the ids of the tokens of a span to the workspace: lane by lane, in a lane from the lowest id on."""
    at = tl.cumsum(span.lanes_inside, 0) - span.lanes_inside
    low, end = score_of(span.low), score_of(span.end)
    for first in range(0, row.V, LANES * UNROLLED):
        for i in tl.static_range(UNROLLED):
            ids, x = load_scores(row.start, first + i * LANES, row.V, LANES)
            taken = (x >= low) & (x < end)
            tl.store(row.workspace + at, ids, mask=taken)
            at += taken.to(tl.int32)
    tl.debug_barrier()  # other threads load them
