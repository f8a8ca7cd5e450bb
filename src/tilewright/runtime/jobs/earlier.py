"""What --restart throws away, and when: not before the new run has its first shard.

A run that ends sooner, as its worker refuses the model or the memory, leaves the job as it was. Until then all that
was done lies in OUT.job/earlier/, moved there name by name, the manifest last and, on the way back, first. So a run
that was killed is told by what there is: see `Earlier.settle`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tilewright.errors import TilewrightError, UsageError
from tilewright.runtime.jobs.directory import CONTENTS, MANIFEST, REPORT, STAGE, JobDirectory
from tilewright.runtime.jobs.durable import Folder

EARLIER, FORGOTTEN = "earlier", "forgotten"
FILES = (REPORT, CONTENTS, STAGE)  # beside the manifest
FOLDERS = ("shards", "errors", "damaged")


class Earlier:
    """Of a job directory, for the holder of its lease. All methods raise ResourceError."""

    def __init__(self, directory: JobDirectory) -> None:
        self._directory = directory
        self._folders = [getattr(directory, name) for name in FOLDERS]
        self._kept = False

    def settle(self, *, shared: bool) -> None:
        """Ends what an earlier run's --restart had begun as it was killed: what was done is put back, unless the new
        run had a shard. shared: others may do so, too; raises UsageError where there is something to end."""
        root = self._directory.root
        names = root.names()
        if shared and {EARLIER, FORGOTTEN} & {*names}:
            raise UsageError("a run with --restart was killed at its beginning", path=self._directory.path,
                             hint="run the same command once without --part")  # fmt: skip
        root.remove(FORGOTTEN)
        if EARLIER in names:
            self._kept = True
            self.end()

    @contextmanager
    def kept(self) -> Iterator[None]:
        """All that was done is set aside in this block, until `forget`; put back where the block fails before it."""
        self._set_aside()
        try:
            yield
        except TilewrightError:
            self.end()
            raise

    def forget(self) -> None:
        """The new run has something to lose; nothing to do the second time."""
        if self._kept:
            self._kept = False
            root = self._directory.root
            root.move(EARLIER, root, FORGOTTEN)  # in one go: half of it would be put back
            root.remove(FORGOTTEN)

    def end(self) -> None:
        """Forgets what is set aside where the new run has a shard, else puts it back."""
        directory = self._directory
        if not self._kept:
            return
        begun = MANIFEST in directory.root.names() and self._is_set_aside()
        if begun and any(directory.record(number) for number in directory.committed()):
            self.forget()
        else:
            self._put_back(begun)

    def _is_set_aside(self) -> bool:
        """Whether the manifest is, so that everything is, and what stands in its place is the new run's."""
        with _opened(EARLIER, self._directory.root) as earlier:
            return MANIFEST in earlier.names()

    def _set_aside(self) -> None:
        root = self._directory.root
        self._kept = True
        with _opened(EARLIER, root) as earlier:
            for name in FILES:
                root.move(name, earlier, name)
            for folder, name in zip(self._folders, FOLDERS, strict=True):
                with _opened(name, earlier) as inside:
                    _move_all(folder, inside)
            for name in self._directory.logs.names():
                self._directory.logs.remove(name)
            root.move(MANIFEST, earlier, MANIFEST)
            earlier.sync()
        self._directory.reread()

    def _put_back(self, begun: bool) -> None:
        root = self._directory.root
        if begun:  # the new run's, of which nothing is worth keeping
            for name in (*FILES, MANIFEST):
                root.remove(name)
            for folder in self._folders:
                for name in folder.names():
                    folder.remove(name)
        with _opened(EARLIER, root) as earlier:
            for name in (MANIFEST, *reversed(FILES)):
                earlier.move(name, root, name)
            for folder, name in zip(self._folders, FOLDERS, strict=True):
                with _opened(name, earlier) as inside:
                    _move_all(inside, folder)
        root.remove(EARLIER)
        self._kept = False
        self._directory.reread()


@contextmanager
def _opened(name: str, inside: Folder) -> Iterator[Folder]:
    """A folder in another, made if it is not there."""
    folder = Folder(name, inside=inside, make=True)
    try:
        yield folder
    finally:
        folder.close()


def _move_all(source: Folder, target: Folder) -> None:
    for name in source.names():
        source.move(name, target, name)
