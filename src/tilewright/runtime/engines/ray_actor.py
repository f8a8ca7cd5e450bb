"""The program of a Ray actor: it runs shards, and writes its progress to files that remain if the actor dies."""

from __future__ import annotations

import faulthandler
import os
import time
from typing import NamedTuple

from msgspec.structs import replace

from tilewright.errors import ResourceError
from tilewright.garbage import exempt_loaded
from tilewright.ops.core.launch import threads
from tilewright.runtime.devices import place_for
from tilewright.runtime.engines.schedule import Assignment
from tilewright.runtime.engines.worker import BEAT_SECONDS
from tilewright.runtime.fingerprint import device_class
from tilewright.runtime.jobs import trace
from tilewright.runtime.jobs.directory import JobDirectory, Record
from tilewright.runtime.jobs.record import part_name
from tilewright.runtime.jobs.task import Place, Task, open_worker, run_shard
from tilewright.runtime.jobs.unchanged import AsBegun
from tilewright.runtime.jobs.workers import Tally

SAID = b"%20d%20d%20d%20d%20.6f"  # the fields of `Said`, and the time in ms, so that no two messages are equal
SAID_BYTES = 100
FAULT_BYTES = 200  # of faulthandler's text that are read; its first line names the error


class Hire(NamedTuple):
    """The arguments of an actor.

    manifest: the seal of the job's manifest. threads: of its CPU kernels; None: one per core of its node. serial:
    unique among the actors of a job. It is needed because a lost actor on another node may still run beside its
    replacement, which has the same `place.number`.
    """

    task: Task
    output: str
    manifest: str
    place: Place
    threads: int | None
    serial: int
    traced: bool
    began: AsBegun


class Said(NamedTuple):
    """The progress of an actor: its shard, the record that runs alone (or -1), records done, fraction of the work."""

    shard: int
    record: int
    done: int
    share: float | None

    @classmethod
    def of(cls, line: bytes) -> Said | None:
        """Parse a progress message; None if it is incomplete or empty."""
        try:
            shard, record, done, _ = (int(line[begin : begin + 20]) for begin in range(0, 80, 20))
            share = float(line[80:])
        except ValueError:
            return None
        return cls(shard, record, done, None if share < 0 else share)


def said_name(serial: int) -> str:
    """The name of the file in the job's logs with an actor's progress."""
    return f"said-{serial}"


def fault_name(serial: int) -> str:
    """The name of the file in the job's logs with an actor's traceback after a crash, such as SIGSEGV; otherwise
    empty."""
    return f"fault-{serial}"


def gpu_class() -> str:
    """The class of this node's GPU, for a driver that runs on a machine without a GPU.

    Raises ResourceError if the GPU cannot be used.
    """
    return device_class(place_for("cuda"))


def _check_class(begun: object, device: str) -> None:
    """Raises ResourceError if this node computes other bits than the hardware with which the job was started."""
    here = device_class(device)
    if begun in (None, here):
        return
    raise ResourceError(
        f'the node {os.uname().nodename} has the device "{here}", and the job was begun with "{begun}": the results of '
        "both differ in the last bits",
        remedy="run on nodes of one kind. If the workers are alike, start the command on one of them: ray job submit "
        "--entrypoint-num-cpus 1",
    )


class Actor:
    """The actor that runs on a node. It is also the `Beat` that its shards call to report progress."""

    def __init__(self, hire: Hire) -> None:
        self._hire, self._place, self._began = hire, hire.place, hire.began
        self._said, self._shard = 0.0, -1

    def where(self) -> str:
        """The ID of the actor's node. The driver calls it first: it returns as soon as the actor has a node."""
        import ray

        return str(ray.get_runtime_context().get_node_id())

    def open(self) -> None:
        """Load the model and open the input."""
        if self._place.gpu is not None:  # Ray has chosen the GPU
            self._place = replace(self._place, gpu=os.environ.get("CUDA_VISIBLE_DEVICES", ""))
        if self._hire.threads:  # Ray only counts cores, it pins no process: so only the number of threads is limited
            os.environ.setdefault("RAYON_NUM_THREADS", str(self._hire.threads))  # of tokenizers
        with JobDirectory(self._hire.output) as directory, threads(self._hire.threads):
            _check_class(directory.manifest.fingerprint.get("device"), "cpu" if self._place.gpu is None else "cuda")
            self._fault = directory.logs.open(fault_name(self._hire.serial), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            faulthandler.enable(self._fault)  # because Ray does not report the signal that killed an actor
            directory.began = self._began
            self._worker = open_worker(self._hire.task, directory, self._place)
            exempt_loaded()
            self._began = directory.began
            self._tally = Tally(directory, self._place)

    def run(self, given: Assignment) -> Record:
        """Run a shard and commit it."""
        number, device, recording = self._place.number, self._place.device, trace.recording
        with (
            JobDirectory(self._hire.output) as directory,
            recording(directory, number, self._hire.traced, device=device),
            threads(self._hire.threads),
        ):
            directory.check_seal(self._hire.manifest)
            self._fd = directory.logs.open(said_name(self._hire.serial), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            self._shard, directory.began = given.shard, self._began
            # Ray may lose sight of this node, run the shard elsewhere, and the job may end before this actor does.
            directory.joined = part_name(given.shard) not in directory.shards
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
            line = SAID % (self._shard, record, done, now * 1e3, -1 if share is None else share)
            os.pwrite(self._fd, line, 0)

    def at(self, record: int) -> None:
        """Report that this record runs next, and alone."""
        self(record=record)
