"""sample without a sort: as `search`, but with fewer passes over a row of scores.

A target is a cumulative weight (or a number of tokens), and the search finds the key at which it is reached. The kernel
loads a row of up to SHORT_ROW scores once, and computes its weights once. Then it finds each target by halving the
range of keys until one token is left: one comparison and one sum over registers per step.

For a longer row, `passes` narrows the range until at most CAPACITY tokens are left, most often in one pass. The kernel
writes the ids of these tokens to a workspace, loads their scores, and goes on halving among them. The tokens above them
are represented by their number and total weight. If more than CAPACITY tokens have the same score, they are not
searched, because their weights are equal. The first survey is the first step of every target. Its sum of all weights
is the total that u and top_p are multiplied with.

Sums run in the order of a block's lanes, whatever the other rows. A sum of a long row adds the weight above a span to
the weight inside it. Rounding may leave this below a target that all tokens together reach; then the last token is the
result.

One program per row. A short row waits for latency: each of 14 to 20 halvings waits for a sum over the block. A long row
is limited by the instructions of the survey. As `search`, it is slow if there are few rows.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from tilewright.ops.sample.tile.passes import Row, gather, guessed_cuts, narrowed, score_of, surveyed, weights_of, whole
from tilewright.ops.sample.tile.records import (
    LOG2E,
    NO_KEY,
    WAITS,
    Point,
    Sizes,
    Tokens,
    key_of,
    limits_of,
    load_scores,
    scale_of,
)

SHORT_ROW = 4096  # scores: 32 for each of 128 threads, with their weights 96 registers
CAPACITY = 2048  # tokens of a longer row that are searched in registers
LEAST_SIZE = 256  # fewer would leave lanes idle
WARPS = {True: 4, False: 16}  # warps for a short row, and for a longer one, with LANES threads
FAR_ROW = 90_000  # scores: 132 longer rows do not fit in an L2 cache of 50 MB, so two programs share a multiprocessor
WIDE = tl.constexpr(4096)  # scores at a time in a pass that adds to one sum
HALVINGS = tl.constexpr(2)  # before the tokens that are left are counted


class Scan(NamedTuple):
    """What the first pass over a row finds. bad: 1 if a logit is not finite, int32. highest: score, float32. lowest:
    key of a finite score, int64. mean, deviation: of the finite scores of a long row, float32. x: the scores of a short
    row, float32 (SIZE,), -inf from id V on; a long row has none."""

    bad: Any
    highest: Any
    lowest: Any
    mean: Any
    deviation: Any
    x: Any


@triton.jit
def gathered(row, span, SIZE: tl.constexpr):
    """The `Tokens` of a span; none if there are more than SIZE."""
    count = tl.where(span.inside <= SIZE, span.inside, 0)
    if count > 0:
        gather(row, span)
    valid = tl.arange(0, SIZE) < count
    ids = tl.load(row.workspace + tl.arange(0, SIZE), mask=valid, other=0)
    x = tl.load(row.start + ids, mask=valid, other=-float("inf"))
    return Tokens(ids, key_of(x), weights_of(x, row), valid)


@triton.jit
def find_among(row, tokens, span, low, target, counts: tl.constexpr):
    """(the `Point` of a span at which the target is reached; its id, or -1 if other tokens have the same score).
    tokens: those of the span, or none if too many have one key. low: a key of the span, and the lowest that may be the
    result. target: float64."""
    end, left = span.end, tl.full((), 2, tl.int32)
    while (end - low > 1) & (left > 1):
        for _ in tl.static_range(HALVINGS):
            cut = low + (end - low) // 2
            higher = (tokens.keys >= cut.to(tl.int32)) & tokens.valid
            if counts:
                enough = span.above + tl.sum(higher.to(tl.int32), 0) >= target
            else:
                enough = span.weight + tl.sum(tl.where(higher, tokens.weights, 0.0), 0) >= target
            low, end = tl.where(enough, cut, low), tl.where(enough, end, cut)
        inside = (tokens.keys >= low.to(tl.int32)) & (tokens.keys < end.to(tl.int32)) & tokens.valid
        left = tl.sum(inside.to(tl.int32), 0)
    some = tl.sum(tokens.valid.to(tl.int32), 0) > 0
    lowest = tl.min(tl.where(tokens.valid & (tokens.keys >= low.to(tl.int32)), tokens.keys, NO_KEY), 0)
    key = tl.where(some, lowest, low.to(tl.int32))  # `low` has no token if rounding left all sums below the target
    higher, equal = (tokens.keys > key) & tokens.valid, (tokens.keys == key) & tokens.valid
    count = span.above + tl.sum(higher.to(tl.int32), 0)
    total = span.weight + tl.sum(tl.where(higher, tokens.weights, 0.0), 0)
    ties = tl.where(some, tl.sum(equal.to(tl.int32), 0).to(tl.int64), span.inside)
    each = weights_of(score_of(key), row)
    missing = (target - count) if counts else (target - total) / each
    tie = tl.minimum(tl.maximum(tl.ceil(missing.to(tl.float64)), 1.0), ties.to(tl.float64)).to(tl.int64)
    token = tl.where(ties == 1, tl.max(tl.where(equal, tokens.ids, -1), 0), -1)
    return Point(key.to(tl.int64), tie, total + tie * each), token


@triton.jit
def find(row, known, target, counts: tl.constexpr, end, SHORT: tl.constexpr, SIZE: tl.constexpr):
    """(the `Point` at which the target is reached, `end` or before it; its id, or -1: call `token_at`). known: the
    `Tokens` of a SHORT row, the first `Survey` of a longer one. target: float64."""
    low = tl.maximum(end.key, row.lowest)
    span, tokens = whole(row, low), known
    if not SHORT:
        span, target = narrowed(row, known, low, target, counts, SIZE)
        tokens = gathered(row, span, SIZE)
        low = tl.maximum(span.low, tl.minimum(low, span.end - 1))
    point, token = find_among(row, tokens, span, low, target, counts)
    missed = (point.tie < 1) | (point.key > key_of(row.most.to(tl.float32)))  # all sums are below the target
    after = missed | (point.key < end.key) | ((point.key == end.key) & (point.tie > end.tie))
    key, tie = tl.where(after, end.key, point.key), tl.where(after, end.tie, point.tie)
    return Point(key, tie, tl.where(after, end.weight, point.weight)), tl.where(after, -1, token)


@triton.jit
def find_least(row, known, least, end, SHORT: tl.constexpr):
    """The `Point` of the last token whose weight is `least` or more, `end` or before it. least: float64.
    known: as in `find`."""
    if SHORT:
        wanted = known.valid & (known.weights >= least)
        key = tl.min(tl.where(wanted, known.keys, NO_KEY), 0).to(tl.int64)
        total = tl.sum(tl.where(wanted, known.weights, 0.0), 0)
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
    tie = tl.where(before, tl.full((), NO_KEY, tl.int64), end.tie)  # all tokens of the key
    return Point(tl.where(before, key, end.key), tie, tl.where(before, total, end.weight))


@triton.jit
def token_at(row, tokens, point, SHORT: tl.constexpr):
    """The int32 id of a `Point`; of the last token of its key if there are fewer. tokens: the `Tokens` of a SHORT
    row."""
    tie, found = point.tie, tl.full((), -1, tl.int32)
    if SHORT:
        equal = ((tokens.keys == point.key.to(tl.int32)) & tokens.valid).to(tl.int32)
        match = (tl.cumsum(equal, 0) == tl.minimum(tie, tl.sum(equal, 0))) & (equal > 0)
        found = tl.max(tl.where(match, tokens.ids, -1), 0)
    else:
        for first in range(0, row.V, WIDE):
            ids, x = load_scores(row.start, first, row.V, WIDE)
            equal = ((key_of(x) == point.key.to(tl.int32)) & (ids < row.V)).to(tl.int32)
            here = tl.sum(equal, 0)
            if (tie > 0) & (here > 0):
                match = (tl.cumsum(equal, 0) == tl.minimum(tie, here)) & (equal > 0)
                found = tl.max(tl.where(match, ids, -1), 0)
            tie -= here
    return found


@triton.jit
def load_short(logits, start, V, SIZE: tl.constexpr):
    """A row of at most SIZE scores as a `Scan`. logits, start: pointers to the row's logits and scores."""
    ids, zero = tl.arange(0, SIZE), tl.full((), 0, tl.float32)
    x = tl.load(start + ids, mask=ids < V, other=-float("inf"))
    logit = tl.load(logits + ids, mask=ids < V, other=0.0)
    bad, lowest = (logit - logit != 0.0).to(tl.int32), finite_keys(x)
    return Scan(tl.max(bad, 0), tl.max(x, 0), tl.min(lowest, 0).to(tl.int64), zero, zero, x)


