"""Lets only one run at a time work on a job directory, by a file lock. The kernel releases the lock when the process
ends, even if it is killed."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from contextlib import suppress
from types import TracebackType

import msgspec

from tilewright.errors import ResourceError
from tilewright.formats.files import naming
from tilewright.runtime.jobs.directory import LEASE, JobDirectory
from tilewright.runtime.jobs.durable import Draft, Removed, alive, process_stat

DYING_SECONDS = 2.0  # that ranks may hold the lease after mpiexec has exited, because it does not wait for all ranks
LOOK_SECONDS = 0.05  # `work_on` in another process holds the lock for less than this
UNKNOWN = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)  # errors of file systems without flock


class Holder(msgspec.Struct):
    """The run that holds the lease of a job.

    host, pid: of the process. start: its start in clock ticks since boot. since: seconds since 1970.
    """

    host: str
    pid: int
    start: int
    since: float

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, since {time.strftime('%F %T', time.localtime(self.since))}"


class _Taken(ResourceError):
    """Another run holds the lease."""


class Lease:
    """Holds the lease of a job within `with Lease(directory):`.

    Raises ResourceError with host and PID if another run holds the lease, and Removed if a run has removed the
    directory. shared: runs of parts may hold it at the same time; this needs file locks. On a file system without
    locks, the file's content names the holder. A holder on this host is alive if its process exists. A holder on
    another host always counts as alive.
    """

    def __init__(self, directory: JobDirectory, *, shared: bool = False) -> None:
        self._directory, self._root = directory, directory.root
        self._path = directory.root.where(LEASE)
        self._fd = -1
        self._shared = shared

    def __enter__(self) -> Lease:
        until = time.monotonic() + DYING_SECONDS
        while True:
            try:
                self._take()
                return self
            except _Taken:
                if time.monotonic() > until:
                    raise
            time.sleep(0.02)

    def _take(self) -> None:
        with naming(self._path, "open"):
            try:
                self._fd = self._root.open(LEASE, os.O_RDWR | os.O_CREAT)
            except FileNotFoundError:
                raise Removed(self._root.path) from None
        _close_to_readers(self._fd)
        try:
            if not self._lock():
                self._take_without_locks()
            if not self._is_there():
                raise Removed(self._root.path)
            self._write(encoded_holder())
        except BaseException:
            self._close()
            raise

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if not self._shared:  # a shared lease may name another part by now; readers check its process
            with suppress(ResourceError):  # the file stays: else two runs could lock two files of one name
                self._write(b"")
        self._close()

    def _lock(self) -> bool:
        """Take the lock. False: the file system has no locks."""
        try:
            fcntl.flock(self._fd, (fcntl.LOCK_SH if self._shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            raise self._taken(holder_of(self._root.read(LEASE, 4096))) from None
        except OSError as error:
            if error.errno in UNKNOWN and not self._shared:
                return False
            with naming(self._path, "lock"):
                raise
        return True

    def _take_without_locks(self) -> None:
        """Replace a lease that nobody holds, by a rename. Then check that no other run replaced it at the same time."""
        holder = holder_of(self._root.read(LEASE, 4096))
        if holder and lives(holder):
            raise self._taken(holder)
        ours = encoded_holder()
        with Draft(self._root, LEASE) as draft:
            draft.write(ours)
            draft.commit()
        time.sleep(0.1)  # runs that found the same empty lease have renamed theirs by now; the last one wins
        if self._root.read(LEASE, 4096) != ours:
            raise self._taken(holder_of(self._root.read(LEASE, 4096)))
        self._close()
        with naming(self._path, "open"):
            self._fd = self._root.open(LEASE, os.O_RDWR)
        _close_to_readers(self._fd)

    def _is_there(self) -> bool:
        """True if the open file is still this job's lease; False if the lease was removed."""
        with suppress(FileNotFoundError):
            found = os.stat(LEASE, dir_fd=self._root.fd, follow_symlinks=False)
            return os.path.samestat(found, os.fstat(self._fd)) and self._directory.is_there()
        return False

    def _taken(self, holder: Holder | None) -> _Taken:
        return _Taken(
            f"another run works on this job: {holder or 'one that has just begun'}",
            path=self._root.path,
            remedy="wait for it, or stop it; if its host is gone, remove the file named lease",
        )

    def _write(self, content: bytes) -> None:
        with naming(self._path, "write"):
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, content, 0)

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with suppress(OSError):  # closing may report an error of writing, which does not matter
                os.close(fd)


def _close_to_readers(fd: int) -> None:
    """Remove the read permission of users who may not write the lease: a reader could lock it and block the job."""
    with suppress(OSError):  # another user owns the file, and has done the same
        mode = stat.S_IMODE(os.fstat(fd).st_mode)
        os.fchmod(fd, mode & ~((~mode & 0o222) << 1))


def encoded_holder() -> bytes:
    """The content of the lease's file that names this process."""
    return msgspec.json.encode(Holder(os.uname().nodename, os.getpid(), _started(os.getpid()), time.time()))


def holder_of(raw: bytes | None) -> Holder | None:
    """Parse a lease's file; None if it is empty or malformed."""
    try:
        return msgspec.json.decode(raw or b"", type=Holder)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def lives(holder: Holder) -> bool:
    """True if the holder is alive, or if this host cannot know."""
    if holder.host != os.uname().nodename:
        return True
    return alive(holder.pid) and _started(holder.pid) == holder.start


def work_on(directory: JobDirectory) -> tuple[bool | None, Holder | None]:
    """(True if a run works on the job, None if that is unknown; the holder, if it can be read).

    It takes the lock for a moment. A run that starts in this moment tries again.
    """
    fd = None
    with suppress(OSError):  # this user may have no permission to write the lease
        fd = directory.root.open(LEASE, os.O_RDWR)
    if fd is None:
        try:
            fd = directory.root.open_or_none(LEASE)
        except ResourceError:  # the lease belongs to another user
            return None, None
    if fd is None:
        return False, None
    try:
        working = _is_locked(fd)
        holder = holder_of(directory.root.read(LEASE, 4096))
    finally:
        os.close(fd)
    if working is None and holder is None:
        return False, None
    if holder is not None and holder.host == os.uname().nodename:
        if working is None:
            return lives(holder), holder if lives(holder) else None
        holder = holder if lives(holder) else None  # the named part may be dead while other parts run
    return working, None if working is False else holder


def _is_locked(fd: int) -> bool | None:
    """True if another process holds a lock on the file; None if the file system cannot tell."""
    until = time.monotonic() + LOOK_SECONDS
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # a shared lock would not conflict with parts
            return False
        except BlockingIOError:
            if time.monotonic() > until:
                return True
        except OSError as error:
            if error.errno in (*UNKNOWN, errno.EBADF):  # NFS takes an exclusive lock only on a file open for writing
                return None
            raise
        time.sleep(0.01)


def _started(pid: int) -> int:
    """The start of a process in clock ticks since boot; 0 if the system does not report it."""
    stat = process_stat(pid)
    return int(stat[19]) if len(stat) > 19 else 0
