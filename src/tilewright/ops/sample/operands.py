"""The rules by which tokens are chosen, and what `sample` returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

NO_IDS = np.zeros(0, np.int64)
NO_SHIFTS, NO_ENDS = np.zeros((0, 2)), np.zeros((0, 2), np.int64)


class Rules(NamedTuple):
    """How the tokens of n rows are chosen.

    floats: float64 (n, 5), columns as in `FloatColumns`. integers: int64 (n, 5), columns as in `IntegerColumns`. ids:
    int64 (m,) token ids of all rows. A row penalises the tokens ids[seen:seen_end] and never chooses
    ids[seen_end:banned_end].

    Empty if no row uses them: shifts: float64 (m, 2), columns as in `ShiftColumns`. ends: int64 (n, 2), columns as in
    `EndColumns`. Tokens with a shift and without a penalty are ids[banned_end:shifted_end]. If a row has tokens in
    ids[shifted_end:allowed_end], it chooses no others.
    """

    floats: np.ndarray
    integers: np.ndarray
    ids: np.ndarray
    shifts: np.ndarray = NO_SHIFTS
    ends: np.ndarray = NO_ENDS


class Edits(NamedTuple):
    """More rules of a row. before, after: token id -> what is added to its logit before a penalty, and after it.
    allowed: the only tokens that may be chosen; () for all."""

    before: Mapping[int, float] = {}
    after: Mapping[int, float] = {}
    allowed: Sequence[int] | np.ndarray = ()


class FloatColumns(NamedTuple):
    """Columns of `Rules.floats`. See `rules` for their meaning."""

    u: int
    temperature: int
    top_p: int
    min_p: int
    penalty: int


class IntegerColumns(NamedTuple):
    """Columns of `Rules.integers`.

    top_k: 0 for all tokens. seen, seen_end, banned_end: indices in `Rules.ids`. best: how many of the best tokens are
    reported; -1 also omits the logarithm.
    """

    top_k: int
    seen: int
    seen_end: int
    banned_end: int
    best: int


class ShiftColumns(NamedTuple):
    """Columns of `Rules.shifts`: what is added to a logit before its penalty, and after it."""

    before: int
    after: int


class EndColumns(NamedTuple):
    """Columns of `Rules.ends`: indices in `Rules.ids`."""

    shifted_end: int
    allowed_end: int


FLOAT, INTEGER = FloatColumns(*range(5)), IntegerColumns(*range(5))
SHIFT, END = ShiftColumns(*range(2)), EndColumns(*range(2))


class Drawn(NamedTuple):
    """tokens: int64 (n,), -1 for a row with a NaN or an infinity, or without a token to choose. For rows that want
    them: logarithms: float64 (n,), of the sum of exp of the row's logits; best: int64 (n, most), its best tokens."""

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
    """The rules of n rows. Each argument is one value for all rows or one per row.

    u: (n,) in (0, 1). limits: (top_k, top_p, min_p). temperature: 0 is greedy. penalty: divides positive and multiplies
    negative logits of tokens in `seen`. seen, banned: () or token ids for each row. best: see `IntegerColumns`. edits:
    () or one for each row.
    """
    n = len(u)
    floats, integers = np.empty((n, 5)), np.zeros((n, 5), np.int64)
    top_k, top_p, min_p = limits
    for column, given in zip(FLOAT, (u, temperature, top_p, min_p, penalty), strict=True):
        floats[:, column] = given
    integers[:, INTEGER.top_k], integers[:, INTEGER.best] = top_k, best
    if len(edits):
        return _with_edits(Rules(floats, integers, NO_IDS), seen or [()] * n, banned or [()] * n, edits)
    ids = NO_IDS
    if len(seen) or len(banned):
        pairs = zip(seen or [()] * n, banned or [()] * n, strict=True)
        parts = [np.asarray(part, np.int64) for pair in pairs for part in pair]
        ends = np.cumsum([len(part) for part in parts])
        integers[:, INTEGER.seen_end], integers[:, INTEGER.banned_end] = ends[::2], ends[1::2]
        integers[1:, INTEGER.seen] = ends[1:-1:2]
        ids = np.concatenate(parts)
    return Rules(floats, integers, ids)


def _with_edits(given: Rules, seen: Sequence, banned: Sequence, edits: Sequence[Edits]) -> Rules:
    """The rules with all ids, shifts and ends. seen, banned, edits: one for each row."""
    parts: list[np.ndarray] = []
    shifts: list[tuple[float, float]] = []
    ends = np.zeros((len(edits), 2), np.int64)
    for i, (once, never, more) in enumerate(zip(seen, banned, edits, strict=True)):
        once, never, only = (np.asarray(part, np.int64) for part in (once, never, more.allowed))
        penalised = set(once.tolist()) if len(once) else ()
        others = [token for token in {**more.before, **more.after} if token not in penalised]
        row = once, never, np.array(others, np.int64), only
        counts = [len(part) for part in row]
        given.integers[i, INTEGER.seen] = len(shifts)
        given.integers[i, INTEGER.seen_end : INTEGER.banned_end + 1] = len(shifts) + np.cumsum(counts)[:2]
        ends[i] = len(shifts) + np.cumsum(counts)[2:]
        parts += row
        shifts += [(more.before.get(token, 0.0), more.after.get(token, 0.0)) for token in once.tolist()]
        shifts += [(0.0, 0.0)] * counts[1]
        shifts += [(more.before.get(token, 0.0), more.after.get(token, 0.0)) for token in others]
        shifts += [(0.0, 0.0)] * counts[3]
    return given._replace(ids=np.concatenate(parts), shifts=np.array(shifts, np.float64).reshape(-1, 2), ends=ends)
