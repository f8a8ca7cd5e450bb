"""Runs shards on Ray actors, one actor per worker. Nodes may join and leave the Ray cluster during the job.

Ray chooses the node of each actor. An actor without a node stays pending, and Ray's autoscaler may start a node for it.
This file decides which shard an actor runs, and what happens when an actor dies. A new actor replaces one that dies or
hangs. Ray's max_restarts is not used, because Ray does not report why an actor that it restarted has died. Every node
must see the job's directory and the input under the same paths.
"""

from __future__ import annotations

import io
import logging
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, TextIO

from tilewright.errors import InternalError, ResourceError, TilewrightError, UsageError
from tilewright.formats.packages import install_command
from tilewright.hardware import no_gpu
from tilewright.runtime.devices import gpu_elsewhere
from tilewright.runtime.engines.local import START_SECONDS, facts_of
from tilewright.runtime.engines.ray_actor import (
    FAULT_BYTES,
    SAID_BYTES,
    Actor,
    Hire,
    Said,
    fault_name,
    gpu_class,
    said_name,
)
from tilewright.runtime.engines.schedule import TRIES, End, Ends, Schedule, schedule
from tilewright.runtime.jobs.directory import JobDirectory
from tilewright.runtime.jobs.stop import SIGNALS, stopping
from tilewright.runtime.jobs.task import Engine, Job, Place

TICK = 0.5  # seconds between two reads of the actors' progress
WAITED = 5.0  # seconds without a worker, after which the job prints that it waits
SAY_AGAIN = 60.0  # seconds after which it prints this again
WHY_CHARACTERS = 300  # of Ray's error text that are shown if an actor could not be created
LEFT = "its node left the cluster"
FATAL = b"Fatal Python error: "  # faulthandler's text starts with these words


class Ray(Engine):
    """Runs shards on a Ray cluster.

    workers: the most actors at a time. gpu: each actor gets one GPU. threads: CPU cores per actor; None: `cores_each`
    computes it, and an actor with a GPU reserves no core.
    """

    ends_workers = False  # actors on other nodes exit shortly after `run` has returned

    def __init__(self, workers: int, *, gpu: bool = False, threads: int | None = None) -> None:
        if workers < 1:
            raise UsageError(f"workers is {workers}; it must be at least 1")
        self.workers, self.gpu, self.threads = workers, gpu, threads
        self._ray: Any = None
        self._opened = ExitStack()

    def __enter__(self) -> Ray:
        try:
            import ray
        except ImportError as error:
            remedy = f"install it: {install_command('ray')}"
            raise ResourceError(f"Ray cannot be used: {error}", remedy=remedy) from error
        self._ray = ray
        with ExitStack() as opened:
            self._stdout = opened.enter_context(_Stdout())
            if not ray.is_initialized():
                with _own_signals():
                    ray.init(log_to_driver=False, logging_level=logging.ERROR)  # RAY_ADDRESS says which cluster
                opened.callback(ray.shutdown)
            if self.gpu and no_gpu():
                opened.enter_context(gpu_elsewhere(True, self._gpu_class()))
            self._opened = opened.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stdout.log, self._stdout.owner = sys.stderr, None  # `ray.shutdown` prints messages that it had delayed
        self._opened.close()

    def _gpu_class(self) -> str:
        """Wait for a node with a GPU, and return the class of that GPU. Raises ResourceError if it cannot be used."""
        call = self._ray.remote(gpu_class).options(num_cpus=0, num_gpus=1, max_retries=TRIES).remote()
        with stopping() as stop:
            until = time.monotonic() + WAITED
            while not self._ray.wait([call], num_returns=1, timeout=TICK)[0]:
                stop.check()
                if time.monotonic() > until:
                    until += SAY_AGAIN
                    sys.stderr.write(f"{_lacks(0, gpu=True)}\n")
        try:
            return str(self._ray.get(call))
        except self._ray.exceptions.RayError as error:
            cause = getattr(error, "cause", None)
            why = cause if isinstance(cause, TilewrightError) else InternalError(f"a node with a GPU failed: {error}")
            raise why from error

    def run(self, job: Job) -> None:
        """Run all shards. Waits for nodes without a time limit.

        Raises the errors of workers, Interrupted, and InternalError if a shard kills every actor or no actor starts.
        """
        cores = self.threads
        if cores is None and not self.gpu:
            cores = cores_each([int(node["Resources"].get("CPU", 0)) for node in _alive(self._ray)], self.workers)
        wanted = {"num_cpus": cores or 0, "num_gpus": int(self.gpu), "max_restarts": 0}
        actor = self._ray.remote(Actor).options(**wanted, scheduling_strategy="SPREAD")
        driver = _Driver(self._ray, job, actor, cores, gpu=self.gpu)
        self._stdout.log = self._opened.enter_context(_log(job.directory))
        try:
            driver.work(min(self.workers, len(job.todo)))
        finally:
            for number in list(driver.hands):
                driver.dismiss(number)
            job.directory.clean()
        job.facts |= facts_of(max(driver.most, 1), driver.ended)


