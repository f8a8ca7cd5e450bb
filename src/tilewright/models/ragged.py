"""Texts of different lengths, one after the other without padding: checked, sorted by length, and cut into passes.

Token ids are checked at once with those of a pass. Where one does not fit, each text is checked alone, so that the
error names it.
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


class Part(NamedTuple):
    """Some texts, the shortest first. chosen: int64 (n,), the index of each one in the caller's list. ids: int32
    (tokens,), of all of them. lengths: int64 (n,), numbers of their tokens."""

    chosen: np.ndarray
    ids: np.ndarray
    lengths: np.ndarray


class Texts(NamedTuple):
    """n texts, whose ids are joined and checked part by part: a GPU computes one part while the host joins the next.

    order: int64 (n,), index of each text in the caller's list, the shortest first. lengths: int64 (n,), ascending; they
    may count tokens -1 at the end of a text.
    """

    texts: Sequence[ArrayLike] | np.ndarray
    limits: Limits
    order: np.ndarray
    lengths: np.ndarray

    def part(self, first: int, end: int) -> Part:
        """The texts from `first` on, before `end`, in the order of their lengths. Raises UsageError."""
        index, lengths = self.order[first:end], self.lengths[first:end]
        ids = _joined(self.texts, index, lengths)
        if ids.dtype.kind in "iu" and int(ids.min()) >= 0 and int(ids.max()) < self.limits.vocabulary:
            return Part(index, ids.astype(np.int32, copy=False), lengths)
        rows = {i: _checked(i, self.texts[i], self.limits) for i in sorted(index.tolist())}
        lengths = np.array([len(rows[i]) for i in index], np.int64)
        again = np.argsort(lengths, kind="stable")
        ids = np.concatenate([rows[i] for i in index[again]])
        return Part(index[again], ids.astype(np.int32), lengths[again])


def sorted_texts(texts: Sequence[ArrayLike] | np.ndarray, limits: Limits) -> Texts:
    """Token ids of n texts, int (tokens,) each, or (n, tokens); -1 at the end of a row is no token.

    Raises UsageError for a text of no tokens or too many; `Texts.part` does so for an id outside the vocabulary.
    """
    lengths = _lengths(texts)
    if not len(lengths) or int(lengths.min()) < 1 or int(lengths.max()) > limits.context:
        rows = [_checked(i, text, limits) for i, text in enumerate(texts)]
        texts, lengths = rows, np.array([len(row) for row in rows], np.int64)
    order = np.argsort(lengths, kind="stable")
    return Texts(texts, limits, order, lengths[order])


def _lengths(texts: Sequence[ArrayLike] | np.ndarray) -> np.ndarray:
    """int64 (n,), the tokens of each text; empty if the texts are not integers (n, tokens) or NumPy vectors."""
    if isinstance(texts, np.ndarray) and texts.ndim == 2 and texts.dtype.kind in "iu" and texts.size:
        found = texts != NO_TOKEN
        lengths = texts.shape[1] - np.argmax(found[:, ::-1], axis=1)
        lengths[~found.any(axis=1)] = 0
        return lengths
    if set(map(type, texts)) == {np.ndarray} and {x.ndim for x in texts} == {1}:  # type: ignore[union-attr]
        return np.fromiter(map(len, texts), np.int64, len(texts))  # type: ignore[arg-type]
    return np.zeros(0, np.int64)


def _joined(texts: Sequence[ArrayLike] | np.ndarray, index: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """The ids of the texts with these indices and lengths, one text after the other; floats if a text has no
    integers."""
    if isinstance(texts, np.ndarray) and texts.ndim == 2:
        return texts[index][np.arange(texts.shape[1]) < lengths[:, None]]
    chosen = [texts[i] for i in index.tolist()]
    if {x.dtype.kind for x in chosen} <= {"i", "u"}:  # type: ignore[union-attr]
        return np.concatenate(chosen)
    return np.zeros(1)


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
