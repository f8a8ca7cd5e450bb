"""Which shard a worker gets next, and what is done about shards that end their workers."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

TRIES = 2  # workers that a shard may end before its records are run one at a time; that a record alone may end
KILLS = 4  # workers that may be killed from outside at a record that runs alone, before it is doubted
LATE = 2  # times as long as its last shard: nobody waits for this worker any more
BLAMED = 8  # records of a shard that may each end a worker; with more, the shard itself is given up


class End(NamedTuple):
    """How a worker ended. why: "SIGSEGV", "exit code 1: ValueError: ...". killed: by a signal that other processes
    send (an operator, a batch system, the kernel when memory is short), which says little of the record at work."""

    why: str
    killed: bool = False


@dataclass
class Ends:
    """Workers that ended while one record ran alone: of their own, and killed from outside."""

    own: int = 0
    killed: int = 0

    def add(self, end: End) -> None:
        """One more."""
        self.own, self.killed = self.own + (not end.killed), self.killed + end.killed

    @property
    def blamed(self) -> bool:
        """Whether the record is not run any more: it becomes an error."""
        return self.own >= TRIES or self.own + self.killed >= KILLS

    @property
    def doubted(self) -> bool:
        """Whether it is blamed for kills from outside: the next run tries it again."""
        return self.blamed and self.own < TRIES

    def reason(self, why: str) -> str:
        """What the record's error says."""
        return f"it ended its worker: {why}" + " (killed from outside: the next run tries it again)" * self.doubted


@dataclass
class Assignment:
    """A shard on its way. alone: one record at a time; skip: records that are blamed, with the reason. doubted: how
    many of these for kills from outside. ends: by record that ran alone, None: before the first of them."""

    shard: int
    alone: bool = False
    skip: tuple[tuple[int, str], ...] = ()
    deaths: int = 0
    doubted: int = 0
    ends: dict[int | None, Ends] = field(default_factory=dict)
    begun: float = 0.0

    def lost(self, end: End, record: int | None) -> bool:
        """A worker ended; False: the shard is given up, since its records cannot be told apart or too many are bad."""
        self.deaths += 1
        if not self.alone:
            self.alone = self.deaths >= TRIES
            return True
        ends = self.ends.setdefault(record, Ends())
        ends.add(end)
        if record is None:
            return not ends.own and not ends.blamed
        if ends.blamed:
            self.skip += ((record, ends.reason(end.why)),)
            self.doubted += ends.doubted
        return len(self.skip) <= BLAMED


@dataclass
class Pace:
    """How a worker does: its last shard's seconds, and what it works on."""

    seconds: float | None = None
    at: Assignment | None = None

    def expected(self, now: float) -> float:
        """Seconds for its next shard; infinite where nothing is known, or it is late with the one it has."""
        late = self.at is not None and self.seconds is not None and now - self.at.begun > LATE * self.seconds
        return float("inf") if late or self.seconds is None else self.seconds


@dataclass
class Schedule:
    """Workers, known by number, draw shards one by one, so a slow one takes fewer.

    Near the end a worker gets none where the others would be done with all of it before this worker with one.
    given_up: shards that ended every worker, with the reason.
    """

    todo: deque[Assignment]
    paces: dict[int, Pace] = field(default_factory=dict)
    given_up: dict[int, str] = field(default_factory=dict)

    @property
    def running(self) -> int:
        """Shards that are being run."""
        return sum(pace.at is not None for pace in self.paces.values())

    @property
    def over(self) -> bool:
        """Whether nothing is left to be run or waited for."""
        return not self.todo and not self.running

    def join(self, worker: int) -> None:
        """A worker that can be given shards."""
        self.paces[worker] = Pace()

    def next(self, worker: int) -> Assignment | None:
        """A shard for a worker that has none; None: nothing for this one, for now."""
        pace = self.paces[worker]
        if not self.todo or (pace.seconds is not None and pace.seconds > self._others_need(worker)):
            return None
        pace.at = self.todo.popleft()
        pace.at.begun = time.monotonic()
        return pace.at

    def _others_need(self, worker: int) -> float:
        """Seconds in which the other workers would do all that is left, as far as is known."""
        now = time.monotonic()
        others = [pace.expected(now) for number, pace in self.paces.items() if number != worker]
        rate = sum(1 / max(seconds, 1e-9) for seconds in others)
        return max(len(self.todo) / rate, min(others)) if rate else float("inf")

    def done(self, worker: int) -> None:
        """The worker's shard is committed."""
        pace = self.paces[worker]
        if pace.at:
            pace.seconds = time.monotonic() - pace.at.begun
            pace.at = None

    def lost(self, worker: int, end: End, record: int | None) -> None:
        """The worker has ended. record: the one that it ran alone."""
        assignment = self.paces.pop(worker, Pace()).at
        if assignment is None:
            return
        if assignment.lost(end, record):
            self.todo.appendleft(assignment)
        else:
            self.given_up[assignment.shard] = end.why


def schedule(shards: Iterable[int | Assignment]) -> Schedule:
    """For these shards, in this order."""
    return Schedule(deque(Assignment(given) if isinstance(given, int) else given for given in shards))
