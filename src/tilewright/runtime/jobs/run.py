"""A job from the command to its output: the same call resumes what was begun and does nothing to what is finished."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from tilewright.errors import InternalError
from tilewright.formats.atomic import AtomicFile
from tilewright.runtime.jobs.directory import REPORT, JobDirectory, Record
from tilewright.runtime.jobs.lease import Lease
from tilewright.runtime.jobs.manifest import Manifest, check_unchanged
from tilewright.runtime.jobs.merge import DamagedShards, Report, check, merge, save_report
from tilewright.runtime.jobs.stop import Stop, stopping
from tilewright.runtime.jobs.task import Engine, Job, Options, Task

ROUNDS = 3  # of running what is missing and merging: a disk that damages shards each time is not to be worked around

Seen = Callable[[Record], None]


def run(
    task: Task, output: str, engine: Engine, options: Options | None = None, seen: Seen = lambda record: None
) -> Report:
    """Runs what is missing of a job and merges it. seen: called with the record of every shard, old ones first.

    Raises UsageError (the job was begun for other results), InputError (also: what it reads was changed meanwhile),
    ResourceError (also: another run works on it), InternalError (more failed records than `max_errors`; a shard that
    ends every worker) and Interrupted. In each case an earlier output is untouched and the same call goes on.
    """
    options = options or Options()
    with engine:
        if not engine.lead:
            return engine.follow(task, output, options)
        with stopping() as stop:
            AtomicFile(output).__enter__().discard()  # one that cannot be written is found before the work
            manifest = Manifest(fingerprint=task.fingerprint(), cut=task.cut(options.shard_size))
            with JobDirectory(output, make=True) as directory, Lease(directory):
                directory.begin(manifest, restart=options.restart)
                report = _Run(task, directory, engine, options, stop, seen).until_whole()
        engine.tell(report)
        return report


class _Run:
    def __init__(self, task: Task, directory: JobDirectory, engine: Engine, options: Options, stop: Stop, seen: Seen):
        self.task, self.directory, self.engine = task, directory, engine
        self.options, self.stop, self.seen = options, stop, seen
        self.records = self.errors = self.computed = 0
        self.seconds: dict[str, float] = {}
        self.facts: dict[str, object] = {}
        self.start = time.perf_counter()

    def until_whole(self) -> Report:
        finished = self.finished()
        if finished:
            return finished
        for tries in range(ROUNDS):
            self.count_committed(self.seen if tries == 0 else None)
            self.compute()
            begin = time.perf_counter()
            check_unchanged(self.directory.manifest, self.task.fingerprint())
            try:
                merged = merge(self.task, self.directory, self.stop)
            except DamagedShards as error:
                for number in error.numbers:
                    self.directory.quarantine(number)
                continue
            self.phase("merge", begin)
            self.seconds["total"] = time.perf_counter() - self.start
            done = msgspec.structs.replace(merged, computed=self.computed, seconds=self.seconds, facts={**self.facts})
            self.directory.clean()
            return save_report(self.directory, done)
        raise InternalError(
            f"shards were damaged in each of {ROUNDS} tries; those of the last are in {self.directory.damaged.path}",
            path=self.directory.path,
            hint="check the disk and the memory of this machine",
        )

    def finished(self) -> Report | None:
        """The report of a job that is finished and intact; what is damaged is put aside."""
        if REPORT not in self.directory.root.names():
            return None
        found = check(self.directory, self.stop.check)
        if found.intact:
            report = self.directory.sealed(REPORT, Report)
            self.count(report.records, report.errors)
            return msgspec.structs.replace(report, computed=0)
        for number in found.bad_shards:
            self.directory.quarantine(number)
        self.directory.root.remove(REPORT)
        return None

    def count_committed(self, seen: Seen | None) -> None:
        begin = time.perf_counter()
        self.todo = self.directory.missing()
        self.records = self.errors = 0
        for number in self.directory.committed():
            record = self.directory.record(number)
            if record:
                if seen:
                    seen(record)
                self.count(record.records, record.errors)
        self.phase("plan", begin)

    def compute(self) -> None:
        begin = time.perf_counter()
        if self.todo:
            job = Job(self.task, self.directory, self.options, self.stop, self.todo, self.done)
            self.engine.run(job)
            self.facts |= job.facts
        self.directory.sync()
        self.phase("run", begin)

    def done(self, record: Record) -> None:
        self.computed += 1
        self.seen(record)
        self.count(record.records, record.errors)

    def count(self, records: int, errors: int) -> None:
        self.records += records
        self.errors += errors
        allowed = self.options.max_errors
        if allowed is not None and self.errors > allowed:
            raise InternalError(
                f"{self.errors:,} of the first {self.records:,} records are bad and {allowed:,} are allowed",
                path=self.directory.errors.path,
                hint="correct them or allow more; what is done is kept",
            )

    def phase(self, name: str, begin: float) -> None:
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - begin
