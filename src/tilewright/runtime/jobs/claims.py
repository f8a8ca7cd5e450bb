"""Claims: each part of a job (`--part K/N+`) marks the shard that it runs now, so that idle parts can help the others.

The file `part-claims` has one byte per shard. A process locks the byte of the shard that it runs. The kernel releases
the lock when the process exits or dies. The byte's value counts runs of the shard that started but did not commit. If
several processes have died with a shard, other parts do not help with it.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable
from contextlib import suppress
from types import TracebackType

from tilewright.errors import Interrupted, ResourceError
from tilewright.formats.files import naming
from tilewright.runtime.jobs.directory import CLAIMS, JobDirectory

BEGUN = 2  # uncommitted runs of a shard after which other parts avoid it: it may have killed those processes
MOST = 255  # the largest count of a byte


class Claims:
    """The claims of this process on shards of one job; `with Claims(directory, part) as claims`. part: (k, n).

    The locks are POSIX record locks (`fcntl.lockf`), which also work on NFS. Raises ResourceError if the file system
    has no locks.
    """

    def __init__(self, directory: JobDirectory, part: tuple[int, int]) -> None:
        self._directory, self._part = directory, part
        self._path = directory.root.where(CLAIMS)
        self._held: set[int] = set()
        with naming(self._path, "open"):
            self._fd = directory.root.open(CLAIMS, os.O_RDWR | os.O_CREAT)

    def __enter__(self) -> Claims:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Release all claims. After a signal the interrupted runs do not count."""
        with suppress(ResourceError, OSError):  # a count that is too high costs only help
            for shard in self._held if kind is None or issubclass(kind, Interrupted) else ():
                self._note(shard, max(self._begun(shard) - 1, 0))
            os.close(self._fd)

    def take(self, shard: int) -> bool:
        """Claim a shard. False if another process runs it, if it is committed, or if BEGUN processes died with it."""
        with naming(self._path, "lock"):
            try:
                fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, shard)
            except (BlockingIOError, PermissionError):  # POSIX allows either
                return False
        begun = self._begun(shard)
        if (begun >= BEGUN and not self._is_own(shard)) or self._directory.record(shard):
            self._unlock(shard)
            return False
        if shard not in self._held:  # if held, a worker of this process has died, and the shard runs again
            self._held.add(shard)
            self._note(shard, min(begun + 1, MOST))
        return True

    def release(self, shard: int) -> None:
        """Release the claim on a shard that this process has committed."""
        self._held.discard(shard)
        self._note(shard, 0)
        self._unlock(shard)

    def any(self, shards: Iterable[int]) -> bool:
        """True if this process could claim one of them now."""
        for shard in shards:
            begun = self._begun(shard)
            if self.take(shard):
                self._held.discard(shard)
                self._note(shard, begun)
                self._unlock(shard)
                return True
        return False

    def _is_own(self, shard: int) -> bool:
        number, count = self._part
        return shard % count == number

    def _begun(self, shard: int) -> int:
        with naming(self._path, "read"):
            return (os.pread(self._fd, 1, shard) or b"\0")[0]

    def _note(self, shard: int, begun: int) -> None:
        with naming(self._path, "write"):
            os.pwrite(self._fd, bytes([begun]), shard)

    def _unlock(self, shard: int) -> None:
        with naming(self._path, "unlock"):
            fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, shard)


def in_order(shards: list[int], part: tuple[int, int]) -> list[int]:
    """The order in which a helping part runs the shards: its own first, then those of the next parts, last shard first.

    A part runs its own shards from the first one on. So it rarely meets a helper at the same shard.
    """
    number, count = part
    by_part: dict[int, list[int]] = {}
    for shard in shards:
        by_part.setdefault((shard - number) % count, []).append(shard)
    others = [shard for distance in sorted(by_part.keys() - {0}) for shard in reversed(by_part[distance])]
    return by_part.get(0, []) + others
