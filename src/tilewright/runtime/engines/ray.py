"""Shards as calls of Ray actors, one actor per worker, for Ray clusters. An actor that dies or hangs is replaced.

Every node must see the job's directory and the input under the same paths. An actor writes its progress to a file in
the job's logs, because the file survives the actor.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from tilewright.errors import InternalError, ResourceError, TilewrightError, UsageError
from tilewright.formats.packages import install_command
from tilewright.runtime.engines.local import START_SECONDS, facts_of
from tilewright.runtime.engines.schedule import Assignment, End, Schedule, schedule
from tilewright.runtime.engines.worker import BEAT_SECONDS
from tilewright.runtime.jobs import trace
from tilewright.runtime.jobs.directory import JobDirectory, Record
from tilewright.runtime.jobs.task import Engine, Job, Place, Task, open_worker, run_shard
from tilewright.runtime.jobs.unchanged import AsBegun
from tilewright.runtime.jobs.workers import Tally

SAID_BYTES = 80  # of four numbers
TICK = 0.5  # seconds between two reads of the actors' progress


class Ray(Engine):
    """workers: actors; gpu: each has one. A CPU's actors share the cores of the cluster."""

    ends_workers = False  # on other nodes they end a little later

    def __init__(self, workers: int, *, gpu: bool = False) -> None:
        self.workers, self.gpu = workers, gpu
        self._ray: Any = None
        self._ours = False  # this process has started the cluster, or joined it

    def __enter__(self) -> Ray:
        try:
            import ray
        except ImportError as error:
            remedy = f"install it: {install_command('ray')}"
            raise ResourceError(f"Ray cannot be used: {error}", remedy=remedy) from error
        self._ray, self._ours = ray, not ray.is_initialized()
        if self._ours:  # RAY_ADDRESS says which
            ray.init(log_to_driver=False, logging_level="ERROR")
        there = ray.cluster_resources()
        most = int(there.get("GPU" if self.gpu else "CPU", 0))
        if not 1 <= self.workers <= most:
            raise UsageError(
                f"workers is {self.workers}; this cluster has {most} {'GPUs' if self.gpu else 'cores'} for them"
            )
        self._cores = int(there["CPU"]) // self.workers
        return self

    def __exit__(self, *error: object) -> None:
        if self._ours:
            self._ray.shutdown()

    def run(self, job: Job) -> None:
        """Raises what a worker does, Interrupted, InternalError for a shard or a start that ends every actor."""
        wanted = {"num_cpus": self._cores, "num_gpus": int(self.gpu), "max_restarts": 0}
        driver = _Driver(self._ray, job, self._ray.remote(Actor).options(**wanted), self._cores, gpu=self.gpu)
        try:
            driver.work(min(self.workers, len(job.todo)))
        finally:
            for number in list(driver.hands):
                driver.dismiss(number)
            job.directory.clean()
        job.facts |= facts_of(self.workers, driver.ended)


