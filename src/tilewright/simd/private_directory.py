"""A directory that only this user and root can change, opened once and used by its descriptor.

Machine code is loaded from it, so another user who could write a file there would run code as this user. Checking a
path is not enough: another user could replace the directory between the check and the next call with that path. So each
directory of the path is opened relative to the one above it, without following links, and its descriptor is checked.
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

NEW = ".new-"  # the first letters of the names of unfinished files
MAX_LINKS = 40  # in a path, as in Linux
PATH_ONLY = getattr(os, "O_PATH", os.O_RDONLY)  # the directories above need not be readable
_OPEN = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class UnsafeDirectoryError(ResourceError):
    """Another user could change the files of the directory."""


class PrivateDirectory:
    """The open directory at `path`. It and the directories above it are made with mode 0700 where they are missing.

    The directory is not a link, belongs to this user or to root, and nobody else may write to it. The same holds for
    each directory above it, except that everybody may write to a sticky one (/tmp). Raises UnsafeDirectoryError if this
    does not hold, and OSError if the directory cannot be made or opened. make: if False, a missing directory raises
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
        """The content of a file. None if it is missing, larger than `limit`, or could be changed by another user: a
        link, a pipe, a directory, a file of another user, one that others may write to, one with a second name."""
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
        """Write a file under a temporary name, then rename it. A directory of that name is renamed. Raises OSError
        and then leaves no temporary file.

        The writer locks the temporary file. The first write of a process removes the temporary files that nobody has
        locked: killed processes left them.
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
                self._rename_directory(name)
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
            with suppress(OSError):  # on a file system without locks, `_sweep` gets none either
                fcntl.flock(fd, fcntl.LOCK_EX)
            if os.fstat(fd).st_nlink:
                return name, fd
            os.close(fd)  # another process's `_sweep` was faster than the lock

    def _sweep(self) -> None:
        """Remove temporary files that no process has locked. Best effort."""
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

    def _rename_directory(self, name: str) -> None:
        """Rename a directory of that name, which a file cannot replace. An empty directory is removed."""
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
    """A descriptor of the directory at the absolute `path`; each directory and link of the path is checked."""
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
    """Make a directory unless it exists. On a read-only disk `mkdir` alone fails for a directory that exists."""
    try:
        os.stat(name, dir_fd=fd, follow_symlinks=False)
    except FileNotFoundError:
        os.mkdir(name, 0o700, dir_fd=fd)


def _step(name: str, fd: int, flags: int) -> int:
    """Open a directory relative to `fd`; if that succeeds, close `fd`."""
    following = os.open(name, flags | _OPEN, dir_fd=fd)
    os.close(fd)
    return following


def _link(name: str, fd: int, shown: str, path: str) -> str | None:
    """The target of a link; None for anything else. Raises UnsafeDirectoryError for a link of another user."""
    try:
        found = os.stat(name, dir_fd=fd, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if not stat.S_ISLNK(found.st_mode):
        return None
    if not _is_trusted(found.st_uid):
        what = f"{shown}, on its path, is a link of user {found.st_uid}"
        raise _unsafe(path, f"{what}, and this process is user {os.geteuid()}")
    return os.readlink(name, dir_fd=fd)


def _check_directory(found: os.stat_result, shown: str, path: str, *, last: bool) -> None:
    """Raises UnsafeDirectoryError if others could change a directory. last: it is the directory itself, for which the
    exceptions for directories above it do not hold."""
    mode, name = stat.S_IMODE(found.st_mode), "it" if last else f"{shown}, on its path,"
    if not (found.st_uid in (0, os.geteuid()) if last else _is_trusted(found.st_uid)):
        raise _unsafe(path, f"{name} belongs to user {found.st_uid}, and this process is user {os.geteuid()}")
    if not mode & _OTHERS_WRITE or (not last and mode & stat.S_ISVTX):
        return
    if last or mode & stat.S_IWOTH or not _is_private_group(found.st_gid):
        raise _unsafe(path, f"others may write to {name} (mode {mode:04o})")


def _unsafe(path: str, why: str) -> UnsafeDirectoryError:
    return UnsafeDirectoryError(f"refusing to load compiled kernels from this directory: {why}", path=path)


def _is_trusted(user: int) -> bool:
    """True if a directory above may belong to `user`: this user or root.

    In a user namespace without the real root (an unprivileged container), root's directories belong to the overflow
    user.
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
    """True for the group that many systems make for each user: its name is the user's, and it has no other members."""
    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    return user.pw_gid == gid and group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}
