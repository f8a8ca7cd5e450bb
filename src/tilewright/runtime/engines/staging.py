"""MPI without a shared file system: rank 0 sends inputs and weights once to each node that does not see its files.


The node stores them in a temporary folder. Its ranks send their finished shards to rank 0, which commits them.

A node sees the files if each has the same size and mtime as on rank 0's node, and if it finds the file that rank 0
makes beside the job's directory. `--shared-files` skips this check: "yes" means that all nodes see the files, and "no"
that only rank 0's node does.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from typing import Any

from tilewright.errors import InternalError, ResourceError, UsageError, counted
from tilewright.formats.files import naming
from tilewright.formats.many_files import is_many
from tilewright.runtime.jobs.directory import MANIFEST, STAGE, JobDirectory, Record
from tilewright.runtime.jobs.location import job_path
from tilewright.runtime.jobs.record import error_name, part_name
from tilewright.runtime.jobs.task import J
from tilewright.runtime.jobs.unchanged import AsBegun, files_below
from tilewright.runtime.jobs.workers import MOST_BYTES

READ = ("model", "input", "kernel")  # fields of a job with paths that every rank reads
WRITTEN = ("output", "image")  # fields with paths that a job writes
LEADS = ("answers", "table_path")  # fields with paths that only rank 0 uses
BLOCK = 16 << 20  # bytes per broadcast
FOUND_SECONDS = 30.0  # until other nodes must see a new directory: NFS caches a directory for this long
NODE = "tilewright-node-"  # prefix of the name of a node's temporary folder


@dataclass(frozen=True)
class Source:
    """A file to send. name: its path in the node's folder. size: bytes. changed: mtime in ns."""

    path: str
    name: str
    size: int
    changed: int


@dataclass(frozen=True)
class Offer:
    """The first message of rank 0 to all ranks.

    folders: fields of the job whose output is a directory. probe: path and content of the file that rank 0 makes
    beside the output.
    """

    job: Any
    sources: tuple[Source, ...]
    folders: frozenset[str]
    probe: tuple[str, bytes]


@dataclass
class Parcel:
    """A finished shard of a node that does not see the output.

    part: the shard's file. errors: its errors file. tally: name and content of the file with this rank's counts for
    `status`. pieces: the bytes that the shard wrote directly into the output.
    """

    part: bytes
    errors: bytes
    tally: tuple[str, bytes]
    pieces: list[bytes] = field(default_factory=list)


