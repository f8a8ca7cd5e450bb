"""The state of a job in a store, below URL.job/ or where --job-dir says (place.py), and its copy in a local directory.

manifest.json, contents.json, shards/, errors/, report.json   as in a local job directory (jobs/directory.py)
pieces/00042     what shard 42 wrote in place (jobs/pieces.py), piece after piece; until the output is uploaded
job.json         the job's options, for workers that join
logs/            logs of the workers; ID.json counts what a process has done that has ended
delivered.json   the tag of the output that the report describes
delivering       exists while a run may replace the output, although delivered.json does not describe it
lead, taken/, workers/   leases (board.py); taken/ and workers/ are removed after the output has been uploaded

Shards that write in place write to the local directory of their process. The process that leads puts all pieces
together on its disk, and uploads the output (output.py).
"""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

from tilewright.errors import InputError
from tilewright.formats.files import BLOCK_BYTES, naming
from tilewright.runtime.jobs.directory import (
    CONTENTS,
    MANIFEST,
    REPORT,
    REQUEST,
    STAGE,
    JobDirectory,
    Record,
    begun_anew,
)
from tilewright.runtime.jobs.durable import Folder
from tilewright.runtime.jobs.location import OWNER
from tilewright.runtime.jobs.manifest import Damaged, Manifest, Sealed, encoded, seal, unseal
from tilewright.runtime.jobs.pieces import TITLE, Piece, Tree, parsed
from tilewright.runtime.jobs.record import TRAILER_BYTES, error_name, part_name
from tilewright.runtime.stores.board import CLAIMS, LEAD, WORKERS, existing
from tilewright.runtime.stores.objects import Objects, Stat
from tilewright.runtime.stores.output import TRANSFERS, Output
from tilewright.runtime.stores.place import state_of

SHARDS, ERRORS, LOGS, DELIVERED = "shards", "errors", "logs", "delivered.json"
DELIVERING, PIECES = "delivering", "pieces"
PENDING = 8  # shards that may wait for their upload, which a kill loses; beyond it the job waits
SAME_SECONDS = 5.0  # between two checks that the job has not been begun anew


class Delivered(Sealed, frozen=True):
    """The output that the report describes. manifest: the seal of the job's manifest. etag: see `Output.tag`."""

    manifest: str
    etag: str


