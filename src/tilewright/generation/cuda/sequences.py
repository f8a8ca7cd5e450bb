"""Sequences as columns of NumPy: what the host knows of thousands of them, handled by calls that take no longer for
thousands than for one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields

import numpy as np

SAVED = 16  # rows of prompts: one of them must be saved by copies, which take kernels of their own


@dataclass(slots=True, eq=False)
class Sequences:
    """n sequences. place: of the request; index: which of its completions; kind: number of its parameters; stream
    uint32 (n, 4): the name of its random numbers; prompt: its tokens; count: tokens now; limit: tokens at most; slot:
    -1: none yet; apart: its beginning must not be copied; shares: it was; tokens (n, width): -1 behind count."""

    place: np.ndarray
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
    def of(cls, ids: Sequence[np.ndarray], place: np.ndarray, kind: int = 0) -> Sequences:
        """Of prompts int64 (m,) each, whose limit is yet to be set."""
        n, count = len(ids), np.fromiter(map(len, ids), np.int64, len(ids))
        inside = np.arange(count.max(initial=0)) < count[:, None]
        tokens = np.full(inside.shape, -1, np.int64)
        if n:
            tokens[inside] = np.concatenate(ids)
        no, none = np.zeros(n, bool), np.zeros((n, 4), np.uint32)
        return cls(
            place, np.zeros(n, np.int64), np.full(n, kind), none, count, count.copy(), count.copy(), np.full(n, -1),
            no, no.copy(), tokens,
        )  # fmt: skip

    @classmethod
    def none(cls) -> Sequences:
        """No sequence."""
        return cls.of([], np.arange(0))

    def __len__(self) -> int:
        return len(self.place)

    def pick(self, rows: np.ndarray | slice) -> Sequences:
        """Those of a mask, an index or a slice."""
        return Sequences(*(getattr(self, name)[rows] for name in NAMES))

    @classmethod
    def joined(cls, parts: Sequence[Sequences]) -> Sequences:
        """All of them, one after the other."""
        some = [part for part in parts if len(part)] or list(parts[:1])
        if len(some) == 1:
            return some[0]
        width = max(part.tokens.shape[1] for part in some)
        for part in some:
            part.widen(width)
        return cls(*(np.concatenate([getattr(part, name) for part in some]) for name in NAMES))

    def widen(self, width: int) -> None:
        """Room for tokens up to `width`."""
        n, now = self.tokens.shape
        if now < width:
            wide = np.full((n, width), -1, np.int64)
            wide[:, :now] = self.tokens
            self.tokens = wide

    def ordered(self) -> Sequences:
        """In the order of their tokens, so that neighbours have as much in common as there is."""
        width = self.tokens.shape[1]
        if len(self) < 2 or width == 0:
            return self
        keys = (self.tokens + 1).astype(">u4").view(f"S{4 * width}")[:, 0]  # bytes in the order of the numbers
        return self.pick(np.lexsort((self.kind, keys)))

    def once(self) -> tuple[Sequences, list[tuple[int, int]]]:
        """`ordered`, and of those that are equal, parameters and all, the first alone: with pairs (its place,
        another's)."""
        rows = self.ordered()
        again = np.zeros(len(self), bool)
        again[1:] = (rows.tokens[1:] == rows.tokens[:-1]).all(axis=1) & (rows.kind[1:] == rows.kind[:-1])
        first = np.maximum.accumulate(np.where(again, 0, np.arange(len(self))))
        twins = np.stack([rows.place[first], rows.place], axis=1)[again].tolist()
        return (rows.pick(~again), twins) if twins else (rows, [])

    def append(self, found: np.ndarray, first: np.ndarray, ends: np.ndarray) -> None:
        """Columns first to ends (n,) of found (n, m) become each row's next tokens."""
        column = np.arange(found.shape[1])
        rows, at = np.nonzero((column >= first[:, None]) & (column < ends[:, None]))
        count = self.count + ends - first
        self.widen(int(count.max(initial=0)))
        self.tokens[rows, self.count[rows] + at - first[rows]] = found[rows, at]
        self.count = count

    def completions(self) -> np.ndarray:
        """The tokens behind each prompt, (n, the most of them), and anything behind fewer."""
        most = int((self.count - self.prompt).max(initial=0))
        columns = self.prompt[:, None] + np.arange(most)
        return np.take_along_axis(self.tokens, np.minimum(columns, self.tokens.shape[1] - 1), axis=1)

    def rows(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Token ids and positions of the rows of prompts, int64 (rows,), and their spans, int64 (n, 5).

        A prompt begins with what it has in common with the one before it, whose keys and values are copied; unless
        that saves less than one row in SAVED, since prompts that begin alike are as good as different ones then.
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
        if first.sum() * SAVED < count.sum():
            first[:] = 0
        self.shares = first > 0
        new = count - first
        sources = np.where(self.shares, np.roll(self.slot, 1), -1)
        spans = np.stack([self.slot, first, new, np.cumsum(new) - new, sources], axis=1)
        wanted = (column < count[:, None]) & (column >= first[:, None])
        return tokens[wanted], np.broadcast_to(column, wanted.shape)[wanted], spans


NAMES = [field.name for field in fields(Sequences)]


@dataclass(slots=True, eq=False)
class Queue:
    """Sequences that wait for a lane. sampled: by chance, so that equal ones differ; else equal ones are computed once.

    others: place -> places of sequences with the same answer.
    """

    sampled: bool
    sequences: Sequences = field(default_factory=Sequences.none)
    others: dict[int, list[int]] = field(default_factory=dict)
    is_ordered: bool = True

    def __len__(self) -> int:
        return len(self.sequences)

    def add(self, new: Sequences) -> None:
        """More of them."""
        self.sequences, self.is_ordered = Sequences.joined([self.sequences, new]), False

    def order(self) -> None:
        """In the order of their tokens, and equal ones once where that is right."""
        if self.is_ordered:
            return
        self.is_ordered = True
        if self.sampled:
            self.sequences = self.sequences.ordered()
            return
        self.sequences, twins = self.sequences.once()
        for place, other in twins:
            self.others.setdefault(place, []).extend([other, *self.others.pop(other, ())])

    def take(self, most: int, length: int) -> Sequences:
        """The first ones, at most so many, whose limits are all within `length`."""
        within = np.append(self.sequences.limit[:most] > length, True)
        n = int(np.argmax(within))
        taken, self.sequences = self.sequences.pick(slice(n)), self.sequences.pick(slice(n, None))
        return taken
