"""`search` with less to look through: a range of scores is narrowed until what lies in it fits into registers.

A row of up to SHORT_ROW numbers is loaded once, its weights are taken once, and each target is found by halving the
range of keys: one comparison and one sum over registers a step. Of a longer row, passes ask at eight keys, as in
`search`, but only until no more than ROOM tokens lie between two of them: those are copied to a place of their own,
what lies above them is kept as a number and a weight, and halving goes on among them. More tokens of one score than
that are not looked through at all: they have one weight. The first pass over a longer row, the survey, is every
target's first step, and its sum of all weights is what u and top_p are shares of.

Sums run in the order of a block's lanes, whatever the other rows, and those of a long row in two parts; where rounding
leaves them below a target that all tokens together reach, the last place is taken. What is left is waiting: for the sum
of a block, which 31 steps of halving need one after the other. As `search`, it loses where rows are few.
"""

import torch
import triton
import triton.language as tl

from tilewright.ops.sample.tile.search import CUTS, order_of, scores_at

SHORT_ROW = 4096  # numbers: 32 for each of 128 threads, with their weights 96 registers
ROOM = 2048  # numbers of a longer row that are looked through in registers
LEAST = 256  # fewer would leave lanes idle
WARPS = {True: 4, False: 16}  # of a short row, of a longer one
BLOCK = tl.constexpr(512)  # numbers of a long row at a time, where each meets CUTS sums
WIDE = tl.constexpr(4096)  # the same, where each meets one


@triton.jit
def score_of(key):
    """The float32 number of an int64 key."""
    bits = key.to(tl.int32)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def weights_of(x, most, temperature):
    """float64 exp((x - most) / temperature); of -inf, which is below every key that is asked at, no number.

    The quotient is made from 1 / temperature, which all of a row have in common, and what that leaves: it is rounded as
    a division's, and takes a third of its instructions (Markstein, IBM J. Res. Dev. 34, 1990).
    """
    few = tl.maximum(temperature, 1e-200)  # of less there is no reciprocal; a score below the best has no weight there
    below, inverse = x.to(tl.float64) - most, 1.0 / few
    near = below * inverse
    return tl.exp(tl.fma(tl.fma(-near, few, below), inverse, near))


