"""sample by a sort, one row at a time in NumPy: the best tokens in order and the running sums of their weights.

It sorts all tokens only if u is not reached among the best ones. The limit is the sort. Integers that hold score and id
sort five times as fast as a stable argsort (V = 50257, NumPy 2.4, AVX-512). It is the lowest rung: a row of 4,000 takes
50 to 250 us, one of 50,257 up to 4 ms where its weights are alike.
"""

import numpy as np

from tilewright.ops.sample.operands import FLOAT, INTEGER, SHIFT, Rules

HEAD = 1024  # tokens ordered first: with a trained model they nearly always suffice
LOW, HALF = np.uint64(0xFFFFFFFF), np.uint64(32)


def sample(logits: np.ndarray, rules: Rules, chosen: np.ndarray, logarithms: np.ndarray) -> None:
    """Fill chosen int64 (n, 1 + most), the token and the best ones, and logarithms (n,). logits: float32 (n, V)."""
    for i, raw in enumerate(logits):
        floats, integers = rules.floats[i], rules.integers[i].tolist()
        scores = (
            _shifted(raw, rules, i) if len(rules.ends) else _scores(raw, floats[FLOAT.penalty], integers, rules.ids)
        )
        best = int(scores.argmax())  # the lowest id of equals
        if not np.isfinite(raw).all() or not np.isfinite(scores[best]):
            chosen[i, 0] = -1
            continue
        chosen[i, 0] = (
            _draw(scores, scores[best], floats, integers[INTEGER.top_k]) if floats[FLOAT.temperature] else best
        )
        if integers[INTEGER.best] >= 0:
            wide = raw.astype(np.float64)
            logarithms[i] = wide.max() + np.log(np.exp(wide - wide.max()).sum())
            count = min(integers[INTEGER.best], len(raw))
            chosen[i, 1 : 1 + count] = _best(raw, count) if count else ()


def _scores(raw: np.ndarray, penalty: float, integers: list[int], ids: np.ndarray) -> np.ndarray:
    """The row after repetition penalty and banned tokens, float32 (V,); `raw` itself if there are neither."""
    if integers[INTEGER.seen] == integers[INTEGER.banned_end]:
        return raw
    scores, seen = raw.copy(), ids[integers[INTEGER.seen] : integers[INTEGER.seen_end]]
    x = raw[seen].astype(np.float64)  # a token seen twice is penalised once: both writes are equal
    with np.errstate(over="ignore"):  # an infinity makes the row bad
        scores[seen] = np.where(x > 0, x / penalty, x * penalty)
    scores[ids[integers[INTEGER.seen_end] : integers[INTEGER.banned_end]]] = -np.inf
    return scores


def _shifted(raw: np.ndarray, rules: Rules, i: int) -> np.ndarray:
    """`_scores` of row i, with shifts and allowed tokens."""
    (_, seen, seen_end, banned_end, _), ends = rules.integers[i].tolist(), rules.ends[i].tolist()
    shifted_end, allowed_end = ends
    penalty = rules.floats[i, FLOAT.penalty]
    scores = raw.copy()
    for first, last, factor in ((seen, seen_end, penalty), (banned_end, shifted_end, 1.0)):
        tokens, shifts = rules.ids[first:last], rules.shifts[first:last]
        x = raw[tokens].astype(np.float64) + shifts[:, SHIFT.before]
        with np.errstate(over="ignore"):
            scores[tokens] = np.where(x > 0, x / factor, x * factor) + shifts[:, SHIFT.after]
    scores[rules.ids[seen_end:banned_end]] = -np.inf
    if shifted_end < allowed_end:
        allowed = rules.ids[shifted_end:allowed_end]
        only = np.full_like(scores, -np.inf)
        only[allowed] = scores[allowed]
        return only
    return scores


def _draw(scores: np.ndarray, top: np.float32, floats: np.ndarray, top_k: int) -> int:
    """A token of scores (V,), whose maximum is `top`."""
    V, u, top_p, min_p = len(scores), floats[FLOAT.u], floats[FLOAT.top_p], floats[FLOAT.min_p]
    if 0 < top_k < V:
        ids = _best(scores, top_k)
        weights = _weights(scores[ids], top, floats[FLOAT.temperature])
        sums = np.cumsum(weights)
        return int(ids[_choose(weights, sums, sums[-1], floats)])
    every = _weights(scores, top, floats[FLOAT.temperature])
    total = every.sum()
    ids = _best(scores, min(HEAD, V))
    sums = np.cumsum(every[ids])
    reached = sums[-1] >= (top_p if top_p < 1 else u) * total and (top_p < 1 or min_p == 0)
    if not reached and every[ids[-1]] >= min_p:
        ids = _best(scores, V)  # the sums begin with the same bits
        sums = np.cumsum(every[ids])
    return int(ids[_choose(every[ids], sums, total, floats)])


def _choose(weights: np.ndarray, sums: np.ndarray, total: float, floats: np.ndarray) -> int:
    """The index that u chooses in falling weights (m,) with these running sums. total: of top_k's tokens, or of all."""
    kept, u, top_p, min_p = len(weights), floats[FLOAT.u], floats[FLOAT.top_p], floats[FLOAT.min_p]
    if top_p < 1:
        kept = min(kept, int(np.searchsorted(sums, top_p * total)) + 1)
    if min_p > 0:  # the best weight is 1
        kept = min(kept, int(np.searchsorted(-weights, -min_p, side="right")))
    limited = top_p < 1 or min_p > 0
    target = u * (sums[kept - 1] if limited else total)
    return int(np.searchsorted(sums[:kept], min(target, sums[kept - 1])))  # rounding never leads past the last weight


def _weights(scores: np.ndarray, top: np.float32, temperature: float) -> np.ndarray:
    """exp((scores - top) / temperature) in float64: 1 for the best token, whatever the temperature."""
    with np.errstate(over="ignore", under="ignore"):  # a tiny temperature: the others' weight is 0
        return np.exp((scores.astype(np.float64) - np.float64(top)) / temperature)


def _best(scores: np.ndarray, count: int) -> np.ndarray:
    """Ids of the `count` best of scores float32 (V,), best first, the lower id first among equals."""
    V = len(scores)
    ids = np.arange(V, dtype=np.uint64)
    if count < V:
        ids = np.flatnonzero(scores >= np.partition(scores, V - count)[V - count]).astype(np.uint64)
    bits = (scores[ids] + np.float32(0)).view(np.uint32)  # + 0: -0.0 equals 0.0
    rising = np.where(bits >> 31, ~bits, bits | np.uint32(1 << 31))  # unsigned integers in the order of the floats
    keys = (~rising).astype(np.uint64) << HALF | ids
    keys.sort()
    return (keys[:count] & LOW).astype(np.int64)
