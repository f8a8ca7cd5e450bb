"""From logits to tokens: sampling parameters become the rules of `ops.sample`. Also decides when a completion ends.

raw logits -> logit_bias -> repetition_penalty -> frequency_penalty and presence_penalty
      -> min_tokens, suppress_tokens, bad_words, no_repeat_ngram_size -> allowed_token_ids
      -> temperature -> top_k -> top_p -> min_p -> inverse CDF

The order is vLLM's, except that vLLM applies min_p before top_k. Where in this order tokens are forbidden makes no
difference.
"""

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

CACHED_WORDS = 256  # the tokens of so many lists of bad words are cached


class Choices(NamedTuple):
    """tokens: int64 (n,), -1 if bad. logprobs: for each row that asked for them, a dict token id -> log-probability:
    the chosen token first, then the best ones; otherwise None. bad: bool (n,), rows with a NaN or an infinity, or
    without a token that may be chosen."""

    tokens: np.ndarray
    logprobs: list[dict[int, float] | None]
    bad: np.ndarray


class BadWords:
    """Bad words as sequences of tokens, each without and with a blank before it. tokens_of: encodes a part of a text;
    None: there is no tokenizer, and a call raises UsageError."""

    def __init__(self, tokens_of: Callable[[str], list[int]] | None) -> None:
        self.tokens_of = tokens_of
        self.cached: dict[tuple[str, ...], list[tuple[int, ...]]] = {}

    def __call__(self, words: tuple[str, ...]) -> list[tuple[int, ...]]:
        if self.tokens_of is None:
            raise UsageError("bad_words has strings, and this model has no tokenizer", remedy="use suppress_tokens")
        if words not in self.cached:
            if len(self.cached) >= CACHED_WORDS:
                self.cached.clear()
            bare = [word.removeprefix(" ") for word in words]
            texts = [text for word in bare for text in (word, f" {word}") if text]
            self.cached[words] = [ids for ids in map(tuple, map(self.tokens_of, texts)) if ids]
        return self.cached[words]


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
    """The next token of n completions. A row's choice and its bits depend only on that row.

    logits: float32 (n, V), an array of NumPy, or a torch tensor on a GPU, where it is then sampled. uniforms: float64
    (n,) in (0, 1); greedy rows ignore theirs. seen: token ids of the prompt and the completion up to now; used if a
    rule depends on them. steps: number of tokens of the completion up to now, the last ones of `seen`. words: bad_words
    as sequences of tokens. Log-probabilities are those of the raw logits, computed in float64 and rounded to float32.
    Raises UsageError if a row's part is missing.
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
    """logits[rows, ids] on the host."""
    if not on_gpu(logits):
        return logits[rows, ids]
    import torch

    device_rows, device_ids = (torch.from_numpy(part).to(logits.device) for part in (rows, ids))
    return logits[device_rows, device_ids].cpu().numpy()


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
    """What is added to a row's logits, and which tokens may be chosen, if not all."""
    after: dict[int, float] = {}
    if p.presence_penalty or p.frequency_penalty:
        counts = Counter(seen[len(seen) - step :])
        after = {token: -(p.frequency_penalty * count + p.presence_penalty) for token, count in counts.items()}
    return Edits(dict(p.logit_bias), after, p.allowed_token_ids or ())


def _banned(
    p: SamplingParams, seen: Sequence[int], step: int, ends: Collection[int], words: BadWords, V: int
) -> Sequence[int]:
    """The tokens that must not come next. ends: tokens that would end a completion before min_tokens."""
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
    """The tokens that would repeat an earlier sequence of `size` tokens."""
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


def failed(params: SamplingParams) -> str:
    """Why a completion failed: no token could be chosen."""
    if params.bans or params.min_tokens:
        return "its rules leave no token to choose, or the logits are not finite, as the weights are too large"
    return "the logits are not finite: the weights are too large"


class Finish(NamedTuple):
    """reason: "stop", "length", or None if it continues. cut: characters of the text to keep; None: all."""

    reason: str | None
    cut: int | None = None


def finish(
    token_ids: Sequence[int],
    params: SamplingParams,
    eos_token_ids: Collection[int],
    text_of: Callable[[Sequence[int]], str] | None = None,
) -> Finish:
    """Whether a completion ends with its last token. Call it after each token.

    token_ids: the tokens of the completion up to now, without the prompt. text_of: decodes tokens; needed only for
    `stop`. A token that ends the completion stays in token_ids. A stop string and the text after it are cut, or with
    include_stop_str_in_output only the text after it. As in vLLM, a stop string counts if it ends after min_tokens. Of
    several stop strings the first in the text counts; of two that begin at the same character, the shorter one.
    Raises UsageError for stop strings without `text_of`.
    """
    count = len(token_ids)
    if not count or count < params.min_tokens:
        return Finish(None)
    last = token_ids[-1]
    if last in params.stop_token_ids or (last in eos_token_ids and not params.ignore_eos):
        return Finish("stop")
    if params.stop:
        if text_of is None:
            raise UsageError("stop has strings, and this model has no tokenizer", remedy="use stop_token_ids")
        text = text_of(token_ids)
        safe = len(text_of(token_ids[: params.min_tokens])) if params.min_tokens else 0
        found = [(text.find(stop, max(safe - len(stop) + 1, 0)), len(stop)) for stop in params.stop]
        if found := [(at, length) for at, length in found if at >= 0]:
            at, length = min(found)
            return Finish("stop", at + length * params.include_stop_str_in_output)
    return Finish("length" if count >= params.max_tokens else None)
