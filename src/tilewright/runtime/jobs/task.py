"""What a verb implements to become a job, and what an engine is handed to run it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Protocol, Self, runtime_checkable

import msgspec

from tilewright.runtime.jobs import trace
from tilewright.runtime.jobs.cut import Cut, Shard
from tilewright.runtime.jobs.directory import Attempt, JobDirectory, Record
from tilewright.runtime.jobs.finished import Report
from tilewright.runtime.jobs.manifest import Value, changed_while_running
from tilewright.runtime.jobs.settings import Settings
from tilewright.runtime.jobs.stop import Stop

DOUBTED = "doubted"  # a figure of a shard: its records that are errors because workers were killed from outside
FIRST = "first."  # figures of a shard that are the number of a record begin with it
OPENINGS = 3  # of a worker: files come and go beside a model now and then, but not each time
WORKER_MEMORY = "worker_memory"  # fact of an engine with processes: {"largest", "sum"} of their peaks in bytes


class Place(msgspec.Struct, frozen=True):
    """Where a worker runs: its number of how many; the cores it may use (None: all); its GPU, as CUDA names it."""

    number: int = 0
    of: int = 1
    cores: tuple[int, ...] | None = None
    gpu: str | None = None


class Beat(Protocol):
    """How a worker shows that it is alive: called at least once in `Settings.watchdog` seconds while a shard runs.

    done: records of the shard that are done so far, 0 where that is not known. share: of the shard's work, where the
    worker knows more of that than `done` tells.
    """

    def __call__(self, done: int = 0, share: float | None = None) -> None: ...

    def at(self, record: int) -> None:
        """This record comes next and alone: if the worker ends now, it is to blame."""


class Worker(Protocol):
    """Runs shards, one after the other, in a process of its own."""

    def run(self, shard: Shard, out: Attempt, beat: Beat) -> int:
        """Writes the output of a shard to `out`, and its failed records to `out.error`; returns how many it has.

        What it writes depends on the shard and the task's fingerprint alone. Raises a TilewrightError to end the job;
        any other exception ends the worker, and the shard is tried again in a new one.
        """

    def close(self) -> None:
        """No more shards come."""


@dataclass(frozen=True)
class Totals:
    """Of all shards: records, those that failed, bytes of output, shards, and their figures, see `add_figures`."""

    records: int
    errors: int
    size: int
    shards: int
    figures: dict[str, float] = field(default_factory=dict)


def add_figures(totals: dict[str, float], figures: Mapping[str, float]) -> None:
    """Add a shard's figures to those of others; of a figure that begins with FIRST the smallest stays."""
    for name, value in figures.items():
        if name.startswith(FIRST):
            totals[name] = min(totals.get(name, value), value)
        else:
            totals[name] = totals.get(name, 0) + value


class Task(Protocol):
    """One job of a verb: small, and made of what pickle can carry, since each worker gets a copy."""

    def fingerprint(self) -> dict[str, Value]:
        """Everything that changes results. Asked for before the first shard and after the last: they must be equal."""

    def cut(self, shard_size: int | None) -> Cut:
        """The shards, without reading the input. shard_size: in the cut's own unit; None: as the task likes."""

    def open(self, place: Place) -> Worker:
        """Called in the worker's process: loads the model, opens the input."""

    def header(self, totals: Totals) -> bytes:
        """What stands before the first shard in the output."""


@runtime_checkable
class Reading(Protocol):
    """A task that says which files are in its fingerprint. One that does not has to find their times unchanged."""

    def files(self) -> dict[str, str]:
        """Their paths, by the names with which their fields begin, as of `file_identity`; also of those that would be
        read if they were there."""


@runtime_checkable
class Settling(Protocol):
    """A task whose shards know too little of each other: what is said of a record may depend on an earlier one."""

    def settle(self, directory: JobDirectory, stop: Stop) -> None:
        """Called when all shards are there: commits those again that are to say something else. Changes nothing in
        those that it has settled before. Raises DamagedShards or Interrupted."""


@runtime_checkable
class Assembling(Protocol):
    """A task whose output is not its shards one behind the other in one file."""

    def outputs(self) -> list[str]:
        """Every file or directory that it writes, the job's own output first."""

    def check_outputs(self) -> None:
        """Raises ResourceError where one of them cannot be written."""

    def assemble(self, directory: JobDirectory, totals: Totals, stop: Stop) -> list[tuple[int, str]]:
        """Writes them, each whole or not at all; bytes and sha256 of each. Raises DamagedShards or Interrupted."""


class Watch:
    """Who looks on while a job runs; this one says nothing. Calls come from one thread at a time."""

    def begin(self, cut: Cut) -> None:
        """The job begins or goes on; it is cut like this."""

    def committed(self, record: Record, worker: int | None) -> None:
        """A shard is there. worker: the number of the one that ran it, None for those of earlier runs."""

    def at_work(self, worker: int, done: int, share: float | None = None) -> None:
        """A worker lives. done, share: see `Beat`."""


@dataclass
class Job:
    """What an engine is handed: run `todo`, and call `done` with the record of each and the number of its worker.

    at_work: to be called with a worker's number and what it says by its `Beat`. stop: to be asked often.
    """

    task: Task
    directory: JobDirectory
    settings: Settings
    stop: Stop
    todo: list[int]
    done: Callable[[Record, int], None]
    at_work: Callable[..., None]
    facts: dict[str, Any] = field(default_factory=dict)  # what the engine wants in the report


class Engine:
    """Runs shards; the whole job lies in its `with` block. lead: this process plans, merges and reports, the others,
    ranks of MPI, follow it. ends_workers: where `run` raises, no worker is at work any more. watches: a worker
    that ends costs the job nothing, so that doubted records may be tried again."""

    lead = True
    ends_workers = True
    watches = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Nothing to close."""

    def run(self, job: Job) -> None:
        """Until all of `job.todo` is committed. Raises Interrupted where `job.stop` asks for it, or an error."""
        raise NotImplementedError

    def follow(self, task: Task, output: str, settings: Settings) -> Report:
        """What a rank does that does not lead. Returns the report of the leading one."""
        raise NotImplementedError

    def tell(self, report: Report) -> None:
        """The job is done: lets those who follow know."""


def open_worker(task: Task, directory: JobDirectory, place: Place) -> Worker:
    """The worker of this process. Raises InputError where what it has opened is not as the run found it."""
    directory.began = began = directory.began.here(directory.manifest)
    for _ in range(OPENINGS):
        folders = began.folders()
        worker = task.open(place)
        try:
            began.check()
            if began.folders() == folders:
                return worker
        except BaseException:
            worker.close()
            raise
        worker.close()  # a file that is not there may have been, meanwhile
    raise changed_while_running(f"files appear and disappear in {', '.join(folders)}")


def run_shard(worker: Worker, directory: JobDirectory, shard: Shard, beat: Beat, *, doubted: int = 0) -> Record:
    """One shard from nothing to its commit. doubted: of its `skip`, records that the next run is to try again. Raises
    InputError where what it read has changed since the run began."""
    with trace.span(trace.SHARD, f"shard {shard.number}"), directory.attempt(shard.number) as out:
        records = worker.run(shard, out, beat)
        if doubted:
            out.figures = {**out.figures, DOUBTED: doubted}
        with trace.span(trace.COMMIT):
            return out.commit(records)