def _log(directory: JobDirectory) -> TextIO:
    """The file for the messages of Ray's daemons."""
    return open(directory.logs.open("ray.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND), "a", encoding="utf-8")


def cores_each(cores: Sequence[int], workers: int) -> int:
    """The number of cores per worker: the largest with which all workers fit on the nodes; at least 1.

    cores: the number of cores of each node. Example: on nodes with 16 and 4 cores, two workers get 8 cores each.
    """
    counts = range(max(cores, default=1), 0, -1)
    return next((each for each in counts if sum(node // each for node in cores) >= workers), 1)


def _lacks(cores: int, *, gpu: bool) -> str:
    wanted = "a free GPU" if gpu else f"{cores:,} free core{'s' * (cores != 1)}"
    return f"no node of the Ray cluster has {wanted}; the job waits for one"


def _alive(ray: Any) -> list[dict[str, Any]]:
    return [node for node in ray.nodes() if node["Alive"]]


@contextmanager
def _own_signals() -> Iterator[None]:
    """Restore the signal handlers after the block, because `ray.init` installs its own for SIGTERM."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    earlier = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


class _Stdout(io.TextIOBase):
    """A context that replaces sys.stdout. Only the thread that made it writes to stdout; other threads write to `log`.

    Ray's threads print messages about dead nodes and actors, which would be mixed with the job's own output.
    """

    def __init__(self) -> None:
        self._stdout = sys.stdout
        self.owner: threading.Thread | None = threading.current_thread()
        self.log: Any = sys.stderr

    def __enter__(self) -> _Stdout:
        sys.stdout = self  # type: ignore[assignment]
        return self

    def __exit__(self, *error: object) -> None:
        sys.stdout = self._stdout

    def write(self, text: str) -> int:
        written: int = self._stream().write(text)
        return written

    def flush(self) -> None:
        self._stream().flush()

    def isatty(self) -> bool:
        return bool(self._stdout.isatty())

    def fileno(self) -> int:
        return int(self._stdout.fileno())

    def _stream(self) -> Any:
        return self._stdout if threading.current_thread() is self.owner else self.log


@dataclass
class _Hand:
    """The driver's record of an actor.

    call: its running remote call; None while it is idle. node: the ID of its node; "" while it is pending. ready: it
    has loaded the model. said: its last progress message. heard: when the last message or result arrived.
    """

    actor: Any
    call: Any
    serial: int
    node: str = ""
    ready: bool = False
    said: bytes = b""
    heard: float = field(default_factory=time.monotonic)


class _Driver:
    def __init__(self, ray: Any, job: Job, actor: Any, threads: int | None, *, gpu: bool) -> None:
        self.ray, self.job, self.actor, self.threads, self.gpu = ray, job, actor, threads, gpu
        self.schedule: Schedule = schedule(job.todo, job.claim)
        self.hands: dict[int, _Hand] = {}
        self.ended: Counter[str] = Counter()  # lost actors by reason
        self.hired = self.most = 0  # actors started so far; the most that were ready at one time
        self.starts = Ends()  # actors that died while they started, since the last shard was committed
        self.say_at = time.monotonic() + WAITED  # when to print that the job waits, if no actor has a node by then

    def work(self, workers: int) -> None:
        """Run until all shards are committed. After a signal, finish only the running shards."""
        stop, grace = self.job.stop, self.job.settings.grace
        while not self.schedule.over:
            if stop.name and (not self.schedule.running or stop.left(grace) <= 0):
                stop.check()
            for number in range(0 if stop.name else workers):
                self.give(number)
            self.dismiss_pending()
            calls = {hand.call: number for number, hand in self.hands.items() if hand.call is not None}
            self.ray.wait(list(calls), num_returns=1, timeout=TICK)
            for call in self.ray.wait(list(calls), num_returns=len(calls), timeout=0)[0]:
                self.hear(calls[call])
            for number in list(self.hands):
                self.watch(number)
            self.say_waiting()
            for shard, why in self.schedule.given_up.items():
                raise InternalError(
                    f"shard {shard} stopped every actor that ran it: {why}", path=self.job.directory.path
                )

    def wanted(self) -> int:
        """The number of actors that have a shard to run: waiting plus running shards."""
        return len(self.schedule.todo) + self.schedule.running

    def give(self, number: int) -> None:
        """Start the actor if there is none, and give it a shard if it is idle."""
        hand = self.hands.get(number)
        if hand is None and len(self.hands) < self.wanted():
            place = Place(number, gpu="" if self.gpu else None)
            directory, traced = self.job.directory, self.job.settings.trace is not None
            self.hired += 1
            seal = directory.manifest.seal
            hire = Hire(self.job.task, directory.output, seal, place, self.threads, self.hired, traced, directory.began)
            actor = self.actor.remote(hire)
            self.hands[number] = _Hand(actor, actor.where.remote(), self.hired)
        elif hand and hand.call is None and (given := self.schedule.next(number)):
            hand.call, hand.heard, hand.said = hand.actor.run.remote(given), time.monotonic(), b""
            self.job.at_work(number, 0)

    def dismiss_pending(self) -> None:
        """Cancel pending actors for which no shard is left."""
        pending = [number for number, hand in self.hands.items() if not hand.node]
        for number in pending[: max(len(self.hands) - self.wanted(), 0)]:
            self.dismiss(number)

    def say_waiting(self) -> None:
        """Print that the job waits if no actor has had a node for WAITED seconds. Repeat it every SAY_AGAIN seconds."""
        now = time.monotonic()
        if not self.hands or any(hand.node for hand in self.hands.values()):
            self.say_at = now + WAITED
        elif now > self.say_at:
            self.say_at = now + SAY_AGAIN
            self.job.waiting(_lacks(self.threads or 0, gpu=self.gpu))

    def hear(self, number: int) -> None:
        """Handle the result of a call: the node's ID, the end of loading, a shard's record, an error, or a death."""
        hand = self.hands[number]
        try:
            result = self.ray.get(hand.call)
        except self.ray.exceptions.RayError as error:
            self.lose(number, self.end_of(hand, error))
            return
        hand.call, hand.heard = None, time.monotonic()
        if not hand.node:
            hand.node, hand.call = result, hand.actor.open.remote()
        elif hand.ready:
            self.starts = Ends()
            self.schedule.done(number)
            self.job.done(result, number)
        else:
            hand.ready = True
            self.schedule.join(number)
            self.most = max(self.most, len(self.schedule.paces))

    def end_of(self, hand: _Hand, error: Exception) -> End:
        """The reason why an actor died. An error with which the job must stop is raised instead."""
        cause = getattr(error, "cause", None)
        if isinstance(cause, TilewrightError):
            raise cause from error
        if isinstance(cause, MemoryError):
            raise ResourceError("a worker ran out of memory", remedy="use fewer --workers, or --threads so high "
                                "that fewer of them share a node") from error  # fmt: skip
        if cause is not None:
            return End(repr(cause))
        if not hand.node:  # such as the last line of a traceback, if the node cannot import a module
            return End(str(error).strip().splitlines()[-1][:WHY_CHARACTERS], killed=True)
        if hand.node not in (node["NodeID"] for node in _alive(self.ray)):
            return End(LEFT, killed=True)
        fault = self.read(fault_name(hand.serial), FAULT_BYTES).partition(b"\n")[0]
        if fault.startswith(FATAL):
            return End(fault.removeprefix(FATAL).decode(errors="replace"))
        return End(str(error).strip().partition("\n")[0], killed=True)  # SIGKILL or an exit: Ray reports both alike

    def watch(self, number: int) -> None:
        """Read an actor's progress. An actor whose progress does not change for too long is replaced."""
        hand = self.hands[number]
        if hand.call is None or not hand.node:
            return
        if hand.ready:
            said = self.read(said_name(hand.serial), SAID_BYTES)
            if said != hand.said and (progress := Said.of(said)):
                hand.said, hand.heard = said, time.monotonic()
                self.job.at_work(number, progress.done, progress.share)
        allowed = self.job.settings.watchdog if hand.ready else START_SECONDS
        if time.monotonic() - hand.heard > allowed:
            self.lose(number, End(f"no response for {allowed:g} s"))

    def lose(self, number: int, end: End) -> None:
        hand = self.hands[number]
        said = Said.of(self.read(said_name(hand.serial), SAID_BYTES))
        self.dismiss(number)
        self.ended[end.why] += 1
        if hand.ready:
            at = self.schedule.paces[number].at
            record = said.record if said and at and said.shard == at.shard and said.record >= 0 else None
            self.schedule.lost(number, end, record)
            return
        if end.why != LEFT:
            self.starts.add(end)
        if self.starts.blamed:
            raise InternalError(f"an actor stopped while it started: {end.why}", path=self.job.directory.path)

    def read(self, name: str, most: int) -> bytes:
        """The first `most` bytes of a file in the job's logs; empty if the file does not exist."""
        return self.job.directory.logs.read(name, most) or b""

    def dismiss(self, number: int) -> None:
        """Kill an actor and remove its files, which only this actor used."""
        hand = self.hands.pop(number)
        self.ray.kill(hand.actor, no_restart=True)
        for name in (said_name(hand.serial), fault_name(hand.serial)):
            self.job.directory.logs.remove(name)
