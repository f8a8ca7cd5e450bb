"""A directory that nobody but this user and root can change, opened once and used by its descriptor.

Machine code is loaded from it, so another user who could put a file there would run code as this user. A check of a
path says nothing about the next call with that path: the other user exchanges the directory in between. So each
directory on the way is opened relative to the one before it, without following links, and its descriptor is checked.
Files are opened relative to the last descriptor, and the open file is checked.
Source: the rules of OpenSSH (auth_secure_path) and of systemd-tmpfiles.
"""

from __future__ import annotations

import errno
import fcntl
import grp
import os
import pwd
import secrets
import stat
from contextlib import suppress

from tilewright.errors import ResourceError

NEW = ".new-"  # what the names of unfinished files begin with
MAX_LINKS = 40  # on the way to a directory, as in Linux
PATH_ONLY = getattr(os, "O_PATH", os.O_RDONLY)  # a directory on the way need not be readable
_OPEN = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class UnsafeDirectoryError(ResourceError):
    """Another user could change what lies in the directory."""


class PrivateDirectory:
    """The directory at `path`, open. It is made with mode 0700 where it is missing, and so are those above it.

    The directory is no link, belongs to this user or to root, and nobody else may write to it. The same holds for each
    directory above it, but a sticky one (/tmp) may be open to all. Raises UnsafeDirectoryError where this does not
    hold, and OSError where the directory cannot be made or opened. make: False: a missing directory is a
    FileNotFoundError.
    """

    def __init__(self, path: str | os.PathLike[str], *, make: bool = True) -> None:
        self.path = os.path.abspath(path)
        self.fd = _walk(self.path, make)
        self._swept = False

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def check(self) -> bool:
        """False if the directory has been removed. Raises UnsafeDirectoryError if it is no longer private."""
        found = os.fstat(self.fd)
        _check_directory(found, self.path, self.path, last=True)
        return found.st_nlink > 0

    def names(self) -> list[str]:
        return os.listdir(self.fd)

    def read(self, name: str, limit: int) -> bytes | None:
        """The content of a file; None for one that is missing, larger than `limit`, or not this user's or root's alone:
        a link, a pipe, a directory, a file of another user, one that others may write to, one with a second name."""
        try:
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self.fd)
        except OSError:
            return None
        try:
            found = os.fstat(fd)
            ours = stat.S_ISREG(found.st_mode) and found.st_nlink == 1 and found.st_uid in (0, os.geteuid())
            if not ours or found.st_mode & _OTHERS_WRITE or found.st_size > limit:
                return None
            content = bytearray()
            while block := os.read(fd, found.st_size + 1 - len(content)):
                content += block
        except OSError:
            return None
        finally:
            os.close(fd)
        return bytes(content) if len(content) == found.st_size else None

    def write(self, name: str, content: bytes) -> None:
        """Give a file this content, by way of a private name and a rename. A directory of that name is renamed. Raises
        OSError; no private name is left then.

        The writer holds a lock on the private name. The first write in a process removes the private names that have no
        writer: killed processes left them.
        """
        if not self._swept:
            self._swept = True
            self._sweep()
        temporary, fd = self._create()
        try:
            with open(fd, "wb", buffering=0) as file:
                view = memoryview(content)
                while view:
                    view = view[file.write(view) :]
                self._make_way(name)
                os.replace(temporary, name, src_dir_fd=self.fd, dst_dir_fd=self.fd)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary, dir_fd=self.fd)
            raise

    def _create(self) -> tuple[str, int]:
        while True:
            name = f"{NEW}{secrets.token_hex(8)}"
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            fd = os.open(name, flags, 0o600, dir_fd=self.fd)
            with suppress(OSError):  # a file system without locks: then `_sweep` gets none either
                fcntl.flock(fd, fcntl.LOCK_EX)
            if os.fstat(fd).st_nlink:
                return name, fd
            os.close(fd)  # another process's `_sweep` was faster than the lock

    def _sweep(self) -> None:
        """Remove private names that no process has locked. Best effort."""
        for name in self.names():
            if not name.startswith(NEW):
                continue
            with suppress(OSError):
                fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self.fd)
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    os.unlink(name, dir_fd=self.fd)
                finally:
                    os.close(fd)

    def _make_way(self, name: str) -> None:
        """Rename a directory of that name, which a file cannot replace. An empty one is removed."""
        try:
            if not stat.S_ISDIR(os.stat(name, dir_fd=self.fd, follow_symlinks=False).st_mode):
                return
            os.rmdir(name, dir_fd=self.fd)
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            os.rename(name, f"{name}.old-{secrets.token_hex(4)}", src_dir_fd=self.fd, dst_dir_fd=self.fd)


