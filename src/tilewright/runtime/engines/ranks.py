"""Rank 0 hands out shards and supervises; the other MPI ranks request shards (`rank_messages.py`).

One thread of rank 0 handles all its messages, so a long shard on rank 0 does not delay other ranks. A waiting rank
sends a heartbeat every second, and no rank waits longer than the watchdog. So no rank can hang the job, even rank 0.

If a rank cannot go on, it tells rank 0 (`Failed`). Rank 0 tells all ranks (`Ended`), and reports the error. Then all
ranks exit in order, so the launcher forwards everything that they have written.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from tilewright.errors import TilewrightError
from tilewright.runtime.engines.deaths import assignments
from tilewright.runtime.engines.local import START_SECONDS
from tilewright.runtime.engines.rank_messages import (
    Asked,
    Begin,
    Bye,
    Ended,
    Ending,
    Failed,
    Finished,
    Hello,
    NoResponse,
    Want,
    named,
)  # fmt: skip
from tilewright.runtime.engines.schedule import Assignment, Schedule, schedule
from tilewright.runtime.engines.staging import unpacked
from tilewright.runtime.engines.witness import Witness, forget_deaths, note_death
from tilewright.runtime.jobs.directory import MANIFEST, MOST_BYTES
from tilewright.runtime.jobs.stop import Stop
from tilewright.runtime.jobs.task import DOUBTED, Job

POLL_SECONDS = 0.001  # between two polls for messages: MPI's own wait would occupy a core
ALIVE_SECONDS = 1.0  # between two heartbeats of a waiting rank
END_SECONDS = 10.0  # until all ranks must have answered that the job ends; after it, MPI_Abort stops them
TO_LEAD, FROM_LEAD = 1, 2  # MPI message tags


class Request(Protocol):
    """A message in flight, as in mpi4py."""

    def Test(self) -> bool: ...

    def Wait(self) -> object: ...


class Comm(Protocol):
    """The part of mpi4py's `Comm` that is used here. Its methods pickle messages."""

    rank: int
    size: int

    def isend(self, obj: object, dest: int, tag: int) -> Request: ...

    def iprobe(self, source: int = ..., tag: int = ...) -> bool: ...

    def recv(self, buf: None = None, source: int = ..., tag: int = ...) -> Any: ...


class Link:
    """The connection of a rank to rank 0."""

    def __init__(self, comm: Comm, stop: Stop, watchdog: float) -> None:
        self._comm, self._stop, self._watchdog = comm, stop, watchdog
        self._said = self._heard = time.monotonic()
        self._asked = False
        self._sent: list[Request] = []
        self._arrived: list[object] = []  # messages that `receive` has not returned yet
        self._last: Finished | Ended | None = None  # rank 0's last message, once it has arrived

    def send(self, message: object) -> None:
        self._sent = [request for request in self._sent if not request.Test()]
        self._sent.append(self._comm.isend((self._comm.rank, message), 0, TO_LEAD))
        self._said = time.monotonic()

    def pulse(self, done: int = 0, record: int | None = None, share: float | None = None) -> None:
        """Send a heartbeat if the last one is old, or if a record runs alone next. Raises Ending if the job ends."""
        if self._stop.name and not self._asked:
            self._asked = True
            self.send(Asked(self._stop.name))
        if record is not None or time.monotonic() - self._said >= ALIVE_SECONDS:
            self.send(Hello(done, record, share))
            self.listen()

    def receive(self) -> object:
        """The next message that is not a heartbeat.

        Raises Ending if the job ends, and NoResponse if rank 0 sends no heartbeat.
        """
        self._heard = time.monotonic()
        while True:
            self.pulse()
            self.listen()
            if self._arrived:
                return self._arrived.pop(0)
            if time.monotonic() - self._heard > self._watchdog:
                raise NoResponse(f"rank 0 gave no response for {self._watchdog:g} s")
            time.sleep(POLL_SECONDS)

    def listen(self) -> None:
        """Take the messages that have arrived. Raises Ending if the job ends, also when it is called again."""
        while not self._last and self._comm.iprobe(0, FROM_LEAD):
            message = self._comm.recv(None, 0, FROM_LEAD)
            self._heard = time.monotonic()
            if isinstance(message, Finished | Ended):
                self._last = message
            if not isinstance(message, Hello):
                self._arrived.append(message)
        if isinstance(self._last, Ended):
            raise Ending(self._last.code)

    def fail(self, error: TilewrightError, *, is_logged: bool) -> None:
        """Report an error to rank 0, and wait for its answer. Raises Ending when it arrives.

        Returns if no answer arrives in time, or if rank 0 has already finished the job.
        """
        self.listen()
        if not self._last:
            self.send(Failed(error, os.uname().nodename, is_logged))
        until = time.monotonic() + END_SECONDS
        while time.monotonic() < until and not self._last:
            self.listen()
            time.sleep(POLL_SECONDS)

    def end(self) -> None:
        """Send the last message. Returns when MPI has sent all messages."""
        self.send(Bye())
        for request in self._sent:
            request.Wait()


