"""Runs a verb as a job on the chosen engine, and fills the verb's report."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from tilewright.errors import Interrupted, ResourceError, UsageError, counted
from tilewright.runtime.devices import gpu_faults, place_for
from tilewright.runtime.engines.launchers import check_alone
from tilewright.runtime.jobs import merge
from tilewright.runtime.jobs.directory import JobDirectory
from tilewright.runtime.jobs.location import job_path
from tilewright.runtime.jobs.run import run_within
from tilewright.runtime.jobs.settings import Settings
from tilewright.runtime.jobs.stop import stopping
from tilewright.runtime.jobs.task import OTHERS, Engine, Task
from tilewright.runtime.kernel_cache import cache_or_none, first_run
from tilewright.runtime.process import bus_errors
from tilewright.runtime.progress import Figures, JobProgress
from tilewright.runtime.reports import SECONDS, SHOWN_ERRORS, Report, Say, phase, quiet
from tilewright.runtime.stores.joinable import Joinable
from tilewright.runtime.stores.lead import check_engine, run_at
from tilewright.runtime.stores.request import request_of
from tilewright.runtime.stores.stage import url_of

ENGINES = ("inline", "local", "mpi", "ray")


def visible_gpus() -> tuple[str, ...]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    from tilewright.hardware import gpus

    names = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = len(gpus())
    return tuple(names.split(","))[:count] if names else tuple(map(str, range(count)))


def engine_of(settings: Settings, device: str) -> Engine:
    """Make the engine of these settings. device: as `place_for` takes it. A worker has one GPU, or a part of the cores.

    Raises UsageError for an unknown engine, or for a number of workers that it cannot have. Raises UsageError if an MPI
    launcher started several processes, but the engine is not "mpi" and no part is given. Raises ResourceError if the
    device is missing.
    """
    name, workers = settings.engine, settings.workers
    if name is not None and name not in ENGINES:
        raise UsageError(f"engine is {name!r}; it must be one of {', '.join(ENGINES)}")
    if name != "mpi" and settings.part is None:
        check_alone()
    if name != "mpi" and settings.shared_files != "auto":
        raise UsageError("--shared-files is for the engine mpi", remedy="add --engine mpi, or leave out --shared-files")
    if workers is not None and workers < 1:
        raise UsageError(f"workers is {workers}; it must be at least 1")
    if name == "mpi":  # no check may fail on one rank only, because the others would wait for it
        if workers is not None:
            raise UsageError("--workers is for the engine local: the launcher of MPI says how many ranks there are")
        from tilewright.runtime.engines.mpi import Mpi

        return Mpi(gpu=device != "cpu")
    if name == "ray":
        from tilewright.runtime.engines.ray import Ray

        return Ray(workers or 1, gpu=device == "cuda" or place_for(device) == "cuda", threads=settings.threads)
    gpus = visible_gpus() if place_for(device) == "cuda" else ()
    if settings.is_inline:
        if workers not in (None, 1):
            raise UsageError(f"workers is {workers}; the engine inline has one worker", remedy="use the engine local")
        from tilewright.runtime.engines.inline import Inline

        return Inline(gpus[0] if gpus else None)
    if gpus and workers is not None and workers > len(gpus):
        raise ResourceError(
            f"{workers} workers need a GPU each, and there are {len(gpus)}", remedy="use fewer --workers"
        )
    from tilewright.runtime.engines.local import Local

    return Local(workers or len(gpus) or 1, gpus)


def workers_of(engine: Engine, settings: Settings) -> int:
    """The number of workers that share the input, over all parts; for `VerbTask.cut`."""
    return getattr(engine, "workers", 1) * (settings.part or (0, 1))[1]


class VerbJob(Protocol):
    """The options of a verb. output: a path."""

    output: str
    settings: Settings


class VerbTask(Task, Protocol):
    """The task of a verb. workers: the number of workers, for `cut`.

    It also has a field `say`, which is `quiet` in worker processes.
    """

    workers: int

    def close(self) -> None:
        """Close files that the checks have opened."""


J = TypeVar("J", bound=VerbJob)
T = TypeVar("T", bound=VerbTask)


def start(
    task_of: Callable[[J, Say, int], T], job: J, report: Report, *, unit: str, say: Say = quiet
) -> tuple[T, dict[str, float]]:
    """Run a verb's job until its output exists, and fill `report`. Returns the task and the figures of all shards.

    task_of(job, say, workers): runs the verb's checks and makes its task. Every MPI rank calls it, within the engine's
    block. unit: the name of the records, for messages. report.lead is False for MPI ranks other than rank 0, and for a
    part: they write no output and print nothing. Raises what `task_of` and `run` raise.
    """
    began, since, settings = time.perf_counter(), time.time_ns(), job.settings
    on_gpu = settings.is_inline and settings.device != "cpu"
    faults = gpu_faults() if on_gpu else nullcontext()  # else the worker is replaced
    alone = bus_errors.explained(json=settings.json) if settings.is_inline else nullcontext()
    if url_of(job.output):
        _check_for_store(job)
    with stopping() as stop, engine_of(settings, settings.device) as engine, faults, alone, ExitStack() as opened:
        report.lead = engine.lead
        job = engine.share(job, settings.shared_files)
        settings = job.settings
        if engine.lead:
            stop.asked = _Announced(settings.grace)
        with phase(report, "check"):
            for line in engine.notices():
                say(line)
            task = task_of(job, say if engine.lead else quiet, workers_of(engine, settings))
            opened.callback(task.close)
            if place_for(settings.device) == "cpu" and (notice := cache_or_none() or first_run()) and engine.lead:
                say(notice)
        stop.check()
        if not settings.is_inline:
            vars(task)["say"] = quiet  # by vars(), because mypy takes a callable field for a method
        if not engine.lead:
            done = run_within(task, job.output, engine, settings)
            report.records, report.errors = done.records, done.errors
            return task, done.figures
        with (
            JobProgress(unit, stops_in=lambda: stop.left(settings.grace)) as watch,
            _resumable(settings, watch.figures),
        ):
            url, ours = url_of(job.output), replace(settings, since=since)
            if url:
                compared = bool(getattr(job, "answers", None))
                done = run_at(url, task, job.output, engine, ours, watch, request_of(job), reads_output=compared)
            elif engine.joinable:
                done = run_within(task, job.output, Joinable(engine), ours, watch, request_of(job))
            else:
                done = run_within(task, job.output, engine, ours, watch)
    directory = _shown(job.output)
    _fold(report, done, directory, watch.figures)
    if done.errors:
        with JobDirectory(job.output) as found:
            report.first_errors = found.first_errors(SHOWN_ERRORS)
    if settings.part:
        report.lead = False
        report.job["part"] = "{}/{}".format(*settings.part) + "+" * settings.helps
    for line in _outcome(done, directory, settings.part, helps=settings.helps):
        say(line)
    report.finish(began)
    return task, done.figures


def _check_for_store(job: VerbJob) -> None:
    """Raises UsageError for an option that needs a local output."""
    check_engine(job.settings)
    if getattr(job, "image", None):
        raise UsageError("--image needs a local output, and the output is a URL",
                         remedy="leave it out, or name the output .png")  # fmt: skip


def _shown(output: str) -> str:
    """The job's directory as messages name it: NAME.job, or the path of --job-dir."""
    path = job_path(output)
    return os.path.basename(path) if path == f"{os.path.realpath(output)}.job" else path


