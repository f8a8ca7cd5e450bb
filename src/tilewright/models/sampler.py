"""From logits to tokens: random numbers that depend on nothing but their names, and the choice of a row.

    raw logits -> repetition penalty -> min_tokens -> temperature -> top_k -> top_p -> min_p -> inverse CDF

Tokens are ordered by falling logit, equal ones by rising id. top_k, top_p and min_p each keep a prefix of that order,
and a uniform number u chooses the first token at which the running sum of the weights reaches u times their total.
"""

import hashlib
from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np

from tilewright.errors import UsageError
from tilewright.models.sampling import SamplingParams

ROUNDS = 10
MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
WEYL = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))  # golden ratio and sqrt(3) - 1: what a round adds to the key
LOW, WORD = np.uint64(0xFFFFFFFF), np.uint64(32)
HEAD = 1024  # tokens ordered first: a trained model's u falls among them nearly always


def philox(counters: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Philox4x32-10: counters uint32 (n, 4) and keys uint32 (n, 2) -> random words uint32 (n, 4).

    Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
    """
    c0, c1, c2, c3 = counters.astype(np.uint64).T
    k0, k1 = keys.astype(np.uint64).T
    for _ in range(ROUNDS):
        a, b = MULTIPLIERS[0] * c0, MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (b >> WORD) ^ c1 ^ k0, b & LOW, (a >> WORD) ^ c3 ^ k1, a & LOW
        k0, k1 = (k0 + WEYL[0]) & LOW, (k1 + WEYL[1]) & LOW
    return np.stack([c0, c1, c2, c3], axis=1).astype(np.uint32)


def stream(seed: int, record: str | int, index: int) -> np.ndarray:
    """The name of a completion's random numbers, uint32 (4,): 128 bits of BLAKE2b over all that identifies it.

    record: its id, where 7 and "7" differ. index: which of the n completions.
    """
    name = f"{seed}/{index}/{'text' if isinstance(record, str) else 'int'}/{record}".encode(errors="surrogatepass")
    return np.frombuffer(hashlib.blake2b(name, digest_size=16).digest(), "<u4").astype(np.uint32)


def uniforms(streams: np.ndarray, steps: Sequence[int] | np.ndarray) -> np.ndarray:
    """The numbers of streams uint32 (n, 4) at steps (n,), float64 (n,) in (0, 1), multiples of 2**-53.

    A stream's first two words are the key and its others the upper half of the counter, whose lower half is the step.
    """
    streams, steps = np.asarray(streams, np.uint32), np.asarray(steps, np.uint64)
    counters = np.column_stack([steps & LOW, steps >> WORD, streams[:, 2:]]).astype(np.uint32)
    words = philox(counters, streams[:, :2]).astype(np.uint64)
    bits = (words[:, 0] << np.uint64(20)) | (words[:, 1] >> np.uint64(12))  # 52: with 53 the half below would round
    return (bits.astype(np.float64) + 0.5) * 2.0**-52


def uniform(seed: int, record: str | int, index: int, step: int) -> float:
    """One number in (0, 1): of this seed, record id, completion and token, and of nothing else."""
    return float(uniforms(stream(seed, record, index)[None], [step])[0])


class Choices(NamedTuple):
    """tokens: int64 (n,), -1 where bad. logprobs: a dict token id -> log-probability for each row that asked, else
    None; the chosen token first, then the best ones. bad: bool (n,), rows with a NaN or an infinity, or with no token
    left to choose."""

    tokens: np.ndarray
    logprobs: list[dict[int, float] | None]
    bad: np.ndarray


def choose(
    logits: np.ndarray,
    params: Sequence[SamplingParams],
    uniforms: np.ndarray,
    seen: Sequence[np.ndarray],
    steps: Sequence[int],
    eos_token_ids: Collection[int] = (),
) -> Choices:
    """The next token of n completions; a row's choice and its bits depend on that row alone.

    logits: float32 (n, V). uniforms: float64 (n,) in (0, 1); greedy rows ignore theirs. seen: token ids of prompt and
    completion so far; used with a repetition_penalty only. steps: tokens of the completion so far.
    Log-probabilities are those of the raw logits. Raises UsageError if a row's part is missing.
    """
    n = len(logits)
    if logits.ndim != 2 or not n == len(params) == len(uniforms) == len(seen) == len(steps):
        given = [len(part) for part in (params, uniforms, seen, steps)]
        raise UsageError(f"choose: logits has shape {logits.shape}; params, uniforms, seen, steps have {given} rows")
    tokens, bad = np.full(n, -1, np.int64), np.zeros(n, bool)
    logprobs: list[dict[int, float] | None] = [None] * n
    for i, p in enumerate(params):
        raw = np.ascontiguousarray(logits[i], np.float32)
        scores = _scores(raw, p, seen[i], steps[i], eos_token_ids)
        best = int(scores.argmax())  # the lowest id of equals
        bad[i] = not np.isfinite(raw).all() or not np.isfinite(scores[best])
        if bad[i]:
            continue
        tokens[i] = best if p.greedy else _draw(scores, scores[best], p, float(uniforms[i]))
        if p.logprobs is not None:
            logprobs[i] = log_probabilities(raw, int(tokens[i]), p.logprobs)
    return Choices(tokens, logprobs, bad)


def log_probabilities(logits: np.ndarray, token: int, best: int) -> dict[int, float]:
    """Log-softmax of one row of logits, (V,): of `token`, then of the `best` tokens in falling order.

    Computed in float64 and rounded to float32.
    """
    wide = logits.astype(np.float64)
    top = wide.max()
    total = top + np.log(np.exp(wide - top).sum())
    ids = [token, *(_best(logits, best) if best else ())]
    return {int(i): float(np.float32(wide[i] - total)) for i in ids}


def _scores(raw: np.ndarray, p: SamplingParams, seen: np.ndarray, step: int, eos_token_ids: Collection[int]):
    """The row after repetition penalty and min_tokens, float32 (V,); `raw` itself where there is neither."""
    banned = [t for t in {*eos_token_ids, *p.stop_token_ids} if t < len(raw)] if step < p.min_tokens else []
    if not banned and p.repetition_penalty == 1:
        return raw
    scores = raw.copy()
    if p.repetition_penalty != 1 and len(seen):
        x = raw[seen].astype(np.float64)  # a token seen twice is penalised once: both writes are equal
        with np.errstate(over="ignore"):  # an infinity makes the row bad
            scores[seen] = np.where(x > 0, x / p.repetition_penalty, x * p.repetition_penalty)
    scores[banned] = -np.inf
    return scores


def _draw(scores: np.ndarray, top: np.float32, p: SamplingParams, u: float) -> int:
    """A token of scores (V,), whose maximum is `top`, by temperature, top_k, top_p, min_p and u."""
    V = len(scores)
    if 0 < p.top_k < V:
        ids = _best(scores, p.top_k)
        weights = _weights(scores[ids], top, p.temperature)
        sums = np.cumsum(weights)
        return int(ids[_place(weights, sums, sums[-1], p, u)])
    every = _weights(scores, top, p.temperature)
    total = every.sum()
    ids = _best(scores, min(HEAD, V))
    sums = np.cumsum(every[ids])
    reached = sums[-1] >= (p.top_p if p.top_p < 1 else u) * total and (p.top_p < 1 or p.min_p == 0)
    if not reached and every[ids[-1]] >= p.min_p:
        ids = _best(scores, V)  # the sums begin with the same bits
        sums = np.cumsum(every[ids])
    return int(ids[_place(every[ids], sums, total, p, u)])


def _place(weights: np.ndarray, sums: np.ndarray, total: float, p: SamplingParams, u: float) -> int:
    """Where u falls among falling weights (m,) with these running sums; total: of top_k's tokens, or of all."""
    kept = len(weights)
    if p.top_p < 1:
        kept = min(kept, int(np.searchsorted(sums, p.top_p * total)) + 1)
    if p.min_p > 0:  # the best weight is 1
        kept = min(kept, int(np.searchsorted(-weights, -p.min_p, side="right")))
    limited = p.top_p < 1 or p.min_p > 0
    target = u * (sums[kept - 1] if limited else total)
    return int(np.searchsorted(sums[:kept], min(target, sums[kept - 1])))  # rounding never leads past the last weight


def _weights(scores: np.ndarray, top: np.float32, temperature: float) -> np.ndarray:
    """exp((scores - top) / temperature) in float64: 1 for the best token, whatever the temperature."""
    with np.errstate(over="ignore", under="ignore"):  # a tiny temperature: the others' weight is 0
        return np.exp((scores.astype(np.float64) - np.float64(top)) / temperature)


def _best(scores: np.ndarray, count: int) -> np.ndarray:
    """Ids of the `count` best of scores float32 (V,), best first, the lower id first among equals.

    Integers that hold score and id sort five times as fast as a stable argsort (V = 50257, NumPy 2.4, AVX-512).
    """
    V = len(scores)
    ids = np.arange(V, dtype=np.uint64)
    if count < V:
        ids = np.flatnonzero(scores >= np.partition(scores, V - count)[V - count]).astype(np.uint64)
    bits = (scores[ids] + np.float32(0)).view(np.uint32)  # + 0: -0.0 equals 0.0
    rising = np.where(bits >> 31, ~bits, bits | np.uint32(1 << 31))  # unsigned integers in the order of the floats
    keys = (~rising).astype(np.uint64) << WORD | ids
    keys.sort()
    return (keys[:count] & LOW).astype(np.int64)
