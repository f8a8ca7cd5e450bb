"""Decides whether a job may replace an existing output: only if the job itself has made that file, or with --force.

made.json holds the inodes of the files that the job may replace. The merge notes the inode of the new output before it
renames it. So a job that is killed right after the rename still recognises its output. If a finished job was copied,
its output is recognised by size and sha256.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

from tilewright.errors import UsageError
from tilewright.formats.files import naming, spelled
from tilewright.runtime.jobs.directory import REPORT, JobDirectory
from tilewright.runtime.jobs.finished import Report, digest_of
from tilewright.runtime.jobs.manifest import Damaged, Sealed, encoded, seal

MADE = "made.json"
MOST = 16  # inodes in made.json: those of the last few merges
GET_VERSION = 0x80087601  # FS_IOC_GETVERSION: the generation of an inode, because inode numbers are reused


class Made(Sealed, frozen=True):
    """The content of made.json. inodes: as `_inode` returns them."""

    inodes: tuple[str, ...] = ()


def note(directory: JobDirectory, fds: Iterable[int]) -> None:
    """Note that the job may replace these open files and directories. Raises ResourceError."""
    known = _known(directory)
    inodes = tuple(dict.fromkeys((*known, *map(_inode, fds))))[-MOST:]
    if inodes != known:
        directory.root.place(MADE, encoded(seal(Made(inodes=inodes))))


def check_replaceable(
    directory: JobDirectory, outputs: Iterable[str], *, keep_others: bool, beat: Callable[[], object] = lambda: None
) -> None:
    """Raises UsageError if one of `outputs` exists and this job has not made it.

    keep_others: if false (--force), such files are noted in made.json instead, and may be replaced. beat: called for
    every block that is read.
    """
    paths = map(os.path.realpath, outputs)
    others = [path for path in paths if _is_there(path) and not _is_ours(directory, path, beat)]
    if others and keep_others:
        raise refusal(others[0])
    fds = []
    try:
        for path in others:
            with naming(path, "open"):
                fds.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))
        if fds:
            note(directory, fds)
    finally:
        for fd in fds:
            os.close(fd)


def check_without_job(outputs: Iterable[str]) -> None:
    """Raises UsageError if one of `outputs` exists although there is no job for them."""
    for path in outputs:
        if _is_there(path):
            raise refusal(path)


def refusal(path: str) -> UsageError:
    """The error for a file or directory at `path`."""
    status = os.stat(path)
    when = time.strftime("%F %T", time.localtime(status.st_mtime))
    what = "a directory" if stat.S_ISDIR(status.st_mode) else f"a file of {status.st_size:,} bytes"
    return UsageError(
        f"the output is {what}, changed {when}, which this job has not made",
        path=path,
        remedy="give another name, or --force to replace it",
    )


def _is_there(path: str) -> bool:
    """True if there is content at `path`; False for an empty file or directory."""
    with naming(path, "look at"):
        try:
            status = os.stat(path)
            return bool(os.listdir(path) if stat.S_ISDIR(status.st_mode) else status.st_size)
        except (FileNotFoundError, NotADirectoryError):
            return False


def _is_ours(directory: JobDirectory, path: str, beat: Callable[[], object]) -> bool:
    with naming(path, "open"):
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except PermissionError:
            return False
    try:
        if _inode(fd) in _known(directory):
            return True
    finally:
        os.close(fd)
    if REPORT not in directory.root.names():
        return False
    try:
        report = directory.sealed(REPORT, Report)
    except Damaged:
        return False
    written = {directory.output: (report.size, report.sha256)}.get(path) or report.others.get(spelled(path))
    return written is not None and digest_of(path, beat) == tuple(written)


def _known(directory: JobDirectory) -> tuple[str, ...]:
    with suppress(Damaged):
        return directory.sealed(MADE, Made).inodes
    return ()


def _inode(fd: int) -> str:
    """A file's inode number, and the inode's generation if the file system has one."""
    generation = bytearray(8)
    try:
        fcntl.ioctl(fd, GET_VERSION, generation)
    except OSError as error:
        if error.errno not in (errno.ENOTTY, errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EPERM, errno.EACCES):
            raise
    return f"{os.fstat(fd).st_ino}.{int.from_bytes(generation[:4], 'little')}"
