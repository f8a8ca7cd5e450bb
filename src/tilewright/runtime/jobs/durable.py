"""Writes files of a job directory: a file is either complete and on the disk, or absent. Symbolic links are never
followed."""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import time
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING

from tilewright.errors import ResourceError
from tilewright.formats.atomic import temporary_name
from tilewright.formats.destinations import holds_no_files
from tilewright.formats.files import naming

if TYPE_CHECKING:
    from typing_extensions import Buffer

BUFFER_BYTES = 1 << 20  # of the write buffer
FOREIGN_SECONDS = 3600  # age after which a temporary file of another host is removed: its process cannot be checked
UNLINKABLE = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)  # errors of file systems without hard links
STEPS = ("opened", "written", "flushed", "synced", "closed", "renamed", "durable")  # of a commit, in order

_TEMPORARY = re.compile(r"\.(.+)-(\d{1,9})-[0-9a-f]{8}\.tmp", re.DOTALL)


def step(label: str, name: str) -> None:
    """Called after each of STEPS of the file `name`. Tests replace it to kill the process there."""


def alive(pid: int) -> bool:
    """True if the process `pid` is alive on this host. Zombies count as dead."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # the process exists and belongs to another user
        return True
    stat = process_stat(pid)
    return not stat or stat[0] != b"Z"  # "Z": a zombie; in containers often no init process reaps them


def process_stat(pid: int) -> list[bytes]:
    """The fields of /proc/PID/stat from the state on; [] if the system has none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return []


class Removed(ResourceError):
    """Another run has removed the job's directory, because it stopped before its first shard."""

    def __init__(self, path: str) -> None:
        super().__init__("another run has removed it meanwhile", path=path, remedy="run the same command again")


def _not_makeable(path: str) -> ResourceError:
    """The error for a new directory whose parent is missing, or on a file system that takes none, such as /proc."""
    parent = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(parent):
        return ResourceError(f"cannot make this directory: there is no directory {parent}", path=path,
                             remedy="make it first, or choose another directory")  # fmt: skip
    return ResourceError(f"no directory can be made in {parent}", path=path, remedy="choose another directory")


def check_makeable(path: str) -> None:
    """Raises ResourceError if it is known already, without writing, that no directory can be made at `path`."""
    parent = os.path.dirname(os.path.abspath(path))
    if not os.path.lexists(parent) or holds_no_files(parent):
        raise _not_makeable(path)
    with naming(path, "open the directory"):
        os.stat(os.path.join(parent, ""))  # refused if it is a file
        if not os.access(parent, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)


class Folder:
    """A directory that is held open. Symbolic links in it are never followed.

    make: create it if it is missing; `made` is true if that happened. look: open it for reading only; a missing
    directory counts as empty. mode: permission bits, also of everything that is made in the folder. Raises
    ResourceError with the path if a system call fails.
    """

    def __init__(
        self, path: str, *, inside: Folder | None = None, make: bool = False, look: bool = False, mode: int = 0o777
    ) -> None:
        self.fd = -1
        self.made = False
        self.path: str = os.path.join(inside.path, path) if inside else path
        parent = inside.fd if inside else None
        self.mode: int = mode & (inside.mode if inside else 0o777)
        with naming(self.path, "open the directory"):
            if make:
                try:
                    os.mkdir(path, self.mode, dir_fd=parent)
                    self.made = True
                except FileExistsError:
                    pass
                except FileNotFoundError:
                    if inside is None:  # else the directory around it was removed meanwhile
                        raise _not_makeable(path) from None
                    raise
            try:
                self.fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
            except OSError as error:
                if look and error.errno == errno.ENOENT:
                    return
                if error.errno in (errno.ELOOP, errno.ENOTDIR):
                    raise ResourceError(
                        "is a symbolic link or a file, and a job's directory is wanted",
                        path=self.path,
                        remedy="remove it: nothing is written through a link",
                    ) from error
                raise

        with naming(self.path, "look at"):
            status = os.fstat(self.fd)
            if make and status.st_mode & 0o777 & ~self.mode and status.st_uid == os.geteuid():
                os.fchmod(self.fd, stat.S_IMODE(status.st_mode) & ~(0o777 & ~self.mode))
        self.mode &= status.st_mode | 0o700

    def close(self) -> None:
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            os.close(fd)

    def where(self, name: str) -> str:
        """The path of a name, for errors."""
        return os.path.join(self.path, name)

    def open(self, name: str, flags: int) -> int:
        """Open the file `name` and return the descriptor. Symbolic links are not followed. Raises OSError."""
        flags |= os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        return os.open(name, flags, self.mode & 0o666, dir_fd=self.fd)

    def open_or_none(self, name: str, flags: int = os.O_RDONLY) -> int | None:
        """A descriptor of the file; None if no regular file has that name."""
        if self.fd < 0:
            return None
        with naming(self.where(name), "read"):
            try:
                fd = self.open(name, flags)
            except FileNotFoundError:
                return None
            except OSError as error:
                if error.errno in (errno.ELOOP, errno.ENXIO):
                    return None
                raise
            if stat.S_ISREG(os.fstat(fd).st_mode):
                return fd
            os.close(fd)
            return None

    def read(self, name: str, most: int, start: int = 0) -> bytes | None:
        """At most `most` bytes of a file from byte `start`; None if the file does not exist."""
        fd = self.open_or_none(name)
        if fd is None:
            return None
        try:
            with naming(self.where(name), "read"):  # at most the file's size: an edited record may give a huge `most`
                return os.pread(fd, max(min(most, os.fstat(fd).st_size - start), 0), start)
        finally:
            os.close(fd)

    def place(self, name: str, data: bytes) -> None:
        """Write a whole file with all of STEPS."""
        with Draft(self, name) as draft:
            draft.write(data)
            draft.commit()

    def __contains__(self, name: str) -> bool:
        with naming(self.where(name), "look at"), suppress(FileNotFoundError):
            os.stat(name, dir_fd=self.fd, follow_symlinks=False)
            return True
        return False

    def names(self) -> list[str]:
        """The names in the directory."""
        with naming(self.path, "list"):
            return os.listdir(self.fd) if self.fd >= 0 else []

    def remove(self, name: str) -> None:
        """Remove a file, a link, or a directory and everything in it, without following links. A missing name is no
        error."""
        with naming(self.where(name), "remove"), suppress(FileNotFoundError):
            if stat.S_ISDIR(os.stat(name, dir_fd=self.fd, follow_symlinks=False).st_mode):
                shutil.rmtree(name, dir_fd=self.fd)
            else:
                os.unlink(name, dir_fd=self.fd)

    def move(self, name: str, target: Folder, new: str) -> None:
        """Rename a file into another folder, and replace a file of that name there. A missing source is no error."""
        with naming(self.where(name), "rename"), suppress(FileNotFoundError):
            os.replace(name, new, src_dir_fd=self.fd, dst_dir_fd=target.fd)

    def sync(self) -> None:
        """Call fsync on the directory, so that its file names survive a power failure."""
        with naming(self.path, "flush the directory"):
            try:
                os.fsync(self.fd)
            except OSError as error:
                if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some file systems cannot fsync directories
                    raise

    def clean(self) -> None:
        """Remove temporary files of dead processes."""
        host = os.fsdecode(os.fsencode(os.uname().nodename)[:80]).replace("/", "_")
        for name in self.names():
            found = _TEMPORARY.fullmatch(name)
            if found and self._abandoned(name, found[1].endswith(f".{host}"), int(found[2])):
                self.remove(name)

    def _abandoned(self, name: str, here: bool, pid: int) -> bool:
        if here:
            return not alive(pid)
        with suppress(OSError):
            return time.time() - os.stat(name, dir_fd=self.fd, follow_symlinks=False).st_mtime > FOREIGN_SECONDS
        return False


