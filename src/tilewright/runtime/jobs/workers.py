"""Host, device and counts of each worker of a job, for `tilewright status`.

Each process writes a small file in the job's logs/. An engine without worker processes writes none.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from tilewright.runtime.jobs.directory import JobDirectory, Record
    from tilewright.runtime.jobs.task import Place

PIECE = "done-"  # prefix of the files
MOST_BYTES = 4096  # of such a file that are read


class WorkerDone(msgspec.Struct, frozen=True):
    """A worker's counts. worker: its number; with MPI, its rank. device: as `Place.device`.

    shards, records: how many it has committed.
    """

    worker: int
    host: str
    device: str
    shards: int = 0
    records: int = 0


class Tally:
    """Counts the shards and records of this process, and writes the counts after each shard.

    Disk errors are ignored, because the counts only inform people.
    """

    def __init__(self, directory: JobDirectory, place: Place) -> None:
        self._done = WorkerDone(place.number, os.uname().nodename, place.device)
        self._name = f"{PIECE}{place.number}-{os.uname().nodename}-{os.getpid()}.json"
        self._write(directory)

    def add(self, directory: JobDirectory, record: Record) -> Record:
        """Count a committed shard. Returns its record."""
        done = self._done
        self._done = msgspec.structs.replace(done, shards=done.shards + 1, records=done.records + record.records)
        self._write(directory)
        return record

    def _write(self, directory: JobDirectory) -> None:
        with suppress(OSError):
            fd = directory.logs.open(self._name, os.O_WRONLY | os.O_CREAT)
            try:
                os.pwrite(fd, msgspec.json.encode(self._done) + b"\n", 0)  # longer than the old line, which it covers
            finally:
                os.close(fd)


def workers_of(directory: JobDirectory) -> list[WorkerDone]:
    """The workers of all runs of a job, sorted; one entry per number, host and device. Damaged files are ignored."""
    found: dict[tuple[int, str, str], WorkerDone] = {}
    for name in sorted(name for name in directory.logs.names() if name.startswith(PIECE)):
        with suppress(msgspec.MsgspecError, UnicodeDecodeError):
            done = msgspec.json.decode(directory.logs.read(name, MOST_BYTES) or b"", type=WorkerDone)
            key = done.worker, done.host, done.device
            before = found.get(key, WorkerDone(*key))
            counts = before.shards + done.shards, before.records + done.records
            found[key] = WorkerDone(*key, *counts)
    return [found[key] for key in sorted(found)]
