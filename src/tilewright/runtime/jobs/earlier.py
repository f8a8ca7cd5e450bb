"""--restart removes the earlier job's files only after the new run has committed its first shard.

A run that stops sooner, for example because the model does not fit into memory, leaves the job as it was. Until the
first shard, the files are in OUT.job/earlier/. They are moved there one by one; then the file WHOLE is written. To put
them back, WHOLE is removed first. So WHOLE tells the next run how far a killed run got; see `Earlier.settle`.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Thread

from tilewright.errors import ResourceError, UsageError
from tilewright.runtime.jobs.directory import CONTENTS, EARLIER, ENDED, MANIFEST, REPORT, STAGE, JobDirectory
from tilewright.runtime.jobs.durable import Folder

FORGOTTEN, WHOLE = "forgotten", "whole"
FILES = (REPORT, ENDED, CONTENTS, STAGE, MANIFEST)
FOLDERS = ("shards", "errors", "damaged", "logs")


class Earlier:
    """The earlier job's files in a job directory. Only the process with the lease may use it.

    All methods may raise ResourceError.
    """

    def __init__(self, directory: JobDirectory) -> None:
        self._directory = directory
        self._kept = False  # True while files are in EARLIER
        self._removing: Thread | None = None

    def settle(self, *, shared: bool) -> None:
        """Clean up after a killed run with --restart: put the earlier files back, unless that run committed a shard.

        shared: other runs may call this at the same time, so raise UsageError if there is anything to clean up.
        """
        root = self._directory.root
        names = root.names()
        if shared and {EARLIER, FORGOTTEN} & {*names}:
            what = "a run with --restart was killed before it had a complete shard"
            raise UsageError(what, path=self._directory.path, remedy="run the same command once without --part")
        root.remove(FORGOTTEN)
        if EARLIER in names:
            self._kept = True
            self._end()
            self._join()  # this run's own removal thread may still run

    @contextmanager
    def kept(self, *, put_back: bool) -> Iterator[None]:
        """Within this block the earlier files are set aside, until `forget` is called.

        If the block ends without `forget`, the files are put back. put_back: now, which requires that no worker runs
        any more; otherwise the next run does it.
        """
        try:
            self._set_aside()
            yield
        except ResourceError as error:
            full = isinstance(error.__cause__, OSError) and error.__cause__.errno in (errno.ENOSPC, errno.EDQUOT)
            if full and self._kept:
                error.remedy = f"free some space; or remove {self._directory.path}, with what was done before"
            raise
        finally:
            if put_back:
                with suppress(ResourceError):  # so that the block's own error is raised; the next run tries again
                    self._end()
            self._join()

    def forget(self) -> None:
        """Remove the earlier files, because the new run has committed a shard. A second call does nothing."""
        if self._kept:
            self._kept = False
            root = self._directory.root
            root.move(EARLIER, root, FORGOTTEN)  # one rename, so that no run can put half of it back
            self._removing = Thread(target=self._remove, name="tilewright-forget")  # in the background
            self._removing.start()

    def _remove(self) -> None:
        with suppress(ResourceError):  # the next run tries again
            self._directory.root.remove(FORGOTTEN)

    def _join(self) -> None:
        """Wait until the thread has removed the files."""
        if self._removing:
            self._removing.join()

    def _end(self) -> None:
        """Remove the earlier files if the new run has a shard, otherwise put them back."""
        directory = self._directory
        if not self._kept:
            return
        with _opened(EARLIER, directory.root) as earlier:
            whole = WHOLE in earlier.names()
        if whole and any(directory.record(number) for number in directory.committed()):
            self.forget()
        else:
            self._put_back(whole)

    def _folders(self) -> Iterator[tuple[str, Folder]]:
        return ((name, getattr(self._directory, name)) for name in FOLDERS)

    def _set_aside(self) -> None:
        root = self._directory.root
        self._kept = True
        with _opened(EARLIER, root) as earlier:
            for name in FILES:
                root.move(name, earlier, name)
            for name, folder in self._folders():
                with _opened(name, earlier) as inside:
                    for part in folder.names():
                        folder.move(part, inside, part)
            earlier.place(WHOLE, b"")
        self._directory.reread()

    def _put_back(self, whole: bool) -> None:
        """Move the earlier files back.

        whole: all of them were set aside, so files at their old paths belong to the new run. Only its logs are saved.
        """
        root = self._directory.root
        with _opened(EARLIER, root) as earlier:
            if whole:
                for name in FILES:
                    root.remove(name)
                for _, folder in self._folders():
                    for part in folder.names():
                        if not part.endswith(".log"):
                            folder.remove(part)
            earlier.remove(WHOLE)
            for name in FILES:
                earlier.move(name, root, name)
            for name, folder in self._folders():
                with _opened(name, earlier) as inside:
                    newer = {part for part in folder.names() if name == "logs"}
                    for part in inside.names():
                        if part not in newer:
                            inside.move(part, folder, part)
        root.remove(EARLIER)
        self._kept = False
        self._directory.reread()


@contextmanager
def _opened(name: str, inside: Folder) -> Iterator[Folder]:
    """Open a folder inside an open folder. The inner one is made if it is missing."""
    folder = Folder(name, inside=inside, make=True)
    try:
        yield folder
    finally:
        folder.close()