@triton.jit
def cuts_of(low, end, turn):
    """int32 (CUTS,) keys from `low` on: equal steps of the score at every other turn, else of the key.

    Steps of the score soon meet few of the tokens of a model; steps of the key come to an end whatever the scores.
    """
    places = tl.arange(0, CUTS)
    first, last = score_of(low).to(tl.float64), score_of(end - 1).to(tl.float64)  # in float32 cuts would not rise
    by_key = tl.minimum(low + (end - low + CUTS - 1) // CUTS * places, end)
    by_score = order_of((first + (last - first) * (places.to(tl.float64) / CUTS)).to(tl.float32)).to(tl.int64)
    return tl.where(turn % 2 == 0, tl.minimum(tl.maximum(by_score, low), end), by_key).to(tl.int32)


@triton.jit
def surveyed(row, V, most, temperature, cuts):
    """What of a row lies at each of the keys `cuts` or above them: weights float64 (CUTS,), tokens int64 (CUTS,)."""
    sums, tokens = tl.zeros((CUTS, BLOCK), tl.float64), tl.zeros((CUTS, BLOCK), tl.int32)
    for first in range(0, V, BLOCK):
        ids, x = scores_at(row, first, V, BLOCK)
        higher = (order_of(x)[None, :] >= cuts[:, None]) & (ids < V)[None, :]
        sums += tl.where(higher, weights_of(x, most, temperature)[None, :], 0.0)
        tokens += higher.to(tl.int32)
    return tl.sum(sums, 1), tl.sum(tokens, 1).to(tl.int64)


@triton.jit
def between(survey, target, counts: tl.constexpr, beyond):
    """As `narrowed`, by one survey: (cuts, weights, tokens). beyond: the end of its range, the tokens above that, and
    their weight."""
    cuts, weights, numbers = survey
    end, above, weight = beyond
    places = tl.arange(0, CUTS)
    reached = numbers.to(tl.float64) if counts else weights
    target = tl.minimum(target, tl.max(reached, 0))
    at = tl.sum((reached >= target).to(tl.int32), 0) - 1  # sums fall: the first ones are enough
    last, after = at == CUTS - 1, places == at + 1
    above = tl.where(last, above, tl.sum(tl.where(after, numbers, 0), 0))
    weight = tl.where(last, weight, tl.sum(tl.where(after, weights, 0.0), 0))
    inside = tl.sum(tl.where(places == at, numbers, 0), 0) - above
    end = tl.where(last, end, tl.sum(tl.where(after, cuts, 0), 0).to(tl.int64))
    return tl.sum(tl.where(places == at, cuts, 0), 0).to(tl.int64), end, above, weight, inside, target


@triton.jit
def narrowed(line, score, target, counts: tl.constexpr, survey, low, end, room: tl.constexpr):
    """(low, end, tokens above, their weight, tokens inside, target) of a range of keys in which a target is reached, at
    most `room` tokens inside, or one key. survey: of the whole row, whose keys lie below `end`; low: where passes over
    the row may begin. line, score: as in `place_of`. A target that rounding leaves beyond the sum of all becomes that.
    """
    row, V, _ = line
    _, most, temperature = score
    none, zero = tl.full((), 0, tl.int64), tl.full((), 0, tl.float64)
    first, end, above, weight, inside, target = between(survey, target, counts, (end, none, zero))
    turn = tl.full((), 1, tl.int32)
    while (inside > room) & (end - first > 1):
        first = tl.maximum(first, tl.minimum(low, end - 1))
        cuts = cuts_of(first, end, turn)
        weights, numbers = surveyed(row, V, most, temperature, cuts)
        beyond = (end, above, weight)
        first, end, above, weight, inside, target = between((cuts, weights, numbers), target, counts, beyond)
        turn += 1
    return first, end, above, weight, inside, target


@triton.jit
def gathered(row, V, low, end, place):
    """Copy the scores whose keys lie in a range to `place`, in the order of their ids."""
    at = tl.full((), 0, tl.int32)
    for first in range(0, V, WIDE):
        ids, x = scores_at(row, first, V, WIDE)
        key = order_of(x).to(tl.int64)
        taken = ((key >= low) & (key < end) & (ids < V)).to(tl.int32)
        tl.store(place + at + tl.cumsum(taken, 0) - 1, x, mask=taken > 0)
        at += tl.sum(taken, 0)
    tl.debug_barrier()  # other threads load them


@triton.jit
def place_among(own, outside, target, counts: tl.constexpr, low, end):
    """((key, which of its tokens, from 1) at which a target is reached in a range of keys; the weight up to it).

    own: (keys, weights, which count) of the tokens in it; outside: (tokens above it, their weight, tokens inside, the
    row's highest score, temperature).
    """
    keys, weights, valid = own
    above, weight, inside, most, temperature = outside
    while end - low > 1:
        cut = low + (end - low) // 2
        higher = (keys >= cut.to(tl.int32)) & valid
        if counts:
            enough = above + tl.sum(higher.to(tl.int32), 0) >= target
        else:
            enough = weight + tl.sum(tl.where(higher, weights, 0.0), 0) >= target
        low, end = tl.where(enough, cut, low), tl.where(enough, end, cut)
    some = tl.sum(valid.to(tl.int32), 0) > 0  # none where too many have one key
    lowest = tl.min(tl.where(valid & (keys >= low.to(tl.int32)), keys, 2147483647), 0)
    key = tl.where(some, lowest, low.to(tl.int32))  # not `low` itself, if rounding left less than the target everywhere
    higher = (keys > key) & valid
    count = above + tl.sum(higher.to(tl.int32), 0)
    total = weight + tl.sum(tl.where(higher, weights, 0.0), 0)
    ties = tl.where(some, tl.sum(((keys == key) & valid).to(tl.int32), 0).to(tl.int64), inside)
    each = weights_of(score_of(key), most, temperature)
    missing = (target - count) if counts else (target - total) / each
    tie = tl.minimum(tl.maximum(tl.ceil(missing.to(tl.float64)), 1.0), ties.to(tl.float64)).to(tl.int64)
    return key.to(tl.int64), tie, total + tie * each


@triton.jit
def place_of(line, own, score, target, counts: tl.constexpr, end, SHORT: tl.constexpr, SIZE: tl.constexpr):
    """(key, which of its tokens, the weight up to it) of the place at which a target is reached, none behind `end`,
    which is another such place.

    line: (row, V, where a long row's tokens may be put); own: of a SHORT row, as in `place_among`, of a longer one its
    survey; score: (the row's lowest key of a finite score, its highest score, temperature).
    """
    row, V, room = line
    lowest, most, temperature = score
    end_key, end_tie, kept = end
    low, beyond = tl.maximum(end_key, lowest), order_of(most.to(tl.float32)).to(tl.int64) + 1
    if SHORT:
        none, zero = tl.full((), 0, tl.int64), tl.full((), 0, tl.float64)
        key, tie, total = place_among(own, (none, zero, none, most, temperature), target, counts, low, beyond)
    else:
        found = narrowed(line, score, target, counts, own, low, beyond, SIZE)
        first, beyond, above, weight, inside, target = found
        held = tl.where(inside <= SIZE, inside, 0)
        if held > 0:
            gathered(row, V, first, beyond, room)
        low = tl.maximum(first, tl.minimum(low, beyond - 1))
        valid = tl.arange(0, SIZE) < held
        x = tl.load(room + tl.arange(0, SIZE), mask=valid, other=-float("inf"))
        few = (order_of(x), weights_of(x, most, temperature), valid)
        key, tie, total = place_among(few, (above, weight, inside, most, temperature), target, counts, low, beyond)
    nowhere = (tie < 1) | (key > order_of(most.to(tl.float32)))  # rounding left less than the target up to the end
    behind = nowhere | (key < end_key) | ((key == end_key) & (tie > end_tie))
    return tl.where(behind, end_key, key), tl.where(behind, end_tie, tie), tl.where(behind, kept, total)


@triton.jit
def likely(line, own, score, least, end, SHORT: tl.constexpr):
    """`end` or, where it comes before, the last place whose weight is `least`; all as in `place_of`."""
    row, V, _ = line
    _, most, temperature = score
    if SHORT:
        keys, weights, valid = own
        wanted = valid & (weights >= least)
        key = tl.min(tl.where(wanted, keys, 2147483647), 0).to(tl.int64)
        total = tl.sum(tl.where(wanted, weights, 0.0), 0)
    else:
        lowest, sums = tl.full((WIDE,), 2147483647, tl.int32), tl.zeros((WIDE,), tl.float64)
        for first in range(0, V, WIDE):
            ids, x = scores_at(row, first, V, WIDE)
            w = weights_of(x, most, temperature)
            wanted = (w >= least) & (ids < V)
            lowest = tl.minimum(lowest, tl.where(wanted, order_of(x), 2147483647))
            sums += tl.where(wanted, w, 0.0)
        key, total = tl.min(lowest, 0).to(tl.int64), tl.sum(sums, 0)
    end_key, end_tie, kept = end
    before = key > end_key
    tie = tl.where(before, tl.full((), 2147483647, tl.int64), end_tie)
    return tl.where(before, key, end_key), tie, tl.where(before, total, kept)


@triton.jit
def token_at(row, V, own, key, tie, SHORT: tl.constexpr, SIZE: tl.constexpr):
    """The id of a place: of its key the token with that number, or the last if there are fewer."""
    found = tl.full((), -1, tl.int32)
    if SHORT:
        keys, _, valid = own
        equal = ((keys == key.to(tl.int32)) & valid).to(tl.int32)
        match = (tl.cumsum(equal, 0) == tl.minimum(tie, tl.sum(equal, 0))) & (equal > 0)
        found = tl.max(tl.where(match, tl.arange(0, SIZE), -1), 0)
    else:
        for first in range(0, V, WIDE):
            ids, x = scores_at(row, first, V, WIDE)
            equal = ((order_of(x) == key.to(tl.int32)) & (ids < V)).to(tl.int32)
            here = tl.sum(equal, 0)
            if (tie > 0) & (here > 0):
                match = (tl.cumsum(equal, 0) == tl.minimum(tie, here)) & (equal > 0)
                found = tl.max(tl.where(match, ids, -1), 0)
            tie -= here
    return found.to(tl.int64)


@triton.jit
def looked_over(raw, row, V, SHORT: tl.constexpr, SIZE: tl.constexpr):
    """(is a logit not finite, the highest score, the lowest key of a finite one, the scores of a SHORT row, -inf behind
    its end)."""
    ids = tl.arange(0, SIZE)
    if SHORT:
        x = tl.load(row + ids, mask=ids < V, other=-float("inf"))
        given = tl.load(raw + ids, mask=ids < V, other=0.0)
        bad, top, least = (given - given != 0.0).to(tl.int32), x, lowest_of(x)
    else:
        x = tl.full((SIZE,), -float("inf"), tl.float32)
        bad, top = tl.zeros((WIDE,), tl.int32), tl.full((WIDE,), -float("inf"), tl.float32)
        least = tl.full((WIDE,), 2147483647, tl.int32)
        for first in range(0, V, WIDE):
            some, scores = scores_at(row, first, V, WIDE)
            given = tl.load(raw + some, mask=some < V, other=0.0)
            bad |= (given - given != 0.0).to(tl.int32)
            top, least = tl.maximum(top, scores), tl.minimum(least, lowest_of(scores))
    return tl.max(bad, 0), tl.max(top, 0), tl.min(least, 0).to(tl.int64), x


@triton.jit
def lowest_of(x):
    """int32 keys, the highest for what is not finite."""
    return tl.where(x - x == 0.0, order_of(x), 2147483647)


@triton.jit
def narrow(raw, scores, numbers, words, tokens, rooms, V, SIZE: tl.constexpr):
    """tokens (n,) of scores (n, V) by the rules of `operands.Rules`; raw (n, V): logits, which say what is finite.

    rooms: float32 (n, SIZE), or None where V is at most SIZE.
    """
    i = tl.program_id(0).to(tl.int64)
    SHORT: tl.constexpr = rooms is None
    row = scores + i * V
    line = (row, V, row if SHORT else rooms + i * SIZE)
    bad, highest, lowest, x = looked_over(raw + i * V, row, V, SHORT, SIZE)
    u, temperature = tl.load(numbers + 5 * i), tl.load(numbers + 5 * i + 1)
    top_p, min_p, top_k = tl.load(numbers + 5 * i + 2), tl.load(numbers + 5 * i + 3), tl.load(words + 5 * i)
    token = tl.full((), -1, tl.int64)
    if (bad == 0) & (highest - highest == 0.0):
        most = highest.to(tl.float64)
        own = (order_of(x), weights_of(x, most, temperature), order_of(x) >= lowest)
        key, tie = order_of(highest).to(tl.int64), tl.full((), 1, tl.int64)
        if temperature > 0.0:
            score = (lowest, most, temperature)
            if SHORT:
                seen, kept = own, tl.sum(tl.where(own[2], own[1], 0.0), 0)
            else:
                cuts = cuts_of(lowest, key + 1, 0)
                heavier, more = surveyed(row, V, most, temperature, cuts)
                seen, kept = (cuts, heavier, more), tl.max(heavier, 0)
            end = (lowest, tl.full((), 2147483647, tl.int64), kept)
            if (top_k > 0) & (top_k < V):
                end = place_of(line, seen, score, top_k.to(tl.float64), True, end, SHORT, SIZE)
            if top_p < 1.0:
                end = place_of(line, seen, score, top_p * end[2], False, end, SHORT, SIZE)
            if min_p > 0.0:
                end = likely(line, seen, score, min_p, end, SHORT)
            key, tie, _ = place_of(line, seen, score, u * end[2], False, end, SHORT, SIZE)
        token = token_at(row, V, own, key, tie, SHORT, SIZE)
    tl.store(tokens + i, token)


def run(logits, scores, numbers, words, tokens) -> None:
    """Draw a token for each row; see the table in `ladder` for the arguments."""
    n, V = logits.shape
    short = V <= SHORT_ROW
    size = max(LEAST, triton.next_power_of_2(V)) if short else ROOM
    rooms = None if short else torch.empty((n, size), dtype=torch.float32, device=logits.device)
    narrow[(n,)](logits, scores, numbers, words, tokens, rooms, V, size, num_warps=WARPS[short])
