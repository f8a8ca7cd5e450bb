"""Sequences as NumPy columns: one call handles thousands of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields

import numpy as np

SAVED = 16  # copy a prefix if that saves one of so many rows of prompts; copies need other kernels


@dataclass(slots=True, eq=False)
class Sequences:
    """n sequences, as columns; int64 (n,) unless stated.

    request: its number. index: of the completion. kind: the number of its parameters. stream uint32 (n, 4): identifies
    its random numbers. prompt: number of tokens of the prompt. count: number of tokens now. limit: the largest number
    of tokens. slot: -1 before it is admitted. apart bool: its prefix must not be copied. shares bool: its prefix was
    copied. tokens (n, width): -1 after count.
    """

    request: np.ndarray
    index: np.ndarray
    kind: np.ndarray
    stream: np.ndarray
    prompt: np.ndarray
    count: np.ndarray
    limit: np.ndarray
    slot: np.ndarray
    apart: np.ndarray
    shares: np.ndarray
    tokens: np.ndarray

    @classmethod
    def of(cls, ids: Sequence[np.ndarray], request: np.ndarray, kind: int = 0) -> Sequences:
        """Prompts int64 (m,) each. The caller sets their limits."""
        n, count = len(ids), np.fromiter(map(len, ids), np.int64, len(ids))
        inside = np.arange(count.max(initial=0)) < count[:, None]
        tokens = np.full(inside.shape, -1, np.int64)
        if n:
            tokens[inside] = np.concatenate(ids)
        no, none = np.zeros(n, bool), np.zeros((n, 4), np.uint32)
        return cls(
            request, np.zeros(n, np.int64), np.full(n, kind), none, count, count.copy(), count.copy(), np.full(n, -1),
            no, no.copy(), tokens,
        )  # fmt: skip

    @classmethod
    def none(cls) -> Sequences:
        """No sequences: always the same object, which nobody changes."""
        return NONE

    def __len__(self) -> int:
        return len(self.request)

    def pick(self, rows: np.ndarray | slice) -> Sequences:
        """The sequences that a mask, an index or a slice selects."""
        return Sequences(*(getattr(self, name)[rows] for name in NAMES))

    @classmethod
    def joined(cls, parts: Sequence[Sequences]) -> Sequences:
        """All parts, one after another."""
        some = [part for part in parts if len(part)] or list(parts[:1])
        if len(some) == 1:
            return some[0]
        width = max(part.tokens.shape[1] for part in some)
        for part in some:
            part.widen(width)
        return cls(*(np.concatenate([getattr(part, name) for part in some]) for name in NAMES))

    def widen(self, width: int) -> None:
        """Widen tokens to at least (n, width)."""
        n, now = self.tokens.shape
        if now < width:
            wide = np.full((n, width), -1, np.int64)
            wide[:, :now] = self.tokens
            self.tokens = wide

    def ordered(self) -> Sequences:
        """The sequences sorted by their tokens, so that neighbours have the longest common prefixes."""
        width = self.tokens.shape[1]
        if len(self) < 2 or width == 0:
            return self
        keys = (self.tokens + 1).astype(">u4").view(f"S{4 * width}")[:, 0]  # big-endian: sorts like integers
        return self.pick(np.lexsort((self.kind, keys)))

    def once(self) -> tuple[Sequences, list[tuple[int, int]]]:
        """`ordered`, without sequences whose prompt and parameters equal those of an earlier one. Also the pairs
        (request of the earlier one, request that was dropped)."""
        rows = self.ordered()
        again = np.zeros(len(self), bool)
        again[1:] = (rows.tokens[1:] == rows.tokens[:-1]).all(axis=1) & (rows.kind[1:] == rows.kind[:-1])
        first = np.maximum.accumulate(np.where(again, 0, np.arange(len(self))))
        pairs = np.stack([rows.request[first], rows.request], axis=1)[again].tolist()
        return (rows.pick(~again), pairs) if pairs else (rows, [])

    def append(self, found: np.ndarray, first: np.ndarray, ends: np.ndarray) -> None:
        """Append columns first to ends (n,) of found (n, m) to the tokens of each row."""
        column = np.arange(found.shape[1])
        rows, at = np.nonzero((column >= first[:, None]) & (column < ends[:, None]))
        count = self.count + ends - first
        self.widen(int(count.max(initial=0)))
        self.tokens[rows, self.count[rows] + at - first[rows]] = found[rows, at]
        self.count = count

    def completions(self) -> np.ndarray:
        """The tokens after each prompt, (n, longest completion); undefined after the end of shorter ones."""
        most = int((self.count - self.prompt).max(initial=0))
        columns = self.prompt[:, None] + np.arange(most)
        return np.take_along_axis(self.tokens, np.minimum(columns, self.tokens.shape[1] - 1), axis=1)

    def rows(self, worth: float = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Token ids and positions of the rows of prompts, int64 (rows,), and their spans, int64 (n, 5).

        The prefix that a prompt shares with the one before it is copied, unless that saves less than one row in SAVED.
        If all prompts have the same length, a pass without copies can be a CUDA graph. Then prefixes are copied only if
        that saves at least `worth` rows.
        """
        n, count = len(self), self.count
        column = np.arange(count.max())
        tokens = self.tokens[:, : len(column)]
        first = np.zeros(n, np.int64)
        if n > 1:
            equal = tokens[1:] == tokens[:-1]
            same = np.where(equal.all(axis=1), len(column), equal.argmin(axis=1))
            first[1:] = np.minimum(same, np.minimum(count[1:] - 1, count[:-1]))
        first[self.apart] = 0
        saved = first.sum()
        if saved * SAVED < count.sum() or (saved < worth and (count == count[0]).all()):
            first[:] = 0
        self.shares = first > 0
        new = count - first
        sources = np.where(self.shares, np.roll(self.slot, 1), -1)
        spans = np.stack([self.slot, first, new, np.cumsum(new) - new, sources], axis=1)
        wanted = (column < count[:, None]) & (column >= first[:, None])
        return tokens[wanted], np.broadcast_to(column, wanted.shape)[wanted], spans


NAMES = [field.name for field in fields(Sequences)]
NONE = Sequences.of([], np.arange(0))


@dataclass(slots=True, eq=False)
class Queue:
    """Sequences that wait for a lane. sampled: equal ones get different tokens. shares: equal greedy ones are computed
    once.

    others: number of a request -> numbers of other requests that get the same answer.
    """

    sampled: bool
    sequences: Sequences = field(default_factory=Sequences.none)
    others: dict[int, list[int]] = field(default_factory=dict)
    is_ordered: bool = True
    shares: bool = True

    def __len__(self) -> int:
        return len(self.sequences)

    def add(self, new: Sequences) -> None:
        """Add sequences."""
        self.sequences, self.is_ordered = Sequences.joined([self.sequences, new]), False

    def order(self) -> None:
        """Sort by tokens. Drop greedy sequences that equal another one, if they share an answer."""
        if self.is_ordered:
            return
        self.is_ordered = True
        if self.sampled or not self.shares:
            self.sequences = self.sequences.ordered()
            return
        self.sequences, pairs = self.sequences.once()
        for request, other in pairs:
            self.others.setdefault(request, []).extend([other, *self.others.pop(other, ())])

    def take(self, most: int, length: int) -> Sequences:
        """Remove and return the first sequences, at most `most`, all with limits of at most `length`."""
        within = np.append(self.sequences.limit[:most] > length, True)
        n = int(np.argmax(within))
        taken, self.sequences = self.sequences.pick(slice(n)), self.sequences.pick(slice(n, None))
        return taken
