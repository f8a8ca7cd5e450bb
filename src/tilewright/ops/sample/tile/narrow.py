"""sample without a sort: as `search`, but with fewer passes over a row of scores.

A target is a cumulative weight (or a number of tokens), and the search finds the key at which it is reached. The kernel
loads a row of up to SHORT_ROW scores once, and computes its weights once. Then it finds each target by halving the
range of keys: one comparison and one sum over registers per step.

For a longer row, passes sum the weights at eight keys, as in `search`, but only until at most CAPACITY tokens lie
between two of these keys. The kernel copies these tokens to a workspace, and goes on halving among them. The tokens
above them are represented by their number and total weight. If more than CAPACITY tokens have the same score, they are
not searched, because their weights are equal. The first pass over a longer row, the survey, is the first step of every
target. Its sum of all weights is the total that u and top_p are multiplied with.

Sums run in the order of a block's lanes, whatever the other rows. The sums of a long row have two parts. Rounding may
leave them below a target that all tokens together reach; then the last token is the result.

One program per row. The limit is latency: each of the 31 halving steps waits for a sum over the block. As `search`, it
is slow if there are few rows.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from tilewright.ops.sample.tile.records import NO_KEY, Point, key_of, limits_of, load_scores
from tilewright.ops.sample.tile.search import CUTS

SHORT_ROW = 4096  # scores: 32 for each of 128 threads, with their weights 96 registers
CAPACITY = 2048  # scores of a longer row that are searched in registers
LEAST_SIZE = 256  # fewer would leave lanes idle
WARPS = {True: 4, False: 16}  # warps for a short row, and for a longer one
BLOCK = tl.constexpr(512)  # scores of a long row at a time, where each is added to CUTS sums
WIDE = tl.constexpr(4096)  # the same, where each is added to one


class Row(NamedTuple):
    """As `records.Row`. lowest: lowest key of a finite score, int64. workspace: pointer to CAPACITY float32."""

    start: Any
    V: Any
    most: Any
    temperature: Any
    lowest: Any
    workspace: Any


class Tokens(NamedTuple):
    """Tokens in registers. keys: int32 (SIZE,). weights: float64 (SIZE,). valid: True for the tokens that count."""

    keys: Any
    weights: Any
    valid: Any


class Survey(NamedTuple):
    """What a row has at each of `cuts`, int32 (CUTS,) keys, or above it. weights: float64. counts: int64, of tokens."""

    cuts: Any
    weights: Any
    counts: Any


class Span(NamedTuple):
    """Keys from `low` on and below `end`. above, weight: the number of tokens from `end` on, and their weight. inside:
    the number of tokens in the span."""

    low: Any
    end: Any
    above: Any
    weight: Any
    inside: Any


@triton.jit
def score_of(key):
    """The float32 score of an int64 key."""
    bits = key.to(tl.int32)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def weights_of(x, row):
    """The weight of each score: float64 exp((x - most) / temperature). It is undefined for a score of -inf.

    The kernel divides by multiplying with 1 / temperature, which all scores of a row share, and then corrects the
    quotient by its remainder. The result is rounded like that of a division, and takes a third of its instructions
    (Markstein, IBM J. Res. Dev. 34, 1990).
    """
    divisor = tl.maximum(row.temperature, 1e-200)  # less has no reciprocal; only the best score then has a weight
    distance, inverse = x.to(tl.float64) - row.most, 1.0 / divisor
    near = distance * inverse
    return tl.exp(tl.fma(tl.fma(-near, divisor, distance), inverse, near))


@triton.jit
def cuts_of(low, end, step):
    """int32 (CUTS,) keys from `low` on, at equal distances: of scores for an even step, of keys for an odd one.

    Equal distances of scores soon leave few of a model's tokens; those of keys end the search whatever the scores.
    """
    indices = tl.arange(0, CUTS)
    first, last = score_of(low).to(tl.float64), score_of(end - 1).to(tl.float64)  # in float32 cuts would not rise
    by_key = tl.minimum(low + (end - low + CUTS - 1) // CUTS * indices, end)
    by_score = key_of((first + (last - first) * (indices.to(tl.float64) / CUTS)).to(tl.float32)).to(tl.int64)
    return tl.where(step % 2 == 0, tl.minimum(tl.maximum(by_score, low), end), by_key).to(tl.int32)


@triton.jit
def surveyed(row, cuts):
    """The `Survey` of a row at these keys: one pass."""
    sums, tokens = tl.zeros((CUTS, BLOCK), tl.float64), tl.zeros((CUTS, BLOCK), tl.int32)
    for first in range(0, row.V, BLOCK):
        ids, x = load_scores(row.start, first, row.V, BLOCK)
        higher = (key_of(x)[None, :] >= cuts[:, None]) & (ids < row.V)[None, :]
        sums += tl.where(higher, weights_of(x, row)[None, :], 0.0)
        tokens += higher.to(tl.int32)
    return Survey(cuts, tl.sum(sums, 1), tl.sum(tokens, 1).to(tl.int64))


@triton.jit
def between(survey, span, target, counts: tl.constexpr):
    """(the `Span` between two cuts in which the target is reached, target). span: the one that was surveyed. counts:
    the target is a number of tokens, not a weight."""
    indices = tl.arange(0, CUTS)
    sums = survey.counts.to(tl.float64) if counts else survey.weights
    target = tl.minimum(target, tl.max(sums, 0))
    cut = tl.sum((sums >= target).to(tl.int32), 0) - 1  # sums fall: the first ones are enough
    last, here, after = cut == CUTS - 1, indices == cut, indices == cut + 1
    above = tl.where(last, span.above, tl.sum(tl.where(after, survey.counts, 0), 0))
    weight = tl.where(last, span.weight, tl.sum(tl.where(after, survey.weights, 0.0), 0))
    inside = tl.sum(tl.where(here, survey.counts, 0), 0) - above
    end = tl.where(last, span.end, tl.sum(tl.where(after, survey.cuts, 0), 0).to(tl.int64))
    low = tl.sum(tl.where(here, survey.cuts, 0), 0).to(tl.int64)
    return Span(low, end, above, weight, inside), target


@triton.jit
def narrowed(row, survey, span, target, counts: tl.constexpr, SIZE: tl.constexpr):
    """(the `Span` in which the target is reached, target): at most SIZE tokens inside, or one key. survey: of the whole
    row. span: where further passes begin and the survey ends. A target above the sum of all becomes that sum."""
    low = span.low
    span, target = between(survey, span, target, counts)
    step = tl.full((), 1, tl.int32)
    while (span.inside > SIZE) & (span.end - span.low > 1):
        first = tl.maximum(span.low, tl.minimum(low, span.end - 1))
        span, target = between(surveyed(row, cuts_of(first, span.end, step)), span, target, counts)
        step += 1
    return span, target


@triton.jit
def gather(row, span):
    """Copy the scores of a span to the workspace, in the order of their ids."""
    count = tl.full((), 0, tl.int32)
    for first in range(0, row.V, WIDE):
        ids, x = load_scores(row.start, first, row.V, WIDE)
        key = key_of(x).to(tl.int64)
        taken = ((key >= span.low) & (key < span.end) & (ids < row.V)).to(tl.int32)
        tl.store(row.workspace + count + tl.cumsum(taken, 0) - 1, x, mask=taken > 0)
        count += tl.sum(taken, 0)
    tl.debug_barrier()  # other threads load them


@triton.jit
def find_among(row, tokens, span, target, counts: tl.constexpr):
    """The `Point` of a span at which the target is reached. tokens: those of the span, or none of them if too many have
    one key."""
    keys, weights, valid = tokens
    low, end = span.low, span.end
    while end - low > 1:
        cut = low + (end - low) // 2
        higher = (keys >= cut.to(tl.int32)) & valid
        if counts:
            enough = span.above + tl.sum(higher.to(tl.int32), 0) >= target
        else:
            enough = span.weight + tl.sum(tl.where(higher, weights, 0.0), 0) >= target
        low, end = tl.where(enough, cut, low), tl.where(enough, end, cut)
    some = tl.sum(valid.to(tl.int32), 0) > 0
    lowest = tl.min(tl.where(valid & (keys >= low.to(tl.int32)), keys, NO_KEY), 0)
    key = tl.where(some, lowest, low.to(tl.int32))  # `low` has no token if rounding left all sums below the target
    higher = (keys > key) & valid
    count = span.above + tl.sum(higher.to(tl.int32), 0)
    total = span.weight + tl.sum(tl.where(higher, weights, 0.0), 0)
    ties = tl.where(some, tl.sum(((keys == key) & valid).to(tl.int32), 0).to(tl.int64), span.inside)
    each = weights_of(score_of(key), row)
    missing = (target - count) if counts else (target - total) / each
    tie = tl.minimum(tl.maximum(tl.ceil(missing.to(tl.float64)), 1.0), ties.to(tl.float64)).to(tl.int64)
    return Point(key.to(tl.int64), tie, total + tie * each)


@triton.jit
def find(row, seen, target, counts: tl.constexpr, end, SHORT: tl.constexpr, SIZE: tl.constexpr):
    """The `Point` at which the target is reached, `end` or before it. seen: `Tokens` of a SHORT row, the `Survey` of a
    longer one."""
    highest = key_of(row.most.to(tl.float32)).to(tl.int64)
    none, zero = tl.full((), 0, tl.int64), tl.full((), 0, tl.float64)
    span = Span(tl.maximum(end.key, row.lowest), highest + 1, none, zero, none)
    if SHORT:
        point = find_among(row, seen, span, target, counts)
    else:
        low = span.low
        span, target = narrowed(row, seen, span, target, counts, SIZE)
        copied = tl.where(span.inside <= SIZE, span.inside, 0)
        if copied > 0:
            gather(row, span)
        valid = tl.arange(0, SIZE) < copied
        x = tl.load(row.workspace + tl.arange(0, SIZE), mask=valid, other=-float("inf"))
        low = tl.maximum(span.low, tl.minimum(low, span.end - 1))
        rest = Span(low, span.end, span.above, span.weight, span.inside)
        point = find_among(row, Tokens(key_of(x), weights_of(x, row), valid), rest, target, counts)
    missed = (point.tie < 1) | (point.key > highest)  # rounding left all sums below the target
    after = missed | (point.key < end.key) | ((point.key == end.key) & (point.tie > end.tie))
    key, tie = tl.where(after, end.key, point.key), tl.where(after, end.tie, point.tie)
    return Point(key, tie, tl.where(after, end.weight, point.weight))


@triton.jit
def find_least(row, seen, least, end, SHORT: tl.constexpr):
    """The `Point` of the last token whose weight is `least` or more, `end` or before it. seen: as in `find`."""
    if SHORT:
        wanted = seen.valid & (seen.weights >= least)
        key = tl.min(tl.where(wanted, seen.keys, NO_KEY), 0).to(tl.int64)
        total = tl.sum(tl.where(wanted, seen.weights, 0.0), 0)
    else:
        lowest, sums = tl.full((WIDE,), NO_KEY, tl.int32), tl.zeros((WIDE,), tl.float64)
        for first in range(0, row.V, WIDE):
            ids, x = load_scores(row.start, first, row.V, WIDE)
            w = weights_of(x, row)
            wanted = (w >= least) & (ids < row.V)
            lowest = tl.minimum(lowest, tl.where(wanted, key_of(x), NO_KEY))
            sums += tl.where(wanted, w, 0.0)
        key, total = tl.min(lowest, 0).to(tl.int64), tl.sum(sums, 0)
    before = key > end.key
    tie = tl.where(before, tl.full((), NO_KEY, tl.int64), end.tie)
    return Point(tl.where(before, key, end.key), tie, tl.where(before, total, end.weight))


@triton.jit
def token_at(row, tokens, point, SHORT: tl.constexpr, SIZE: tl.constexpr):
    """The id of a `Point`; the last token of its key if there are fewer. tokens: the `Tokens` of a SHORT row."""
    tie, found = point.tie, tl.full((), -1, tl.int32)
    if SHORT:
        equal = ((tokens.keys == point.key.to(tl.int32)) & tokens.valid).to(tl.int32)
        match = (tl.cumsum(equal, 0) == tl.minimum(tie, tl.sum(equal, 0))) & (equal > 0)
        found = tl.max(tl.where(match, tl.arange(0, SIZE), -1), 0)
    else:
        for first in range(0, row.V, WIDE):
            ids, x = load_scores(row.start, first, row.V, WIDE)
            equal = ((key_of(x) == point.key.to(tl.int32)) & (ids < row.V)).to(tl.int32)
            here = tl.sum(equal, 0)
            if (tie > 0) & (here > 0):
                match = (tl.cumsum(equal, 0) == tl.minimum(tie, here)) & (equal > 0)
                found = tl.max(tl.where(match, ids, -1), 0)
            tie -= here
    return found.to(tl.int64)


@triton.jit
def load_row(logits, start, V, SHORT: tl.constexpr, SIZE: tl.constexpr):
    """(1 if a logit is not finite, the highest score, the lowest key of a finite score, the scores of a SHORT row, -inf
    from id V on). logits, start: pointers to the row's logits and scores."""
    ids = tl.arange(0, SIZE)
    if SHORT:
        x = tl.load(start + ids, mask=ids < V, other=-float("inf"))
        logit = tl.load(logits + ids, mask=ids < V, other=0.0)
        bad, top, least = (logit - logit != 0.0).to(tl.int32), x, finite_keys(x)
    else:
        x = tl.full((SIZE,), -float("inf"), tl.float32)
        bad, top = tl.zeros((WIDE,), tl.int32), tl.full((WIDE,), -float("inf"), tl.float32)
        least = tl.full((WIDE,), NO_KEY, tl.int32)
        for first in range(0, V, WIDE):
            some, scores = load_scores(start, first, V, WIDE)
            logit = tl.load(logits + some, mask=some < V, other=0.0)
            bad |= (logit - logit != 0.0).to(tl.int32)
            top, least = tl.maximum(top, scores), tl.minimum(least, finite_keys(scores))
    return tl.max(bad, 0), tl.max(top, 0), tl.min(least, 0).to(tl.int64), x