class Draft:
    """A new file in a folder: `with Draft(...) as draft`. It has a temporary name until `commit`.

    Without `commit`, the end of the block removes it. Raises ResourceError with the final path if a system call fails.
    """

    def __init__(self, folder: Folder, name: str) -> None:
        self._folder, self._name = folder, name
        self._temporary = os.path.basename(temporary_name(name))
        self._buffer = bytearray()
        self._unless_there = False
        self.path = folder.where(name)
        self.bytes_written = 0
        with naming(self.path, "write"):
            self._fd = folder.open(self._temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        step("opened", name)

    def __enter__(self) -> Draft:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.discard()

    def write(self, data: Buffer) -> None:
        """Append a bytes-like object or a C-contiguous array."""
        view = memoryview(data).cast("B")
        self.bytes_written += len(view)
        if len(view) >= BUFFER_BYTES:
            self._flush()
            self._put(view)
            return
        self._buffer += view
        if len(self._buffer) >= BUFFER_BYTES:
            self._flush()

    def commit_unless_there(self, *, sync_names: bool = True) -> None:
        """As `commit`, but if another process has made the file meanwhile, that file stays."""
        self._unless_there = True
        self.commit(sync_names=sync_names)

    def commit(self, *, sync_names: bool = True) -> None:
        """Flush, fsync, close and rename the file, then fsync the directory. sync_names=False skips the last step."""
        step("written", self._name)
        self._flush()
        step("flushed", self._name)
        with naming(self.path, "write"):
            os.fsync(self._fd)
            step("synced", self._name)
            self._close()
            step("closed", self._name)
            if self._unless_there and self._linked():
                os.unlink(self._temporary, dir_fd=self._folder.fd)
            else:
                os.replace(self._temporary, self._name, src_dir_fd=self._folder.fd, dst_dir_fd=self._folder.fd)
        self._temporary = ""
        step("renamed", self._name)
        if sync_names:
            self._folder.sync()
            step("durable", self._name)

    def _linked(self) -> bool:
        """True if there is a file of this name now, perhaps another process's. False: there are no hard links here."""
        try:
            os.link(self._temporary, self._name, src_dir_fd=self._folder.fd, dst_dir_fd=self._folder.fd)
        except FileExistsError:
            pass
        except OSError as error:
            if error.errno not in UNLINKABLE:
                raise
            return self._name in self._folder
        return True

    def discard(self) -> None:
        """Remove the temporary file. After `commit` this does nothing."""
        with suppress(OSError):  # an error of flushing does not matter, because the file is removed
            self._close()
        if self._temporary:
            with suppress(OSError):
                os.unlink(self._temporary, dir_fd=self._folder.fd)
            self._temporary = ""

    def _flush(self) -> None:
        self._put(memoryview(self._buffer))
        self._buffer = bytearray()

    def _put(self, view: memoryview) -> None:
        with naming(self.path, "write"):
            while len(view):
                view = view[os.write(self._fd, view) :]

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def check_space(path: str, size: int) -> None:
    """Raises ResourceError if the disk of `path` has fewer than `size` bytes left."""
    with naming(path, "ask for the space left on its disk"):
        disk = os.statvfs(os.path.dirname(path))
    left = disk.f_bavail * disk.f_frsize
    if left < size:
        raise ResourceError(
            f"the output takes {size:,} bytes and its disk has {left:,} left",
            path=path,
            remedy="free some space and run the same command again: nothing needs to be computed again",
        )
