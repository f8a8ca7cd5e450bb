"""Output that is complete or absent: a private temporary name, checked to the last step, then one rename."""

from __future__ import annotations

import atexit
import errno
import os
import re
import secrets
import shutil
import stat
from contextlib import suppress
from types import TracebackType
from typing import Any

from tilewright.errors import ResourceError
from tilewright.formats.destinations import check_renames, resolved
from tilewright.formats.files import naming

_unfinished: set[str] = set()  # temporary files and directories of this process that still exist
_swapping = False


class AtomicFile:
    """Writes `path` so that it appears, whole and on the disk, only when the block ends without an error.

    with AtomicFile("outputs.bin") as file:
        file.write(logits)            # bytes or any C-contiguous buffer

    The temporary file lies in the same directory and is opened at once, so an output that cannot be written is found
    before the work starts. On any failure it is removed and an earlier file stays as it was. A symbolic link is
    followed. Raises ResourceError naming the path and the reason (no space, quota, permission, a directory, a device).
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = resolved(path)
        self.bytes_written = 0
        self._fd = -1
        self._temporary = temporary_name(self.path)

    def __enter__(self) -> AtomicFile:
        mode = _replaceable(self.path)
        _remove_abandoned(self.path)
        _unfinished.add(self._temporary)
        try:
            with naming(self.path, "write"):
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
                self._fd = os.open(self._temporary, flags, 0o666 if mode is None else mode & 0o666)
                if mode is not None:
                    os.fchmod(self._fd, mode)
        except BaseException:
            self.discard()
            raise
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is None:
            self.commit()
        else:
            self.discard()

    def write(self, data: Any) -> None:
        """Appends a bytes-like object or a C-contiguous array."""
        view = memoryview(data).cast("B")
        with naming(self.path, "write"):
            while len(view):
                count = os.write(self._fd, view)
                self.bytes_written += count
                view = view[count:]

    def fileno(self) -> int:
        """The descriptor of the temporary file, whose inode the output has after `commit`."""
        return self._fd

    def commit(self) -> None:
        """fsync, close, rename, fsync of the directory; each is checked."""
        try:
            with naming(self.path, "write"):
                os.fsync(self._fd)
                self._close()
                os.replace(self._temporary, self.path)
                _unfinished.discard(self._temporary)
        finally:
            self.discard()
        _sync_directory(os.path.dirname(self.path), self.path)

    def discard(self) -> None:
        """Removes the temporary file; nothing to do after `commit`."""
        with suppress(OSError):  # what is thrown away need not be on the disk
            self._close()
        if self._temporary in _unfinished:
            _remove(self._temporary)

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class Headed:
    """A file of a header and whatever is written behind it."""

    def __init__(self, file: AtomicFile, header: bytes) -> None:
        self._file = file
        file.write(header)

    def write(self, data: Any) -> None:
        """As AtomicFile's."""
        self._file.write(data)

    def finish(self) -> None:
        """Nothing is left to do."""


class AtomicDirectory:
    """The same promise for a directory whose files are all known: `with AtomicDirectory(path, known) as temporary`.

    The block writes into `temporary`, an empty directory beside `path`. An earlier directory is replaced as a whole,
    and only if it holds nothing but files named in `known`: what others put there is never deleted. what: what errors
    say those are. Raises ResourceError where it holds more, is no directory, or the system refuses.
    """

    def __init__(self, path: str | os.PathLike[str], known: frozenset[str], what: str = "a model's") -> None:
        self.path = resolved(path)
        self._known, self._what = known, what
        self._temporary = temporary_name(self.path)

    def __enter__(self) -> str:
        self.check_replaceable()
        _remove_abandoned(self.path)
        with naming(self.path, "write"):
            os.mkdir(self._temporary)
        _unfinished.add(self._temporary)
        return self._temporary

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if error is None:
                self._commit()
            elif isinstance(error, ResourceError) and error.path:  # the user knows nothing of the temporary directory
                error.path = error.path.replace(self._temporary, self.path)
        finally:
            if self._temporary in _unfinished:
                _remove(self._temporary)

    def check_replaceable(self) -> None:
        """Raises ResourceError where what is there now must not be replaced."""
        check_directory(self.path)
        with naming(self.path, "write"):
            try:
                with os.scandir(self.path) as entries:
                    others = sorted(entry.name for entry in entries if not self._is_known(entry))
            except FileNotFoundError:
                return
            except NotADirectoryError as error:
                raise ResourceError(
                    f"is a file; a directory for {self._what} files is wanted", path=self.path
                ) from error
        if others:
            raise ResourceError(
                f"holds other files than {self._what} ({', '.join(others[:3])}{', ...' if others[3:] else ''})",
                path=self.path,
                remedy="choose a new directory: nothing was deleted or written",
            )

    def _is_known(self, entry: os.DirEntry[str]) -> bool:
        """A file of a known name, or a link; a pipe or a directory of such a name is somebody else's."""
        return entry.name in self._known and (entry.is_file() or entry.is_symlink())

    def adopt(self, directory: str) -> None:
        """Gives this name to a directory on the same disk, whose files are all complete and flushed."""
        self._temporary = directory
        self._commit()

    def _commit(self) -> None:
        global _swapping
        _sync_directory(self._temporary, self.path)
        _swapping = True
        try:
            with naming(self.path, "write"):
                earlier = self._swap()
        finally:
            _swapping = False
        try:
            _sync_directory(os.path.dirname(self.path), self.path)
        finally:
            if earlier:
                with naming(earlier, "remove the earlier directory, which the new one has replaced"):
                    shutil.rmtree(earlier)

    def _swap(self) -> str | None:
        """Renames the new directory to its name; returns where the earlier one went, if there was one."""
        earlier: str | None = temporary_name(self.path, "old")  # never taken for an unfinished one
        try:
            os.chmod(self._temporary, stat.S_IMODE(os.stat(self.path).st_mode))
            os.rename(self.path, str(earlier))
        except FileNotFoundError:
            earlier = None
        try:
            os.rename(self._temporary, self.path)
        except OSError:
            if earlier:
                os.rename(earlier, self.path)
            raise
        _unfinished.discard(self._temporary)
        return earlier


