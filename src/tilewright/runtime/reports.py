"""The report of every job: records, errors, seconds per phase, memory."""

from __future__ import annotations

import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import Any

from tilewright.formats.validate import Validation
from tilewright.runtime.jobs import trace

SHOWN_ERRORS = 5
COMPILE = "compile"  # the phase in which kernels are compiled
SECONDS = "seconds."  # prefix of a shard's figures that are seconds of a phase

Say = Callable[[str], None]


def quiet(text: str) -> None:
    """Print nothing. It replaces `say` in worker processes."""


@dataclass
class Report:
    """The report of a job.

    seconds: by phase and in "total"; "run" is the time of the model. peak_memory: bytes of this process, including
    mapped files; `job["worker_memory"]` has that of workers. computed: records of this run. figures: further totals of
    its shards. job: the number of shards, and facts about the engine. lead: False for an MPI rank other than rank 0.
    """

    records: int = 0
    errors: int = 0
    first_errors: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    records_per_second: float = 0.0
    peak_memory: int = 0
    validation: Validation | None = None
    computed: int = 0
    figures: dict[str, float] = field(default_factory=dict)
    job: dict[str, Any] = field(default_factory=dict)
    lead: bool = True

    @property
    def exit_code(self) -> int:
        """1 if the validation failed or if every record is bad, otherwise 0. Too many bad records stop a job
        earlier."""
        all_bad = 0 < self.records == self.errors
        return int(all_bad or (self.validation is not None and not self.validation.passed))

    def finish(self, start: float) -> None:
        """Fill in the figures of the whole run. start: its time.perf_counter() at the start."""
        self.seconds["total"] = time.perf_counter() - start
        self.records_per_second = self.computed / max(self.seconds.get("run", 0.0), 1e-9)
        self.peak_memory = peak_memory()

    def take_seconds(self) -> dict[str, float]:
        """The seconds of all phases so far, as figures of a shard. Resets them to zero."""
        taken, self.seconds = {f"{SECONDS}{name}": spent for name, spent in self.seconds.items()}, {}
        return taken

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def say_done(self, say: Say, doing: str) -> None:
        """Say how long the model's work and the output took. doing: "Embedding 3 texts"."""
        if self.computed:
            writing = self.seconds.get("write", 0.0) + self.seconds["merge"]
            say(f"{doing}...Done! ({self.seconds.get('run', 0.0):.3f} sec)")
            say(f"Writing output...Done! ({writing:.3f} sec)")


@dataclass
class TokensReport(Report):
    """tokens: made or scored, in all; cut: records for which the model's context was too short. tokens_per_second: of
    this run."""

    tokens: int = 0
    cut: int = 0
    tokens_per_second: float = 0.0

    def count(self, sums: Mapping[str, float]) -> int:
        """Fill in the fields from the sums of all shards' figures. Returns the tokens of this run."""
        self.tokens, self.cut = int(sums.get("tokens", 0)), int(sums.get("cut", 0))
        new = int(self.figures.get("tokens", 0))
        self.tokens_per_second = new / max(self.seconds.get("run", 0.0), 1e-9)
        return new


@contextmanager
def phase(report: Report, name: str, say: Say = quiet, doing: str = "") -> Iterator[None]:
    """Add the block's time to `report.seconds[name]`, and print "doing...Done!" at its end.

    Time in which this thread compiles CPU kernels is added to `report.seconds["compile"]` instead.
    """
    event = sys.modules.get("numba.core.event")
    clock = _compile_clock()() if event else None
    start = time.perf_counter()
    with event.install_listener("numba:compile", clock) if event else nullcontext():
        yield
    spent = time.perf_counter() - start
    compiling = clock.seconds if clock and name != COMPILE else 0.0
    report.seconds[name] = report.seconds.get(name, 0.0) + spent - compiling
    if compiling:
        report.seconds[COMPILE] = report.seconds.get(COMPILE, 0.0) + compiling
    if doing:
        say(f"{doing}...Done! ({spent:.3f} sec)")


@cache
def _compile_clock() -> Any:
    """The class of a Numba listener that adds up the seconds in which its thread compiles kernels."""
    from numba.core import event

    class Clock(event.Listener):
        def __init__(self) -> None:
            self.seconds, self._depth, self._begin = 0.0, 0, 0.0
            self._thread = threading.get_ident()

        def on_start(self, event: Any) -> None:
            if threading.get_ident() == self._thread:
                self._begin = self._begin if self._depth else time.perf_counter()
                self._depth += 1

        def on_end(self, event: Any) -> None:
            if threading.get_ident() == self._thread:
                self._depth -= 1
                if not self._depth:  # one kernel may compile another
                    end = time.perf_counter()
                    self.seconds += end - self._begin
                    trace.note(trace.COMPUTE, self._begin, end, COMPILE)

    return Clock


def peak_memory() -> int:
    """The largest resident size of this process so far in bytes, including pages of mapped files."""
    try:
        with open("/proc/self/status", encoding="ascii") as status:  # getrusage would include the time before exec
            return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
