"""Texts of different lengths, one after the other without padding: checked, sorted by length, and cut into passes.

A text's token ids are checked at once with those of all others. Where one does not fit, each text is checked alone, so
that the error names it.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from tilewright.errors import UsageError
from tilewright.formats.sentence_encoder import NO_TOKEN
from tilewright.ops.core.arrays import as_numpy
from tilewright.ops.embedding import checked_ids


class Limits(NamedTuple):
    """Of a text. context: tokens at most. vocabulary: ids are 0 to vocabulary - 1."""

    context: int
    vocabulary: int


class Texts(NamedTuple):
    """n texts, the shortest first. order: int64 (n,), index of each one in the caller's list. ids: int32 (tokens,), of
    all of them. starts, lengths: int64 (n,), index of each one's first token, and its number of tokens."""

    order: np.ndarray
    ids: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray

    def part(self, first: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        """(ids, lengths) of the texts from `first` on, before `end`."""
        lengths = self.lengths[first:end]
        begin = self.starts[first]
        return self.ids[begin : begin + lengths.sum()], lengths


def sorted_texts(texts: Sequence[ArrayLike] | np.ndarray, limits: Limits, first: int = 0) -> Texts:
    """Token ids of n texts, int (tokens,) each, or (n, tokens); -1 at the end of a row is no token.

    first: the number of the first one, in messages. Raises UsageError for a text of no tokens or too many, and for an
    id outside the vocabulary.
    """
    ids, lengths = _together(texts)
    if not _fit(ids, lengths, limits):
        rows = [_checked(i, text, limits) for i, text in enumerate(texts, first)]
        lengths = np.array([len(row) for row in rows], np.int64)
        ids = np.concatenate(rows) if rows else np.zeros(0, np.int64)
    order = np.argsort(lengths, kind="stable")
    ordered, begins = lengths[order], (np.cumsum(lengths) - lengths)[order]
    starts = np.cumsum(ordered) - ordered
    index = np.repeat(begins - starts, ordered) + np.arange(len(ids))
    return Texts(order, ids.astype(np.int32, copy=False)[index], starts, ordered)


def _together(texts: Sequence[ArrayLike] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(the ids of all texts, their lengths) of integer arrays; ([-1], [0]) if they are anything else."""
    if isinstance(texts, np.ndarray) and texts.ndim == 2 and texts.dtype.kind in "iu" and texts.size:
        found = texts != NO_TOKEN
        lengths = texts.shape[1] - np.argmax(found[:, ::-1], axis=1)
        lengths[~found.any(axis=1)] = 0
        return texts[np.arange(texts.shape[1]) < lengths[:, None]], lengths
    if len(texts) and all(isinstance(x, np.ndarray) and x.ndim == 1 and x.dtype.kind in "iu" for x in texts):
        return np.concatenate(texts), np.fromiter(map(len, texts), np.int64, len(texts))
    return np.array([NO_TOKEN]), np.zeros(1, np.int64)


def _fit(ids: np.ndarray, lengths: np.ndarray, limits: Limits) -> bool:
    """True if no text has a wrong length, and no id is wrong."""
    few, most = int(lengths.min()), int(lengths.max())
    return few >= 1 and most <= limits.context and int(ids.min()) >= 0 and int(ids.max()) < limits.vocabulary


def _checked(i: int, text: ArrayLike, limits: Limits) -> np.ndarray:
    """The ids of text i, int64 (tokens,). Raises UsageError."""
    ids, most = as_numpy("ids", text), limits.context
    if ids.ndim == 1 and len(ids) and ids[-1] == NO_TOKEN:
        ids = ids[: len(ids) - int(np.argmax(ids[::-1] != NO_TOKEN))]
    if ids.ndim != 1 or not 1 <= len(ids) <= most:
        raise UsageError(f"text {i} has ids of shape {ids.shape}; 1 to {most} token ids are wanted")
    return checked_ids(ids, limits.vocabulary, f"ids of text {i}").astype(np.int64)


def passes(lengths: np.ndarray, rows: int, cached: int) -> Iterator[tuple[int, int]]:
    """(first, end) of the texts of each pass: at most `rows` tokens, and `cached` positions of keys, or one text.

    lengths: ascending. Positions of keys: texts times tokens of the longest one.
    """
    ends, first = np.cumsum(lengths), 0
    while first < len(lengths):
        tokens = ends[first] - lengths[first] + rows
        end = max(int(np.searchsorted(ends, tokens, "right")), first + 1)
        positions = np.arange(1, end - first + 1) * lengths[first:end]
        end = first + max(int(np.searchsorted(positions, cached, "right")), 1)
        yield first, end
        first = end