class Staging:
    """The files of one node's ranks. Every rank must call `share`.

    folder: the node's temporary folder; None on a node that sees rank 0's files. facts: entries of the job's report.
    is_sending: True while this rank is in collective calls that exchange files. It then cannot read messages.
    """

    is_sending = False

    def __init__(self, comm: Any, node: Any) -> None:
        self._comm, self._node = comm, node
        self.folder: str | None = None
        self.home = ""  # where a node that has files of its own reports deaths
        self.facts: dict[str, Any] = {}

    def share(self, job: J, shared: str, listen: Callable[[], str]) -> J:
        """Send the files if needed. Returns the job with the paths on this node.

        shared: the value of --shared-files: "auto", "yes" or "no". listen: `Witness.listen`, for rank 0. Raises
        UsageError and ResourceError.
        """
        if shared == "yes" or self._node.size == self._comm.size:  # the latter: there is only one node
            return job
        self.is_sending = True
        leaders = self._comm.Split(0 if self._node.rank == 0 else 1, self._comm.rank)
        lead = self._comm.rank == 0
        offer: Offer = self._comm.bcast(self._offer(job, shared) if lead else None)
        sees, lacking = None, 0
        if self._node.rank == 0:
            sees = lead or (shared == "auto" and _sees(offer))
            lacking = leaders.allreduce(0 if sees else 1)
            if lead:
                _forget(offer)
        if refusal := self._comm.bcast(_refusal(offer, lacking, leaders.size) if lead and lacking else None):
            self.is_sending = False
            raise refusal
        if lacking:
            self._send(leaders, offer, sees=bool(sees), lacking=lacking)
        sees = self._node.bcast(sees)
        home = self._comm.bcast(listen() if lead and lacking else "")
        self.folder = self._node.bcast(self.folder)
        self.is_sending = False
        if sees:
            return job
        self.home = home
        return staged(offer, self.folder)

    def notices(self) -> list[str]:
        """Lines for the user that say how many files were sent."""
        if not (sent := self.facts.get("sent")):
            return []
        count, files = sent["nodes"], counted(sent["files"], "file")
        nodes = "1 node that does" if count == 1 else f"{count} nodes that do"
        return [f"Sent {files} ({sent['bytes']:,} bytes) to {nodes} not see the files of rank 0"]

    def directory(self, output: str, manifest: bytes) -> JobDirectory:
        """Open rank 0's job directory, or this node's own. A new own directory gets rank 0's manifest."""
        if not self.folder:
            return _found(output)
        directory = JobDirectory(output, make=True)
        if MANIFEST not in directory.root:
            directory.root.place(MANIFEST, manifest)
        return directory

    def close(self) -> None:
        """Remove this node's folder."""
        if self.folder and self._node.rank == 0:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _offer(self, job: Any, shared: str) -> Offer:
        """List the files of the job, and write the file for which the other nodes check."""
        files = tuple(_sources(job))
        folders = frozenset(name for name in WRITTEN if os.path.isdir(getattr(job, name, None) or ""))
        token = secrets.token_hex(16)
        folder = os.path.dirname(os.path.abspath((job.settings.job_dir or job_path(job.output)).rstrip("/")))
        probe = os.path.join(folder, f".tilewright-{token[:8]}.tmp"), token.encode()
        with suppress(OSError):  # if the folder cannot be written, the job itself raises a better error later
            fd = os.open(probe[0], os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            try:
                os.write(fd, probe[1])
            finally:
                os.close(fd)
        return Offer(job, files, folders, probe)

    def _send(self, leaders: Any, offer: Offer, *, sees: bool, lacking: int) -> None:
        """Send all files from rank 0 to the first rank of each node that does not see them.

        lacking: the number of these nodes.
        """
        lead = leaders.rank == 0
        group = leaders.Split(0 if lead or not sees else 1, leaders.rank)
        if sees and not lead:
            return
        if not lead:
            self.folder = tempfile.mkdtemp(prefix=NODE)
        sent = 0
        for source in offer.sources:
            for at, block in _blocks(source, read=lead):
                group.Bcast(block, 0)
                sent += len(block)
                if not lead:
                    _append(os.path.join(self.folder or "", source.name), at, block)
            if not lead and not source.size:
                _append(os.path.join(self.folder or "", source.name), 0, bytearray())
        self.facts = {"sent": {"nodes": lacking, "files": len(offer.sources), "bytes": sent}}


def _refusal(offer: Offer, lacking: int, nodes: int) -> UsageError | None:
    """The error of a job that needs files on all nodes: one with many files as input, or with --trace.

    lacking: how many of the nodes do not see the files. They could not write to the trace.
    """
    what = f"{lacking} of {nodes} nodes do not see the job's files, and"
    if hasattr(offer.job, "source") and offer.job.input and is_many(offer.job.input):
        what = f"{what} one file alone can be sent as input"
        return UsageError(what, path=offer.job.input, remedy="give one file, or use a shared file system")
    if offer.job.settings.trace:
        remedy = "leave out --trace, or use a shared file system"
        return UsageError(f"{what} could not write the trace", path=offer.job.settings.trace, remedy=remedy)
    return None


def staged(offer: Offer, folder: str) -> Any:
    """The job with paths in `folder`, a node's temporary folder. Fields that only rank 0 uses are left out."""
    job, changed = offer.job, dict[str, Any]()
    for name in {found.name.partition(os.sep)[0] for found in offer.sources}:
        changed[name] = os.path.join(folder, name, os.path.basename(os.path.normpath(getattr(job, name))))
    for name in WRITTEN:
        if path := getattr(job, name, None):
            changed[name] = os.path.join(folder, name, os.path.basename(os.path.normpath(path)))
            os.makedirs(os.path.dirname(changed[name]), exist_ok=True)
            changed[name] += "/" * (path.endswith("/") or name in offer.folders)
    known = {one.name for one in fields(job)}
    changed |= {name: None for name in (*LEADS, "source") if name in known}
    settings = replace(job.settings, restart=False, keep_others=False, since=None, job_dir=None)
    return replace(job, **changed, settings=settings)


def begun(task: Any) -> AsBegun:
    """The identities of this node's copies of the files. A later check detects changes."""
    task.fingerprint()  # also lists directories with many files
    return AsBegun.of(task.files()).also(getattr(task, "trees", {}))


def packed(directory: JobDirectory, record: Record) -> Parcel:
    """Move a finished shard from this node's job directory into a parcel."""
    from tilewright.runtime.jobs.pieces import Tree, parsed

    name = part_name(record.shard)
    part = directory.shards.read(name, record.size + record.notes_size + len(record.trailer)) or b""
    errors = directory.errors_of(record) if record.errors else b""
    tree = Tree(directory.root, STAGE)
    pieces = parsed(directory.notes(record.shard))
    tally = next((name for name in directory.logs.names() if name.endswith(f"-{os.getpid()}.json")), "")
    told = (directory.logs.read(tally, MOST_BYTES) if tally else None) or b""
    parcel = Parcel(part, errors, (tally, told), [tree.get(piece) for piece in pieces])
    directory.shards.remove(name)
    for piece in pieces:
        if piece.name:
            tree.remove(piece.name)
    return parcel


def unpacked(directory: JobDirectory, record: Record, parcel: Parcel) -> None:
    """Commit a shard from another node. Raises ResourceError, and InternalError if the shard arrived damaged."""
    from tilewright.runtime.jobs.pieces import Tree, parsed

    directory.began.check()
    tree = Tree(directory.root, STAGE)
    pieces = parsed(parcel.part[record.size : record.size + record.notes_size])
    for piece, content in zip(pieces, parcel.pieces, strict=True):
        if piece.absent:
            tree.remove(piece.name)
        else:
            tree.put(piece.name, piece.offset, content, whole=bool(piece.name))
    tree.sync(piece.name for piece in pieces if not piece.absent)
    if parcel.errors:
        directory.errors.place(error_name(record.shard), parcel.errors)
    directory.shards.place(part_name(record.shard), parcel.part)
    _tell(directory, *parcel.tally)
    found = directory.record(record.shard)
    if found is None or directory.wrong_errors(found):
        raise InternalError(f"shard {record.shard} of another node arrived damaged", path=directory.path)


def _tell(directory: JobDirectory, name: str, content: bytes) -> None:
    """Write the file with a rank's counts, which `status` reads. Disk errors are ignored, as in `Tally`."""
    with suppress(OSError):
        fd = directory.logs.open(name, os.O_WRONLY | os.O_CREAT)
        try:
            os.pwrite(fd, content, 0)
        finally:
            os.close(fd)


def _sources(job: Any) -> Iterator[Source]:
    """All files of a job that its ranks read."""
    listed = [*job.files().values()] if hasattr(job, "files") else []
    for name in READ:
        path = getattr(job, name, None)
        if not path or (name == "kernel" and not path.lower().endswith((".txt", ".npy"))):
            continue
        top = os.path.join(name, os.path.basename(os.path.normpath(path)))
        if os.path.isfile(path):
            yield _source(path, top)
        elif os.path.isdir(path):
            below = [os.path.relpath(one, path) for one in listed if _is_below(one, path) and os.path.isfile(one)]
            for part in below if listed else files_below(path):
                yield _source(os.path.join(path, part), os.path.join(top, part))


def _is_below(path: str, folder: str) -> bool:
    return os.path.dirname(path) == os.path.normpath(folder) or path.startswith(os.path.join(folder, ""))


def _source(path: str, name: str) -> Source:
    with naming(path, "look at"):
        status = os.stat(path)
    return Source(os.path.abspath(path), name, status.st_size, status.st_mtime_ns)


def _sees(offer: Offer) -> bool:
    """True if this node sees rank 0's files and the folder of the output."""
    try:
        with open(offer.probe[0], "rb") as file:
            if file.read(64) != offer.probe[1]:
                return False
        found = ((os.stat(source.path), source) for source in offer.sources)
        return all((s.st_size, s.st_mtime_ns) == (source.size, source.changed) for s, source in found)
    except OSError:
        return False


def _forget(offer: Offer) -> None:
    with suppress(OSError):
        os.unlink(offer.probe[0])


def _blocks(source: Source, *, read: bool) -> Iterator[tuple[int, bytearray]]:
    """Yield (offset, block) of a file in order. read: read each block; otherwise it is an empty buffer to receive into.

    Raises ResourceError.
    """
    from tilewright.formats.files import InputFile

    file = InputFile(source.path, "input") if read else None
    try:
        for at in range(0, source.size, BLOCK):
            block = bytearray(min(BLOCK, source.size - at))
            if file:
                file.read_into(block, at)
            yield at, block
    finally:
        if file:
            file.close()


def _append(path: str, at: int, block: bytearray) -> None:
    """Write a block to a file in this node's folder. Raises ResourceError if the disk fails or is full."""
    try:
        if not at:
            os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "ab" if at else "wb") as file:
            file.write(block)
    except OSError as error:
        what = f"a file of the job cannot be stored on {os.uname().nodename}: {(error.strerror or '').lower()}"
        remedy = "set TMPDIR to a folder of this node with more space"
        raise ResourceError(what, path=path, remedy=remedy) from error


def _found(output: str) -> JobDirectory:
    """The directory that rank 0 made. Waits until this node's file system shows it."""
    until = time.monotonic() + FOUND_SECONDS
    while True:
        try:
            return JobDirectory(output)
        except ResourceError:
            if time.monotonic() > until:
                raise
        time.sleep(0.1)
