"""What a rung of sample is handed beside the logits, and what it fills."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

NO_IDS = np.zeros(0, np.int64)
NO_SHIFTS, NO_ENDS = np.zeros((0, 2)), np.zeros((0, 2), np.int64)


class Rules(NamedTuple):
    """How the tokens of n rows are chosen.

    numbers: float64 (n, 5), columns U, TEMPERATURE, TOP_P, MIN_P, PENALTY. words: int64 (n, 5), columns TOP_K (0: all),
    BEST (how many of the best are reported; -1: not even the logarithm) and three places in ids, int64 (m,): a row's
    penalised tokens are ids[SEEN:SEEN_END], those that must not be chosen ids[SEEN_END:BANNED_END].

    Empty where no row has them: shifts: float64 (m, 2), what is added to a token's logit before its penalty and after
    it. ends: int64 (n, 2), columns SHIFTED_END, ALLOWED_END: tokens with a shift and without a penalty are
    ids[BANNED_END:SHIFTED_END]; if there are any in ids[SHIFTED_END:ALLOWED_END], no others are chosen.
    """

    numbers: np.ndarray
    words: np.ndarray
    ids: np.ndarray
    shifts: np.ndarray = NO_SHIFTS
    ends: np.ndarray = NO_ENDS


class Edits(NamedTuple):
    """More of a row's rules. before, after: token id -> what is added to its logit before a penalty, and after it.
    allowed: the only tokens that may be chosen; (): all."""

    before: Mapping[int, float] = {}
    after: Mapping[int, float] = {}
    allowed: Sequence[int] | np.ndarray = ()


U, TEMPERATURE, TOP_P, MIN_P, PENALTY = range(5)
TOP_K, SEEN, SEEN_END, BANNED_END, BEST = range(5)
BEFORE, AFTER = SHIFTED_END, ALLOWED_END = range(2)


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
    edits: Sequence[Edits] = (),
) -> Rules:
    """The rules of n rows, each part a number for all or one a row.

    u: (n,) in (0, 1). limits: (top_k, top_p, min_p). temperature: 0 is greedy. penalty: divides positive and multiplies
    negative logits of tokens in `seen`. seen, banned: () or token ids for each row. best: see `Rules`. edits: () or
    one for each row.
    """
    n = len(u)
    numbers, words = np.empty((n, 5)), np.zeros((n, 5), np.int64)
    top_k, top_p, min_p = limits
    for column, values in ((U, u), (TEMPERATURE, temperature), (TOP_P, top_p), (MIN_P, min_p), (PENALTY, penalty)):
        numbers[:, column] = values
    words[:, TOP_K], words[:, BEST] = top_k, best
    if len(edits):
        return _edited(Rules(numbers, words, NO_IDS), seen or [()] * n, banned or [()] * n, edits)
    ids = NO_IDS
    if len(seen) or len(banned):
        pairs = zip(seen or [()] * n, banned or [()] * n, strict=True)
        parts = [np.asarray(part, np.int64) for pair in pairs for part in pair]
        ends = np.cumsum([len(part) for part in parts])
        words[:, SEEN_END], words[:, BANNED_END] = ends[::2], ends[1::2]
        words[1:, SEEN] = ends[1:-1:2]
        ids = np.concatenate(parts)
    return Rules(numbers, words, ids)


def _edited(given: Rules, seen: Sequence, banned: Sequence, edits: Sequence[Edits]) -> Rules:
    """The same with everything that changes logits."""
    parts: list[np.ndarray] = []
    shifts: list[tuple[float, float]] = []
    ends = np.zeros((len(edits), 2), np.int64)
    for i, (once, never, more) in enumerate(zip(seen, banned, edits, strict=True)):
        once, never, only = (np.asarray(part, np.int64) for part in (once, never, more.allowed))
        penalised = set(once.tolist()) if len(once) else ()
        others = [token for token in {**more.before, **more.after} if token not in penalised]
        row = once, never, np.array(others, np.int64), only
        counts = [len(part) for part in row]
        given.words[i, SEEN] = len(shifts)
        given.words[i, SEEN_END : BANNED_END + 1] = len(shifts) + np.cumsum(counts)[:2]
        ends[i] = len(shifts) + np.cumsum(counts)[2:]
        parts += row
        shifts += [(more.before.get(token, 0.0), more.after.get(token, 0.0)) for token in once.tolist()]
        shifts += [(0.0, 0.0)] * counts[1]
        shifts += [(more.before.get(token, 0.0), more.after.get(token, 0.0)) for token in others]
        shifts += [(0.0, 0.0)] * counts[3]
    return given._replace(ids=np.concatenate(parts), shifts=np.array(shifts, np.float64).reshape(-1, 2), ends=ends)
