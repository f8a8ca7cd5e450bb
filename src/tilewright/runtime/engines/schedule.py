"""Which shard a worker gets next, and what is done about shards that end their workers."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

TRIES = 2  # workers that a shard may end before its records are run one at a time
LATE = 2  # times as long as its last shard: nobody waits for this worker any more
BLAMED = 8  # records of a shard that may each end a worker; with more, the shard itself is given up


@dataclass
class Assignment:
    """A shard on its way. alone: one record at a time; skip: records that have ended a worker, with the reason."""

    shard: int
    alone: bool = False
    skip: tuple[tuple[int, str], ...] = ()
    deaths: int = 0
    begun: float = 0.0


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

    def lost(self, worker: int, why: str, record: int | None) -> None:
        """The worker has ended. record: the one that it ran alone."""
        assignment = self.paces.pop(worker, Pace()).at
        if assignment is None:
            return
        assignment.deaths += 1
        if assignment.alone and record is not None and len(assignment.skip) < BLAMED:
            assignment.skip += ((record, f"it ended its worker: {why}"),)
        elif assignment.alone:
            self.given_up[assignment.shard] = why
            return
        assignment.alone = assignment.deaths >= TRIES
        self.todo.appendleft(assignment)


def schedule(shards: Iterable[int | Assignment]) -> Schedule:
    """For these shards, in this order."""
    return Schedule(deque(Assignment(given) if isinstance(given, int) else given for given in shards))
