"""From logits to tokens: random numbers that depend on nothing but their names, and the choice of a row.

    raw logits -> repetition penalty -> min_tokens -> temperature -> top_k -> top_p -> min_p -> inverse CDF

The choice itself is an operation, `ops.sample`; here parameters become its rules.
"""

import hashlib
from collections.abc import Collection, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from tilewright.errors import UsageError
from tilewright.models.sampling import SamplingParams
from tilewright.ops._device import on_gpu
from tilewright.ops.sample import Rules, rules, sample

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


def choose(
    logits: Any,
    params: Sequence[SamplingParams],
    uniforms: np.ndarray,
    seen: Sequence[Sequence[int]],
    steps: Sequence[int],
    eos_token_ids: Collection[int] = (),
) -> Choices:
    """The next token of n completions; a row's choice and its bits depend on that row alone.

    logits: float32 (n, V), NumPy's, or a torch tensor on a GPU, where they are then sampled. uniforms: float64 (n,) in
    (0, 1); greedy rows ignore theirs. seen: token ids of prompt and completion so far; used with a repetition_penalty
    only. steps: tokens of the completion so far.
    Log-probabilities are those of the raw logits, computed in float64 and rounded to float32. Raises UsageError if a
    row's part is missing.
    """
    n = len(logits)
    if logits.ndim != 2 or not n == len(params) == len(uniforms) == len(seen) == len(steps):
        given = [len(part) for part in (params, uniforms, seen, steps)]
        raise UsageError(f"choose: logits has shape {logits.shape}; params, uniforms, seen, steps have {given} rows")
    V = logits.shape[1]
    tokens, logarithms, best = sample(logits, _rules(params, uniforms, seen, steps, eos_token_ids, V))
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


def _rules(params, uniforms, seen, steps, eos_token_ids: Collection[int], V: int) -> Rules:
    """The rows' parameters as columns."""
    limits = [p.top_k for p in params], [p.top_p for p in params], [p.min_p for p in params]
    penalised = any(p.repetition_penalty != 1 for p in params)
    early = any(step < p.min_tokens for p, step in zip(params, steps, strict=True))
    return rules(
        uniforms,
        limits,
        temperature=[p.temperature for p in params],
        penalty=[p.repetition_penalty for p in params],
        seen=[s if p.repetition_penalty != 1 else () for p, s in zip(params, seen, strict=True)] if penalised else (),
        banned=[_banned(p, step, eos_token_ids, V) for p, step in zip(params, steps, strict=True)] if early else (),
        best=[-1 if p.logprobs is None else p.logprobs for p in params],
    )


def _banned(p: SamplingParams, step: int, eos_token_ids: Collection[int], V: int) -> list[int]:
    """The tokens that would end a completion before min_tokens."""
    return [t for t in {*eos_token_ids, *p.stop_token_ids} if t < V] if step < p.min_tokens else []
