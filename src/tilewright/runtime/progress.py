"""The progress of a job on stderr: a bar on a terminal, a plain line every few seconds elsewhere."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Self, TextIO

from tilewright.runtime.jobs.cut import Cut, Lines, Records, RowGroups, Whole
from tilewright.runtime.jobs.directory import Record
from tilewright.runtime.jobs.task import Watch, add_figures

if TYPE_CHECKING:
    from rich.progress import Progress

EVERY = 5.0  # seconds between plain lines
REFRESH = 0.1  # seconds between two updates of the bar
LITTLE = 0.02  # fraction of the work up to which the time left is shown with "about"
SHOWN = 8  # the most workers whose rates are shown one by one
TOGETHER = "prompts"  # many prompts end in the same step, so their rate is misleading; finished fractions are used


class _Display:
    """Shows progress as a bar or as lines. unit: the name of the counted items."""

    def __init__(self, unit: str, stream: TextIO | None) -> None:
        self._unit = unit
        self._stream: TextIO | None = stream or sys.stderr  # None if the user of the library has closed it
        self._last = time.perf_counter()
        self._bar: Progress | None = None
        self._lost = self._stream is None  # True once the stream cannot be written

    def __enter__(self) -> Self:
        if self._stream is not None and self._stream.isatty():
            self._bar = _bar(self._stream, self._unit)
            self._task = self._bar.add_task("", total=1.0, text="")
            self._try(self._bar.start)
            self._last = 0.0
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar:
            self._try(self._bar.stop)

    def _due(self) -> bool:
        """True if it is time for the next line or update."""
        now = time.perf_counter()
        if self._lost or now - self._last < (REFRESH if self._bar else EVERY):
            return False
        self._last = now
        return True

    def _show(self, share: float, count: str, text: str, of: str = "") -> None:
        """Show the bar or a line.

        share: the finished fraction. count: the number of finished items and the total, as text. of: the quantity of
        which `share` is a fraction, if it is not the items.
        """
        if self._bar:
            self._bar.update(self._task, completed=share, text=text)
            self._try(self._bar.refresh)
        elif stream := self._stream:
            unit = self._unit.removesuffix("s") if count.endswith("of 1") else self._unit
            line = f"{count} {unit} ({share:.0%}{of}), {text}\n"
            self._try(lambda: (stream.write(line), stream.flush()))

    def _say(self, text: str) -> None:
        """Show a sentence: above the bar, or as a line."""
        if self._bar:
            self._try(lambda: self._bar.console.print(text, markup=False, highlight=False) if self._bar else None)
        elif stream := self._stream:
            self._try(lambda: (stream.write(f"{text}\n"), stream.flush()))

    def _try(self, write: Callable[[], object]) -> None:
        """Call `write`. If the stream is closed or full, the job continues without progress."""
        try:
            if not self._lost:
                write()
        except (OSError, ValueError):  # ValueError: the stream has been closed meanwhile
            self._lost = True


@dataclass
class _Hand:
    """A worker's progress.

    begun: when it got its first shard. records: of its committed shards. at: finished records of its current shard.
    share: finished fraction of that shard, if the worker reports it.
    """

    begun: float = field(default_factory=lambda: time.perf_counter())
    records: int = 0
    at: int = 0
    share: float | None = None

    @property
    def rate(self) -> float:
        return (self.records + self.at) / max(time.perf_counter() - self.begun, 1e-9)


@dataclass
class Figures:
    """The totals of this run's shards. begun, ended: seconds since 1970. sums: see `add_figures`."""

    records: int = 0
    begun: float = float("inf")
    ended: float = 0.0
    sums: dict[str, float] = field(default_factory=dict)
    workers: set[int] = field(default_factory=set)

    def add(self, record: Record, worker: int) -> None:
        """Add a shard that a worker of this run has committed."""
        self.records += record.records
        self.workers.add(worker)
        self.begun = min(self.begun, record.finished - record.seconds)
        self.ended = max(self.ended, record.finished)
        add_figures(self.sums, record.figures)


