"""Writes shards in place, at their final positions in OUT.job/output, which is a file or a directory of files.

One rename makes it OUT, so a large output is written only once. A shard writes pieces and flushes them; each piece is a
block of one file. Then the shard is committed, and its notes hold the list of its pieces. Two attempts at a shard, even
at the same time, write the same bytes. The merge (placed.py) reads every piece again before the rename.

A list begins with TITLE, and each line is: sha256, bytes, first byte, name. The name is "" for the output itself. A
piece of 0 bytes means that its file must not exist.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple

from tilewright.errors import ResourceError
from tilewright.formats.files import BLOCK_BYTES, naming
from tilewright.runtime.jobs.directory import STAGE, Attempt, JobDirectory
from tilewright.runtime.jobs.durable import Folder
from tilewright.runtime.jobs.manifest import Damaged
from tilewright.runtime.jobs.mapped import write_at

if TYPE_CHECKING:
    import numpy as np
    from typing_extensions import Buffer

TITLE = b"tilewright pieces 1\n"
THREADS = 4  # that read and hash: one thread hashes 0.4 to 2 GB/s
WRITERS = 8  # the most writing threads per worker; on an H200's host 8 write 1.5 x as fast as 4
SYNCING = 8  # threads that call fsync: a file system handles all waiting fsyncs together

_NAME = re.compile(r"(?!\.\.?(/|$))[\w.-]+(/(?!\.\.?(/|$))[\w.-]+)*", re.ASCII)
_LINE = re.compile(r"([0-9a-f]{64}) (\d{1,18}) (\d{1,18}) (.*)")


class Piece(NamedTuple):
    """Bytes `offset` to `offset + size` of the output's file `name`, with their sha256."""

    sha256: str
    size: int
    offset: int
    name: str

    @property
    def absent(self) -> bool:
        """True if the file must not exist, such as the file of a Zarr chunk of zeros."""
        return bool(self.name) and not self.size


def listed(pieces: Iterable[Piece]) -> bytes:
    """Encode a list of pieces."""
    return TITLE + "".join(f"{p.sha256} {p.size} {p.offset} {p.name}\n" for p in pieces).encode()


def parsed(notes: bytes) -> list[Piece]:
    """Decode a list of pieces; [] if the notes hold none.

    Raises Damaged for a malformed line, such as a name that leads out of the output.
    """
    if not notes.startswith(TITLE):
        return []
    pieces = []
    for line in notes[len(TITLE) :].decode(errors="replace").splitlines():
        found = _LINE.fullmatch(line)
        if not found or not (found[4] == "" or _NAME.fullmatch(found[4])):
            raise Damaged(f"{line[:100]!r} is no piece of an output")
        pieces.append(Piece(found[1], int(found[2]), int(found[3]), found[4]))
    return pieces


class Tree:
    """A file, or a directory of files, in a folder. Links are never followed, and directories are made as needed."""

    def __init__(self, folder: Folder, root: str) -> None:
        self._folder, self._root = folder, root
        self.path = folder.where(root)

    def open(self, name: str, flags: int) -> int:
        """A descriptor of the file `name`. Raises OSError, and ResourceError if its directory cannot be opened."""
        with self._at(name, make=bool(flags & os.O_CREAT)) as (folder, last):
            return folder.open(last, flags)

    @contextmanager
    def _at(self, name: str, *, make: bool = False) -> Iterator[tuple[Folder, str]]:
        """The open directory of the file `name`, and the file's name in it."""
        *folders, last = [self._root, *name.split("/")] if name else [self._root]
        with ExitStack() as opened:
            at = self._folder
            for part in folders:
                at = Folder(part, inside=at, make=make)
                opened.callback(at.close)
            yield at, last

    def remove(self, name: str) -> None:
        """Remove the file `name` if it exists. Errors are ignored, because the merge detects a file that remains."""
        with suppress(ResourceError), self._at(name) as (folder, last):
            folder.remove(last)

    def get(self, piece: Piece) -> bytes:
        """Read the bytes at a piece's position, at most BLOCK_BYTES; b"" if the file does not exist."""
        with suppress(OSError, ResourceError):
            return b"".join(self.blocks(piece))
        return b""

    def blocks(self, piece: Piece) -> Iterator[bytes]:
        """Yield the bytes at a piece's position, in blocks.

        Raises OSError and ResourceError. In a directory a piece is a whole file: Damaged if the file has another size.
        """
        fd = self.open(piece.name, os.O_RDONLY)
        try:
            status = os.fstat(fd)
            if piece.name and status.st_size != piece.size:
                raise Damaged(f"{piece.name} has {status.st_size:,} bytes; the shard's list says {piece.size:,}")
            if stat.S_ISREG(status.st_mode):  # only to the file's end: the size may come from an edited list
                for place in range(0, min(piece.size, status.st_size - piece.offset), BLOCK_BYTES):
                    yield os.pread(fd, min(BLOCK_BYTES, piece.size - place), piece.offset + place)
        finally:
            os.close(fd)

    def has(self, name: str) -> bool:
        """True if a file or directory has this name."""
        with suppress(ResourceError), self._at(name) as (folder, last):
            return last in folder
        return False

    def holds(self, piece: Piece) -> bool:
        """True if the piece's bytes are at its position; for an absent piece, if no file has its name."""
        if piece.absent:
            return not self.has(piece.name)
        digest, size = hashlib.sha256(), 0
        try:
            for block in self.blocks(piece):
                digest.update(block)
                size += len(block)
        except (OSError, ResourceError, Damaged):  # the file is missing or different
            return False
        return (size, digest.hexdigest()) == (piece.size, piece.sha256)

    def note(self, name: str, offset: int, size: int) -> Piece:
        """Hash existing bytes, at most BLOCK_BYTES, and return their piece."""
        with naming(self.path, "read"):
            fd = self.open(name, os.O_RDONLY)
            try:
                block = os.pread(fd, size, offset)
            finally:
                os.close(fd)
        return Piece(hashlib.sha256(block).hexdigest(), size, offset, name)

    def put(self, name: str, offset: int, data: Buffer, *, whole: bool = False) -> None:
        """Write bytes or a C-contiguous array at `offset`. whole: the data is the whole file."""
        view = memoryview(data).cast("B")
        with naming(self.path, "write"):
            fd = self.open(name, os.O_RDWR | os.O_CREAT)
            try:
                write_at(fd, offset, view)
                if whole:
                    os.ftruncate(fd, offset + len(view))
            finally:
                os.close(fd)

    def sync(self, names: Iterable[str]) -> None:
        """Flush files and their directories to the disk."""
        names = set(names)
        folders = {name[:i] for name in names for i in range(len(name)) if name[i] == "/"}
        with ThreadPoolExecutor(SYNCING) as pool:
            for some in (names, folders | ({""} if names - {""} else set())):  # directories after the files in them
                for _ in pool.map(self._sync, some):
                    pass

    def _sync(self, name: str) -> None:
        with naming(self.path, "write"):
            fd = self.open(name, os.O_RDONLY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)


