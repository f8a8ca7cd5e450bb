"""The program of a worker process. It runs the supervisor's shards until none are left or the supervisor dies."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import pickle
import signal
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from types import TracebackType

from tilewright.errors import ResourceError, TilewrightError
from tilewright.garbage import exempt_loaded
from tilewright.runtime.jobs import trace
from tilewright.runtime.jobs.directory import JobDirectory, Record
from tilewright.runtime.jobs.stop import SIGNALS
from tilewright.runtime.jobs.task import Place, Task, open_worker, run_shard
from tilewright.runtime.jobs.unchanged import AsBegun
from tilewright.runtime.jobs.workers import Tally
from tilewright.runtime.reports import peak_memory

BEAT_SECONDS = 0.2  # between two heartbeats: a supervisor of 64 workers receives 320 per second
DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of prctl.h


@dataclass
class Setup:
    """The first message to a worker. manifest: the seal of the job's manifest."""

    task: Task
    output: str
    manifest: str
    place: Place
    trace: bool = False
    began: AsBegun = field(default_factory=AsBegun)
    joined: bool = False


@dataclass
class Ready:
    """The worker has loaded the model and opened the input."""


@dataclass
class Alive:
    """A heartbeat. record: the record that runs next, if it runs alone. done, share: of the shard, see `task.Beat`."""

    record: int | None = None
    done: int = 0
    share: float | None = None


@dataclass
class Done:
    """A shard is committed. peak: the worker's peak memory so far, in bytes."""

    record: Record
    peak: int = 0


@dataclass
class Failed:
    """An error with which the job must stop."""

    error: TilewrightError


def main(fd: int, parent: int) -> None:
    """Run shards for the process `parent`, which holds the other end of the socket `fd`."""
    _die_with(parent)
    for number in SIGNALS:  # a terminal or batch system signals all processes; the worker obeys only its parent
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    faulthandler.enable()
    sys.excepthook = _leave
    pipe = Connection(fd)
    with suppress(EOFError, ConnectionError):  # the parent is dead
        try:
            _work(pipe)
        except TilewrightError as error:
            pipe.send(Failed(error))
        except MemoryError:
            pipe.send(Failed(ResourceError("a worker ran out of memory", remedy="use fewer --workers")))


def _leave(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Exit at once after an error, because the supervisor shows the last line that this process writes.

    In a normal exit, libraries would abort while they free the memory of a failed GPU. Then only the abort would show.
    """
    sys.__excepthook__(kind, error, trace)
    sys.stderr.write(f"{kind.__qualname__}: {str(error).partition(chr(10))[0]}\n")
    sys.stderr.flush()
    os._exit(1)


def _work(pipe: Connection) -> None:
    setup: Setup = pickle.loads(pipe.recv_bytes())
    with (
        JobDirectory(setup.output) as directory,
        trace.recording(directory, setup.place.number, setup.trace, device=setup.place.device),
    ):
        # The trace has named the machine with all its cores. From here on, libraries use only this worker's cores.
        if setup.place.cores and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, setup.place.cores)
        directory.check_seal(setup.manifest)
        directory.began, directory.joined = setup.began, setup.joined
        worker = open_worker(setup.task, directory, setup.place)
        try:
            exempt_loaded()
            tally = Tally(directory, setup.place)
            pipe.send(Ready())
            beat = PipeBeat(pipe)
            while (given := pipe.recv()) is not None:
                shard = directory.shard(given.shard, alone=given.alone, skip=given.skip)
                record = tally.add(directory, run_shard(worker, directory, shard, beat, doubted=given.doubted))
                pipe.send(Done(record, peak_memory()))
        finally:
            worker.close()


class PipeBeat:
    """Sends heartbeats: at most one per BEAT_SECONDS, but always one for a record that runs alone."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._last = time.monotonic()

    def __call__(self, done: int = 0, share: float | None = None) -> None:
        now = time.monotonic()
        if now - self._last >= BEAT_SECONDS:
            self._last = now
            self._pipe.send(Alive(None, done, share))

    def at(self, record: int) -> None:
        self._pipe.send(Alive(record))


def _die_with(parent: int) -> None:
    """Stop this worker when its supervisor dies: on Linux the kernel kills it; elsewhere its next message fails."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(DIE_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != parent:  # the parent has died already
        os._exit(1)
