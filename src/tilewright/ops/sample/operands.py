"""What a rung of sample is handed beside the logits, and what it fills."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Rules(NamedTuple):
    """How the tokens of n rows are chosen.

    numbers: float64 (n, 5), columns U, TEMPERATURE, TOP_P, MIN_P, PENALTY. words: int64 (n, 5), columns TOP_K (0: all),
    BEST (how many of the best are reported; -1: not even the logarithm) and three places in ids, int64 (m,): a row's
    penalised tokens are ids[SEEN:SEEN_END], those that must not be chosen ids[SEEN_END:BANNED_END].
    """

    numbers: np.ndarray
    words: np.ndarray
    ids: np.ndarray


U, TEMPERATURE, TOP_P, MIN_P, PENALTY = range(5)
TOP_K, SEEN, SEEN_END, BANNED_END, BEST = range(5)


class Drawn(NamedTuple):
    """tokens: int64 (n,), -1 for a row with a NaN or an infinity, or with no token left. Where it was asked for:
    logarithms: float64 (n,), of the sum of exp of the row's logits; best: int64 (n, most), its best tokens."""

    tokens: np.ndarray
    logarithms: np.ndarray
    best: np.ndarray


def rules(
    u: np.ndarray | Sequence[float],
    limits: tuple = (0, 1.0, 0.0),
    *,
    temperature: float | Sequence[float] | np.ndarray = 1.0,
    penalty: float | Sequence[float] | np.ndarray = 1.0,
    seen: Sequence[Sequence[int] | np.ndarray] = (),
    banned: Sequence[Sequence[int] | np.ndarray] = (),
    best: int | Sequence[int] | np.ndarray = -1,
) -> Rules:
    """The rules of n rows, each part a number for all or one a row.

    u: (n,) in (0, 1). limits: (top_k, top_p, min_p). temperature: 0 is greedy. penalty: divides positive and multiplies
    negative logits of tokens in `seen`. seen, banned: () or token ids for each row. best: see `Rules`.
    """
    n = len(u)
    numbers, words = np.empty((n, 5)), np.zeros((n, 5), np.int64)
    top_k, top_p, min_p = limits
    for column, values in ((U, u), (TEMPERATURE, temperature), (TOP_P, top_p), (MIN_P, min_p), (PENALTY, penalty)):
        numbers[:, column] = values
    words[:, TOP_K], words[:, BEST] = top_k, best
    ids = np.zeros(0, np.int64)
    if len(seen) or len(banned):
        pairs = zip(seen or [()] * n, banned or [()] * n, strict=True)
        parts = [np.asarray(part, np.int64) for pair in pairs for part in pair]
        ends = np.cumsum([len(part) for part in parts])
        words[:, SEEN_END], words[:, BANNED_END] = ends[::2], ends[1::2]
        words[1:, SEEN] = ends[1:-1:2]
        ids = np.concatenate(parts)
    return Rules(numbers, words, ids)