def swapping() -> bool:
    """True in the moment between the two renames that replace a directory, when a signal must wait."""
    return _swapping


def temporary_name(path: str, ending: str = "tmp") -> str:
    """A private name in the directory of `path`: `.NAME.HOST-PID-RANDOM.tmp`, cut to what a file system takes."""
    return f"{_start_of_names(path)}{os.getpid()}-{secrets.token_hex(4)}.{ending}"


def _start_of_names(path: str) -> str:
    """What the temporary names for `path` begin with, on this host: the directory may be shared with others."""
    directory, name = os.path.split(path)
    short, host = (os.fsdecode(os.fsencode(text)[:80]) for text in (name, os.uname().nodename))
    return os.path.join(directory, f".{short}.{host.replace('/', '_')}-")


def _remove_abandoned(path: str) -> None:
    """Removes what processes of this host that were killed have left unfinished of `path`. Best effort."""
    directory, start = os.path.split(_start_of_names(path))
    ours = re.compile(re.escape(start) + r"(\d{1,9})-[0-9a-f]{8}\.tmp")
    with suppress(OSError):
        for name in os.listdir(directory):
            found = ours.fullmatch(name)
            if found and not _alive(int(found[1])):
                _remove(os.path.join(directory, name))


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # somebody else's
        return True
    return True


def _sync_directory(directory: str, output: str) -> None:
    """Makes the names in `directory` survive a power cut. Raises ResourceError naming `output`."""
    with naming(output, "flush its directory"):
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # file systems that know no fsync of a directory
                raise
        finally:
            os.close(fd)


def remove_unfinished() -> None:
    """Removes every temporary of this process, when it ends or is about to end at once."""
    for path in tuple(_unfinished):
        _remove(path)


def _remove(path: str) -> None:
    """Best effort: it runs while an error that says more is raised."""
    with suppress(OSError):
        if os.path.isdir(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)
    _unfinished.discard(path)


def check_directory(path: str) -> None:
    """Raises ResourceError where there is no directory to write `path` into, or no rename could put it there."""
    directory = os.path.dirname(path)
    if not os.path.lexists(directory):
        raise ResourceError(f"cannot write: there is no directory {directory}", path=path, remedy="make it first")
    check_renames(path)


def check_writable(path: str) -> None:
    """Raises ResourceError where an AtomicFile could not be written, where that is known without writing one."""
    path = resolved(path)
    _replaceable(path)
    folder = os.path.dirname(path)
    with naming(path, "write"):
        os.stat(os.path.join(folder, ""))  # one that is a file is refused
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), folder)


def _replaceable(path: str) -> int | None:
    """The permission bits of the regular file at `path`, or None where nothing is there. Raises ResourceError."""
    check_directory(path)
    with naming(path, "write"):
        try:
            mode = os.stat(path).st_mode
        except (FileNotFoundError, NotADirectoryError):
            return None
    if stat.S_ISDIR(mode):
        raise ResourceError("the output is a directory", path=path, remedy="give the name of a file in it")
    if not stat.S_ISREG(mode):
        raise ResourceError("the output is not a regular file", path=path, remedy="give the name of a regular file")
    return mode & 0o777


atexit.register(remove_unfinished)
os.register_at_fork(after_in_child=_unfinished.clear)  # a child must not remove what its parent is writing
