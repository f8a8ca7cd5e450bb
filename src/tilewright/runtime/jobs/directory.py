"""OUT.job/, or the directory of --job-dir: a job's committed shards and the files that describe it.

manifest.json        everything that the results depend on, and the cut of the input into shards
shards/00042.part    a shard's output and notes, then its record (counts, sha256, seconds)
errors/00042.jsonl   one line per failed record; 00042.again.jsonl while the shard is committed again
logs/                logs of the workers, deaths and traces
lines.index          number of lines that begin in each stretch of a text, counted by this run
damaged/             shards whose checksum was wrong
lease                the run that works on the job
part-claims          the shards that parts run now, if parts help each other (claims.py)
contents.json        the sha256 of large input files
output               the output, if shards write it in place; it is renamed at the end
report.json          the report of the finished job
job.json             the options, for workers that join; their leases are in taken/ and workers/ (stores/board.py)
made.json            the inodes of outputs that the job may replace (made.py)
metrics.prom         the progress of the last run, for Prometheus (metrics.py)
ended.json           the number of bad records, if --max-errors has stopped the run
earlier/             the files from before --restart, until the new run has a shard (earlier.py)
owner.json           with --job-dir, the output (location.py)
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import TypeVar

import msgspec

from tilewright.errors import ResourceError, UsageError
from tilewright.formats.destinations import is_mount, job_mode, resolved, trusted
from tilewright.formats.files import BLOCK_BYTES, naming
from tilewright.runtime.jobs.cut import Cut, LineIndex, Lines, Shard
from tilewright.runtime.jobs.durable import Folder, Removed
from tilewright.runtime.jobs.location import chosen, forget, settle
from tilewright.runtime.jobs.manifest import Damaged, Manifest, Sealed, encoded, seal, unseal
from tilewright.runtime.jobs.record import AGAIN, Attempt, Record, again_name, error_name, part_name, read_record
from tilewright.runtime.jobs.unchanged import AsBegun

MANIFEST, REPORT, LEASE, INDEX = "manifest.json", "report.json", "lease", "lines.index"
CONTENTS, ENDED, CLAIMS, REQUEST = "contents.json", "ended.json", "part-claims", "job.json"
STAGE, EARLIER = "output", "earlier"
FOLDERS = ("shards", "errors", "logs", "damaged")
SYNC_SECONDS = 0.5  # between two fsyncs of the folder shards/: one took 4 ms on a virtual disk, as long as a tiny shard
MOST_BYTES = 1 << 20  # of a manifest or a report

OTHERWISE = "give another output, or --restart to discard the finished shards"
AS_BEGUN = "give this machine the files with which the job was begun; if its hardware differs, use another machine"

_PART = re.compile(r"(\d{5,18})\.part")
S = TypeVar("S", bound=Sealed)
Recut = Callable[[int | None], Cut]  # a task's `cut`


class JobDirectory:
    """The directory of a job: `with JobDirectory(output) as directory`.

    make: create it if it is missing. look: open it for reading only; missing folders count as empty, because the run
    may just have started. at: the value of --job-dir, for the run that makes it. Any number of processes may open it
    and commit shards. Only the process with the lease may call the other methods that write. Raises ResourceError if a
    system call fails or if a part of the path is a symbolic link, Removed if another run removes the directory
    meanwhile, and UsageError if the state is not where `at` says.
    """

    def __init__(self, output: str, *, make: bool = False, look: bool = False, at: str | None = None) -> None:
        self.output = resolved(output)
        self.path = chosen(self.output, at)
        self.is_beside = self.path == f"{self.output}.job"
        self.folders: list[Folder] = []
        self._index_fd = -1
        try:
            self.root = self._open(Folder(self.path, make=make, mode=job_mode(self.output) if make else 0o777))
            self.made = self.root.made
            if make:
                self._check_root()
                if not self.is_beside:
                    self.made = settle(self.root, self.output, {MANIFEST, LEASE})
            parts = [self._open(Folder(name, inside=self.root, make=make, look=look)) for name in FOLDERS]
        except BaseException as error:
            self.close()
            if make and isinstance(error.__cause__, FileNotFoundError) and os.path.isdir(os.path.dirname(self.path)):
                raise Removed(self.path) from error
            raise
        self.shards, self.errors, self.logs, self.damaged = parts
        self._synced, self._unsynced = time.monotonic(), False  # of the folder shards/: last fsync, newer names exist
        self._manifest: Manifest | None = None
        self._index: LineIndex | None = None
        self.began = AsBegun()
        self.joined = False  # True in a process that may outlive the run: it replaces no shard of other processes

    def _check_root(self) -> None:
        """Raises ResourceError if another user may have made the directory, or its files cannot be renamed to OUT."""
        folder = os.path.dirname(self.path)
        with naming(self.path, "look at"):
            owner, device = os.fstat(self.root.fd).st_uid, os.fstat(self.root.fd).st_dev
            here = not self.is_beside or (device == os.stat(folder).st_dev and not is_mount(self.path))
            ours = trusted(folder, owner)
        if not ours:
            what = f"user {owner} made this directory in {folder}, where anyone may write"
            raise ResourceError(what, path=self.path, remedy="name an output in a directory of yours")
        if not here:
            what = "this directory is a mount point; a job's directory must be on the file system of its output"
            raise ResourceError(what, path=self.path, remedy="unmount it, or give another output")

    def _open(self, folder: Folder) -> Folder:
        self.folders.append(folder)
        return folder

    def __enter__(self) -> JobDirectory:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if error is None and self._unsynced:
                self.sync()
        finally:
            self.close()

    def close(self) -> None:
        for folder in self.folders:
            folder.close()
        fd, self._index_fd = self._index_fd, -1
        if fd >= 0:
            with suppress(OSError):  # missing entries of the index are counted again
                os.close(fd)

    @property
    def manifest(self) -> Manifest:
        """The job's manifest. Raises Damaged if it is missing or its seal is wrong."""
        if self._manifest is None:
            self._manifest = self.sealed(MANIFEST, Manifest)
        return self._manifest

    def check_seal(self, seal: str) -> None:
        """Raises UsageError if the job's manifest has another seal. Else a worker process that is started later would
        give its results, which are those of an earlier manifest, the seal of a new one."""
        with suppress(Damaged):
            if self.manifest.seal == seal:
                return
        raise begun_anew(self.path)

    @property
    def otherwise(self) -> str:
        """What to do if input, model or hardware are not the job's: a worker that joined it cannot restart it."""
        return AS_BEGUN if self.joined else OTHERWISE

    def sealed(self, name: str, kind: type[S]) -> S:
        """The content of a sealed file. Raises Damaged if it is missing or its seal is wrong."""
        raw = self.root.read(name, MOST_BYTES + 1)
        if raw is None:
            raise Damaged(f"there is no {name}")
        return unseal(raw, kind)

    def begin(self, manifest: Manifest, recut: Recut | None = None) -> list[str]:
        """Set the new run's manifest. An earlier manifest with the same fingerprint stays, with its cut.

        recut: divides the input into shards of a given size. The earlier cut must be one that `recut` returns;
        otherwise an edited manifest could leave records out. A damaged manifest is written again, and shards of another
        manifest do not count. Returns the names of files whose times differ but whose size and samples are equal; see
        `contents.check_touched`. Raises UsageError with the field that differs.
        """
        self.clean()
        try:
            return self.compare(manifest, recut)
        except Damaged:
            self._manifest = seal(manifest)
            self.root.place(MANIFEST, encoded(self._manifest))
            return []

    def compare(self, manifest: Manifest, recut: Recut | None = None) -> list[str]:
        """As `begin`, for an existing job, but writes nothing. Raises Damaged if the job has no manifest."""
        earlier = self.manifest
        touched = earlier.touched(manifest)
        if what := earlier.differs(manifest, but=touched):
            raise UsageError(
                f"the job was begun with other settings or inputs: {what}", path=self.path, remedy=self.otherwise
            )
        if recut and (cut := recut(getattr(earlier.cut, "per_shard", None))) != earlier.cut:
            raise UsageError(
                f"the job's manifest was edited: it divides the input as {earlier.cut}, "
                f"and this input is divided as {cut}",
                path=self.root.where(MANIFEST),
                remedy=self.otherwise,
            )
        return touched

    def reread(self) -> None:
        """Drop cached data of the job. It is read from the disk again when it is needed."""
        self._manifest = self._index = None

    def is_there(self) -> bool:
        """True if the paths still name the open directories."""
        with naming(self.path, "look at"), suppress(FileNotFoundError):
            return all(
                os.path.samestat(os.stat(folder.path, follow_symlinks=False), os.fstat(folder.fd))
                for folder in self.folders
            )
        return False

    def remove(self) -> None:
        """Remove the whole directory; only the holder of the lease may call this. The lease is removed last, so no
        other run finds half a job."""
        for name in self.root.names():
            if name != LEASE:
                self.root.remove(name)
        if not self.is_beside:
            forget(self.output, self.path)
        self.root.remove(LEASE)
        if self.root.made:
            with naming(self.path, "remove"):
                os.rmdir(self.path)
        self._unsynced = False

    def clean(self) -> None:
        """Remove temporary files of processes that no longer run. If a process was killed while it committed a shard
        again, rename the shard's file of errors as the process would have."""
        for folder in (self.root, self.shards, self.errors):
            folder.clean()
        for name in () if self.joined else self.errors.names():  # the run may commit a shard again at this moment
            if name.endswith(AGAIN) and (number := name.removesuffix(AGAIN)).isdecimal():
                record = self.record(int(number))
                if record and self.errors.read(name, record.error_size + 1) == self.errors_of(record):
                    self.errors.move(name, self.errors, error_name(record.shard))
                self.errors.remove(name)

    def note_request(self, request: bytes) -> None:
        """Write job.json for workers that join. It is not flushed: if it is lost, none can join until the next run."""
        if request and self.root.read(REQUEST, MOST_BYTES) != request:
            with suppress(OSError):
                fd = self.root.open(REQUEST, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
                try:
                    os.write(fd, request)
                finally:
                    os.close(fd)

    def forget_lines(self) -> None:
        """Empty lines.index, so that this run counts the lines itself, because another user may have written the index.

        Processes that have the old file open still use it.
        """
        if (fd := self.root.open_or_none(INDEX, os.O_RDWR | os.O_TRUNC)) is not None:
            os.close(fd)

    def shard(self, number: int, *, alone: bool = False, skip: tuple[tuple[int, str], ...] = ()) -> Shard:
        """The `Shard` of this number, for a worker."""
        cut = self.manifest.cut
        if isinstance(cut, Lines) and self._index is None:
            path = self.root.where(INDEX)
            with naming(path, "open"):
                self._index_fd = self.root.open(INDEX, os.O_RDWR | os.O_CREAT)
            self._index = LineIndex(self._index_fd, path, cut, self.manifest.seal)
        return Shard(number, cut, self._index, alone, skip)

    def attempt(self, number: int) -> Attempt:
        """A new attempt at a shard: `with directory.attempt(42) as out: out.write(...); out.commit(...)`.

        Raises UsageError in a process that joined the job, if the manifest has changed since then.
        """
        if self.joined and self.root.read(MANIFEST, MOST_BYTES + 1) != encoded(self.manifest):
            raise begun_anew(self.path)
        return Attempt(self, number)

    def sync_names(self) -> bool:
        """True if a commit must fsync the folder shards/: if the last fsync was SYNC_SECONDS ago."""
        now = time.monotonic()
        self._unsynced = now - self._synced < SYNC_SECONDS
        if not self._unsynced:
            self._synced = now
        return not self._unsynced

    def sync(self) -> None:
        """Flush the names of all shards, so they survive a power failure."""
        self.shards.sync()
        self._unsynced = False

    def committed(self) -> Iterator[int]:
        """Numbers of the shards that have a file, in order. Only names in a commit's spelling count: otherwise
        "0000000.part" and "00000.part" would both be shard 0."""
        found = (_PART.fullmatch(name) for name in self.shards.names())
        return iter(sorted(int(match[1]) for match in found if match and part_name(int(match[1])) == match[0]))

    def missing(self) -> list[int]:
        """Numbers of the shards that must still run. A file that is not this job's is moved aside."""
        done = set()
        for number in self.committed():
            record = self.record(number)
            if record is None or self.wrong_errors(record):
                self.quarantine(number)
            else:
                done.add(number)
        return [number for number in range(self.manifest.cut.shards) if number not in done]

    def record(self, number: int) -> Record | None:
        """The record of a committed shard; None if it is missing, damaged or of another job."""
        with suppress(Damaged):
            return self.checked_record(number)
        return None

    def checked_record(self, number: int) -> Record:
        """The record of a committed shard. Raises Damaged if it is missing, damaged or of another job."""
        with self._open_shard(number) as (_, record):
            return record

    @contextmanager
    def _open_shard(self, number: int) -> Iterator[tuple[int, Record]]:
        """The descriptor of a shard's file, and its record. Raises Damaged as `checked_record` does."""
        fd = self.shards.open_or_none(part_name(number))
        if fd is None:
            raise Damaged("the shard is not there")
        try:
            yield fd, read_record(fd, self.shards.where(part_name(number)), number, self.manifest)
        finally:
            os.close(fd)

    def blocks(self, number: int) -> Generator[bytes, None, None]:
        """Yield a shard's output in blocks.

        Raises Damaged: before the first block if the shard is missing, after the last one if the sha256 is wrong.
        """
        digest = hashlib.sha256()
        with self._open_shard(number) as (fd, record):
            for place in range(0, record.size, BLOCK_BYTES):
                with naming(self.shards.where(part_name(number)), "read"):
                    block = os.pread(fd, min(BLOCK_BYTES, record.size - place), place)
                digest.update(block)
                yield block
        if digest.hexdigest() != record.sha256:
            raise Damaged("the sha256 of the shard is not that of its record")

    def notes(self, number: int) -> bytes:
        """A shard's notes. Raises Damaged if they are missing or their sha256 is wrong."""
        with self._open_shard(number) as (fd, record), naming(self.shards.where(part_name(number)), "read"):
            notes = os.pread(fd, record.notes_size, record.size)
        if (hashlib.sha256(notes).hexdigest() if notes else "") != record.notes_sha256:
            raise Damaged("the sha256 of the shard's notes is not that of its record")
        return notes

    def errors_of(self, record: Record) -> bytes:
        """The bytes of a shard's file of errors. If there are two files: of the one that matches the record.

        At most one byte more than the record says is read.
        """
        found = b""
        for name in (error_name(record.shard), again_name(record.shard)):
            found = self.errors.read(name, record.error_size + 1) or found
            if hashlib.sha256(found).hexdigest() == record.error_sha256:
                break
        return found

    def wrong_errors(self, record: Record) -> str:
        """The damage of a shard's file of errors; "" if there is none."""
        if not record.errors:
            return ""
        errors = self.errors_of(record)
        if hashlib.sha256(errors).hexdigest() != record.error_sha256:
            return "its file of errors has changed"
        lines = errors.count(b"\n")
        return "" if lines == record.errors else f"its record counts {record.errors:,} errors, and its file {lines:,}"

    def check_settled(self) -> None:
        """Raises UsageError if the earlier files are set aside and the new run has no shard yet."""
        if EARLIER in self.root.names():
            raise UsageError(
                "a run with --restart has no complete shard yet; the earlier results are set aside until then",
                path=self.path,
                remedy="wait for that run; if it has stopped, run the job again, which puts them back first",
            )

    def first_errors(self, most: int) -> list[str]:
        """The errors of the first failed records: "line 4, tokens[0]: ..."."""
        from tilewright.formats.records import RecordError

        found: list[str] = []
        for number in self.committed():
            record = self.record(number) if len(found) < most else None
            if record and record.errors:
                lines = self.errors_of(record)[: record.error_size].splitlines()
                with suppress(msgspec.MsgspecError):  # damaged: `verify` reports it
                    found += [str(msgspec.json.decode(line, type=RecordError)) for line in lines[: most - len(found)]]
        return found

    def quarantine(self, number: int) -> None:
        """Move a shard's file to damaged/, so the shard counts as missing."""
        self.shards.move(part_name(number), self.damaged, part_name(number))


def begun_anew(path: str) -> UsageError:
    """The error of a worker whose job has another manifest now, or none. path: of the job."""
    what = "the job was begun anew or removed since this worker joined it"
    return UsageError(what, path=path, remedy="start the worker again")