@triton.jit
def load_long(logits, start, V):
    """A longer row as a `Scan`: one pass. Arguments as for `load_short`."""
    bad, count = tl.zeros((WIDE,), tl.int32), tl.zeros((WIDE,), tl.int32)
    top, lowest = tl.full((WIDE,), -float("inf"), tl.float32), tl.full((WIDE,), NO_KEY, tl.int32)
    sums, squares = tl.zeros((WIDE,), tl.float32), tl.zeros((WIDE,), tl.float32)
    for first in range(0, V, WIDE):
        ids, x = load_scores(start, first, V, WIDE)
        logit = tl.load(logits + ids, mask=ids < V, other=0.0)
        bad |= (logit - logit != 0.0).to(tl.int32)
        top, lowest = tl.maximum(top, x), tl.minimum(lowest, finite_keys(x))
        finite = tl.where(x > -float("inf"), x, 0.0)
        sums, squares, count = sums + finite, squares + finite * finite, count + (x > -float("inf")).to(tl.int32)
    n, zero = tl.sum(count, 0).to(tl.float32), tl.full((), 0, tl.float32)
    mean = tl.sum(sums, 0) / n
    deviation = tl.sqrt(tl.maximum(tl.sum(squares, 0) / n - mean * mean, 0.0))
    return Scan(tl.max(bad, 0), tl.max(top, 0), tl.min(lowest, 0).to(tl.int64), mean, deviation, zero)


