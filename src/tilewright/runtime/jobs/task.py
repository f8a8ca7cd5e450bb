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
OTHERS = "others"  # a fact of the report: the number of shards that joined workers committed during the run
FIRST = "first."  # prefix of figures that are the number of a record; the totals keep the smallest
OPENINGS = 3  # attempts of a worker to open its inputs, because a file beside the model may change at that moment
WORKER_MEMORY = "worker_memory"  # a fact of the report: {"largest", "sum"} of the workers' peak memory in bytes
J = TypeVar("J", bound=Any)  # a verb's job


class Place(msgspec.Struct, frozen=True):
    """The resources of a worker.

    number: of the worker. count: of all workers. cores: None for all. gpu: by CUDA's name; None: it runs on the CPU;
    "": Ray chooses the GPU.
    """

    number: int = 0
    of: int = 1
    cores: tuple[int, ...] | None = None
    gpu: str | None = None

    @property
    def device(self) -> str:
        """The GPU or the cores as text: "GPU 1", "core 0", "cores 0-7", or "CPU" for all cores."""
        if self.gpu is not None:
            return f"GPU {self.gpu}".rstrip()
        if not self.cores:
            return "CPU"
        return f"core{'s' * (len(self.cores) > 1)} {spans(self.cores)}"


def spans(numbers: Sequence[int]) -> str:
    """Format ascending numbers: (0, 1, 2, 5) -> "0-2, 5"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


class Beat(Protocol):
    """A worker's heartbeat. A worker calls it at least once per `Settings.watchdog` seconds while it runs a shard.

    done: finished records of the shard; 0 if unknown. share: the finished fraction of the shard's work, if the worker
    has a better estimate than `done`.
    """

    def __call__(self, done: int = 0, share: float | None = None) -> None: ...

    def at(self, record: int) -> None:
        """Report that this record runs next, alone. If the worker dies now, the record is blamed."""


class Worker(Protocol):
    """Runs shards one after another, in its own process."""

    def run(self, shard: Shard, out: Attempt, beat: Beat) -> int:
        """Write a shard's output to `out` and its failed records to `out.error`. Returns the number of records.

        The output may depend only on the shard and the task's fingerprint. A TilewrightError stops the job. Any other
        exception stops the worker, and a new worker runs the shard again.
        """

    def close(self) -> None:
        """Free resources. Called after the last shard."""


@dataclass(frozen=True)
class Totals:
    """Totals over all shards: records, failed records, bytes of output, number of shards, figures (`add_figures`)."""

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
        """Divide the input into shards without reading it.

        shard_size: in records or bytes, depending on the kind of cut; None: the task's default.
        """

    def open(self, place: Place) -> Worker:
        """Load the model and open the input. Called in the worker's process."""

    def header(self, totals: Totals) -> bytes:
        """The bytes before the first shard in the output."""


@runtime_checkable
class Reading(Protocol):
    """A task that names the files in its fingerprint, so that a hash can decide if only their times have changed."""

    def files(self) -> dict[str, str]:
        """Paths by the prefix of their fields, see `file_identity`. They include missing files that would be read if
        they existed."""


@runtime_checkable
class Settling(Protocol):
    """A task in which the output for a record may depend on earlier shards."""

    def settle(self, directory: JobDirectory, stop: Stop) -> None:
        """Commit shards again whose output must change, unless it was changed before. Called when all shards exist.

        Raises DamagedShards or Interrupted.
        """


@runtime_checkable
class Assembling(Protocol):
    """A task whose output is not simply its joined shards in one file."""

    def outputs(self) -> list[str]:
        """All files and directories that the task writes, the job's own output first."""

    def check_outputs(self) -> None:
        """Raises ResourceError if one of the outputs cannot be written."""

    def assemble(self, directory: JobDirectory, totals: Totals, stop: Stop) -> list[tuple[int, str]]:
        """Write each output completely or not at all. Returns (bytes, sha256) of each. Raises DamagedShards or
        Interrupted."""


class Watch:
    """An observer of a running job; this one does nothing. Calls come from one thread at a time."""

    def begin(self, cut: Cut) -> None:
        """Called when the job starts or resumes, with its cut."""

    def committed(self, record: Record, worker: int | None) -> None:
        """Called when a shard is committed. worker: the number of its worker; None for shards of earlier runs."""

    def at_work(self, worker: int, done: int, share: float | None = None) -> None:
        """Called for a heartbeat of a worker. done, share: see `Beat`."""

    def waiting(self, why: str) -> None:
        """Called while no worker runs. why: a sentence for the user, without a full stop."""


def always(shard: int) -> bool:
    """The `claim` of a process that shares its shards with no other process: always True."""
    return True


class Source(Protocol):
    """Hands out the shards of a job on which other processes work, too."""

    @property
    def over(self) -> bool:
        """True if all shards are committed. False while another process still runs one."""

    def next(self) -> int | None:
        """Claim a shard and return its number; None if there is none at present.

        Raises ResourceError, and InternalError for a shard with which too many processes have died.
        """

    def drop(self, number: int) -> None:
        """Give a shard up, because it killed this process's workers."""


@dataclass
class Job:
    """The input of an engine.

    todo: the shards to run. done: called with each shard's record and worker. at_work: called with a worker's number
    and the arguments of its `Beat`. waiting: called with a sentence that says why no worker runs. stop: the engine must
    check it often. claim: called just before a shard runs; False: skip the shard, because another process runs it or
    has committed it. other: called with the record of a shard that another process has committed. source: hands out the
    shards of `todo` if other processes work on the job. join: called with a function that returns (running shards,
    waiting shards); it returns a source of the waiting ones once other processes have joined, else None.
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
    """Runs shards; the whole job is inside its `with` block.

    lead: True if this process plans, merges and reports; other MPI ranks only run shards. ends_workers: True if all
    workers have stopped when `run` raises. watches: True if the job survives the death of a worker, so that doubted
    records may run again. joinable: True if processes that it has not started may work on the job, too.
    """

    lead = True
    joinable = False
    ends_workers = True
    watches = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close nothing: the base class holds no resources."""

    def share(self, job: J, shared: str) -> J:
        """Adapt the verb's job to this process, before it is checked. shared: `Settings.shared_files`."""
        return job

    def notices(self) -> list[str]:
        """Lines about the workers that the user sees before the work."""
        return []

    def run(self, job: Job) -> None:
        """Run until all of `job.todo` is committed. Raises errors, and Interrupted if `job.stop` asks for it."""
        raise NotImplementedError

    def hashed(self) -> None:
        """Called in another thread when the job's contents.json has the hash of one more file."""

    def kept(self, directory: JobDirectory) -> int:
        """The number of the job's committed shards, for the message of a run that is stopped."""
        return sum(1 for _ in directory.committed())

    def follow(self, task: Task, output: str, settings: Settings) -> Report:
        """Run shards on a rank that does not lead. Returns rank 0's report."""
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
        worker.close()  # it may have read a file that exists no longer
    raise changed_while_running(f"files appear and disappear in {', '.join(folders)}")


def run_shard(worker: Worker, directory: JobDirectory, shard: Shard, beat: Beat, *, doubted: int = 0) -> Record:
    """Run one shard and commit it. doubted: the number of records in its `skip` that the next run tries again.

    Raises InputError if a file that it read has changed since the run began.
    """
    with trace.span(trace.SHARD, f"shard {shard.number}"), directory.attempt(shard.number) as out:
        records = worker.run(shard, out, beat)
        if doubted:
            out.figures = {**out.figures, DOUBTED: doubted}
        with trace.span(trace.COMMIT):
            record = out.commit(records)
        trace.counted(records)
        return record