class Actor:
    """The actor that runs on a node. It is also the `Beat` of its shards."""

    def __init__(self, task: Task, output: str, place: Place, cores: int, traced: bool, began: AsBegun) -> None:
        self._task, self._output, self._place, self._cores, self._traced = task, output, place, cores, traced
        self._began, self._said = began, 0.0

    def open(self) -> None:
        """Loads the model."""
        if self._place.gpu is not None:  # Ray has chosen it
            self._place = replace(self._place, gpu=os.environ.get("CUDA_VISIBLE_DEVICES", ""))
        mine = sorted(os.sched_getaffinity(0))  # Ray counts cores and hands out none
        first = self._place.number * self._cores % len(mine)
        os.sched_setaffinity(0, (mine * 2)[first : first + self._cores])
        with JobDirectory(self._output) as directory:
            directory.began = self._began
            self._worker = open_worker(self._task, directory, self._place)
            self._began = directory.began
            self._tally = Tally(directory, self._place)

    def run(self, given: Assignment) -> Record:
        """Run a shard and commit it."""
        number, device = self._place.number, self._place.device
        recording = trace.recording
        with JobDirectory(self._output) as directory, recording(directory, number, self._traced, device=device):
            self._fd = directory.logs.open(said_name(number), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            directory.began = self._began
            try:
                shard = directory.shard(given.shard, alone=given.alone, skip=given.skip)
                record = run_shard(self._worker, directory, shard, self, doubted=given.doubted)
                return self._tally.add(directory, record)
            finally:
                os.close(self._fd)

    def __call__(self, done: int = 0, share: float | None = None, *, record: int = -1) -> None:
        now = time.monotonic()
        if record >= 0 or now - self._said > BEAT_SECONDS:
            self._said = now
            os.pwrite(self._fd, b"%20d%20d%20d%20.6f" % (record, done, now * 1e3, -1 if share is None else share), 0)

    def at(self, record: int) -> None:
        """This record comes next and alone."""
        self(record=record)


def said_name(number: int) -> str:
    """The progress file of a worker in the job's logs: the record that runs alone, records done, the time, the share of
    the work."""
    return f"said-{number}"


@dataclass
class _Hand:
    """An actor as the driver sees it: its shard, its last progress, and when that last changed."""

    actor: Any
    call: Any
    ready: bool = False
    said: bytes = b""
    heard: float = field(default_factory=time.monotonic)


class _Driver:
    def __init__(self, ray: Any, job: Job, actor: Any, cores: int, *, gpu: bool) -> None:
        self.ray, self.job, self.actor, self.cores, self.gpu = ray, job, actor, cores, gpu
        self.schedule: Schedule = schedule(job.todo, job.claim)
        self.hands: dict[int, _Hand] = {}
        self.ended: Counter[str] = Counter()  # actors before their time, by why

    def work(self, workers: int) -> None:
        """Runs until all shards are committed; after a signal, until the running shards are."""
        stop, grace = self.job.stop, self.job.settings.grace
        while not self.schedule.over:
            if stop.name and (not self.schedule.running or stop.left(grace) <= 0):
                stop.check()
            for number in range(0 if stop.name else workers):
                self.give(number)
            calls = {hand.call: number for number, hand in self.hands.items() if hand.call is not None}
            self.ray.wait(list(calls), num_returns=1, timeout=TICK)
            for call in self.ray.wait(list(calls), num_returns=len(calls), timeout=0)[0]:
                self.hear(calls[call])
            for number in list(self.hands):
                self.watch(number)
            for shard, why in self.schedule.given_up.items():
                raise InternalError(
                    f"shard {shard} stopped every actor that ran it: {why}", path=self.job.directory.path
                )

    def give(self, number: int) -> None:
        """Start the actor if there is none, and give it a shard if it is idle."""
        hand = self.hands.get(number)
        if hand is None and len(self.hands) < len(self.schedule.todo) + self.schedule.running:
            task, traced = self.job.task, self.job.settings.trace is not None
            place = Place(number, gpu="" if self.gpu else None)
            directory = self.job.directory
            actor = self.actor.remote(task, directory.output, place, self.cores, traced, directory.began)
            self.hands[number] = _Hand(actor, actor.open.remote())
        elif hand and hand.call is None and (given := self.schedule.next(number)):
            hand.call, hand.heard, hand.said = hand.actor.run.remote(given), time.monotonic(), b""
            self.job.at_work(number, 0)

    def hear(self, number: int) -> None:
        """Handle the result of a call: a record, an error, or the actor's end."""
        hand, errors = self.hands[number], self.ray.exceptions
        try:
            record = self.ray.get(hand.call)
        except errors.RayError as error:
            cause = getattr(error, "cause", None)
            if isinstance(cause, TilewrightError):
                raise cause from error
            why = repr(cause) if cause else str(error).strip().partition("\n")[0]
            self.lose(number, End(why, killed=cause is None))  # Ray does not say by which signal an actor ended
            return
        hand.call = None
        if hand.ready:
            self.schedule.done(number)
            self.job.done(record, number)
        else:
            hand.ready = True
            self.schedule.join(number)

    def watch(self, number: int) -> None:
        """Read an actor's progress. An actor without progress for too long counts as lost."""
        hand = self.hands[number]
        said = self.job.directory.logs.read(said_name(number), SAID_BYTES) or b""
        if hand.ready and said != hand.said:
            hand.said, hand.heard = said, time.monotonic()
            share = float(said[60:] or -1)
            self.job.at_work(number, int(said[20:40] or 0), share if share >= 0 else None)
        allowed = self.job.settings.watchdog if hand.ready else START_SECONDS
        if hand.call is not None and time.monotonic() - hand.heard > allowed:
            self.lose(number, End(f"no sign of life for {allowed:g} s"))

    def lose(self, number: int, end: End) -> None:
        if not self.hands[number].ready:
            raise InternalError(f"an actor stopped while it started: {end.why}", path=self.job.directory.path)
        self.dismiss(number)
        self.ended[end.why] += 1
        record = int((self.job.directory.logs.read(said_name(number), 20) or b"").strip() or -1)
        self.schedule.lost(number, end, record if record >= 0 else None)

    def dismiss(self, number: int) -> None:
        self.ray.kill(self.hands.pop(number).actor, no_restart=True)
