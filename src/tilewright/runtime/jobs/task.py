"""The protocols between verbs and engines: a verb implements `Task` and `Worker`, and an engine runs a `Job`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar, runtime_checkable

import msgspec

from tilewright.runtime.jobs import trace
from tilewright.runtime.jobs.cut import Cut, Shard
from tilewright.runtime.jobs.directory import Attempt, JobDirectory, Record
from tilewright.runtime.jobs.finished import Report
from tilewright.runtime.jobs.manifest import Value, changed_while_running
from tilewright.runtime.jobs.settings import Settings
from tilewright.runtime.jobs.stop import Stop

DOUBTED = "doubted"  # a shard's figure: the number of its errors that are due to workers killed from outside
OTHERS = "others"  # fact: the number of shards that workers which joined the job have made during the run
FIRST = "first."  # figures of a shard that are the number of a record begin with it
OPENINGS = 3  # attempts of a worker to open its inputs: files beside a model may change now and then, but not each time
WORKER_MEMORY = "worker_memory"  # fact of an engine with processes: {"largest", "sum"} of their peaks in bytes
J = TypeVar("J", bound=Any)  # a verb's job


class Place(msgspec.Struct, frozen=True):
    """Where a worker runs: its number, the number of workers, its cores (None: all), and its GPU by CUDA's name (None:
    the CPU; "": the one that Ray gives it)."""

    number: int = 0
    of: int = 1
    cores: tuple[int, ...] | None = None
    gpu: str | None = None

    @property
    def device(self) -> str:
        """The GPU or the cores, for people: "GPU 1", "core 0", "cores 0-7", or "CPU" for all cores."""
        if self.gpu is not None:
            return f"GPU {self.gpu}".rstrip()
        if not self.cores:
            return "CPU"
        return f"core{'s' * (len(self.cores) > 1)} {spans(self.cores)}"


def spans(numbers: Sequence[int]) -> str:
    """Ascending numbers as people write them: (0, 1, 2, 5) -> "0-2, 5"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


class Beat(Protocol):
    """A worker's sign of life: called at least once per `Settings.watchdog` seconds while a shard runs. done: finished
    records of the shard, 0 if unknown. share: finished part of the shard's work, if the worker knows it better than by
    `done`.
    """

    def __call__(self, done: int = 0, share: float | None = None) -> None: ...

    def at(self, record: int) -> None:
        """This record runs next, alone. If the worker dies now, the record is blamed."""


class Worker(Protocol):
    """Runs shards one after the other, in its own process."""

    def run(self, shard: Shard, out: Attempt, beat: Beat) -> int:
        """Writes the output of a shard to `out`, and its failed records to `out.error`; returns how many it has.

        What it writes depends on the shard and the task's fingerprint alone. Raises a TilewrightError to end the job;
        any other exception ends the worker, and the shard is tried again in a new one.
        """

    def close(self) -> None:
        """No more shards come."""


@dataclass(frozen=True)
class Totals:
    """Totals of all shards: records, failed records, bytes of output, shards, and their figures, see `add_figures`."""

    records: int
    errors: int
    size: int
    shards: int
    figures: dict[str, float] = field(default_factory=dict)


def add_figures(totals: dict[str, float], figures: Mapping[str, float]) -> None:
    """Add a shard's figures to the totals. For a figure whose name begins with FIRST, keep the smallest."""
    for name, value in figures.items():
        if name.startswith(FIRST):
            totals[name] = min(totals.get(name, value), value)
        else:
            totals[name] = totals.get(name, 0) + value


class Task(Protocol):
    """One job of a verb. It is small and can be pickled, because each worker gets a copy."""

    def fingerprint(self) -> dict[str, Value]:
        """Everything that changes results. It is computed before the first shard and after the last, and must be
        equal."""

    def cut(self, shard_size: int | None) -> Cut:
        """The cut into shards, made without reading the input. shard_size: in the cut's own unit; None: the task's
        choice."""

    def open(self, place: Place) -> Worker:
        """Called in the worker's process: loads the model, opens the input."""

    def header(self, totals: Totals) -> bytes:
        """The bytes before the first shard in the output."""


@runtime_checkable
class Reading(Protocol):
    """A task that names the files in its fingerprint. The files of other tasks must have unchanged times."""

    def files(self) -> dict[str, str]:
        """Paths by the prefix of their fields, see `file_identity`. They include missing files that would be read if
        they existed."""


@runtime_checkable
class Settling(Protocol):
    """A task in which the output for a record may depend on earlier shards."""

    def settle(self, directory: JobDirectory, stop: Stop) -> None:
        """Called when all shards exist. It commits those shards again whose output must change, except the ones that it
        has changed before. Raises DamagedShards or Interrupted."""