def _outcome(done: merge.Report, directory: str, part: tuple[int, int] | None, *, helps: bool = False) -> Iterator[str]:
    """Notices about the run: shards of earlier runs, replaced workers and other unplanned events."""
    for name in done.facts.get("touched", ()):
        yield f"{name} has another time of change than when the job was begun, and the same content: the job went on"
    if size := done.facts.get("shard_size"):
        yield f"--shard-size {size:,} has no effect: the job was begun with {done.shards:,} shards. --restart cuts anew"
    ended = done.facts.get("ended", {}) if done.computed else {}
    if ended:
        count = sum(ended.values())
        whose = "A worker ended and was" if count == 1 else f"{count:,} workers ended and were"
        why = ", ".join(f"{why} ({times:,} times)" if times > 1 else why for why, times in ended.items())
        yield f"{whose} replaced: {why}; see logs/ in {directory}"
    others = done.facts.get(OTHERS, 0)
    if others:
        yield f"Workers that joined made {others:,} of {counted(done.shards, 'shard')}"
    if part:
        state = "has ended" if helps else "is there"
        new = f"Part {part[0]} of {part[1]} {state}, {done.computed:,} of {done.shards:,} shards are new"
        yield f"{new}. When all are, the same command without --part makes the output"
    elif "merge" not in done.seconds:
        what = "the only shard" if done.shards == 1 else f"all {done.shards:,} shards"
        yield f"Nothing to do: {what} and the output were there"
    elif not done.computed and not others:
        one = done.shards == 1
        were, them = ("The only shard was", "it") if one else (f"All {done.shards:,} shards were", "them")
        yield f"{were} there: the output was made of {them}"
    elif done.computed + others < done.shards:
        there = done.shards - done.computed - others
        yield f"Resumed: {there:,} of {done.shards:,} shards {'was' if there == 1 else 'were'} there"


@dataclass(frozen=True)
class _Announced:
    """Prints on stderr that the job will stop.

    It is called in a signal handler, so it uses neither the stream's lock nor its buffer.
    """

    grace: float

    def __call__(self, name: str) -> None:
        press = "press Ctrl-C again" if name == "SIGINT" else "press Ctrl-C"
        work = f"finishing the shards in progress, for at most {self.grace:g} s (--grace)"
        text = f"{name}: stopping: {work}; {press} to stop now\n"
        with suppress(OSError, ValueError, AttributeError):  # AttributeError: there is no stderr
            # a bar ends without a newline
            os.write(sys.stderr.fileno(), (b"\n" if sys.stderr.isatty() else b"") + text.encode())


@contextmanager
def _resumable(settings: Settings, figures: Figures) -> Iterator[None]:
    try:
        yield
    except Interrupted as error:
        if settings.restart and figures.workers:  # else the shards that --restart would discard still exist
            error.remedy = "run the same command again, without --restart"
        raise


def _fold(report: Report, done: merge.Report, directory: str, figures: Figures) -> None:
    """Fill in the seconds of each phase: the sum over the workers, divided by their number.

    With several workers, "run" is the time from the first shard to the last commit.
    """
    workers = max(len(figures.workers), 1)
    report.records, report.errors, report.computed = done.records, done.errors, figures.records
    for name, value in figures.sums.items():
        if name.startswith(SECONDS):
            phase_name = name.removeprefix(SECONDS)
            report.seconds[phase_name] = report.seconds.get(phase_name, 0.0) + value / workers
    if workers > 1:
        report.seconds["run"] = figures.ended - figures.begun
    report.seconds["merge"] = done.seconds.get("merge", 0.0)
    report.figures = {name: value for name, value in figures.sums.items() if not name.startswith(SECONDS)}
    report.job = {
        "directory": directory,
        "shards": done.shards,
        "computed": done.computed,
        "bytes": done.size,
        "sha256": done.sha256,
        "seconds": done.seconds,
        **done.facts,
    }
