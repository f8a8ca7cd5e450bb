"""One run at a time on a job directory: a lock that the kernel releases when its process ends, however it ends."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from contextlib import suppress
from types import TracebackType

import msgspec

from tilewright.errors import ResourceError
from tilewright.formats.files import naming
from tilewright.runtime.jobs.directory import LEASE, JobDirectory
from tilewright.runtime.jobs.durable import Draft, alive, process_stat

DYING_SECONDS = 2.0  # that a run may still be seen after its launcher has ended: mpiexec does not wait for all ranks
UNKNOWN = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)  # of file systems without flock


class Holder(msgspec.Struct):
    """Who works on a job: host, process, the process's start in clock ticks since boot, and since when (s, 1970)."""

    host: str
    pid: int
    start: int
    since: float

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, since {time.strftime('%F %T', time.localtime(self.since))}"


class _Taken(ResourceError):
    """Another run has it."""


class Lease:
    """`with Lease(directory):` raises ResourceError naming host and pid where another run goes on.

    shared: for runs of parts, any number of which go on beside each other; that needs locks.
    Where the file system knows no locks, what the file says decides: a process of this host is asked whether it lives,
    and one of another host is believed to.
    """

    def __init__(self, directory: JobDirectory, *, shared: bool = False) -> None:
        self._root = directory.root
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
            self._fd = self._root.open(LEASE, os.O_RDWR | os.O_CREAT)
        try:
            if not self._lock():
                self._take_without_locks()
            self._write(encoded_holder())
        except BaseException:
            self._close()
            raise

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if not self._shared:  # else it may name another run by now, and who is named is asked for whether it lives
            with suppress(ResourceError):  # the file stays: removing it would let two runs lock two files of one name
                self._write(b"")
        self._close()

    def _lock(self) -> bool:
        """Whether the lock is ours; False: there are none here."""
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
        """By a rename over a lease that nobody holds, after which it must still be ours."""
        holder = holder_of(self._root.read(LEASE, 4096))
        if holder and lives(holder):
            raise self._taken(holder)
        ours = encoded_holder()
        with Draft(self._root, LEASE) as draft:
            draft.write(ours)
            draft.commit()
        time.sleep(0.1)  # whoever found the same empty lease has renamed by now; the last one has it
        if self._root.read(LEASE, 4096) != ours:
            raise self._taken(holder_of(self._root.read(LEASE, 4096)))
        self._close()
        with naming(self._path, "open"):
            self._fd = self._root.open(LEASE, os.O_RDWR)

    def _taken(self, holder: Holder | None) -> _Taken:
        return _Taken(
            f"another run works on this job: {holder or 'one that has just begun'}",
            path=self._root.path,
            hint="wait for it, or end it; if its host is gone, remove the file named lease",
        )

    def _write(self, content: bytes) -> None:
        with naming(self._path, "write"):
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, content, 0)

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with suppress(OSError):  # nothing depends on what was written last
                os.close(fd)


def encoded_holder() -> bytes:
    """This process, as the lease's file says it."""
    return msgspec.json.encode(Holder(os.uname().nodename, os.getpid(), _started(os.getpid()), time.time()))


def holder_of(raw: bytes | None) -> Holder | None:
    """Who a lease's file names; None: nobody, or it cannot be read."""
    try:
        return msgspec.json.decode(raw or b"", type=Holder)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def lives(holder: Holder) -> bool:
    """Whether a holder is at work, as far as this host can know."""
    if holder.host != os.uname().nodename:
        return True
    return alive(holder.pid) and _started(holder.pid) == holder.start


def _started(pid: int) -> int:
    """When a process was started, in clock ticks since boot; 0 where the system does not say."""
    stat = process_stat(pid)
    return int(stat[19]) if len(stat) > 19 else 0
