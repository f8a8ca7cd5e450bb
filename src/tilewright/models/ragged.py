"""Texts of different lengths, one after the other without padding: checked, sorted by length, and cut into passes.

The token ids of all texts are checked together. If one is invalid, each text is checked alone, so that the error names
it.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, cast

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


class Part(NamedTuple):
    """Some texts, the shortest first. chosen: int64 (n,), the index of each one in the caller's list. ids: int32
    (tokens,), of all of them. lengths: int64 (n,), the number of tokens of each text."""

    chosen: np.ndarray
    ids: np.ndarray
    lengths: np.ndarray


class Texts(NamedTuple):
    """n checked texts. ids: int32 (tokens,), of all of them in the caller's order. order: int64 (n,), the index of each
    text in the caller's list, the shortest first. begins, lengths: int64 (n,) in that order, the index of each text's
    first token in `ids`, and its number of tokens."""

    ids: np.ndarray
    order: np.ndarray
    begins: np.ndarray
    lengths: np.ndarray

    def part(self, first: int, end: int) -> Part:
        """The texts from `first` on, before `end`, in the order of their lengths."""
        lengths = self.lengths[first:end]
        starts = np.cumsum(lengths) - lengths
        index = np.repeat(self.begins[first:end] - starts, lengths) + np.arange(lengths.sum())
        return Part(self.order[first:end], self.ids[index], lengths)


def sorted_texts(texts: Sequence[ArrayLike] | np.ndarray, limits: Limits) -> Texts:
    """Token ids of n texts, int (tokens,) each, or (n, tokens); -1 at the end of a row is no token.

    Raises UsageError for the first text that has no tokens or too many, or an id outside the vocabulary.
    """
    ids, lengths = _together(texts)
    if not _fit(ids, lengths, limits):
        rows = [_checked(i, text, limits) for i, text in enumerate(texts)]
        lengths = np.array([len(row) for row in rows], np.int64)
        ids = np.concatenate(rows) if rows else np.zeros(0, np.int64)
    order = np.argsort(lengths, kind="stable")
    begins = np.cumsum(lengths) - lengths
    return Texts(ids.astype(np.int32, copy=False), order, begins[order], lengths[order])


def _together(texts: Sequence[ArrayLike] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(the ids of all texts, their lengths) of integer arrays; ([-1], [0]) if they are anything else."""
    if isinstance(texts, np.ndarray) and texts.ndim == 2 and texts.dtype.kind in "iu" and texts.size:
        found = texts != NO_TOKEN
        lengths = texts.shape[1] - np.argmax(found[:, ::-1], axis=1)
        lengths[~found.any(axis=1)] = 0
        return texts[np.arange(texts.shape[1]) < lengths[:, None]], lengths
    if set(map(type, texts)) == {np.ndarray}:  # sets: a test of each text would take three times as long
        rows = cast(Sequence[np.ndarray], texts)
        if {x.ndim for x in rows} == {1} and {x.dtype.kind for x in rows} <= {"i", "u"}:
            return np.concatenate(rows), np.fromiter(map(len, rows), np.int64, len(rows))
    return np.array([NO_TOKEN]), np.zeros(1, np.int64)


def _fit(ids: np.ndarray, lengths: np.ndarray, limits: Limits) -> bool:
    """True if no text has a wrong length, and no id is wrong."""
    few, most = int(lengths.min()), int(lengths.max())
    if ids.dtype.kind not in "iu" or few < 1 or most > limits.context:
        return False
    return int(ids.min()) >= 0 and int(ids.max()) < limits.vocabulary


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
