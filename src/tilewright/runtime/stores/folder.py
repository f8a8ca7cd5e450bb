"""Leases of a job in a local directory, OUT.job/: board.py's objects are files here."""

from __future__ import annotations

import os
from contextlib import suppress

from tilewright.formats.atomic import temporary_name
from tilewright.formats.files import naming
from tilewright.runtime.jobs.durable import Folder
from tilewright.runtime.stores.board import CLAIMS, WORKERS
from tilewright.runtime.stores.objects import Stat

MOST_BYTES = 4096  # of a lease; a longer file is refused


class FolderKeys:
    """Implements `board.Keys` with the files of a directory. look: open for reading only.

    Files are not flushed to disk. A lease that a power failure deletes is claimed again. A file's tag is its inode and
    its mtime. `put` checks the tag and then writes, so another process may write between the two. Then two processes
    run the same shard, which wastes time but harms nothing.
    """

    def __init__(self, root: Folder, *, look: bool = False) -> None:
        self.url = root.path
        both = {name: Folder(name, inside=root, make=not look, look=look) for name in (CLAIMS, WORKERS)}
        self._folders = {"": root, **both}

    def close(self) -> None:
        for name in (CLAIMS, WORKERS):
            self._folders[name].close()

    def _at(self, name: str) -> tuple[Folder, str]:
        folder, _, last = name.rpartition("/")
        return self._folders[folder], last

    def get(self, name: str) -> tuple[bytes, Stat] | None:
        """As `Objects.get`."""
        folder, last = self._at(name)
        content, found = folder.read(last, MOST_BYTES), self.stat(name)
        return None if content is None or found is None else (content, found)

    def stat(self, name: str) -> Stat | None:
        """As `Objects.stat`; the file system's clock is the store's."""
        folder, last = self._at(name)
        with naming(folder.where(last), "look at"), suppress(FileNotFoundError):
            status = os.stat(last, dir_fd=folder.fd, follow_symlinks=False)
            return Stat(status.st_size, f"{status.st_ino}-{status.st_mtime_ns}", status.st_mtime)
        return None

    def put(self, name: str, data: bytes, *, absent: bool = False, match: Stat | None = None) -> str | None:
        """As `Objects.put`. The file appears complete: it is written under another name and then renamed."""
        folder, last = self._at(name)
        if match is not None and ((found := self.stat(name)) is None or found.tag != match.tag):
            return None
        temporary = os.path.basename(temporary_name(last))
        with naming(folder.where(last), "write"):
            fd = folder.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            try:
                os.write(fd, data)
            finally:
                os.close(fd)
            try:
                if absent:
                    os.link(temporary, last, src_dir_fd=folder.fd, dst_dir_fd=folder.fd)
                else:
                    os.replace(temporary, last, src_dir_fd=folder.fd, dst_dir_fd=folder.fd)
            except FileExistsError:
                return None
            finally:
                with suppress(FileNotFoundError):
                    os.unlink(temporary, dir_fd=folder.fd)
        return found.tag if (found := self.stat(name)) else ""

    def names(self, folder: str) -> dict[str, Stat]:
        """As `Objects.names`."""
        names = [f"{folder}/{name}" for name in self._folders[folder].names() if not name.endswith(".tmp")]
        return {name: found for name in names if (found := self.stat(name))}

    def delete(self, names: list[str]) -> None:
        """As `Objects.delete`."""
        for name in names:
            folder, last = self._at(name)
            folder.remove(last)


def joined(root: Folder, *, left: bool = False) -> bool:
    """True if a worker has joined the job in this directory. left: also if it has left again, and claims remain."""
    return any(_has_files(root, name) for name in ((WORKERS, CLAIMS) if left else (WORKERS,)))


def _has_files(root: Folder, name: str) -> bool:
    try:
        os.stat(name, dir_fd=root.fd, follow_symlinks=False)
    except OSError:
        return False
    folder = Folder(name, inside=root, look=True)
    try:
        return any(not found.endswith(".tmp") for found in folder.names())
    finally:
        folder.close()


def clear(root: Folder, *names: str) -> None:
    """Removes the files in CLAIMS, WORKERS or both. The directories stay, because a worker may have them open."""
    keys = FolderKeys(root)
    try:
        for name in names:
            keys.delete([*keys.names(name)])
    finally:
        keys.close()
