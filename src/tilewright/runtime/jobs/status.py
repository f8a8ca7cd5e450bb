"""The progress of a job, read from its directory by any process."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field

from tilewright.errors import ResourceError, UsageError
from tilewright.formats.files import path_of
from tilewright.runtime.jobs.directory import ENDED, MANIFEST, REPORT, JobDirectory, Record
from tilewright.runtime.jobs.lease import Holder, work_on
from tilewright.runtime.jobs.manifest import Damaged, Sealed, encoded, seal
from tilewright.runtime.jobs.merge import Report, check_job
from tilewright.runtime.jobs.workers import WorkerDone, workers_of

RECENT = 64  # the last shards, from which the rate is computed


class Ended(Sealed, frozen=True):
    """The content of ended.json. too_many: the number of bad records and the number allowed, as text."""

    too_many: str


@dataclass(frozen=True)
class Status:
    """The progress of a job.

    state: "running", "perhaps running" (see holder), "stopped", "finished", or "damaged": a finished job some of whose
    files are missing. shards, done: the number of all shards and of committed ones. records, errors: of the committed
    shards. rate: records per second in the last shards. seconds_left: at that rate; None if unknown. holder: the run
    that works on the job; None if there is none or it cannot be read. (On a file system without locks, a run on another
    host cannot be detected.) gone: missing parts of a finished job. too_many: why --max-errors stopped the job, else
    None. workers: host, device and counts of each worker, over all runs; empty for a job in one process. Of a job in a
    store: of each process, in the order in which they began.
    starter_gone: true if workers that joined still run, but not the process that started the job.
    """

    state: str
    shards: int
    done: int
    records: int
    errors: int
    rate: float
    seconds_left: float | None
    holder: Holder | None
    gone: list[str] = field(default_factory=list)
    too_many: str | None = None
    workers: list[WorkerDone] = field(default_factory=list)
    starter_gone: bool = False


def status(output: str) -> Status:
    """The progress of the job of this output. Raises UsageError if there is no job, if it has no manifest yet, or if
    its manifest is damaged."""
    check_job(output)
    with JobDirectory(output, look=True) as directory:
        working, holder = work_on(directory)
        if not working:
            directory.check_settled()
        try:
            shards = directory.manifest.cut.shards
        except Damaged as error:
            remedy = "run the command of the job again"
            nothing = MANIFEST not in directory.root.names() and next(directory.committed(), None) is None
            what = "the job is begun, and nothing of it is done yet" if nothing else f"{MANIFEST}: {error}"
            raise UsageError(what, path=directory.path, remedy=remedy) from error
        records = [record for number in directory.committed() if (record := directory.record(number))]
        finished = REPORT in directory.root.names()
        gone = _gone(directory, shards - len(records)) if finished else []
        too_many = None if working or finished else _too_many(directory)
        workers = workers_of(directory)
    total = sum(record.records for record in records)
    rate = _rate(records)
    share = total / len(records) if records else 0.0  # mean records per committed shard
    left = (shards - len(records)) * share / rate if rate else None
    idle = "damaged" if gone else "finished" if finished else "stopped"
    return Status(
        state=idle if working is False else "running" if working else "perhaps running",
        shards=shards,
        done=len(records),
        records=total,
        errors=sum(record.errors for record in records),
        rate=rate,
        seconds_left=0.0 if finished and not gone else left,
        holder=holder,
        gone=gone,
        too_many=too_many,
        workers=workers,
    )


def note_end(directory: JobDirectory, too_many: str) -> None:
    """Write ended.json: this run stops because of too many bad records. Disk errors are ignored."""
    with suppress(ResourceError):
        directory.root.place(ENDED, encoded(seal(Ended(too_many=too_many))))


def _too_many(directory: JobDirectory) -> str | None:
    try:
        return directory.sealed(ENDED, Ended).too_many
    except Damaged:
        return None


def _gone(directory: JobDirectory, missing: int) -> list[str]:
    """The missing parts of a finished job, by file names and records only. `verify` reads all files."""
    found = [f"{missing:,} shard{'s' * (missing > 1)}"] if missing else []
    try:
        others = directory.sealed(REPORT, Report).others
    except Damaged:
        return [*found, "an intact report"]
    return found + [path for path in (directory.output, *map(path_of, others)) if not os.path.lexists(path)]


def _rate(records: list[Record]) -> float:
    """Records per second, from the start of the first of the last shards to the end of the last one."""
    recent = sorted(records, key=lambda record: record.finished)[-RECENT:]
    if not recent:
        return 0.0
    begin = min(record.finished - record.seconds for record in recent)
    return sum(record.records for record in recent) / max(recent[-1].finished - begin, 1e-9)