@triton.jit
def finite_keys(x):
    """int32 keys, NO_KEY for a score that is not finite."""
    return tl.where(x - x == 0.0, key_of(x), NO_KEY)


@triton.jit
def narrow(logits, scores, floats, integers, tokens, workspace, V, SIZE: tl.constexpr):
    """One program per row; see `search` for the arguments. workspace: pointer to float32 (n, SIZE), or None where V is
    at most SIZE, a power of two."""
    i = tl.program_id(0).to(tl.int64)
    SHORT: tl.constexpr = workspace is None
    start = scores + i * V
    bad, highest, lowest, x = load_row(logits + i * V, start, V, SHORT, SIZE)
    limits, token = limits_of(floats, integers, i), tl.full((), -1, tl.int64)
    if (bad == 0) & (highest - highest == 0.0):
        own = start if SHORT else workspace + i * SIZE
        row = Row(start, V, highest.to(tl.float64), limits.temperature, lowest, own)
        loaded = Tokens(key_of(x), weights_of(x, row), key_of(x) >= lowest)
        point = Point(key_of(highest).to(tl.int64), tl.full((), 1, tl.int64), tl.full((), 0, tl.float64))
        if limits.temperature > 0.0:
            if SHORT:
                seen, total = loaded, tl.sum(tl.where(loaded.valid, loaded.weights, 0.0), 0)
            else:
                seen = surveyed(row, cuts_of(lowest, point.key + 1, 0))
                total = tl.max(seen.weights, 0)
            end = Point(lowest, tl.full((), NO_KEY, tl.int64), total)
            if (limits.top_k > 0) & (limits.top_k < V):
                end = find(row, seen, limits.top_k.to(tl.float64), True, end, SHORT, SIZE)
            if limits.top_p < 1.0:
                end = find(row, seen, limits.top_p * end.weight, False, end, SHORT, SIZE)
            if limits.min_p > 0.0:
                end = find_least(row, seen, limits.min_p, end, SHORT)
            point = find(row, seen, limits.u * end.weight, False, end, SHORT, SIZE)
        token = token_at(row, loaded, point, SHORT, SIZE)
    tl.store(tokens + i, token)


def run(logits, scores, floats, integers, tokens) -> None:
    """Draw a token for each row of tensors; see `search.search` for the arguments."""
    n, V = logits.shape
    short = V <= SHORT_ROW
    size = max(LEAST_SIZE, triton.next_power_of_2(V)) if short else CAPACITY
    workspace = None if short else torch.empty((n, size), dtype=torch.float32, device=logits.device)
    narrow[(n,)](logits, scores, floats, integers, tokens, workspace, V, size, num_warps=WARPS[short])
