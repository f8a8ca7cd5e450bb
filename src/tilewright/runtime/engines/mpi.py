"""Runs shards on MPI ranks. Rank 0 also plans, hands out shards (see ranks.py), and merges.

An error in one rank stops all ranks, and the message names the rank. Otherwise the other ranks would wait forever.

There are two ways to stop. In order: after a `TilewrightError`, all ranks call MPI_Finalize and exit with its code. The
launcher then forwards all that they have written. By MPI_Abort: after any other error, if a rank gives no response, and
after an error while ranks exchange files.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
import traceback
from contextlib import ExitStack, closing, suppress
from types import TracebackType
from typing import Any, NoReturn

from tilewright.errors import ResourceError, TilewrightError, UsageError
from tilewright.formats.packages import install_command
from tilewright.garbage import loaded_exempt
from tilewright.runtime.engines.far_deaths import send
from tilewright.runtime.engines.launchers import check_size, unlink_shared_memory, wait_until_read
from tilewright.runtime.engines.local import places
from tilewright.runtime.engines.rank_devices import device_lines, gpu_names
from tilewright.runtime.engines.rank_messages import Begin, Ended, Ending, Finished, Hello, NoResponse, Want, named
from tilewright.runtime.engines.ranks import END_SECONDS, POLL_SECONDS, Counter, Link, RankBeat
from tilewright.runtime.engines.schedule import Assignment
from tilewright.runtime.engines.staging import Staging, begun, packed
from tilewright.runtime.engines.witness import LOG, Witness, add_line, forget_deaths, log_size, note_death
from tilewright.runtime.jobs import trace
from tilewright.runtime.jobs.directory import JobDirectory, Record
from tilewright.runtime.jobs.merge import Report
from tilewright.runtime.jobs.settings import Settings
from tilewright.runtime.jobs.stop import Stop, stopping
from tilewright.runtime.jobs.task import Engine, J, Job, Place, Task, Worker, open_worker, run_shard
from tilewright.runtime.jobs.workers import Tally

_ended = False  # the other ranks of this process were told to exit


class Mpi(Engine):
    """Runs shards on the ranks that an MPI launcher has started.

    gpu: each rank uses one GPU of its node. Ranks get GPUs round-robin, before they use the CUDA driver.
    """

    ends_workers = False

    def __init__(self, *, gpu: bool = False) -> None:
        self.gpu = gpu
        self.lead = True
        self.workers = 1  # ranks
        self.place = Place()
        self._comm: Any = None
        self._counter: Counter | None = None
        self._link: Link | None = None
        self._has_ended = False  # on rank 0: the other ranks have answered that the job ends
        self._witness: Witness
        self._tally: Tally  # of this rank
        self._logs: str | None = None  # of the job
        self._logged: BaseException | None = None  # the error that this rank has logged
        self._output: str | None = None  # of the job, once it is known
        self._shard: int | None = None  # the shard that this rank runs

    def __enter__(self) -> Mpi:  # all work of a rank is inside this block
        """Raises UsageError if a launcher started many processes and each of them sees only itself, and if an error has
        already ended the ranks.
        """
        if _ended:
            raise UsageError("an error has ended the MPI ranks of this process", remedy="start mpiexec again")
        low = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)  # a descriptor below MPI's, which witness.py needs
        try:
            from mpi4py import MPI
        except (ImportError, RuntimeError) as error:
            os.close(low)
            remedy = f"install MPI for Python: {install_command('mpi')}"
            raise ResourceError(f"MPI cannot be used: {error}", remedy=remedy) from error
        self._comm = MPI.COMM_WORLD
        self.lead = self._comm.rank == 0
        self.workers = self._comm.size
        check_size(self.workers)
        if MPI.Query_thread() < MPI.THREAD_SERIALIZED:
            raise ResourceError("this MPI serves one thread only; MPI_THREAD_SERIALIZED is wanted")
        self._hooks = sys.excepthook, threading.excepthook
        sys.excepthook = lambda kind, error, trace: self.abort(error)
        node = self._comm.Split_type(MPI.COMM_TYPE_SHARED)
        node.Barrier()  # now all ranks have mapped the shared memory
        if node.rank == 0:
            unlink_shared_memory()
        try:
            self._choose(node)
        except (TilewrightError, Ending):
            os.close(low)
            sys.excepthook, threading.excepthook = self._hooks
            raise
        self._witness = Witness(node, low)
        self._staging = Staging(self._comm, node)
        self._map = self._comm.gather((os.uname().nodename, self.place.device))
        if self.lead:
            threading.excepthook = lambda failed: self.abort(failed.exc_value or SystemExit())
        return self

    def share(self, job: J, shared: str) -> J:
        """As `Staging.share`. After it, only rank 0's message thread (`Counter`) calls MPI on rank 0."""
        self._output = job.output
        job = self._staging.share(job, shared, self._witness.listen)
        self._witness.tell(folder=self._staging.folder, home=self._staging.home)
        if self.lead:
            self._serve()
        return job

    def notices(self) -> list[str]:
        """Lines for the user: the ranks and devices of each node, and how many files were sent."""
        return [*device_lines(self._map), *self._staging.notices()] if self.lead and self.workers > 1 else []

    def _serve(self) -> Counter:
        if self._counter is None:
            self._counter = Counter(self._comm)
        return self._counter

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Rank 0 raises the first error of any rank. After an error, the other ranks raise Ending."""
        raised = error
        if error is not None and self.lead:
            self._end_others(error)
        elif error is not None:
            raised = self._ending(error)
            self._linked().end()
        self._staging.close()
        if self._counter:
            self._counter.close()
            if self._counter.failed:
                raised = self._counter.failed
                self._log(raised)
        sys.excepthook, threading.excepthook = self._hooks
        self._witness.close()
        if isinstance(raised, Ending) or (self._counter and isinstance(self._counter.last, Ended)):
            _exit_together(self._comm)
        if raised and raised is not error:
            raise raised from error

    def _end_others(self, error: BaseException) -> None:
        """On rank 0: end the other ranks because of an error. Returns when none of them works on the job any more.

        Stops all ranks with `abort` if they cannot exit in order.
        """
        if self._has_ended:
            return
        if self._staging.is_sending or not isinstance(error, TilewrightError) or isinstance(error, NoResponse):
            self.abort(error)
        counter = self._serve()
        is_new = error is not counter.failed
        self._log(error)
        if not counter.end(error.exit_code):
            self.abort(error)
        self._has_ended = True
        if is_new and self.workers > 1:
            named(error, 0, os.uname().nodename)

    def _ending(self, error: BaseException) -> Ending:
        """On another rank: end all ranks because of an error of this rank. Returns the exception that ends this rank.

        Stops all ranks with `abort` if they cannot exit in order.
        """
        try:
            if self._staging.is_sending or not isinstance(error, Exception | Ending):
                self.abort(error)
            if isinstance(error, Ending):
                raise error
            self._linked().listen()  # if the job has ended, rank 0's clean-up may have caused this error
            if isinstance(error, TilewrightError) and not isinstance(error, NoResponse):
                self._log(error)
                self._linked().fail(error, is_logged=error is self._logged)
            self.abort(error)
        except Ending as received:
            ending = received
        return ending

    def _linked(self) -> Link:
        self._link = self._link or Link(self._comm, Stop(), END_SECONDS)
        return self._link

    def _choose(self, node: Any) -> None:
        """Set `place`. If one rank cannot, rank 0 raises its error, and the other ranks raise Ending."""
        refusal = None
        try:
            self.place = self._my_place(node)
        except TilewrightError as error:
            refusal = named(error, self._comm.rank, os.uname().nodename)
        if first := next(filter(None, self._comm.allgather(refusal)), None):
            _exit_together(self._comm)
            raise first if self.lead else Ending(first.exit_code)
        if self.place.gpu:
            os.environ["CUDA_VISIBLE_DEVICES"] = self.place.gpu

    def _my_place(self, node: Any) -> Place:
        """This rank's GPU and cores. The node's cores are divided if the launcher gave all of them to every rank."""
        mine = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
        same = len({tuple(cores or ()) for cores in node.allgather(mine)}) == 1
        part = places(node.size, gpu_names(node) if self.gpu else ())[node.rank]
        cores = part.cores if same else None
        return Place(self._comm.rank, self._comm.size, cores, part.gpu)

    def abort(self, error: BaseException) -> NoReturn:
        """Stop all ranks by MPI_Abort, and report the failed rank on stderr and in the job's ranks.log.

        Before the job has logs, the report is also in OUTPUT.ranks.log.
        """
        sys.stdout.flush()
        if not isinstance(error, TilewrightError):
            traceback.print_exception(error)
        last = self._line(error)
        also, beside = self._log(error), self._beside()
        if not also and beside and add_line(*os.path.split(beside), last):
            also = beside
        sys.stderr.write(last + (f"This message is also in {also}\n" if also else ""))
        sys.stderr.flush()
        wait_until_read(sys.stderr)
        self._end(getattr(error, "exit_code", 5))

    def _beside(self) -> str:
        """The path of the log for errors before the job has logs; "" before the output is known."""
        return f"{self._output.rstrip('/')}.{LOG}" if self._output else ""

    def _line(self, error: BaseException) -> str:
        if self._counter and error is self._counter.failed:
            return f"{error}\n"  # it already names its rank
        what = error if isinstance(error, TilewrightError) else repr(error)
        return f"rank {self._comm.rank} on {os.uname().nodename}: {what}\n"

    def _log(self, error: BaseException) -> str:
        """Write the error and the shard that failed to the job's logs, unless a rank has already done so.

        Returns the path of the log; "" without one.
        """
        path = os.path.join(self._logs, LOG) if self._logs else ""
        if error is self._logged or (self._counter and error is self._counter.logged):
            return path
        blamed = isinstance(error, Exception) and not isinstance(error, TilewrightError)
        shard, record = self._shard if blamed else None, self._witness.record
        short = isinstance(error, MemoryError)  # counts as a kill from outside, as the kernel's OOM killer does
        if self._staging.home:
            death = {"shard": shard, "record": record, "why": repr(error), "killed": short, "said": self._line(error)}
            send(self._staging.home, death)
            self._logged = error
        elif self._logs and shard is not None:
            note_death(self._logs, shard, record, repr(error), killed=short)
        if self._logs and add_line(self._logs, LOG, self._line(error)):
            self._logged = error
            return path
        return ""

    def _end(self, code: int) -> NoReturn:
        self._witness.tell(all=True)
        self._comm.Abort(code)
        os._exit(code)

    def run(self, job: Job) -> None:
        """On rank 0: run shards, until all shards of all ranks are committed.

        After an error, no other rank works on the job any more when the error is raised.
        """
        job.stop.at_once = lambda: self._end(130)
        self._sign(job.directory)
        self._output = self._output or job.directory.output
        try:
            self._lead(job, self._serve())
        except TilewrightError as error:
            self._end_others(error)
            raise
        finally:
            job.stop.at_once = lambda: None
        job.facts |= {"ranks": self._comm.size, **self._staging.facts}

    def _lead(self, job: Job, counter: Counter) -> None:
        counter.check()
        counter.begin(job)
        with trace.recording(job.directory, 0, job.settings.trace is not None, device=self.place.device):
            worker = self._open(job.task, job.directory)
            try:
                counter.post(Want())
                with loaded_exempt():
                    while (given := counter.given()) is not None:
                        counter.pulse()
                        beat = RankBeat(counter.pulse, self._witness, job.stop)
                        counter.post(Want(self._run(worker, job.directory, given, beat)))
                if not counter.over:
                    job.stop.check()
            finally:
                worker.close()

    def tell(self, report: Report) -> None:
        """On rank 0: send the report to the other ranks, which then exit. Raises the error of a rank that failed.

        Removes OUTPUT.ranks.log of an earlier run.
        """
        if self.lead:
            self._serve().check()
            with suppress(OSError):
                os.unlink(self._beside())
            self._serve().post(Finished(report))

    def follow(self, task: Task, output: str, settings: Settings) -> Report:
        """On the other ranks: run the shards that rank 0 hands out, until rank 0 has finished. Returns its report.

        Raises Ending if the job ends with an error.
        """
        self._output = output
        with stopping() as stop, ExitStack() as opened:
            stop.at_once = lambda: self._end(130)
            link = self._link = Link(self._comm, stop, settings.watchdog)
            worker: Worker | None = None
            link.send(Hello())
            while not isinstance(message := link.receive(), Finished):
                if isinstance(message, Begin):
                    began = begun(task) if self._staging.folder else message.began
                    if worker is None:
                        directory = opened.enter_context(closing(self._staging.directory(output, message.manifest)))
                        self._sign(directory)
                        traced = settings.trace is not None
                        device = self.place.device
                        opened.enter_context(trace.recording(directory, self._comm.rank, traced, device=device))
                        directory.began = began
                        worker = opened.enter_context(closing(self._open(task, directory)))
                        opened.enter_context(loaded_exempt())
                    directory.began = began.here(directory.manifest)
                    link.send(Want())
                elif isinstance(message, Assignment) and worker:
                    record = self._run(worker, directory, message, RankBeat(link.pulse, self._witness, stop))
                    link.send(Want(record, packed(directory, record) if self._staging.folder else None))
            opened.close()
            link.end()
            stop.at_once = lambda: None
            return message.report

    def _run(self, worker: Worker, directory: JobDirectory, given: Assignment, beat: RankBeat) -> Record:
        """Tell the witness, then run a shard."""
        self._at(given.shard)
        shard = directory.shard(given.shard, alone=given.alone, skip=given.skip)
        try:
            record = self._tally.add(directory, run_shard(worker, directory, shard, beat, doubted=given.doubted))
        except TilewrightError as error:
            elsewhere = self._counter and error is self._counter.failed  # in another rank
            # The output cannot hold failed records: the job stops, and the next run retries them.
            if given.doubted and not elsewhere:
                if self._staging.home:
                    send(self._staging.home, {"shard": given.shard, "forget": True})
                else:
                    forget_deaths(directory.logs.path, given.shard)
            raise
        self._at(None)
        return record

    def _at(self, shard: int | None) -> None:
        self._shard = shard
        self._witness.tell(shard=shard, record=None)

    def _sign(self, directory: JobDirectory) -> None:
        """Send this node's witness the identity of this rank, and the log to write to if the rank is killed."""
        self._logs = directory.logs.path
        who = {"rank": self._comm.rank, "pid": os.getpid()}
        self._witness.tell(**who, logs=self._logs, log_size=log_size(self._logs))

    def _open(self, task: Task, directory: JobDirectory) -> Worker:
        if self.place.cores:
            os.sched_setaffinity(0, self.place.cores)
        worker = open_worker(task, directory, self.place)
        self._tally = Tally(directory, self.place)
        return worker


def _exit_together(comm: Any) -> None:
    """Make all ranks wait for each other when they exit. Each rank must call this. They can run no further job."""
    global _ended
    if comm.size > 1:
        _ended = True
        atexit.register(_meet, comm)


def _meet(comm: Any) -> None:
    """Wait until all ranks exit, so rank 0 has written its message before any rank exits.

    Some launchers kill all ranks when one of them exits with an error.
    """
    from mpi4py import MPI

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # else it would end the wait
    if not MPI.Is_finalized():
        arrived = comm.Ibarrier()
        while not arrived.Test():
            time.sleep(POLL_SECONDS)
