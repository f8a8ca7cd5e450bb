"""Chooses the next shard of a worker, and decides what happens to shards that kill their workers."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from tilewright.runtime.jobs.task import always

TRIES = 2  # workers that may die with a shard before its records run one at a time, and then with one record
KILLS = 4  # workers that may be killed from outside while the same record runs alone, before it is doubted
LATE = 2  # multiple of its last shard's time after which the schedule no longer waits for a worker
BLAMED = 8  # the most records of a shard that may be blamed; with more, the shard itself is given up


class End(NamedTuple):
    """Why a worker died. why: "SIGSEGV", "exit code 1: ValueError: ...".

    killed: by a signal from outside, as an operator, a batch system or the kernel's OOM killer sends it. Such a signal
    says little about the record.
    """

    why: str
    killed: bool = False


@dataclass
class Ends:
    """The number of workers that died while one record ran alone.

    own: by a crash or an exit. killed: by a signal from outside.
    """

    own: int = 0
    killed: int = 0

    def add(self, end: End) -> None:
        """Count one more death."""
        self.own, self.killed = self.own + (not end.killed), self.killed + end.killed

    @property
    def blamed(self) -> bool:
        """True if the record is not run again: the output gets an error for it."""
        return self.own >= TRIES or self.own + self.killed >= KILLS

    @property
    def doubted(self) -> bool:
        """True if the record is blamed only because of kills from outside. The next run tries it again."""
        return self.blamed and self.own < TRIES

    def reason(self, why: str) -> str:
        """The text of the record's error."""
        return f"it ended its worker: {why}" + " (killed from outside: the next run tries it again)" * self.doubted


@dataclass
class Assignment:
    """A shard to run.

    alone: run one record at a time. skip: blamed records with the reason. deaths: workers that died with this shard.
    doubted: the number of records in skip that are blamed for kills from outside. ends: deaths by the record that ran
    alone; None: before the first record. begun: when it started, by time.monotonic().
    """

    shard: int
    alone: bool = False
    skip: tuple[tuple[int, str], ...] = ()
    deaths: int = 0
    doubted: int = 0
    ends: dict[int | None, Ends] = field(default_factory=dict)
    begun: float = 0.0

    def lost(self, end: End, record: int | None) -> bool:
        """Note that a worker died. Returns False if the shard is given up.

        It is given up if workers die before its first record, or if more than BLAMED records are blamed.
        """
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
    """The speed of a worker. seconds: the time of its last shard. at: its current shard."""

    seconds: float | None = None
    at: Assignment | None = None

    def expected(self, now: float) -> float:
        """Expected seconds for its next shard; infinite if unknown, or if its current shard is late."""
        late = self.at is not None and self.seconds is not None and now - self.at.begun > LATE * self.seconds
        return float("inf") if late or self.seconds is None else self.seconds


@dataclass
class Schedule:
    """Hands out shards one at a time, so a slow worker gets fewer.

    Near the end a slow worker gets no shard if the others would finish all shards before it finishes one. given_up:
    shards that killed every worker, with the reason. claim: as in `task.Job`. more: true while shards may be added.
    """

    todo: deque[Assignment]
    paces: dict[int, Pace] = field(default_factory=dict)
    given_up: dict[int, str] = field(default_factory=dict)
    claim: Callable[[int], bool] = always
    more: bool = False

    @property
    def running(self) -> int:
        """The number of running shards."""
        return sum(pace.at is not None for pace in self.paces.values())

    @property
    def over(self) -> bool:
        """True if no shard waits or runs, and none will be added."""
        return not self.todo and not self.running and not self.more

    def join(self, worker: int) -> None:
        """Add a worker."""
        self.paces[worker] = Pace()

    def next(self, worker: int) -> Assignment | None:
        """The next shard for an idle worker; None if it gets none for now."""
        pace = self.paces[worker]
        if not self.todo:
            return None
        if not self.more and pace.seconds is not None and pace.seconds > self._others_need(worker):
            return None
        while not self.claim(self.todo[0].shard):
            self.todo.popleft()
            if not self.todo:
                return None
        pace.at = self.todo.popleft()
        pace.at.begun = time.monotonic()
        return pace.at

    def _others_need(self, worker: int) -> float:
        """Estimated seconds in which the other workers would finish all remaining shards."""
        now = time.monotonic()
        others = [pace.expected(now) for number, pace in self.paces.items() if number != worker]
        rate = sum(1 / max(seconds, 1e-9) for seconds in others)
        return max(len(self.todo) / rate, min(others)) if rate else float("inf")

    def done(self, worker: int) -> None:
        """Note that the worker's shard is committed."""
        pace = self.paces[worker]
        if pace.at:
            pace.seconds = time.monotonic() - pace.at.begun
            pace.at = None

    def lost(self, worker: int, end: End, record: int | None) -> int | None:
        """Note that the worker died. record: the record that it ran alone. Returns its shard if that is given up."""
        assignment = self.paces.pop(worker, Pace()).at
        if assignment is None:
            return None
        if assignment.lost(end, record):
            self.todo.appendleft(assignment)
            return None
        self.given_up[assignment.shard] = end.why
        return assignment.shard


def schedule(shards: Iterable[int | Assignment], claim: Callable[[int], bool] = always) -> Schedule:
    """A schedule for these shards, in this order."""
    todo = deque(Assignment(given) if isinstance(given, int) else given for given in shards)
    return Schedule(todo, claim=claim)
