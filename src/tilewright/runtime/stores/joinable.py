"""An engine for jobs in a local directory that other processes may join while the job runs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from tilewright.runtime.jobs.directory import Record
from tilewright.runtime.jobs.task import Engine, Job, Source
from tilewright.runtime.stores.board import CLAIMS, WORKERS, Board, SharedShards
from tilewright.runtime.stores.folder import FolderKeys, clear, joined


class Joinable(Engine):
    """Wraps an engine, so that `tilewright work` can join its jobs.

    Until a worker joins, the only cost is one check per shard: do the directories `workers` and `taken` exist?
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.lead, self.ends_workers, self.watches = engine.lead, engine.ends_workers, engine.watches

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def run(self, job: Job) -> None:
        """As the wrapped engine's `run`."""
        root = job.directory.root
        alone = job.settings.part is None
        if alone and joined(root, left=True):  # claims of workers of an earlier run are no longer valid
            clear(root, CLAIMS)
        with ExitStack() as opened:
            shared = _Join(job, self._engine, opened)
            self._engine.run(replace(job, join=shared.join, done=shared.done))
        if alone and joined(root, left=True):
            clear(root, CLAIMS, WORKERS)


class _Join:
    """Waits for the first worker to join. source: from then on, it hands out the shards that were waiting."""

    def __init__(self, job: Job, engine: Engine, opened: ExitStack) -> None:
        self._job, self._engine, self._opened = job, engine, opened
        self.source: SharedShards | None = None
        self._again = set(job.todo) & set(job.directory.committed())  # such as shards with failed records

    def join(self, shards: Callable[[], tuple[list[int], list[int]]]) -> Source | None:
        """As `Job.join`."""
        job = self._job
        if not joined(job.directory.root, left=job.settings.part is None):  # parts do not remove older claims
            return None
        running, waiting = shards()
        keys = FolderKeys(job.directory.root)
        self._opened.callback(keys.close)
        board = self._opened.enter_context(Board(keys))
        for number in running:
            board.take(number)
        self.source = SharedShards(
            board,
            waiting,
            lambda among: set(job.directory.committed()),
            self._others,
            supervised=self._engine.watches,
            again=self._again,
        )
        return self.source

    def done(self, record: Record, worker: int) -> None:
        """Note that this process has committed a shard."""
        if self.source:
            self.source.done(record.shard, record.records)
        self._job.done(record, worker)

    def _others(self, numbers: list[int]) -> list[int]:
        """Report shards that other processes committed to the job. Returns the damaged ones, which are moved aside."""
        bad, directory = [], self._job.directory
        for number in numbers:
            record = directory.record(number)
            if record is None or directory.wrong_errors(record):
                directory.quarantine(number)
                bad.append(number)
            else:
                self._job.other(record)
        return bad
