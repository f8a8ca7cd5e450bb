"""sample without a sort: one token per row of scores (n, V), found by a search over keys.

A key is a score as an integer. The total weight (and the number) of the tokens at a key or above it falls as the key
rises. So eleven passes over the row find the key at which this total reaches a target. Each pass computes the totals at
eight keys, and leaves an eighth of the range. Tokens with the same key have equal weights, so a division gives the
number of them that are needed. top_k, top_p and u are three such targets, and each limits the range of the next one;
min_p takes one pass. Weights are exp in float64, and are computed again in each pass.

There is one program per row. The row comes from the L2 cache after the first pass. The limit is the float64
instructions of about 40 passes. It is slow if there are few rows: then multiprocessors are idle, and a sort of one row
uses them all.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from tilewright.ops.sample.tile.records import NO_KEY, Point, Sizes, key_of, limits_of, load_scores

CUTS = tl.constexpr(8)  # keys at which a pass sums: the start of the range, and seven inside
PASSES = tl.constexpr(11)  # 8^11 is more than the keys there are
BLOCK = tl.constexpr(512)  # scores of a row at a time


class Row(NamedTuple):
    """A row of scores. start: pointer to V float32. most: its highest score, float64. temperature: float64."""

    start: Any
    V: Any
    most: Any
    temperature: Any


@triton.jit
def weights_of(x, row):
    """float64 exp((x - most) / temperature)."""
    return tl.exp((x.to(tl.float64) - row.most) / row.temperature)


@triton.jit
def reached(row, target, counts):
    """The highest key such that all tokens with this key or a higher one together reach the target.

    counts: the target is a number of tokens, not a weight. If rounding leaves the total of all tokens below the target,
    the lowest key is returned.
    """
    low, width = tl.full((), -2147483648, tl.int64), tl.full((), 4294967296, tl.int64)  # of the range of keys
    for _ in range(PASSES):
        step = (width + CUTS - 1) // CUTS
        cuts = low + step * tl.arange(0, CUTS)
        sums = tl.zeros((CUTS, BLOCK), tl.float64)
        for first in range(0, row.V, BLOCK):
            ids, x = load_scores(row.start, first, row.V, BLOCK)
            w = tl.where(counts, 1.0, weights_of(x, row))
            above = (key_of(x).to(tl.int64)[None, :] >= cuts[:, None]) & (ids < row.V)[None, :]
            sums += tl.where(above, w[None, :], 0.0)
        enough = (tl.sum(sums, 1) >= target).to(tl.int32)
        low += step * (tl.maximum(tl.sum(enough, 0), 1) - 1)  # sums fall: the first ones are enough
        width = step
    return low


@triton.jit
def measured(row, key):
    """(tokens above a key, their weight, tokens of the key, the weight of each)."""
    count, total = tl.zeros((BLOCK,), tl.int64), tl.zeros((BLOCK,), tl.float64)
    ties, each = tl.zeros((BLOCK,), tl.int64), tl.zeros((BLOCK,), tl.float64)
    for first in range(0, row.V, BLOCK):
        ids, x = load_scores(row.start, first, row.V, BLOCK)
        w, k, inside = weights_of(x, row), key_of(x).to(tl.int64), ids < row.V
        count += ((k > key) & inside).to(tl.int64)
        total += tl.where((k > key) & inside, w, 0.0)
        ties += ((k == key) & inside).to(tl.int64)
        each = tl.maximum(each, tl.where((k == key) & inside, w, 0.0))
    return tl.sum(count, 0), tl.sum(total, 0), tl.sum(ties, 0), tl.max(each, 0)


@triton.jit
def find(row, target, counts, end):
    """The `Point` at which the target is reached, `end` or before it."""
    key = tl.maximum(reached(row, target, counts), end.key)
    count, total, ties, each = measured(row, key)
    missing = tl.where(counts, target - count, (target - total) / each)
    tie = tl.minimum(tl.maximum(tl.ceil(missing), 1.0), ties.to(tl.float64)).to(tl.int64)
    tie = tl.where(key == end.key, tl.minimum(tie, end.tie), tie)
    return Point(key, tie, total + tie * each)


@triton.jit
def find_least(row, least, end):
    """The `Point` of the last token whose weight is `least` or more, `end` or before it."""
    lowest, total = tl.full((BLOCK,), NO_KEY, tl.int64), tl.zeros((BLOCK,), tl.float64)
    for first in range(0, row.V, BLOCK):
        ids, x = load_scores(row.start, first, row.V, BLOCK)
        w, inside = weights_of(x, row), ids < row.V
        lowest = tl.minimum(lowest, tl.where((w >= least) & inside, key_of(x).to(tl.int64), NO_KEY))
        total += tl.where((w >= least) & inside, w, 0.0)
    key = tl.min(lowest, 0)
    before = key > end.key
    tie = tl.where(before, tl.full((), NO_KEY, tl.int64), end.tie)
    return Point(tl.where(before, key, end.key), tie, tl.where(before, tl.sum(total, 0), end.weight))


@triton.jit
def token_at(start, V, point):
    """The token id of a `Point`. start: pointer to its row of logits."""
    key, tie, found = point.key, point.tie, tl.full((), -1, tl.int64)
    for first in range(0, V, BLOCK):
        ids, x = load_scores(start, first, V, BLOCK)
        equal = ((key_of(x).to(tl.int64) == key) & (ids < V)).to(tl.int64)
        here = tl.sum(equal, 0)
        if (tie > 0) & (tie <= here):
            match = (tl.cumsum(equal, 0) == tie) & (equal > 0)
            found = tl.max(tl.where(match, ids, -1).to(tl.int64), 0)
        tie -= here
    return found


@triton.jit
def search(logits, scores, floats, integers, tokens, sizes):
    """One program per row. logits, scores: pointers to float32 (n, V); scores contain penalties and banned tokens.
    floats, integers: pointers to the arrays of `operands.Rules`. tokens: pointer to int64 (n,), -1 for a row with a
    logit that is not finite, or without a token. sizes: `records.Sizes`."""
    i, V = tl.program_id(0).to(tl.int64), sizes.V
    start, bad = scores + i * sizes.stride, tl.zeros((BLOCK,), tl.int32)
    top = tl.full((BLOCK,), -float("inf"), tl.float32)
    for first in range(0, V, BLOCK):
        ids, x = load_scores(start, first, V, BLOCK)
        logit = tl.load(logits + i * sizes.stride + ids, mask=ids < V, other=0.0)
        bad |= (logit - logit != 0.0).to(tl.int32)
        top = tl.maximum(top, x)
    highest, token, limits = tl.max(top, 0), tl.full((), -1, tl.int64), limits_of(floats, integers, i)
    if (tl.max(bad, 0) == 0) & (highest - highest == 0.0):
        row = Row(start, V, highest.to(tl.float64), limits.temperature)
        zero = tl.full((), 0.0, tl.float64)
        point = Point(key_of(highest).to(tl.int64), tl.full((), 1, tl.int64), zero)
        if limits.temperature > 0.0:
            lowest = tl.full((), -2147483648, tl.int64)
            _, total, ties, each = measured(row, lowest)
            end = Point(lowest, tl.full((), NO_KEY, tl.int64), total + ties * each)
            if (limits.top_k > 0) & (limits.top_k < V):
                end = find(row, limits.top_k.to(tl.float64), True, end)
            if limits.top_p < 1.0:
                end = find(row, limits.top_p * end.weight, False, end)
            if limits.min_p > 0.0:
                end = find_least(row, limits.min_p, end)
            point = find(row, limits.u * end.weight, False, end)
        token = token_at(start, V, point)
    tl.store(tokens + i, token)


def run(logits, scores, floats, integers, tokens, peaks=None) -> None:
    """Draw a token for each row of tensors; see `search` for the arguments. peaks: not used."""
    n, V = logits.shape
    search[(n,)](logits, scores, floats, integers, tokens, Sizes(V, logits.stride(0)), num_warps=4)