@runtime_checkable
class Assembling(Protocol):
    """A task whose output is not one file of its joined shards."""

    def outputs(self) -> list[str]:
        """All files and directories that the task writes, the job's own output first."""

    def check_outputs(self) -> None:
        """Raises ResourceError if one of them cannot be written."""

    def assemble(self, directory: JobDirectory, totals: Totals, stop: Stop) -> list[tuple[int, str]]:
        """Write each output completely or not at all. Returns (bytes, sha256) of each. Raises DamagedShards or
        Interrupted."""


class Watch:
    """An observer of a running job; this one does nothing. Calls come from one thread at a time."""

    def begin(self, cut: Cut) -> None:
        """The job begins or resumes, with this cut."""

    def committed(self, record: Record, worker: int | None) -> None:
        """A shard is committed. worker: the number of its worker; None for shards of earlier runs."""

    def at_work(self, worker: int, done: int, share: float | None = None) -> None:
        """A worker gave a sign of life. done, share: see `Beat`."""

    def waiting(self, why: str) -> None:
        """No worker runs. why: a sentence for people, without a full stop."""


def always(shard: int) -> bool:
    """The claim of a process that shares its shards with no other."""
    return True


class Source(Protocol):
    """Hands out the shards of a job that other processes work on, too."""

    @property
    def over(self) -> bool:
        """True if no shard is left, neither for this process nor at work elsewhere."""

    def next(self) -> int | None:
        """A shard that nobody else has; None if there is none at present. Raises ResourceError, and InternalError for a
        shard that ended too many processes."""

    def drop(self, number: int) -> None:
        """This process does not run the shard any more, because it ended its workers."""


@dataclass
class Job:
    """The input of an engine. It runs `todo`, and calls `done` with each shard's record and worker. at_work: takes a
    worker's number and the arguments of its `Beat`. waiting: takes a sentence that says why no worker runs. stop: the
    engine must check it often. claim: called just before a shard runs; False: the shard is left out, because another
    process runs or has committed it. other: takes the record of a shard that another process has committed. source: if
    others work on the job, hands out the shards of `todo`. join: takes a function that names the shards at work and
    those that wait; returns a source for the latter once others have joined.
    """

    task: Task
    directory: JobDirectory
    settings: Settings
    stop: Stop
    todo: list[int]
    done: Callable[[Record, int], None]
    at_work: Callable[..., None]
    waiting: Callable[[str], None] = Watch().waiting
    facts: dict[str, Any] = field(default_factory=dict)  # the engine's part of the report
    claim: Callable[[int], bool] = always
    other: Callable[[Record], None] = lambda record: None
    source: Source | None = None
    join: Callable[[Callable[[], tuple[list[int], list[int]]]], Source | None] = lambda shards: None


class Engine:
    """Runs shards; the whole job is inside its `with` block. lead: this process plans, merges and reports; other ranks
    of MPI follow it. ends_workers: when `run` raises, it has stopped all workers. watches: the job survives the death
    of a worker, so doubted records may run again. joinable: processes that it has not started may work on the job,
    too."""

    lead = True
    joinable = False
    ends_workers = True
    watches = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """The base class has nothing to close."""

    def share(self, job: J, shared: str) -> J:
        """The verb's job as this process runs it, before it is checked. shared: `Settings.shared_files`."""
        return job

    def notices(self) -> list[str]:
        """What the user is told of the workers before the work."""
        return []

    def run(self, job: Job) -> None:
        """Run until all of `job.todo` is committed. Raises Interrupted if `job.stop` asks for it, or an error."""
        raise NotImplementedError

    def follow(self, task: Task, output: str, settings: Settings) -> Report:
        """The work of a rank that does not lead. Returns the report of rank 0."""
        raise NotImplementedError

    def tell(self, report: Report) -> None:
        """Tell the other ranks that the job is done."""


def open_worker(task: Task, directory: JobDirectory, place: Place) -> Worker:
    """Open the worker of this process. Raises InputError if a file that it opened has changed since the run began."""
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
        worker.close()  # a missing file may have existed meanwhile
    raise changed_while_running(f"files appear and disappear in {', '.join(folders)}")


def run_shard(worker: Worker, directory: JobDirectory, shard: Shard, beat: Beat, *, doubted: int = 0) -> Record:
    """Run one shard and commit it. doubted: the number of records in its `skip` that the next run tries again. Raises
    InputError if a file that it read has changed since the run began."""
    with trace.span(trace.SHARD, f"shard {shard.number}"), directory.attempt(shard.number) as out:
        records = worker.run(shard, out, beat)
        if doubted:
            out.figures = {**out.figures, DOUBTED: doubted}
        with trace.span(trace.COMMIT):
            record = out.commit(records)
        trace.counted(records)
        return record
