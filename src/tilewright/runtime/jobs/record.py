"""A shard's file (its output, its notes, then its record), and the attempt that writes it."""

from __future__ import annotations

import hashlib
import os
import time
from types import TracebackType
from typing import TYPE_CHECKING

import msgspec

from tilewright.formats.files import naming
from tilewright.runtime.jobs.cut import Records, RowGroups
from tilewright.runtime.jobs.durable import Draft
from tilewright.runtime.jobs.manifest import Damaged, Manifest, Sealed, encoded, seal, unseal

if TYPE_CHECKING:  # records.py imports NumPy, which processes that only hand out shards do not need
    from typing_extensions import Buffer

    from tilewright.formats.records import RecordError
    from tilewright.runtime.jobs.directory import JobDirectory

TRAILER_BYTES = 4096  # the most bytes of a record and its length
AGAIN = ".again.jsonl"  # suffix of a file of errors while its shard is committed again
LENGTH_BYTES = 9  # of the text with the record's length: eight hexadecimal digits and a newline


class Record(Sealed, frozen=True):
    """The record of a committed shard.

    manifest: the seal of the job's manifest. size, sha256: of its output, in bytes. error_size, error_sha256: of its
    file of errors. notes_size, notes_sha256: of its notes for the merge. figures: the verb's counts and times, such as
    tokens or seconds of a phase. seconds: its duration. finished: its end, in seconds since 1970.
    """

    shard: int
    manifest: str
    records: int
    errors: int
    size: int
    sha256: str
    error_size: int
    error_sha256: str
    seconds: float
    finished: float
    notes_size: int = 0
    notes_sha256: str = ""
    figures: dict[str, float] = msgspec.field(default_factory=dict)

    @property
    def trailer(self) -> bytes:
        """The bytes of the record and its length, which end the shard's file."""
        line = encoded(self)
        return line + f"{len(line):08x}\n".encode()


def read_record(fd: int, path: str, number: int, manifest: Manifest) -> Record:
    """Read the record at the end of an open file. path: its name in errors.

    Raises Damaged unless it is the record of shard `number` of this job.
    """
    with naming(path, "read"):
        size = os.fstat(fd).st_size
        tail = os.pread(fd, TRAILER_BYTES, max(size - TRAILER_BYTES, 0))
    try:
        length = int(tail[-LENGTH_BYTES:], 16)
    except ValueError as error:
        raise Damaged("the file does not end with a record") from error
    record = unseal(tail[-LENGTH_BYTES - length : -LENGTH_BYTES], Record)
    if not tail.endswith(record.trailer) or record.size + record.notes_size + len(record.trailer) != size:
        raise Damaged("the file is longer or shorter than its record says")
    if (record.shard, record.manifest) != (number, manifest.seal):
        raise Damaged("the record is of another shard or job")
    cut = manifest.cut
    if number >= cut.shards:
        raise Damaged(f"the job has {cut.shards:,} shards, numbered from 0")
    if isinstance(cut, Records | RowGroups) and record.records != cut.span(number)[1]:
        raise Damaged(f"the record counts {record.records:,} records; the shard has {cut.span(number)[1]:,}")
    if not 0 <= record.errors <= record.records or (record.errors == 0) != (record.error_size == 0):
        raise Damaged(f"the record counts {record.errors:,} errors in {record.error_size:,} bytes")
    return record


class Attempt:
    """The output of a shard while a worker writes it. It is hashed, and has a temporary name until `commit`."""

    def __init__(self, directory: JobDirectory, number: int) -> None:
        self.directory, self.number = directory, number
        self._draft = Draft(directory.shards, part_name(number))
        self._digest = hashlib.sha256()
        self._errors = bytearray()
        self._start = time.perf_counter()
        self.errors = 0
        self.again = False  # the shard exists; its errors file must match it until `commit` replaces both
        self.notes = bytearray()  # the shard's notes for the merge
        self.figures: dict[str, float] = {}  # added up over all shards

    def __enter__(self) -> Attempt:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._draft.discard()

    @property
    def path(self) -> str:
        """The path of the job's output."""
        return self.directory.output

    def write(self, data: Buffer) -> None:
        """Append a bytes-like object or a C-contiguous array to the shard's output."""
        self._digest.update(data)
        self._draft.write(data)

    def error(self, error: RecordError) -> None:
        """Add a failed record to the file of errors. The caller writes its line of the output."""
        self.errors += 1
        self._errors += msgspec.json.encode(error) + b"\n"

    def commit(self, records: int) -> Record:
        """Complete the shard, flush it to the disk and rename it. After an error the shard does not exist.

        Raises ResourceError, and InputError if an input file has changed since the run began.
        """
        directory = self.directory
        directory.began.check()
        late = directory.joined and part_name(self.number) in directory.shards  # that shard stays, with its errors
        if self._errors and not late:
            name = again_name(self.number) if self.again else error_name(self.number)
            directory.errors.place(name, bytes(self._errors))
        record = seal(
            Record(
                shard=self.number,
                manifest=directory.manifest.seal,
                records=records,
                errors=self.errors,
                size=self._draft.bytes_written,
                sha256=self._digest.hexdigest(),
                error_size=len(self._errors),
                error_sha256=hashlib.sha256(self._errors).hexdigest(),
                seconds=time.perf_counter() - self._start,
                finished=time.time(),
                notes_size=len(self.notes),
                notes_sha256=hashlib.sha256(self.notes).hexdigest() if self.notes else "",
                figures={name: float(value) for name, value in self.figures.items()},  # an int would break the seal
            )
        )
        self._draft.write(self.notes)
        self._draft.write(record.trailer)
        commit = self._draft.commit_unless_there if directory.joined else self._draft.commit
        commit(sync_names=directory.sync_names() or self.again)
        if self._errors and self.again:
            directory.errors.move(name, directory.errors, error_name(self.number))
        return record


def part_name(number: int) -> str:
    """The name of a shard's file."""
    return f"{number:05d}.part"


def error_name(number: int) -> str:
    """The name of the file of a shard's errors."""
    return f"{number:05d}.jsonl"


def again_name(number: int) -> str:
    """The name of the file of errors while its shard is committed again, from before the new commit until after it."""
    return f"{number:05d}{AGAIN}"
