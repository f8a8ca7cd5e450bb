"""Merges shards that were written in place (pieces.py): it reads every piece again, then renames the output.

If a piece is missing or wrong in OUT.job/output, an existing OUT may still have it. This happens if the job stopped
between the rename and its report, or if another part of a finished output was damaged. If OUT does not have the piece
either, the shard counts as damaged.

If --job-dir is on another file system, no rename can move the output. Then it is copied beside OUT, and renamed there.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import Self

from tilewright.formats.atomic import AtomicDirectory, AtomicFile, temporary_name
from tilewright.formats.files import BLOCK_BYTES, naming
from tilewright.runtime.jobs import made
from tilewright.runtime.jobs.cut import Records
from tilewright.runtime.jobs.directory import REPORT, STAGE, JobDirectory
from tilewright.runtime.jobs.durable import Folder, check_space
from tilewright.runtime.jobs.location import job_path
from tilewright.runtime.jobs.manifest import Damaged
from tilewright.runtime.jobs.pieces import THREADS, Outside, Piece, Tree, parsed
from tilewright.runtime.jobs.sinks import Beat


class _Placed:
    """The base class of both sinks (sinks.py) for shards that were written in place."""

    def __init__(self, directory: JobDirectory, beat: Beat) -> None:
        self._directory, self._beat = directory, beat
        self._tree, self._earlier = Tree(directory.root, STAGE), Outside(directory.output)

    def __enter__(self) -> Self:
        with ExitStack() as opened:
            self._fd = self._opened()
            opened.callback(os.close, self._fd)
            self._pool = opened.enter_context(ThreadPoolExecutor(THREADS, "tilewright-read"))
            self._hasher = opened.enter_context(ThreadPoolExecutor(1, "tilewright-hash"))
            self._threads = opened.pop_all()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._threads.close()
        if error is None:
            self._finish()

    def _finish(self) -> None:
        raise NotImplementedError

    def _opened(self) -> int:
        """A descriptor of the file or directory to which shards write; it is made if it does not exist."""
        raise NotImplementedError

    def fileno(self) -> int:
        return self._fd

    def write(self, block: bytes | memoryview) -> None:
        """Ignore the bytes of a shard, which belong to other outputs."""

    def _pieces(self, number: int) -> list[Piece]:
        return parsed(self._directory.notes(number))


class PlacedFile(_Placed):
    """An output file: `head`, then `size` bytes that the shards wrote in place, in their order, then `tail`."""

    def __init__(self, directory: JobDirectory, head: bytes, size: int, tail: bytes, beat: Beat) -> None:
        super().__init__(directory, beat)
        self._head, self._tail, self._between = head, tail, size
        self._digest, self._size = hashlib.sha256(head), len(head)
        self._hashed: Future[None] | None = None

    def _opened(self) -> int:
        with naming(self._tree.path, "write"):
            return self._tree.open("", os.O_RDWR | os.O_CREAT)

    def begin(self, number: int) -> None:
        """Begin a shard.

        Raises Damaged if its pieces do not cover exactly its part of the file, or if a piece is neither in the new
        output nor in the earlier one.
        """
        pieces, missing = self._pieces(number), 0
        self._check(number, pieces)
        for first in range(0, len(pieces), THREADS):
            some = pieces[first : first + THREADS]
            blocks = list(self._pool.map(self._block, some))
            missing += blocks.count(None)
            if self._hashed:
                self._hashed.result()
            self._hashed = self._hasher.submit(self._add, blocks)
        if missing:
            raise Damaged(f"{missing} of {len(pieces)} pieces of the output are not what was written")

    def _check(self, number: int, pieces: list[Piece]) -> None:
        """Raises Damaged unless the listed bytes are exactly those of the shard's rows, each once."""
        cut = self._directory.manifest.cut
        assert isinstance(cut, Records)
        first, rows = cut.span(number)
        row = self._between // max(cut.count, 1)
        at, end = (len(self._head) + row * n for n in (first, first + rows))
        for piece in pieces:
            if (piece.name, piece.offset) != ("", at):
                raise Damaged(f"a piece is listed for byte {piece.offset:,} of the output, where {at:,} is next")
            at += piece.size
        if at != end:
            raise Damaged(f"its pieces end at byte {at:,} of the output, and not at {end:,}")

    def _block(self, piece: Piece) -> bytes | None:
        """Find a piece's bytes, copy them to its position if needed, and return them; None if they are not found."""
        if piece.size > BLOCK_BYTES:
            return None
        self._beat()
        for tree in (self._tree, self._earlier):
            block = tree.get(piece)
            if hashlib.sha256(block).hexdigest() == piece.sha256:
                if tree is self._earlier:
                    self._tree.put("", piece.offset, block)
                return block
        return None

    def _add(self, blocks: list[bytes | None]) -> None:
        for block in filter(None, blocks):  # if a block is None, the output will not appear
            self._digest.update(block)
            self._size += len(block)

    def _finish(self) -> None:
        self._tree.put("", 0, self._head)
        self._tree.put("", self._size, self._tail, whole=True)
        self._size += len(self._tail)
        self._digest.update(self._tail)
        if can_rename(self._directory):
            self._rename(self._directory.output)
        else:
            self._copy(self._directory.output)

    def _rename(self, output: str) -> None:
        with naming(output, "write"):
            fd = self._tree.open("", os.O_RDWR)
            try:
                with suppress(FileNotFoundError):
                    os.fchmod(fd, stat.S_IMODE(os.stat(output).st_mode))
                os.fsync(fd)
            finally:
                os.close(fd)
            os.replace(self._tree.path, output)
        _sync_directory(os.path.dirname(output))

    def _copy(self, output: str) -> None:
        check_space(output, self._size)
        with AtomicFile(output) as file:
            for block in self._tree.blocks(Piece("", self._size, 0, "")):
                self._beat()
                file.write(block)
            made.note(self._directory, [file.fileno()])
        self._tree.remove("")

    @property
    def digest(self) -> tuple[int, str]:
        return self._size, self._digest.hexdigest()