class Counter(threading.Thread):
    """The thread of rank 0 that hands out shards. While it runs, no other thread of rank 0 calls MPI."""

    def __init__(self, comm: Comm) -> None:
        super().__init__(name="shards", daemon=True)
        self._comm = comm
        self._posted: queue.SimpleQueue[object] = queue.SimpleQueue()  # messages from rank 0's main thread
        self._inbox: queue.SimpleQueue[Assignment | None] = queue.SimpleQueue()  # shards for rank 0's main thread
        self._sent: list[Request] = []
        self._job: Job | None = None
        self._schedule: Schedule = schedule([])
        self._heard = dict.fromkeys(range(comm.size), time.monotonic())
        self._pulsed = 0.0
        self._alone: dict[int, int | None] = {}  # by rank: the record that it runs alone
        self._loading: set[int] = set()  # ranks that load their model
        self._waiting: set[int] = set()  # ranks that wait for a shard
        self._others = set(range(1, comm.size))  # ranks that have not sent Bye
        self._asked = ""
        self.failed: TilewrightError | None = None  # the error that ends the job; rank 0's main thread raises it
        self.logged: TilewrightError | None = None  # the same error, if the rank that found it has logged it
        # The last message, once it is sent. Send nothing after it: MPI_Finalize fails if a message was never received.
        self.last: Finished | Ended | None = None
        self.start()

    def begin(self, job: Job) -> None:
        """Tell the other ranks that there are shards to run."""
        self._posted.put(job)

    def post(self, message: object) -> None:
        """Queue a message from rank 0's main thread."""
        self._posted.put(message)

    def given(self) -> Assignment | None:
        """Rank 0's next shard; None when all shards are done, or when the job must stop and no shard runs.

        Raises the error of a rank that cannot go on.
        """
        while True:
            self.check()
            with suppress(queue.Empty):
                return self._inbox.get(timeout=0.1)

    def check(self) -> None:
        """Raises the error of a rank that cannot go on."""
        if self.failed:
            raise self.failed

    @property
    def over(self) -> bool:
        """True if all shards are committed. Rank 0 reads it after its last shard."""
        return self._schedule.over

    def pulse(self, done: int = 0, record: int | None = None, share: float | None = None) -> None:
        """Note rank 0's own heartbeat. Raises the error of a rank that cannot go on."""
        self.check()
        self._heard[0] = now = time.monotonic()
        if record is not None or now - self._pulsed >= ALIVE_SECONDS:
            self._pulsed = now
            self.post(Hello(done, record, share))

    def close(self) -> None:
        """Wait until no rank needs the thread any more."""
        self._posted.put(None)
        self.join()

    def end(self, code: int) -> bool:
        """Tell the other ranks that the job ends. Returns True when all have answered, False if one does not."""
        self.post(Ended(code))
        self.post(None)
        self.join(END_SECONDS)
        return not self.is_alive()

    def run(self) -> None:
        going = True
        while going or self._others:
            source, message = self._next()
            if message is None and source == 0:
                going = False
            elif message is None:
                time.sleep(POLL_SECONDS)
            try:
                if message is not None:
                    self._hear(message, source)
                if self._job:
                    self._hand_out(self._job)
            except TilewrightError as error:  # such as more failed records than the job allows
                self._fail(error, 0, os.uname().nodename)
            if self._job:
                self._watch(self._job)
        for request in self._sent:
            request.Wait()

    def _next(self) -> tuple[int, object]:
        """(rank, message); (0, None) after `close`, (-1, None) without a message."""
        with suppress(queue.Empty):
            return 0, self._posted.get_nowait()
        return self._comm.recv(tag=TO_LEAD) if self._comm.iprobe(tag=TO_LEAD) else (-1, None)

    def _hear(self, message: object, source: int) -> None:
        self._heard[source] = time.monotonic()
        if isinstance(message, Job):
            self._start(message)
        elif isinstance(message, Hello):
            self._alone[source] = message.record
            if source and not self.last:
                self._send(Hello(), source)
            if self._job:
                self._job.at_work(source, message.done, message.share)
        elif isinstance(message, Want):
            self._loading.discard(source)
            self._waiting.add(source)
            if message.record is None:
                self._schedule.join(source)
            elif self._job:
                if message.record.figures.get(DOUBTED):
                    forget_deaths(self._job.directory.logs.path, message.record.shard)
                if message.parcel:
                    unpacked(self._job.directory, message.record, message.parcel)
                self._schedule.done(source)
                self._job.done(message.record, source)
        elif isinstance(message, Asked):
            self._asked = f"{message.name} of rank {source}"
        elif isinstance(message, Bye):
            self._others.discard(source)
        elif isinstance(message, Failed):
            if not self.failed and message.is_logged:
                self.logged = message.error
            self._fail(message.error, source, message.host)
        elif isinstance(message, Finished | Ended):
            self._finish(message)

    def _fail(self, error: TilewrightError, rank: int, host: str) -> None:
        """End the job because of the error of a rank."""
        if not self.failed:
            self.failed = named(error, rank, host)
        self._finish(Ended(error.exit_code))

    def _finish(self, message: Finished | Ended) -> None:
        """Send the others the last message, unless it is sent already."""
        self._job = None
        if not self.last:
            self.last = message
            for rank in self._others:
                self._send(message, rank)

    def _start(self, job: Job) -> None:
        if self.last:  # a rank failed before the job began
            return
        self._job, self._schedule = job, schedule(assignments(job.directory, job.todo), job.claim)
        self._waiting = set()
        self._loading = {0, *self._others}
        self._heard = dict.fromkeys(self._heard, time.monotonic())
        manifest = job.directory.root.read(MANIFEST, MOST_BYTES) or b""
        for rank in self._others:
            self._send(Begin(job.directory.began, manifest), rank)

    def _send(self, message: object, rank: int) -> None:
        self._sent = [request for request in self._sent if not request.Test()]
        self._sent.append(self._comm.isend(message, rank, FROM_LEAD))

    def _hand_out(self, job: Job) -> None:
        if self._asked:
            job.stop.ask(self._asked)
        if (job.stop.name and not self._schedule.running) or self._schedule.over:
            if 0 in self._waiting:
                self._waiting.discard(0)
                self._inbox.put(None)
        elif not job.stop.name:
            for rank in sorted(self._waiting):
                if given := self._schedule.next(rank):
                    job.at_work(rank, 0)
                    self._waiting.discard(rank)
                    self._inbox.put(given) if rank == 0 else self._send(given, rank)

    def _watch(self, job: Job) -> None:
        """Raises NoResponse with the rank that sends no heartbeat, and Interrupted at the end of the grace time."""
        now = time.monotonic()
        if job.stop.left(job.settings.grace) <= 0:
            job.stop.check()
        for rank, heard in self._heard.items():
            if rank == 0 and (0 in self._waiting or not self._schedule.running):
                continue
            allowed = START_SECONDS if rank in self._loading else job.settings.watchdog
            if now - heard > allowed and (rank == 0 or rank in self._others):
                why, doing = f"no response for {allowed:g} s", ""
                pace = self._schedule.paces.get(rank)
                if pace and pace.at:
                    doing = f", while it ran shard {pace.at.shard}"
                    record = self._alone.get(rank) if pace.at.alone else None
                    note_death(job.directory.logs.path, pace.at.shard, record, why)
                raise NoResponse(f"rank {rank} gave {why}{doing}")


class RankBeat:
    """Sends a rank's heartbeats. Before a record runs alone, and before the rank stops, it first tells the witness."""

    def __init__(self, pulse: Callable[..., None], witness: Witness, stop: Stop) -> None:
        self._pulse, self._witness, self._stop = pulse, witness, stop
        self._told = False

    def __call__(self, done: int = 0, share: float | None = None) -> None:
        if self._stop.name and not self._told:
            self._told = True
            self._witness.tell(stopping=True)
        self._pulse(done, share=share)

    def at(self, record: int) -> None:
        self._witness.tell(record=record)
        self._pulse(record=record)