def _walk(path: str, make: bool) -> int:
    """A descriptor of the directory at the absolute `path`; each directory and link on the way is checked."""
    todo, done, links = path.split("/")[::-1], "", 0
    todo = [part for part in todo if part not in ("", ".")]
    fd = os.open("/", (PATH_ONLY if todo else os.O_RDONLY) | _OPEN)
    try:
        _check_directory(os.fstat(fd), "/", path, last=not todo)
        while todo:
            part = todo.pop()
            if (target := _link(part, fd, f"{done}/{part}", path)) is not None:
                if not todo:
                    raise _unsafe(path, "it is a link")
                links += 1
                if links > MAX_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
                todo += [word for word in target.split("/")[::-1] if word not in ("", ".")]
                if target.startswith("/"):
                    done, fd = "", _step("/", fd, PATH_ONLY)
                continue
            if part == "..":
                done, fd = os.path.dirname(done).rstrip("/"), _step("..", fd, PATH_ONLY)
            else:
                if make:
                    with suppress(FileExistsError):
                        _make(part, fd)
                done, fd = f"{done}/{part}", _step(part, fd, PATH_ONLY if todo else os.O_RDONLY)
            _check_directory(os.fstat(fd), done or "/", path, last=not todo)
        return fd
    except BaseException:
        os.close(fd)
        raise


def _make(name: str, fd: int) -> None:
    """Make a directory. On a read-only disk the error for one that exists must not be the disk's."""
    try:
        os.stat(name, dir_fd=fd, follow_symlinks=False)
    except FileNotFoundError:
        os.mkdir(name, 0o700, dir_fd=fd)


def _step(name: str, fd: int, flags: int) -> int:
    """Open a directory relative to `fd`, which is closed if that succeeds."""
    following = os.open(name, flags | _OPEN, dir_fd=fd)
    os.close(fd)
    return following


def _link(name: str, fd: int, shown: str, path: str) -> str | None:
    """Where a link leads; None for anything else. Raises UnsafeDirectoryError for a link of another user."""
    try:
        found = os.stat(name, dir_fd=fd, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if not stat.S_ISLNK(found.st_mode):
        return None
    if not _is_trusted(found.st_uid):
        what = f"{shown}, on the way to it, is a link of user {found.st_uid}"
        raise _unsafe(path, f"{what}, and this process is user {os.geteuid()}")
    return os.readlink(name, dir_fd=fd)


def _check_directory(found: os.stat_result, shown: str, path: str, *, last: bool) -> None:
    """last: it is the directory itself: no other directory's exceptions hold. Raises UnsafeDirectoryError."""
    mode, name = stat.S_IMODE(found.st_mode), "it" if last else f"{shown}, on the way to it,"
    if not (found.st_uid in (0, os.geteuid()) if last else _is_trusted(found.st_uid)):
        raise _unsafe(path, f"{name} belongs to user {found.st_uid}, and this process is user {os.geteuid()}")
    if not mode & _OTHERS_WRITE or (not last and mode & stat.S_ISVTX):
        return
    if last or mode & stat.S_IWOTH or not _is_private_group(found.st_gid):
        where = "it" if last else f"{shown}, on the way to it"
        raise _unsafe(path, f"others may write to {where} (mode {mode:04o})")


def _unsafe(path: str, why: str) -> UnsafeDirectoryError:
    return UnsafeDirectoryError(f"compiled kernels are not loaded from this directory: {why}", path=path)


def _is_trusted(user: int) -> bool:
    """True for a user to whom a directory on the way may belong: this one and root.

    In a user namespace that has no name for the real root (a container without privileges) root's directories show the
    overflow user.
    """
    if user in (0, os.geteuid()):
        return True
    with suppress(OSError, ValueError):
        with open("/proc/sys/kernel/overflowuid", "rb") as file:
            overflow = int(file.read())
        with open("/proc/self/uid_map", "rb") as file:
            return user == overflow and sum(int(line.split()[2]) for line in file) < 2**32 - 1
    return False


def _is_private_group(gid: int) -> bool:
    """True for the group of this user alone that many systems make: its name is the user's, and it has no members."""
    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    return user.pw_gid == gid and group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}
