"""Output that is complete or absent. It is written under a private temporary name, with every step checked, and
renamed."""

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
    """Writes `path` so that it appears only when the block ends without an error. It is then complete and on the disk.

    with AtomicFile("outputs.bin") as file:
            file.write(logits)            # bytes or any C-contiguous buffer

    The temporary file is in the same directory and is opened at once. So an output that cannot be written is found
    before the work starts. On a failure the temporary file is removed, and an earlier file stays unchanged. A symbolic
    link is followed. Raises ResourceError with the path and the reason (no space, quota, permission, a directory, a
    device).
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
        """Append a bytes-like object or a C-contiguous array."""
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
        """fsync, close, rename, fsync of the directory. Each step is checked."""
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
        """Remove the temporary file. Does nothing after `commit`."""
        with suppress(OSError):  # a file that is removed need not be on the disk
            self._close()
        if self._temporary in _unfinished:
            _remove(self._temporary)

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class Headed:
    """A file that begins with a header, followed by what is written."""

    def __init__(self, file: AtomicFile, header: bytes) -> None:
        self._file = file
        file.write(header)

    def write(self, data: Any) -> None:
        """See `AtomicFile.write`."""
        self._file.write(data)

    def finish(self) -> None:
        """Nothing to do."""


class AtomicDirectory:
    """A directory that is complete or absent, if the names of its files are known: `with AtomicDirectory(path, known)
    as temporary`.

    The block writes into `temporary`, an empty directory beside `path`. An earlier directory is replaced as a whole,
    and only if it contains nothing but files named in `known`, so no other file is ever deleted. what: the words for
    these files in messages. Raises ResourceError if the earlier directory contains other files or is no directory, or
    if the system refuses.
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
            elif isinstance(error, ResourceError) and error.path:  # the user does not know the temporary directory
                error.path = error.path.replace(self._temporary, self.path)
        finally:
            if self._temporary in _unfinished:
                _remove(self._temporary)

    def check_replaceable(self) -> None:
        """Raises ResourceError if what exists at the path must not be replaced."""
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
        """True for a file with a known name, and for a link. A pipe or a directory with such a name belongs to somebody
        else."""
        return entry.name in self._known and (entry.is_file() or entry.is_symlink())

    def adopt(self, directory: str) -> None:
        """Rename a directory on the same disk to this name. All its files are complete and flushed."""
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
        """Rename the new directory to its name. Returns the path to which the earlier one was moved, if there was
        one."""
        earlier: str | None = temporary_name(self.path, "old")  # no name of an unfinished one
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
    """True between the two renames that replace a directory. A signal must wait then."""
    return _swapping


def temporary_name(path: str, ending: str = "tmp") -> str:
    """A private name in the directory of `path`: `.NAME.HOST-PID-RANDOM.tmp`, shortened to the file system's limit."""
    return f"{_start_of_names(path)}{os.getpid()}-{secrets.token_hex(4)}.{ending}"


def _start_of_names(path: str) -> str:
    """The beginning of all temporary names for `path` on this host. Other hosts may share the directory."""
    directory, name = os.path.split(path)
    short, host = (os.fsdecode(os.fsencode(text)[:80]) for text in (name, os.uname().nodename))
    return os.path.join(directory, f".{short}.{host.replace('/', '_')}-")


def _remove_abandoned(path: str) -> None:
    """Remove what killed processes of this host have left unfinished of `path`. Errors are ignored."""
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
    except OSError:  # it belongs to somebody else
        return True
    return True


def _sync_directory(directory: str, output: str) -> None:
    """Flush the names in `directory` to the disk, so that they survive a power cut. Raises ResourceError naming
    `output`."""
    with naming(output, "flush its directory"):
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # file systems without fsync of a directory
                raise
        finally:
            os.close(fd)


def remove_unfinished() -> None:
    """Remove every temporary file and directory of this process. Called when it ends."""
    for path in tuple(_unfinished):
        _remove(path)


def _remove(path: str) -> None:
    """Remove it if possible. Errors are ignored, because a more important error is being raised."""
    with suppress(OSError):
        if os.path.isdir(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)
    _unfinished.discard(path)


def check_directory(path: str) -> None:
    """Raises ResourceError if there is no directory to write `path` into, or if a rename could not put it there."""
    directory = os.path.dirname(path)
    if not os.path.lexists(directory):
        raise ResourceError(f"cannot write: there is no directory {directory}", path=path, remedy="make it first")
    check_renames(path)


def check_writable(path: str) -> None:
    """Raises ResourceError if it is known already, without writing, that an AtomicFile could not be written."""
    path = resolved(path)
    _replaceable(path)
    folder = os.path.dirname(path)
    with naming(path, "write"):
        os.stat(os.path.join(folder, ""))  # refused if it is a file
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), folder)


def _replaceable(path: str) -> int | None:
    """The permission bits of the regular file at `path`, or None if it does not exist. Raises ResourceError."""
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
os.register_at_fork(after_in_child=_unfinished.clear)  # a child process must not remove what its parent is writing
