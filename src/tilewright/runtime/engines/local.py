"""Supervised worker processes on this machine. A worker that dies or hangs is replaced, and its shard runs again."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from collections import Counter, deque
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait

from tilewright.errors import InternalError, UsageError
from tilewright.formats.files import naming
from tilewright.hardware import cgroup
from tilewright.runtime.engines.schedule import Assignment, End, schedule
from tilewright.runtime.engines.worker import Alive, Done, Failed, Ready, Setup
from tilewright.runtime.jobs.stop import SIGNALS
from tilewright.runtime.jobs.task import WORKER_MEMORY, Engine, Job, Place

TICK = 0.2  # seconds between two checks for silent workers
START_SECONDS = 1800.0  # that a worker may take to load its model: enough for a large one from a slow network disk
LAST_SECONDS = 5.0  # for workers to close their files; then they are killed
LOG_BYTES = 1 << 20  # of a worker's log that are read to find its last line
FALSE_STARTS = 2  # workers in a row that die while they start; then the job stops, because others would die too
OWN = {signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP, signal.SIGSYS}
GIVEN_UP = 3  # shards that killed every worker; then the job stops, because the cause is hardly in the shards


class Local(Engine):
    """Runs shards in supervised worker processes.

    workers: the number of processes; the cores that this process may use are divided among them. gpus: the GPUs of the
    workers, by CUDA's names.
    """

    joinable = True

    def __init__(self, workers: int = 1, gpus: tuple[str, ...] = ()) -> None:
        if workers < 1:
            raise UsageError(f"workers is {workers}; it must be at least 1")
        self.workers, self.gpus = workers, gpus

    def run(self, job: Job) -> None:
        """Raises the errors of the workers; Interrupted; InternalError for shards that kill every worker;
        ResourceError."""
        count = min(self.workers, len(job.todo))
        _Supervisor(job, places(count, self.gpus)).run()


def facts_of(workers: int, ended: Counter[str]) -> dict[str, object]:
    """The workers' entries of a report. ended: the number of lost workers by reason; each was replaced."""
    return {"workers": workers, "replaced": ended.total()} | ({"ended": dict(ended)} if ended else {})


def places(workers: int, gpus: tuple[str, ...] = ()) -> list[Place]:
    """The cores and the GPU of each worker: the allowed cores are divided, the GPUs are assigned round-robin."""
    if workers == 1:
        return [Place(gpu=gpus[0] if gpus else None)]
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    quota = cgroup.cores()
    if quota is not None:
        cores = cores[: max(round(quota), 1)]
    return [
        Place(number, workers, _part(cores, number, workers), gpus[number % len(gpus)] if gpus else None)
        for number in range(workers)
    ]


