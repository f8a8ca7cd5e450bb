"""A token a row without sorting it: the place in the order is found by search, and a sum over all tokens at each step.

The order is by falling score, equal ones by rising id. A score is seen as an integer key that grows with it. How many
tokens, or how much weight, lie at a key or above it falls as the key rises, so the key at which a target is reached is
found in eleven passes over the row, each of which asks at eight keys and leaves an eighth of the range. Tokens of that
key have equal weights: how many of them are needed is a division. top_k, top_p and u are three such targets, each
within the place where the one before it ended; min_p is a pass.

A program is a row, whose numbers come from the L2 cache after the first pass. Weights are exp in float64, taken anew in
each pass. It loses where rows are few: then multiprocessors are idle, and a sort of one row uses them all.
"""

import triton
import triton.language as tl

CUTS = tl.constexpr(8)  # keys that a pass asks at: one below the range, and seven inside
PASSES = tl.constexpr(11)  # 8^11 is more than the keys there are
BLOCK = tl.constexpr(512)  # numbers of a row at a time


@triton.jit
def order_of(x):
    """int32 keys of float32 numbers, in their order; 0.0 and -0.0 have one, and the highest is no number's."""
    bits = (x + 0.0).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def keys_of(x):
    """The same as int64."""
    return order_of(x).to(tl.int64)


@triton.jit
def weights_of(x, most, temperature):
    """float64 exp((x - most) / temperature)."""
    return tl.exp((x.to(tl.float64) - most) / temperature)


@triton.jit
def scores_at(row, first, V, SIZE: tl.constexpr):
    """(ids, scores; -inf behind the end) of SIZE numbers of a row."""
    ids = first + tl.arange(0, SIZE)
    return ids, tl.load(row + ids, mask=ids < V, other=-float("inf"))


@triton.jit
def reached(row, V, most, temperature, target, counts):
    """The highest key at which, with all above it, there are `target` tokens (counts) or so much weight; the lowest
    key where rounding leaves less."""
    low, wide = tl.full((), -2147483648, tl.int64), tl.full((), 4294967296, tl.int64)  # the range's keys
    for _ in range(PASSES):
        step = (wide + CUTS - 1) // CUTS
        cuts = low + step * tl.arange(0, CUTS)
        sums = tl.zeros((CUTS, BLOCK), tl.float64)
        for first in range(0, V, BLOCK):
            ids, x = scores_at(row, first, V, BLOCK)
            w = tl.where(counts, 1.0, weights_of(x, most, temperature))
            above = (keys_of(x)[None, :] >= cuts[:, None]) & (ids < V)[None, :]
            sums += tl.where(above, w[None, :], 0.0)
        enough = (tl.sum(sums, 1) >= target).to(tl.int32)
        low += step * (tl.maximum(tl.sum(enough, 0), 1) - 1)  # sums fall: the first ones are enough
        wide = step
    return low


@triton.jit
def measured(row, V, most, temperature, key):
    """(tokens above a key, their weight, tokens of the key, the weight of one)."""
    count, total = tl.zeros((BLOCK,), tl.int64), tl.zeros((BLOCK,), tl.float64)
    ties, each = tl.zeros((BLOCK,), tl.int64), tl.zeros((BLOCK,), tl.float64)
    for first in range(0, V, BLOCK):
        ids, x = scores_at(row, first, V, BLOCK)
        w, k, inside = weights_of(x, most, temperature), keys_of(x), ids < V
        count += ((k > key) & inside).to(tl.int64)
        total += tl.where((k > key) & inside, w, 0.0)
        ties += ((k == key) & inside).to(tl.int64)
        each = tl.maximum(each, tl.where((k == key) & inside, w, 0.0))
    return tl.sum(count, 0), tl.sum(total, 0), tl.sum(ties, 0), tl.max(each, 0)