class Remote:
    """The job whose output is `url`, and its local copy, the directory `output`.job. job_dir: the value of --job-dir,
    for the run that starts the job. Raises as `place.state_of`."""

    def __init__(self, url: str, output: str, job_dir: str | None = None) -> None:
        self.url, self.output = url, output.rstrip("/")
        self.path = f"{self.output}.job"
        self.store, self.result = Objects(state_of(url, job_dir)), Output(url, self.output)
        self._kept: dict[int, tuple[int, int]] = {}  # (bytes, mtime in ns) of local shards that are in the store
        self._check_at = 0.0  # the time of the next check that the manifest is the same

    # from the store

    def manifest(self) -> Manifest | None:
        """Copy the manifest into the directory and return it; None if it is missing or damaged."""
        got = self.store.get(MANIFEST)
        with suppress(Damaged):
            found = unseal(got[0], Manifest) if got else None
            if found and got:
                self._write(MANIFEST, got[0])
            return found
        return None

    def pull(self, *, records_alone: bool = False) -> None:
        """Copy shards, errors and contents.json from the store.

        records_alone: copy only the end of each shard, which holds its record; the rest of the file is sparse.
        """
        names = self.store.names()
        wanted = {name: found for name, found in names.items() if name.partition("/")[0] in (SHARDS, ERRORS, CONTENTS)}
        self._each(lambda name: self._pull(name, wanted[name], records_alone), wanted)
        numbers = [
            int(stem) for name in names if name.startswith(f"{PIECES}/") and (stem := Path(name).stem).isdecimal()
        ]
        if numbers and not records_alone:
            with JobDirectory(self.output, make=True) as directory:
                self._each(lambda number: self._pull_pieces(number, directory), numbers)
        self._note_kept()

    def pull_shards(self, numbers: Iterable[int], directory: JobDirectory) -> list[int]:
        """Copy these shards. Missing and damaged shards are returned, and removed from the store."""
        numbers = list(numbers)

        def one(number: int) -> bool:
            with suppress(InputError):  # the shard does not exist
                self._fetch(f"{SHARDS}/{part_name(number)}")
                record = directory.record(number)
                if record and record.errors:
                    self._fetch(f"{ERRORS}/{error_name(number)}")
                whole = record is not None and not directory.wrong_errors(record)
                return whole and self._pull_pieces(number, directory)
            return False

        bad = [number for number, whole in zip(numbers, self._each(one, numbers), strict=True) if not whole]
        self.forget(bad)
        self._note_kept()
        return bad

    def pull_errors(self, names: Mapping[str, Stat], most: int) -> None:
        """Copy files of errors and the records of their shards, until they hold `most` errors. names: of all objects of
        the job."""
        with JobDirectory(self.output) as directory:
            for number in range(directory.manifest.cut.shards):
                errors, shard = f"{ERRORS}/{error_name(number)}", f"{SHARDS}/{part_name(number)}"
                if errors in names and shard in names:
                    self._pull(errors, names[errors], end_alone=False)
                    self._pull(shard, names[shard], end_alone=True)
                    if len(directory.first_errors(most)) >= most:
                        return

    def pull_report(self) -> bool:
        """Copy the report; False if it does not exist."""
        got = self.store.get(REPORT)
        if got:
            self._write(REPORT, got[0])
        return got is not None

    def delivered(self) -> bool:
        """True if the output in the store is the one that `delivered.json` describes."""
        got, manifest = self.store.get(DELIVERED), self.manifest()
        with suppress(Damaged):
            said = unseal(got[0], Delivered) if got else None
            return bool(said and manifest and (said.manifest, said.etag) == (manifest.seal, self.result.tag()))
        return False

    def delivering(self) -> bool:
        """True if a run of the job stopped while it was replacing the output."""
        return self.store.stat(DELIVERING) is not None

    def committed(self, among: Collection[int] | None = None) -> set[int]:
        """The numbers of the shards in the store. among: ask only for these, one by one."""
        if among is not None:
            return existing(self.store, among, lambda number: f"{SHARDS}/{part_name(number)}")
        names = (Path(name).stem for name in self.store.names(SHARDS))
        return {int(stem) for stem in names if stem.isdecimal()}

    def had(self, numbers: Iterable[int]) -> list[int]:
        """Those of these shards whose files this process has copied from the store or to it."""
        return [number for number in numbers if number in self._kept]

    # to the store

    def may_replace(self) -> None:
        """Note that the job may replace the output, so that a later run may, too, if this one is stopped."""
        if not self.delivering() and self.result.tag():
            self.store.put(DELIVERING, b"")

    def begin(self, directory: JobDirectory, request: bytes) -> None:
        """Write the manifest and job.json, which workers read, unless the store has the same ones. Remove the report,
        because the shards may change."""
        self.store.delete([REPORT])
        manifest = encoded(directory.manifest)
        for name, content in ((REQUEST, request), (MANIFEST, manifest)):
            if (got := self.store.get(name)) is None or got[0] != content:
                self.store.put(name, content)

    def publish(self, record: Record, *, again: bool = False) -> None:
        """Upload a committed shard, its pieces and its errors first. again: replace the shard if the store has it; its
        pieces have not changed. Raises UsageError if the job has been begun anew."""
        number = record.shard
        if time.monotonic() >= self._check_at:
            self._check_at = time.monotonic() + SAME_SECONDS
            self.check_same()
        if not again:
            self._push_pieces(record)
        if record.errors:
            name = f"{ERRORS}/{error_name(number)}"
            self.store.upload(name, self._local(ERRORS, error_name(number)), keep=not again)
        self.store.upload(f"{SHARDS}/{part_name(number)}", self._local(SHARDS, part_name(number)), keep=not again)
        self._keep(number)

    def check_same(self) -> None:
        """Raises UsageError if the job has been begun anew with another manifest; a missing one may have expired."""
        got, path = self.store.get(MANIFEST), self._local(MANIFEST)
        with naming(path, "read"):
            if got and got[0] != Path(path).read_bytes():
                raise begun_anew(self.store.url)

    def forget(self, numbers: Iterable[int]) -> None:
        """Remove these shards from the store."""
        for number in numbers:
            names = f"{SHARDS}/{part_name(number)}", f"{ERRORS}/{error_name(number)}", _pieces_name(number)
            self.store.delete([*names])

    def deliver(self, directory: JobDirectory) -> None:
        """Upload the finished output, its report, and shards that have changed since they were uploaded."""
        for number in directory.committed():
            record = directory.record(number)
            if record and self._kept.get(number) != self._status(number):
                self.publish(record, again=True)
        if not self.delivering():
            self.store.put(DELIVERING, b"")
        etag = self.result.upload()
        said = seal(Delivered(manifest=directory.manifest.seal, etag=etag))
        self.store.put(DELIVERED, encoded(said))
        self.store.delete([DELIVERING])
        for name in (CONTENTS, REPORT):
            with suppress(FileNotFoundError):
                self.store.put(name, Path(self.path, name).read_bytes())
        self.store.delete([name for folder in (CLAIMS, WORKERS, PIECES) for name in self.store.names(folder)])

    def clear(self) -> None:
        """Remove the job from the store except DELIVERING and leases of workers, and the local manifest."""
        with naming(self._local(MANIFEST), "remove"), suppress(FileNotFoundError):
            os.unlink(self._local(MANIFEST))
        names = self.store.names()
        self.store.delete([name for name in names if name.partition("/")[0] not in (LEAD, WORKERS, OWNER, DELIVERING)])

    def sweep(self, names: Iterable[str]) -> None:
        """Remove what only a job in progress needs. names: of all objects of the job."""
        self.store.delete([name for name in names if name.partition("/")[0] in (CLAIMS, PIECES)])

    def push_logs(self, who: str, counts: bytes) -> None:
        """Upload the logs of this process's workers. who: the prefix of their names. counts: what it did, for `status`:
        workers/ID, which has it, too, is removed."""
        self.store.put(f"{LOGS}/{who}.json", counts)
        for path in Path(self.path, LOGS).glob("*.log"):
            if path.stat().st_size:
                self.store.upload(f"{LOGS}/{who}-{path.name}", str(path))

    # both

    def _pieces(self, record: Record) -> list[Piece]:
        """What a local shard wrote in place. Raises Damaged."""
        path = self._local(SHARDS, part_name(record.shard))
        with naming(path, "read"), open(path, "rb") as file:
            file.seek(record.size)
            if (title := file.read(len(TITLE))) != TITLE:  # the notes are others, or there are none
                return []
            notes = title + file.read(record.notes_size - len(title))
        return [piece for piece in parsed(notes) if not piece.absent]

    def _push_pieces(self, record: Record) -> None:
        """Copy what a shard wrote in place, if neither it nor the shard is there."""
        name, shard = _pieces_name(record.shard), f"{SHARDS}/{part_name(record.shard)}"
        if not (pieces := self._pieces(record)) or self.store.stat(name) or self.store.stat(shard):
            return
        with self._placed() as tree, self._packed(name) as path:
            with naming(path, "write"), open(path, "wb") as file:
                for piece in pieces:
                    file.writelines(tree.blocks(piece))
            self.store.upload(name, path)

    def _pull_pieces(self, number: int, directory: JobDirectory) -> bool:
        """Copy what a shard wrote in place to its position. False if it is missing or too short; the merge compares its
        hashes."""
        record = directory.record(number)
        try:
            pieces = self._pieces(record) if record else []
        except Damaged:
            return False
        if not pieces:
            return record is not None
        with self._placed() as tree, self._packed(name := _pieces_name(number)) as path:
            try:
                self.store.download(name, path)
            except InputError:
                return False
            with naming(path, "read"), open(path, "rb") as file:
                for piece in pieces:
                    for at in range(0, piece.size, BLOCK_BYTES):
                        block = file.read(min(BLOCK_BYTES, piece.size - at))
                        tree.put(piece.name, piece.offset + at, block, whole=bool(piece.name))
                return file.tell() == sum(piece.size for piece in pieces)

    @contextmanager
    def _placed(self) -> Iterator[Tree]:
        folder = Folder(self.path)
        try:
            yield Tree(folder, STAGE)
        finally:
            folder.close()

    @contextmanager
    def _packed(self, name: str) -> Iterator[str]:
        """The path of a new local file, which is removed at the end of the block."""
        path = self._local(f"{name}-{uuid.uuid4().hex[:8]}")
        with naming(path, "write"):
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        try:
            yield path
        finally:
            with suppress(OSError):
                os.unlink(path)

    def _local(self, *names: str) -> str:
        return os.path.join(self.path, *names)

    def _write(self, name: str, content: bytes) -> None:
        with naming(self._local(name), "write"):
            os.makedirs(self.path, mode=0o700, exist_ok=True)
            Path(self._local(name)).write_bytes(content)

    def _fetch(self, name: str, tag: str | None = None) -> None:
        """Copy an object over a local file. Raises as `Objects.download`."""
        path = self._local(name)
        with naming(path, "write"):
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
            with suppress(FileNotFoundError):
                os.unlink(path)
        self.store.download(name, path, tag)

    def _pull(self, name: str, found: Stat, end_alone: bool) -> None:
        path = self._local(name)
        if end_alone and found.size > TRAILER_BYTES and name.startswith(SHARDS):
            if got := self.store.get(name, found.size - TRAILER_BYTES):
                with naming(path, "write"):
                    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
                with naming(path, "write"), open(path, "wb") as file:
                    file.truncate(got[1].size - len(got[0]))
                    file.seek(0, os.SEEK_END)
                    file.write(got[0])
        else:
            self._fetch(name, found.tag)

    def _status(self, number: int) -> tuple[int, int] | None:
        with suppress(FileNotFoundError):
            status = os.stat(self._local(SHARDS, part_name(number)))
            return status.st_size, status.st_mtime_ns
        return None

    def _keep(self, number: int) -> None:
        if status := self._status(number):
            self._kept[number] = status

    def _note_kept(self) -> None:
        with suppress(FileNotFoundError):
            for name in os.listdir(self._local(SHARDS)):
                if (stem := Path(name).stem).isdecimal() and int(stem) not in self._kept:
                    self._keep(int(stem))

    def _each(self, call: Callable, items: Iterable) -> list:
        with ThreadPoolExecutor(TRANSFERS, "tilewright-fetch") as pool:
            return list(pool.map(call, items))


def _pieces_name(number: int) -> str:
    return f"{PIECES}/{number:05d}"


class Publishing:
    """`with Publishing(remote, done) as publish: publish(record)` uploads shards in the background.

    `done` is called after each upload. The block ends after the last upload. An error of an upload is raised by a later
    call, by `check`, or at the end of the block.
    """

    def __init__(self, remote: Remote, done: Callable[[Record], object]) -> None:
        self._remote, self._done = remote, done
        self._pool = ThreadPoolExecutor(2, "tilewright-publish")
        self._pending: deque[Future[None]] = deque()
        self._lock = threading.Lock()

    def __enter__(self) -> Publishing:
        return self

    def __call__(self, record: Record) -> None:
        """Upload a committed shard."""
        self._pending.append(self._pool.submit(self._copy, record))
        while len(self._pending) > PENDING:
            self._pending.popleft().result()
        self.check()

    def check(self) -> None:
        """Raise the error of an upload that has ended."""
        while self._pending and self._pending[0].done():
            self._pending.popleft().result()

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._pool.shutdown()
        for one in self._pending:
            one.result()

    def _copy(self, record: Record) -> None:
        self._remote.publish(record)
        with self._lock:
            self._done(record)