class PlacedTree(_Placed):
    """An output directory: the files that the shards wrote in place, one piece each, and `files` (content by name).

    folder: replaces an earlier directory. expected: returns the names of a shard's files, including absent ones.
    """

    def __init__(
        self,
        directory: JobDirectory,
        files: Mapping[str, bytes],
        folder: AtomicDirectory,
        beat: Beat,
        expected: Callable[[int], Iterable[str]],
    ) -> None:
        super().__init__(directory, beat)
        self._files, self._folder, self._expected = files, folder, expected
        self._found: dict[str, tuple[int, str]] = {}

    def _opened(self) -> int:
        folder = Folder(STAGE, inside=self._directory.root, make=True)
        try:
            return os.dup(folder.fd)
        finally:
            folder.close()

    def begin(self, number: int) -> None:
        """Begin a shard. Raises Damaged if a file of it is neither in the new output nor in the earlier one."""
        pieces = self._pieces(number)
        names = [piece.name for piece in pieces]
        if any(piece.offset for piece in pieces):
            raise Damaged("a file of the output is not listed from its first byte on")
        if sorted(names) != sorted(self._expected(number)):
            raise Damaged(f"{len(names):,} files are listed, and they are not those of the shard")
        missing = list(self._pool.map(self._whole, pieces)).count(False)
        if missing:
            raise Damaged(f"{missing} of {len(pieces)} files of the output are not what was written")
        self._found |= {piece.name: (piece.size, piece.sha256) for piece in pieces if not piece.absent}

    def _whole(self, piece: Piece) -> bool:
        """Copy the file from the earlier output if needed. True if the new output has it."""
        self._beat()
        if self._tree.holds(piece):
            return True
        if piece.absent or not self._earlier.holds(piece):
            return False
        self._tree.put(piece.name, 0, b"", whole=True)
        for number, block in enumerate(self._earlier.blocks(piece)):
            self._tree.put(piece.name, number * BLOCK_BYTES, block)
        self._tree.sync([piece.name])
        return True

    def _finish(self) -> None:
        self._folder.check_replaceable()
        for name, content in self._files.items():
            self._tree.put(name, 0, content, whole=True)
            self._found[name] = len(content), hashlib.sha256(content).hexdigest()
        self._remove_strays()
        self._tree.sync(self._files)
        if can_rename(self._directory):
            self._folder.adopt(self._tree.path)
        else:
            self._copy()

    def _copy(self) -> None:
        """Copy the files into a directory beside the output, which then replaces it."""
        check_space(self._folder.path, sum(size for size, _ in self._found.values()))
        with self._folder as temporary:
            copy = Outside(temporary)
            for name, (size, _) in self._found.items():
                copy.put(name, 0, b"", whole=True)
                for number, block in enumerate(self._tree.blocks(Piece("", size, 0, name))):
                    self._beat()
                    copy.put(name, number * BLOCK_BYTES, block)
            copy.sync(self._found)
            fd = os.open(temporary, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                made.note(self._directory, [fd])
            finally:
                os.close(fd)
        self._directory.root.remove(STAGE)

    def _remove_strays(self) -> None:
        """Remove files of earlier attempts that do not belong to the output."""
        with naming(self._tree.path, "remove what is too much of it"):
            for at, folders, names in os.walk(self._tree.path, topdown=False):
                for name in (*names, *(name for name in folders if os.path.islink(os.path.join(at, name)))):
                    path = os.path.join(at, name)
                    if os.path.relpath(path, self._tree.path) not in self._found:
                        os.unlink(path)
                if at != self._tree.path and not os.listdir(at):
                    os.rmdir(at)

    @property
    def digest(self) -> tuple[int, str]:
        return digest_of_files(self._found)


def digest_of_files(files: Mapping[str, tuple[int, str]]) -> tuple[int, str]:
    """(bytes, sha256) of a directory, as `digest_of` returns them. files: (bytes, sha256) of each file by name."""
    folders: dict[str, dict[str, tuple[int, str]]] = {}
    entries = {}
    for name, known in files.items():
        top, _, rest = name.partition("/")
        if rest:
            folders.setdefault(top, {})[rest] = known
        else:
            entries[name] = known
    entries |= {name: digest_of_files(inside) for name, inside in folders.items()}
    digest = hashlib.sha256()
    for name, (size, sha256) in sorted(entries.items()):
        digest.update(f"{name!r} {size} {sha256}\n".encode())
    return sum(size for size, _ in entries.values()), digest.hexdigest()


def can_rename(directory: JobDirectory) -> bool:
    """True if a rename can move a file of the directory to its output; False on another file system. Raises
    ResourceError."""
    if directory.is_beside:
        return True
    name, target = os.path.basename(temporary_name("rename")), temporary_name(directory.output)
    with naming(directory.output, "write"):
        os.close(directory.root.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
        try:
            os.rename(name, target, src_dir_fd=directory.root.fd)
            os.unlink(target)
        except OSError as error:
            directory.root.remove(name)
            if error.errno != errno.EXDEV:
                raise
            return False
    return True


def is_finished(output: str) -> bool:
    """True if a job has written the output. Then a run writes nothing, or only damaged parts."""
    return os.path.exists(os.path.join(job_path(output), REPORT))


def room(output: str) -> int:
    """The most bytes that an output may have: its disk's free bytes plus those that its job has written there
    already."""
    output, done = os.path.realpath(output), 0
    with naming(output, "ask for the space left on its disk"):
        disk = os.statvfs(os.path.dirname(output))
        path = job_path(output)
        parts = ("", "/shards", "/earlier", "/earlier/shards") if _on_disk(path, os.path.dirname(output)) else ()
        for folder in (f"{path}{part}" for part in parts):
            with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
                done += sum(512 * entry.stat(follow_symlinks=False).st_blocks for entry in entries)
    return disk.f_bavail * disk.f_frsize + done


def _on_disk(path: str, folder: str) -> bool:
    with suppress(FileNotFoundError):
        return os.stat(path).st_dev == os.stat(folder).st_dev
    return False


def _sync_directory(path: str) -> None:
    folder = Folder(path)
    try:
        folder.sync()
    finally:
        folder.close()
