"""--restart removes the earlier job's files only when the new run has its first shard. A run that ends sooner, because
its worker refuses the model or the memory, leaves the job as it was. Until then the files are in OUT.job/earlier/. They
are moved there one by one; then the file WHOLE is written. To put them back, WHOLE is removed first. So the next run
sees from WHOLE how far a killed run got, see `Earlier.settle`.
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
    """The earlier job's files in a job directory. Only the holder of the lease may use it. All methods raise
    ResourceError."""

    def __init__(self, directory: JobDirectory) -> None:
        self._directory = directory
        self._kept = False  # something is in EARLIER
        self._removing: Thread | None = None

    def settle(self, *, shared: bool) -> None:
        """Clean up after a run with --restart that was killed: put the earlier files back, unless that run had a shard.
        shared: other runs may do the same at this time, so raise UsageError if there is anything to clean up."""
        root = self._directory.root
        names = root.names()
        if shared and {EARLIER, FORGOTTEN} & {*names}:
            what = "a run with --restart was killed before it had a complete shard"
            raise UsageError(what, path=self._directory.path, remedy="run the same command once without --part")
        root.remove(FORGOTTEN)
        if EARLIER in names:
            self._kept = True
            self._end()
            self._join()  # this run may have something to forget, too

    @contextmanager
    def kept(self, *, put_back: bool) -> Iterator[None]:
        """Within this block the earlier files are set aside, until `forget` is called. If the block ends without
        `forget`, the files are put back: at once with put_back, which requires that no worker runs any more, else by
        the next run."""
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
                with suppress(ResourceError):  # what ended the block is to be told; the next run tries again
                    self._end()
            self._join()

    def forget(self) -> None:
        """Remove the earlier files, because the new run has a shard. A second call does nothing."""
        if self._kept:
            self._kept = False
            root = self._directory.root
            root.move(EARLIER, root, FORGOTTEN)  # in one go: half of it would be put back
            self._removing = Thread(target=self._remove, name="tilewright-forget")  # while the run goes on
            self._removing.start()

    def _remove(self) -> None:
        with suppress(ResourceError):  # the next run tries again
            self._directory.root.remove(FORGOTTEN)

    def _join(self) -> None:
        """Wait until the forgotten files are removed."""
        if self._removing:
            self._removing.join()

    def _end(self) -> None:
        """Forget the earlier files if the new run has a shard, else put them back."""
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
        """Move the earlier files back. whole: all of them were set aside, so files at their old names are the new
        run's; of these only the logs are saved."""
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
