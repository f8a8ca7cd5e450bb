"""Runs shards in this process, one after another. For small jobs, which take less time than starting a worker."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial

from tilewright.garbage import loaded_exempt
from tilewright.runtime.jobs import trace
from tilewright.runtime.jobs.task import Engine, Job, Place, Worker, open_worker, run_shard

WAIT_SECONDS = 0.1  # between two requests for a shard while other processes hold all remaining shards


class Inline(Engine):
    """Runs shards without supervision. If a shard hangs, the job hangs; if the process dies, the job can be resumed.

    gpu: the GPU that the task uses, by CUDA's name; None: the CPU.
    """

    watches = False
    joinable = True

    def __init__(self, gpu: str | None = None) -> None:
        self.place = Place(gpu=gpu)

    def run(self, job: Job) -> None:
        """Raises what the task raises, and Interrupted between two shards or within a long one."""
        traced = trace.recording(job.directory, 0, job.settings.trace is not None, device=self.place.device)
        with traced, job.stop.in_time(job.settings.grace):
            worker = open_worker(job.task, job.directory, self.place)
            try:
                with loaded_exempt():
                    self._shards(job, worker)
            finally:
                worker.close()

    def _shards(self, job: Job, worker: Worker) -> None:
        for number in _numbers(job):
            job.stop.check()
            if not job.claim(number):
                continue
            job.at_work(0, 0)
            job.done(run_shard(worker, job.directory, job.directory.shard(number), _Beat(job)), 0)


def _numbers(job: Job) -> Iterator[int]:
    """The shards to run. Once other processes have joined, `job.join` returns a source of the remaining shards.

    Raises Interrupted if a signal arrives while it waits for other processes.
    """
    source = job.source
    if source is None:
        for at, number in enumerate(job.todo):
            if (source := job.join(partial(_split, job.todo, at))) is not None:
                break
            yield number
    while source is not None and not source.over:
        given = source.next()
        if given is None:
            job.stop.check()
            time.sleep(WAIT_SECONDS)
        else:
            yield given


def _split(todo: list[int], at: int) -> tuple[list[int], list[int]]:
    """(running shards, waiting shards) before shard `todo[at]` runs."""
    return [], todo[at:]


class _Beat:
    def __init__(self, job: Job) -> None:
        self._job = job

    def __call__(self, done: int = 0, share: float | None = None) -> None:
        self._job.at_work(0, done, share)
        if self._job.stop.left(self._job.settings.grace) < 0:
            self._job.stop.check()

    def at(self, record: int) -> None:
        self()