def _part(cores: list[int], number: int, workers: int) -> tuple[int, ...] | None:
    if not cores:
        return None
    if workers >= len(cores):
        return (cores[number % len(cores)],)
    return tuple(cores[len(cores) * number // workers : len(cores) * (number + 1) // workers])


@dataclass
class _Hand:
    """The supervisor's record of a worker process. heard: time of its last message. record: the one that runs alone.

    log_start: the size of the log before this process wrote to it. hung: it was killed because it sent no message.
    """

    place: Place
    process: subprocess.Popen[bytes]
    pipe: Connection
    log: str
    log_start: int
    heard: float = field(default_factory=time.monotonic)
    ready: bool = False
    record: int | None = None
    hung: bool = False


class _Supervisor:
    def __init__(self, job: Job, places: list[Place]) -> None:
        self.job, self.places = job, places
        self.schedule = schedule(job.todo if job.source is None else (), job.claim)
        self.source = job.source
        self.schedule.more = job.source is not None
        self.hands: dict[int, _Hand] = {}
        self.false_starts = 0
        self.ended: Counter[str] = Counter()  # lost workers by reason
        self.peaks: dict[int, int] = {}  # peak memory in bytes by the worker's number: the most of its processes

    def run(self) -> None:
        woken, waking = socket.socketpair()
        for end in (woken, waking):
            end.setblocking(False)
        earlier = _wake_up(waking.fileno())
        self.job.stop.at_once = self.strike
        try:
            self.work(woken)
            self.dismiss()
        finally:
            self.kill()
            self.job.stop.at_once = lambda: None
            _wake_up(earlier)
            woken.close()
            waking.close()
            self.job.directory.clean()
        self.job.facts |= facts_of(len(self.places), self.ended)
        if peaks := self.peaks.values():
            self.job.facts[WORKER_MEMORY] = {"largest": max(peaks), "sum": sum(peaks)}
        if self.schedule.given_up:
            raise self.gave_up()

    def work(self, woken: socket.socket) -> None:
        """Run until all shards are committed or given up. After a signal, finish only the running shards."""
        stop, grace = self.job.stop, self.job.settings.grace
        while not self.schedule.over:
            if stop.name and (not self.schedule.running or stop.left(grace) <= 0):
                stop.check()
            if not stop.name:
                self.refill()
                self.hire()
                self.give()
            by_pipe = {hand.pipe: hand for hand in self.hands.values()}
            for source in wait([woken, *by_pipe], max(min(TICK, stop.left(grace)), 0)):
                if isinstance(source, Connection):
                    self.hear(by_pipe[source])
                else:
                    with suppress(BlockingIOError):
                        woken.recv(64)
            self.watch()
            if len(self.schedule.given_up) >= GIVEN_UP:
                raise self.gave_up()

    def refill(self) -> None:
        """If the shards are shared with other processes, claim a shard for each worker that has none."""
        if self.source is None:
            self.source = self.job.join(self.split)
        if self.source is None:
            return
        while len(self.schedule.todo) + self.schedule.running < len(self.places):
            if (number := self.source.next()) is None:
                break
            self.schedule.todo.append(Assignment(number))
        self.schedule.more = not self.source.over

    def split(self) -> tuple[list[int], list[int]]:
        """(running shards, waiting shards). Shards that have killed a worker count as running: they stay here."""
        running = [pace.at.shard for pace in self.schedule.paces.values() if pace.at]
        todo, self.schedule.todo = self.schedule.todo, deque(each for each in self.schedule.todo if each.deaths)
        return running + [each.shard for each in self.schedule.todo], [each.shard for each in todo if not each.deaths]

    def hire(self) -> None:
        """Start missing worker processes, but not more than there are shards to run."""
        wanted = len(self.schedule.todo) + self.schedule.running
        for place in self.places:
            if place.number not in self.hands and len(self.hands) < wanted:
                self.hands[place.number] = self.start(place)

    def start(self, place: Place) -> _Hand:
        ours, theirs = socket.socketpair()
        logs, name = self.job.directory.logs, f"worker-{place.number}.log"
        with naming(logs.where(name), "open"):
            log = logs.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        environment = os.environ | ({"CUDA_VISIBLE_DEVICES": place.gpu} if place.gpu else {})
        code = f"import sys; sys.path[:] = {sys.path!r}; from tilewright.runtime.engines.worker import main; "
        code += f"main({theirs.fileno()}, {os.getpid()})"
        earlier = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # inherited, until the worker ignores them itself
        try:
            with naming(sys.executable, "start a worker with"):
                process = subprocess.Popen(
                    [sys.executable, "-c", code],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=[theirs.fileno()],
                    env=environment,
                )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, earlier)
            theirs.close()
            start = os.fstat(log).st_size
            os.close(log)
        hand = _Hand(place, process, Connection(ours.detach()), name, start)
        with suppress(ConnectionError):  # it has died already; `hear` notices when it reads the pipe
            traced = self.job.settings.trace is not None
            directory = self.job.directory
            seal = directory.manifest.seal
            setup = Setup(self.job.task, directory.output, seal, place, traced, directory.began, directory.joined)
            hand.pipe.send_bytes(pickle.dumps(setup))
        return hand

    def give(self) -> None:
        """Give a shard to each idle worker."""
        for number, hand in self.hands.items():
            if hand.ready and self.schedule.paces[number].at is None:
                given = self.schedule.next(number)
                if given:
                    hand.heard, hand.record = time.monotonic(), None
                    self.job.at_work(number, 0)
                    with suppress(ConnectionError):
                        hand.pipe.send(given)

    def hear(self, hand: _Hand) -> None:
        """Handle one message, or the end of the process."""
        try:
            message = hand.pipe.recv()
        except (EOFError, ConnectionError, OSError):
            self.lose(hand)
            return
        hand.heard, number = time.monotonic(), hand.place.number
        if isinstance(message, Alive):
            hand.record = hand.record if message.record is None else message.record
            self.job.at_work(number, message.done, message.share)
        elif isinstance(message, Ready):
            hand.ready = True
            self.schedule.join(number)
        elif isinstance(message, Done):
            self.false_starts = 0
            self.peaks[number] = max(message.peak, self.peaks.get(number, 0))
            self.schedule.done(number)
            self.job.done(message.record, number)
        elif isinstance(message, Failed):
            raise message.error

    def watch(self) -> None:
        """Kill workers whose last message is too old. `hear` then handles the death like any other."""
        now = time.monotonic()
        for number, hand in self.hands.items():
            busy = hand.ready and self.schedule.paces[number].at is not None
            allowed = self.job.settings.watchdog if busy else float("inf") if hand.ready else START_SECONDS
            if now - hand.heard > allowed and not hand.hung:
                hand.hung = True
                hand.process.kill()

    def lose(self, hand: _Hand) -> None:
        hand.pipe.close()
        with suppress(subprocess.TimeoutExpired):
            hand.process.wait(LAST_SECONDS)
        hand.process.kill()  # in case it only closed its end
        hand.process.wait()
        del self.hands[hand.place.number]
        end = self.end_of(hand)
        why = end.why
        self.ended[why] += 1
        if not hand.ready:
            self.false_starts += 1
            if self.false_starts >= FALSE_STARTS and not self.job.stop.name:
                raise InternalError(
                    f"workers die while they start: {why}", path=self.job.directory.logs.where(hand.log)
                )
        given_up = self.schedule.lost(hand.place.number, end, hand.record)
        if given_up is not None and self.source:
            self.source.drop(given_up)

    def end_of(self, hand: _Hand) -> End:
        """The reason why a worker died. A signal outside OWN was sent by another process."""
        if hand.hung:
            return End(f"no response for {self.job.settings.watchdog:g} s")
        code = hand.process.returncode
        if code < 0:
            why = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
            return End(why, killed=-code not in OWN)
        said = self.job.directory.logs.read(hand.log, LOG_BYTES, hand.log_start) or b""
        lines = said.decode(errors="replace").strip().splitlines()
        return End(f"exit code {code}" + (f": {lines[-1][:200]}" if lines else ""))

    def gave_up(self) -> InternalError:
        shards = self.schedule.given_up
        first, why = next(iter(shards.items()))
        more = f" (and {len(shards) - 1} more)" if len(shards) > 1 else ""
        return InternalError(
            f"shard {first} stopped every worker that ran it: {why}{more}; {self.records(first)}",
            path=self.job.directory.path,
            remedy="read logs/ in it, then run the same command again: complete shards are reused",
        )

    def records(self, number: int) -> str:
        """The part of the input that a shard covers, for a message."""
        cut = self.job.directory.manifest.cut
        if not hasattr(cut, "span"):
            return "it is the whole input"
        begin, end = cut.span(number)
        return f"bytes {begin:,} to {end:,}" if hasattr(cut, "size") else f"records {begin:,} to {begin + end - 1:,}"

    def dismiss(self) -> None:
        """Ask all workers to exit, and wait for them for up to LAST_SECONDS."""
        for hand in self.hands.values():
            with suppress(ConnectionError):
                hand.pipe.send(None)
        until = time.monotonic() + LAST_SECONDS
        for hand in self.hands.values():
            with suppress(subprocess.TimeoutExpired):
                hand.process.wait(max(until - time.monotonic(), 0))

    def strike(self) -> None:
        """Kills all processes without waiting for them to exit; safe in a signal handler."""
        for hand in self.hands.values():
            hand.process.kill()

    def kill(self) -> None:
        """Kill the remaining processes and wait for them."""
        self.strike()
        for hand in self.hands.values():
            hand.process.wait()
            hand.pipe.close()
        self.hands = {}


def _wake_up(fd: int) -> int:
    """Make signals write to this descriptor, so that `wait` returns. Returns the previous descriptor.

    Outside the main thread nothing changes, and -1 is returned.
    """
    try:
        return signal.set_wakeup_fd(fd, warn_on_full_buffer=False)
    except ValueError:
        return -1
