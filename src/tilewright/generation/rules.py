"""From logits to tokens: random numbers that depend on nothing but their names, and the choice of a row.

    raw logits -> logit_bias -> repetition_penalty -> frequency_penalty and presence_penalty
      -> min_tokens, suppress_tokens, bad_words, no_repeat_ngram_size -> allowed_token_ids
      -> temperature -> top_k -> top_p -> min_p -> inverse CDF

The choice itself is an operation, `ops.sample`; here parameters become its rules. The order is vLLM's, but that there
min_p stands before top_k; tokens that are forbidden come out the same wherever that is done.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from tilewright.errors import UsageError
from tilewright.generation.sampling import SamplingParams
from tilewright.ops.core.gpu.tensors import on_gpu
from tilewright.ops.sample import Edits, Rules, rules, sample

KEPT_WORDS = 256  # lists of bad words whose tokens are kept
ROUNDS = 10
MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
WEYL = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))  # golden ratio and sqrt(3) - 1: what a round adds to the key
LOW, WORD = np.uint64(0xFFFFFFFF), np.uint64(32)


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


class BadWords:
    """Bad words as sequences of tokens, each without and with a blank before it. tokens_of: encodes a part of a text.
    None: there is no tokenizer. A call raises UsageError then."""

    def __init__(self, tokens_of: Callable[[str], list[int]] | None) -> None:
        self.tokens_of = tokens_of
        self.kept: dict[tuple[str, ...], list[tuple[int, ...]]] = {}

    def __call__(self, words: tuple[str, ...]) -> list[tuple[int, ...]]:
        if self.tokens_of is None:
            raise UsageError("bad_words has strings, and this model has no tokenizer", hint="use suppress_tokens")
        if words not in self.kept:
            if len(self.kept) >= KEPT_WORDS:
                self.kept.clear()
            bare = [word.removeprefix(" ") for word in words]
            texts = [text for word in bare for text in (word, f" {word}") if text]
            self.kept[words] = [ids for ids in map(tuple, map(self.tokens_of, texts)) if ids]
        return self.kept[words]


NO_WORDS = BadWords(None)


def choose(
    logits: Any,
    params: Sequence[SamplingParams],
    uniforms: np.ndarray,
    seen: Sequence[Sequence[int]],
    steps: Sequence[int],
    eos_token_ids: Collection[int] = (),
    words: BadWords = NO_WORDS,
) -> Choices:
    """The next token of n completions; a row's choice and its bits depend on that row alone.

    logits: float32 (n, V), NumPy's, or a torch tensor on a GPU, where they are then sampled. uniforms: float64 (n,) in
    (0, 1); greedy rows ignore theirs. seen: token ids of prompt and completion so far; used where a rule depends on
    them. steps: tokens of the completion so far, the last ones of `seen`. words: bad_words as sequences of tokens.
    Log-probabilities are those of the raw logits, computed in float64 and rounded to float32. Raises UsageError if a
    row's part is missing.
    """
    n = len(logits)
    if logits.ndim != 2 or not n == len(params) == len(uniforms) == len(seen) == len(steps):
        given = [len(part) for part in (params, uniforms, seen, steps)]
        raise UsageError(f"choose: logits has shape {logits.shape}; params, uniforms, seen, steps have {given} rows")
    V = logits.shape[1]
    tokens, logarithms, best = sample(logits, _rules(params, uniforms, seen, steps, eos_token_ids, words, V))
    logprobs: list[dict[int, float] | None] = [None] * n
    asked = {i: [tokens[i], *best[i, : p.logprobs]] for i, p in enumerate(params) if p.logprobs is not None}
    asked = {i: ids for i, ids in asked.items() if ids[0] >= 0}
    if asked:
        rows, ids = np.repeat([*asked], [*map(len, asked.values())]), np.concatenate([*asked.values()])
        wide = _values(logits, rows, ids).astype(np.float64) - logarithms[rows]
        pairs = zip(rows.tolist(), ids.tolist(), wide.astype(np.float32).tolist(), strict=True)
        for i, row in groupby(pairs, key=itemgetter(0)):
            logprobs[i] = {token: value for _, token, value in row}
    return Choices(tokens, logprobs, tokens < 0)


def _values(logits: Any, rows: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """logits[rows, ids], from wherever they are."""
    if not on_gpu(logits):
        return logits[rows, ids]
    import torch

    rows_there, ids_there = (torch.from_numpy(part).to(logits.device) for part in (rows, ids))
    return logits[rows_there, ids_there].cpu().numpy()


def _rules(params, uniforms, seen, steps, eos_token_ids: Collection[int], words: BadWords, V: int) -> Rules:
    """The rows' parameters as columns."""
    limits = [p.top_k for p in params], [p.top_p for p in params], [p.min_p for p in params]
    penalised = any(p.repetition_penalty != 1 for p in params)
    edited = any(p.shifts or p.allowed_token_ids is not None for p in params)
    waits = [step < p.min_tokens for p, step in zip(params, steps, strict=True)]
    ends = [{*eos_token_ids, *p.stop_token_ids} if wait else () for p, wait in zip(params, waits, strict=True)]
    forbidden = any(p.bans for p in params) or any(ends)
    rows = list(zip(params, seen, steps, ends, strict=True)) if forbidden or edited else []
    return rules(
        uniforms,
        limits,
        temperature=[p.temperature for p in params],
        penalty=[p.repetition_penalty for p in params],
        seen=[s if p.repetition_penalty != 1 else () for p, s in zip(params, seen, strict=True)] if penalised else (),
        banned=[_banned(p, s, step, end, words, V) for p, s, step, end in rows] if forbidden else (),
        best=[-1 if p.logprobs is None else p.logprobs for p in params],
        edits=[_edits(p, s, step) for p, s, step, _ in rows] if edited else (),
    )


def _edits(p: SamplingParams, seen: Sequence[int], step: int) -> Edits:
    """What is added to a row's logits, and the only tokens that may be chosen."""
    after: dict[int, float] = {}
    if p.presence_penalty or p.frequency_penalty:
        counts = Counter(seen[len(seen) - step :])
        after = {token: -(p.frequency_penalty * count + p.presence_penalty) for token, count in counts.items()}
    return Edits(dict(p.logit_bias), after, p.allowed_token_ids or ())


def _banned(
    p: SamplingParams, seen: Sequence[int], step: int, ends: Collection[int], words: BadWords, V: int
) -> Sequence[int]:
    """The tokens that must not come next. ends: those that would end a completion before min_tokens."""
    if not p.bans:
        return [token for token in ends if token < V]
    found = {*ends, *p.suppress_tokens}
    if p.bad_words:
        completion = seen[len(seen) - step :]
        for word in words(p.bad_words):
            before = len(word) - 1
            if before <= step and tuple(completion[step - before :]) == word[:-1]:
                found.add(word[-1])
    if p.no_repeat_ngram_size:
        found |= _repeating(seen, p.no_repeat_ngram_size)
    return [token for token in found if token < V]


def _repeating(seen: Sequence[int], size: int) -> set[int]:
    """The tokens with which the last `size` tokens would be some that were there before."""
    if len(seen) < size:
        return set()
    tail = list(seen[len(seen) - size + 1 :])
    starts = range(len(seen) - size + 1)
    if not tail:
        return set(seen)
    last = tail[-1]
    return {
        seen[at + size - 1] for at in starts if seen[at + size - 2] == last and list(seen[at : at + size - 1]) == tail
    }