class JobProgress(_Display, Watch):
    """Shows the progress of a job: records done, rate, time left, and the rate of each worker if there are several.

    `with JobProgress("sentences") as watch: run(..., watch)`. stream: where to write. stops_in: returns the seconds
    until a requested stop; infinite without a request. The rate is this run's, from its first shard on. The finished
    fraction also counts shards of earlier runs, and the finished parts of running shards. So prompts that end at the
    same time are counted while they run.
    """

    def __init__(
        self, unit: str, stream: TextIO | None = None, stops_in: Callable[[], float] = lambda: math.inf
    ) -> None:
        super().__init__(unit, stream)
        self._stops_in = stops_in
        self.figures = Figures()
        self._cut: Cut = Whole()
        self._hands: dict[int, _Hand] = {}
        self._shards = self._records = self._bytes = 0  # committed, including those of earlier runs
        self._earlier = 0.0  # the fraction of all work that earlier runs have done

    def begin(self, cut: Cut) -> None:
        self._cut = cut

    def committed(self, record: Record, worker: int | None) -> None:
        self._shards += 1
        self._records += record.records
        if isinstance(self._cut, Lines):
            begin, end = self._cut.span(record.shard)
            self._bytes += end - begin
        if worker is None:
            self._earlier = self._share()
        else:
            self.figures.add(record, worker)
            hand = self._hands.setdefault(worker, _Hand())
            hand.records, hand.at, hand.share = hand.records + record.records, 0, None
            self._update()

    def at_work(self, worker: int, done: int, share: float | None = None) -> None:
        hand = self._hands.setdefault(worker, _Hand())
        hand.at = max(hand.at, done)
        hand.share = hand.share if share is None else share
        self._update()

    def waiting(self, why: str) -> None:
        self._say(why)

    def _share(self) -> float:
        """The finished fraction of all work: committed shards, and the reported parts of running ones."""
        said = [hand.share for hand in self._hands.values() if hand.share is not None]
        running = sum(hand.at for hand in self._hands.values() if hand.share is None)
        if isinstance(self._cut, Records | RowGroups):
            committed = (self._records + running) / max(self._cut.count, 1)
        elif isinstance(self._cut, Lines):
            bytes_each = self._bytes / self._records if self._records else 0.0
            committed = (self._bytes + running * bytes_each) / self._cut.size
        else:
            committed = float(self._shards)
        of_each = min(self._a_shard(), max(1 - committed, 0.0) / max(len(said), 1))  # the last shards are shorter
        return min(committed + sum(said) * of_each, 1.0)

    def _a_shard(self) -> float:
        """The fraction of all work that is in one shard."""
        if isinstance(self._cut, Records):
            return min(self._cut.per_shard / max(self._cut.count, 1), 1.0)
        return min(self._cut.per_shard / self._cut.size, 1.0) if isinstance(self._cut, Lines) else 1 / self._cut.shards

    def _update(self) -> None:
        if not self._bar and not any(hand.records or hand.at or hand.share for hand in self._hands.values()):
            self._last = time.perf_counter()  # so that no line is printed while models are loaded
        elif self._due():
            running = sum(hand.at for hand in self._hands.values())
            share = self._share()
            total = self._cut.count if isinstance(self._cut, Records | RowGroups) else None
            apart = self._unit == TOGETHER and any(hand.share is not None for hand in self._hands.values())
            of = " of the work" if apart else ""
            self._show(share, _of(self._records + running, total), self._text(share, rated=not apart), of)

    def _text(self, share: float, *, rated: bool) -> str:
        """The rates (if rated), the time spent, and the time left."""
        hands = [hand for _, hand in sorted(self._hands.items())]
        spent = time.perf_counter() - min(hand.begun for hand in hands)
        here = sum(hand.records + hand.at for hand in hands)
        rate = f"{amount(here / max(spent, 1e-9))} {self._unit}/s, " if rated else ""
        text, new = f"{rate}{duration(spent)}", share - self._earlier
        if (stops_in := self._stops_in()) < math.inf:
            text += f", stopping within {duration(max(stops_in, 0))}"
        elif new > 0:
            text += f", {'about ' if new < LITTLE else ''}{duration(spent * (1 - share) / new)} left"
        if not rated:
            return text
        rates = [amount(hand.rate) for hand in hands]
        if 1 < len(hands) <= SHOWN:
            text += f"; by worker {' '.join(rates)}"
        elif len(hands) > SHOWN:
            slowest, fastest = (amount(choose(hand.rate for hand in hands)) for choose in (min, max))
            text += f"; {len(hands)} workers, {slowest} to {fastest} each"
        return text


def duration(seconds: float) -> str:
    """0.4 -> "0 s", 100 -> "100 s", 1000 -> "17 min", 10000 -> "2.8 h"."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def amount(rate: float) -> str:
    """1234.5 -> "1,234", 3.456 -> "3.5"."""
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"


def _of(records: int, total: int | None) -> str:
    return f"{records:,} of {total:,}" if total else f"{records:,}"


def _bar(stream: TextIO, unit: str) -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    columns = (TextColumn(unit), BarColumn(), TaskProgressColumn(), TextColumn("{task.fields[text]}"))
    return Progress(*columns, console=Console(file=stream), transient=True, auto_refresh=False)
