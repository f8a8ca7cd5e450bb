"""Shards drawn by the ranks of MPI. Rank 0 also plans, hands out shards (see ranks.py), and merges.

An error in any rank ends all of them, with the rank named; MPI itself would wait forever.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from contextlib import suppress
from types import TracebackType
from typing import Any

from tilewright.errors import ResourceError, TilewrightError, UsageError
from tilewright.runtime.engines.local import places
from tilewright.runtime.engines.ranks import Begin, Counter, Finished, Hello, Link, RankBeat, Want
from tilewright.runtime.engines.schedule import Assignment
from tilewright.runtime.engines.witness import ALL, BYE, Witness
from tilewright.runtime.jobs.directory import JobDirectory
from tilewright.runtime.jobs.merge import Report
from tilewright.runtime.jobs.stop import stopping
from tilewright.runtime.jobs.task import Engine, Job, Options, Place, Task, Worker, run_shard

FOUND_SECONDS = 30.0  # until a new directory must be seen on other nodes: NFS keeps what it knows for so long
SIZES = (  # where launchers say how many processes they started
    "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "MPI_LOCALNRANKS", "SLURM_STEP_NUM_TASKS",
)  # fmt: skip


class Mpi(Engine):
    """gpus: of a node, as CUDA names them; the ranks of a node take them in turn."""

    def __init__(self, gpus: tuple[str, ...] = ()) -> None:
        self.gpus = gpus
        self.lead = True
        self.place = Place()
        self._comm: Any = None
        self._counter: Counter | None = None
        self._witness: Witness
        self._log: str | None = None

    def __enter__(self) -> Mpi:  # everything that a rank does lies in this block
        """Raises UsageError for a launcher that started many processes of which each believes to be alone."""
        try:
            from mpi4py import MPI
        except (ImportError, RuntimeError) as error:
            hint = "install MPI for Python: pip install 'tilewright[mpi]'"
            raise ResourceError(f"MPI cannot be used: {error}", hint=hint) from error
        self._comm = MPI.COMM_WORLD
        self.lead = self._comm.rank == 0
        check_size(self._comm.size)
        if MPI.Query_thread() < MPI.THREAD_SERIALIZED:
            raise ResourceError("this MPI serves one thread only; MPI_THREAD_SERIALIZED is wanted")
        self._hooks = sys.excepthook, threading.excepthook
        sys.excepthook = lambda kind, error, trace: self.abort(error)
        node = self._comm.Split_type(MPI.COMM_TYPE_SHARED)
        self.place = self._my_place(node)
        self._witness = Witness(node)
        if self.lead:
            threading.excepthook = lambda failed: self.abort(failed.exc_value or SystemExit())
            self._counter = Counter(self._comm)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is not None:
            self.abort(error)
        if self._counter:
            self._counter.close()
        sys.excepthook, threading.excepthook = self._hooks
        self._witness.say(BYE)

    def _my_place(self, node: Any) -> Place:
        """This rank's part of its node: its GPU, and of the cores a part where the launcher gave all to each."""
        mine = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
        same = len({tuple(cores or ()) for cores in node.allgather(mine)}) == 1
        part = places(node.size, self.gpus)[node.rank]
        cores = part.cores if same else None
        return Place(self._comm.rank, self._comm.size, cores, part.gpu)

    def abort(self, error: BaseException) -> None:
        """Ends all ranks, and says which one could not go on: on stderr, and in the job's ranks.log, as mpiexec may end
        before it has passed on what was said."""
        sys.stdout.flush()
        if not isinstance(error, TilewrightError):
            traceback.print_exception(error)
        what = error if isinstance(error, TilewrightError) else repr(error)
        last = f"rank {self._comm.rank} on {os.uname().nodename}: {what}\n"
        self._note(last)
        sys.stderr.write(last)
        sys.stderr.flush()
        self._end(getattr(error, "exit_code", 5))

    def _note(self, line: str) -> None:
        """Adds it to ranks.log, if there is a job yet; best effort, for the error itself says more."""
        if self._log:
            with suppress(OSError):
                flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
                log = os.open(self._log, flags, 0o666)
                os.write(log, line.encode(errors="surrogateescape"))
                os.close(log)

    def _end(self, code: int) -> None:
        self._witness.say(ALL)
        self._comm.Abort(code)
        os._exit(code)

    def run(self, job: Job) -> None:
        """On rank 0: this rank's share of the shards, until those of all are committed."""
        counter = self._counter
        assert counter is not None
        job.stop.at_once = lambda: self._end(130)
        self._sign(job.directory)
        counter.begin(job)
        worker = self._open(job.task)
        try:
            counter.post(Want())
            while (given := counter.given()) is not None:
                shard = job.directory.shard(given.shard)
                counter.pulse()
                counter.post(Want(run_shard(worker, job.directory, shard, RankBeat(counter.pulse))))
            job.stop.check()
        finally:
            worker.close()
            job.stop.at_once = lambda: None
        job.facts |= {"ranks": self._comm.size}

    def tell(self, report: Report) -> None:
        """Lets the other ranks end, which get the report."""
        if self._counter:
            self._counter.post(Finished(report))

    def follow(self, task: Task, output: str, options: Options) -> Report:
        """On all other ranks: what rank 0 says, until it has finished."""
        with stopping() as stop:
            link = Link(self._comm, stop, options.watchdog)
            worker: Worker | None = None
            directory: JobDirectory | None = None
            link.send(Hello())
            while not isinstance(message := link.receive(), Finished):
                if isinstance(message, Begin):
                    if directory is None:
                        directory = _found(output)
                        self._sign(directory)
                    worker = worker or self._open(task)
                    link.send(Want())
                elif isinstance(message, Assignment) and worker and directory:
                    link.send(Want(run_shard(worker, directory, directory.shard(message.shard), RankBeat(link.pulse))))
            if worker:
                worker.close()
            if directory:
                directory.close()
            link.end()
            return message.report

    def _sign(self, directory: JobDirectory) -> None:
        """Tells the witness of this node who this is, and where to write if it is killed."""
        self._log = log = directory.logs.where("ranks.log")
        self._witness.say(f"{self._comm.rank} {os.getpid()} {log}\n".encode(errors="surrogateescape"))

    def _open(self, task: Task) -> Worker:
        if self.place.gpu:
            os.environ["CUDA_VISIBLE_DEVICES"] = self.place.gpu
        if self.place.cores:
            os.sched_setaffinity(0, self.place.cores)
        return task.open(self.place)


def check_size(size: int) -> None:
    """Raises UsageError where the launcher says that it started several processes and MPI sees one."""
    for name in SIZES:
        started = os.environ.get(name, "")
        if size == 1 and started.isdigit() and int(started) > 1:
            raise UsageError(
                f"the launcher started {started} processes ({name}) and MPI sees one: each would do the whole job",
                hint="use the mpiexec of the MPI that mpi4py was built with",
            )


def _found(output: str) -> JobDirectory:
    """The directory that rank 0 made, as soon as this node sees it."""
    until = time.monotonic() + FOUND_SECONDS
    while True:
        try:
            return JobDirectory(output)
        except ResourceError:
            if time.monotonic() > until:
                raise
        time.sleep(0.1)