@triton.jit
def place_of(row, V, most, temperature, target, counts, end):
    """((key, which of its tokens, from 1) at which the target is reached, none behind `end`, which is another such
    place; the weight up to it)."""
    key = reached(row, V, most, temperature, target, counts)
    end_key, end_tie = end
    key = tl.maximum(key, end_key)
    count, total, ties, each = measured(row, V, most, temperature, key)
    missing = tl.where(counts, target - count, (target - total) / each)
    tie = tl.minimum(tl.maximum(tl.ceil(missing), 1.0), ties.to(tl.float64)).to(tl.int64)
    tie = tl.where(key == end_key, tl.minimum(tie, end_tie), tie)
    return (key, tie), total + tie * each


@triton.jit
def token_at(row, V, place):
    """The id of a place."""
    key, tie = place
    found = tl.full((), -1, tl.int64)
    for first in range(0, V, BLOCK):
        ids, x = scores_at(row, first, V, BLOCK)
        equal = ((keys_of(x) == key) & (ids < V)).to(tl.int64)
        here = tl.sum(equal, 0)
        if (tie > 0) & (tie <= here):
            match = (tl.cumsum(equal, 0) == tie) & (equal > 0)
            found = tl.max(tl.where(match, ids, -1).to(tl.int64), 0)
        tie -= here
    return found


@triton.jit
def search(raw, scores, numbers, words, tokens, V):
    """tokens (n,) of scores (n, V) by the rules of `operands.Rules`; raw (n, V): logits, which say what is finite."""
    i = tl.program_id(0).to(tl.int64)
    row, bad, top = scores + i * V, tl.zeros((BLOCK,), tl.int32), tl.full((BLOCK,), -float("inf"), tl.float32)
    for first in range(0, V, BLOCK):
        ids, x = scores_at(row, first, V, BLOCK)
        given = tl.load(raw + i * V + ids, mask=ids < V, other=0.0)
        bad |= (given - given != 0.0).to(tl.int32)
        top = tl.maximum(top, x)
    highest = tl.max(top, 0)
    u, temperature = tl.load(numbers + 5 * i), tl.load(numbers + 5 * i + 1)
    top_p, min_p, top_k = tl.load(numbers + 5 * i + 2), tl.load(numbers + 5 * i + 3), tl.load(words + 5 * i)
    token = tl.full((), -1, tl.int64)
    if (tl.max(bad, 0) == 0) & (highest - highest == 0.0):
        most, place = highest.to(tl.float64), (keys_of(highest), tl.full((), 1, tl.int64))
        if temperature > 0.0:
            end = (tl.full((), -2147483648, tl.int64), tl.full((), 2147483647, tl.int64))
            _, kept, last, each = measured(row, V, most, temperature, end[0])
            kept += last * each
            if (top_k > 0) & (top_k < V):
                end, kept = place_of(row, V, most, temperature, top_k.to(tl.float64), True, end)
            if top_p < 1.0:
                end, kept = place_of(row, V, most, temperature, top_p * kept, False, end)
            if min_p > 0.0:
                end, kept = likely(row, V, most, temperature, min_p, end, kept)
            place, _ = place_of(row, V, most, temperature, u * kept, False, end)
        token = token_at(row, V, place)
    tl.store(tokens + i, token)


@triton.jit
def likely(row, V, most, temperature, least, end, kept):
    """(end, kept) or, where it comes before, the last place whose weight is `least`, and the weight up to it."""
    lowest, total = tl.full((BLOCK,), 2147483647, tl.int64), tl.zeros((BLOCK,), tl.float64)
    for first in range(0, V, BLOCK):
        ids, x = scores_at(row, first, V, BLOCK)
        w, inside = weights_of(x, most, temperature), ids < V
        lowest = tl.minimum(lowest, tl.where((w >= least) & inside, keys_of(x), 2147483647))
        total += tl.where((w >= least) & inside, w, 0.0)
    end_key, end_tie = end
    key = tl.min(lowest, 0)
    before = key > end_key
    end = (tl.where(before, key, end_key), tl.where(before, tl.full((), 2147483647, tl.int64), end_tie))
    return end, tl.where(before, tl.sum(total, 0), kept)


def run(logits, scores, numbers, words, tokens) -> None:
    """Draw a token for each row; see the table in `ladder` for the arguments."""
    search[(len(logits),)](logits, scores, numbers, words, tokens, logits.shape[1], num_warps=4)