class Outside(Tree):
    """A `Tree` that opens its folder again for each file."""

    def __init__(self, path: str) -> None:
        self.path = path

    def open(self, name: str, flags: int) -> int:
        folder = Folder(os.path.dirname(self.path))
        try:
            return Tree(folder, os.path.basename(self.path)).open(name, flags)
        finally:
            folder.close()


def writers() -> int:
    """The number of a worker's threads that copy and hash: its number of cores, but from THREADS to WRITERS."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else THREADS
    return max(THREADS, min(WRITERS, cores))


class Placing:
    """Writes a shard in place: `with Placing(out) as place: place.write(offset, data)`.

    The end of the block flushes all data to the disk, and adds the list of pieces to the shard's notes. Raises
    ResourceError.
    """

    def __init__(self, out: Attempt) -> None:
        self._out, self._tree = out, Tree(out.directory.root, STAGE)
        self._pieces: list[Piece] = []
        self._fd = -1

    def __enter__(self) -> Placing:
        self._pool = ThreadPoolExecutor(writers(), "tilewright-place")
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._pool.shutdown()
        if self._fd >= 0:
            os.close(self._fd)
        if error is None:
            self._tree.sync(piece.name for piece in self._pieces if not piece.absent)
            self._out.notes += listed(self._pieces)

    def put(self, parts: Iterable[tuple[int, np.ndarray]]) -> None:
        """Write arrays at these bytes of the output without adding them to the list; call `note` later.

        parts: (byte of the output, C-contiguous array).
        """
        for offset, data in parts:
            self._write(offset, data.data.cast("B"))

    def note(self, offset: int, size: int) -> None:
        """Add these bytes of the output, which have been `put`, to the list."""
        end = offset + size
        places = range(offset, end, BLOCK_BYTES)
        self._pieces += self._pool.map(lambda place: self._tree.note("", place, min(BLOCK_BYTES, end - place)), places)

    def write(self, offset: int, data: Buffer) -> None:
        """Write bytes or a C-contiguous array at this byte of the output, in blocks, by several threads."""
        view = memoryview(data).cast("B")
        self._open()

        def one(at: int) -> Piece:
            block = view[at : at + BLOCK_BYTES]
            self._write(offset + at, block)
            return Piece(hashlib.sha256(block).hexdigest(), len(block), offset + at, "")

        self._pieces += self._pool.map(one, range(0, len(view), BLOCK_BYTES))

    def _open(self) -> None:
        if self._fd < 0:
            with naming(self._tree.path, "write"):
                self._fd = self._tree.open("", os.O_RDWR | os.O_CREAT)

    def _write(self, offset: int, view: memoryview) -> None:
        self._open()
        with naming(self._tree.path, "write"):
            write_at(self._fd, offset, view)

    def files(self, contents: Iterable[tuple[str, bytes | Callable[[], bytes]]]) -> None:
        """Write whole files by several threads. contents: (name, content or a function that returns it).

        A file whose content is empty is removed instead.
        """

        def one(file: tuple[str, bytes | Callable[[], bytes]]) -> Piece:
            name, made = file
            content = made if isinstance(made, bytes) else made()
            if content:
                self._tree.put(name, 0, content, whole=True)
            else:
                self._tree.remove(name)
            return Piece(hashlib.sha256(content).hexdigest(), len(content), 0, name)

        given = iter(contents)
        while some := list(islice(given, writers())):
            self._pieces += self._pool.map(one, some)


def damage(directory: JobDirectory, number: int, beat: Callable[[], object]) -> str:
    """Describe the damage of the pieces that a shard of an unfinished job wrote in place; "" if there is none.

    Raises Damaged if the list itself is damaged.
    """
    trees = Tree(directory.root, STAGE), Outside(directory.output)
    for piece in parsed(directory.notes(number)):
        beat()
        if not any(tree.holds(piece) for tree in (trees[:1] if piece.absent else trees)):
            where = f"bytes {piece.offset:,} to {piece.offset + piece.size - 1:,}"
            return f"{where}{piece.name and ' of '}{piece.name} of the output have changed"
    return ""