@triton.jit
def finite_keys(x):
    """int32 keys, NO_KEY for a score that is not finite."""
    return tl.where(x - x == 0.0, key_of(x), NO_KEY)


@triton.jit
def drawn(row, known, limits, end, SHORT: tl.constexpr, SIZE: tl.constexpr):
    """(the `Point` of the token that is drawn; its id, or -1: call `token_at`). known: as in `find`. end: the `Point`
    of the last token, with the weight of all."""
    if (limits.top_k > 0) & (limits.top_k < row.V):
        end, _ = find(row, known, limits.top_k.to(tl.float64), True, end, SHORT, SIZE)
    if limits.top_p < 1.0:
        end, _ = find(row, known, limits.top_p * end.weight, False, end, SHORT, SIZE)
    if limits.min_p > 0.0:
        end = find_least(row, known, limits.min_p, end, SHORT)
    return find(row, known, limits.u * end.weight, False, end, SHORT, SIZE)


@triton.jit
def drawn_among(row, tokens, limits, low, SIZE: tl.constexpr):
    """`drawn` from `Tokens`, which are all from the key `low` on, int64."""
    total = tl.sum(tl.where(tokens.valid, tokens.weights, 0.0), 0)
    return drawn(row, tokens, limits, Point(low, tl.full((), NO_KEY, tl.int64), total), True, SIZE)


@triton.jit
def drawn_by_passes(row, limits, SIZE: tl.constexpr):
    """`drawn` from a long row."""
    by_count = (limits.top_k > 0) & (limits.top_k < row.V)
    by_weight = tl.where(limits.top_p < 1.0, limits.top_p, limits.u)
    part = tl.where(by_count, limits.top_k / row.V, by_weight).to(tl.float32)
    end = key_of(row.most.to(tl.float32)).to(tl.int64) + 1
    known = surveyed(row, guessed_cuts(row, row.lowest, end, part, by_count, SIZE))
    last = Point(row.lowest, tl.full((), NO_KEY, tl.int64), tl.max(known.weights, 0))
    return drawn(row, known, limits, last, False, SIZE)


@triton.jit
def narrow(logits, scores, floats, integers, tokens, workspace, sizes, SIZE: tl.constexpr):
    """One program per row whose token is `WAITS`; see `search` for the arguments. workspace: pointer to
    int32 (n, SIZE), or None where V is at most SIZE, a power of two."""
    i, V = tl.program_id(0).to(tl.int64), sizes.V
    if tl.load(tokens + i) == WAITS:
        SHORT: tl.constexpr = workspace is None
        given, start = logits + i * sizes.stride, scores + i * sizes.stride
        if SHORT:
            found = load_short(given, start, V, SIZE)
        else:
            found = load_long(given, start, V)
        limits, token = limits_of(floats, integers, i), tl.full((), -1, tl.int32)
        if (found.bad == 0) & (found.highest - found.highest == 0.0):
            own = start if SHORT else workspace + i * SIZE
            scale = scale_of(limits)
            shift = found.deviation * scale.to(tl.float32) / LOG2E
            most = found.highest.to(tl.float64)
            row = Row(start, V, most, scale, found.lowest, found.mean, found.deviation, shift, own)
            top = key_of(found.highest).to(tl.int64)
            point = Point(top, tl.full((), 1, tl.int64), tl.full((), 0, tl.float64))
            loaded = None
            if SHORT:
                keys = key_of(found.x)
                loaded = Tokens(tl.arange(0, SIZE), keys, weights_of(found.x, row), keys >= found.lowest)
            if limits.temperature > 0.0:
                if SHORT:
                    point, token = drawn_among(row, loaded, limits, found.lowest, SIZE)
                else:
                    point, token = drawn_by_passes(row, limits, SIZE)
            if token < 0:
                token = token_at(row, loaded, point, SHORT)
        tl.store(tokens + i, token.to(tl.int64))


def run(logits, scores, floats, integers, tokens, peaks=None) -> None:
    """Draw a token for each row of tensors; see `search.run` for the arguments."""
    tokens.fill_(WAITS.value)
    run_waiting(logits, scores, floats, integers, tokens)


def run_waiting(logits, scores, floats, integers, tokens) -> None:
    """As `run`, but only for rows whose token is `WAITS`."""
    n, V = logits.shape
    short = V <= SHORT_ROW
    size = max(LEAST_SIZE, triton.next_power_of_2(V)) if short else CAPACITY
    workspace = None if short else torch.empty((n, size), dtype=torch.int32, device=logits.device)
    options = {"num_warps": WARPS[short], **({"maxnreg": 64} if V > FAR_ROW else {})}
    sizes = Sizes(V, logits.stride(0))
    narrow[(n,)](logits, scores, floats, integers, tokens, workspace, sizes, size, **options)
