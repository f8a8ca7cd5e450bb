"""Plain files. They are opened once and read by position, and every failure names the file."""

from __future__ import annotations

import errno
import mmap
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, NamedTuple, Protocol

from tilewright.errors import InputError, ResourceError, TilewrightError, UsageError

BLOCK_BYTES = 4 << 20  # bytes copied or checked at a time: enough for full disk speed, few compared with a model

_SURROGATE, _SPELLED = re.compile("[\udc80-\udcff]"), re.compile("\0([89a-f][0-9a-f])")
_REMEDIES = {
    errno.ENOSPC: "free some space or write to another disk",
    errno.EDQUOT: "free some of the quota or write to another disk",
    errno.EACCES: "change the permissions or choose another directory",
    errno.EPERM: "change the permissions or choose another directory",
    errno.EROFS: "choose a directory that can be written",
    errno.EIO: "the disk or its file system reports a fault: check it before trying again",
}


def reason(error: OSError) -> str:
    """The system's message in lower case, such as "no space left on device"."""
    text = error.strerror or str(error)
    return text[:1].lower() + text[1:]


def spelled(path: str | os.PathLike[str]) -> str:
    """A file's name in a form that JSON can hold, equal in every locale. UTF-8 stays. Each other byte becomes NUL and
    two digits, because no name contains a NUL."""
    text = os.fsencode(path).decode("utf-8", "surrogateescape")
    return _SURROGATE.sub(lambda found: f"\0{ord(found[0]) - 0xDC00:02x}", text)


def path_of(text: str) -> str:
    """The name from which `spelled` made the text, in this locale's form."""
    raw = _SPELLED.sub(lambda found: chr(0xDC00 + int(found[1], 16)), text)
    return os.fsdecode(raw.encode("utf-8", "surrogateescape"))


@contextmanager
def naming(path: str | os.PathLike[str], doing: str) -> Iterator[None]:
    """Turn an OSError of the block into a ResourceError with `path`, what was done with it, and a remedy."""
    try:
        yield
    except TilewrightError:
        raise
    except OSError as error:
        remedy = _REMEDIES.get(error.errno or 0)
        raise ResourceError(f"cannot {doing}: {reason(error)}", path=path, remedy=remedy) from error


class Writable(Protocol):
    """The target of writers: an open AtomicFile, or the attempt at a shard. path: its name in messages."""

    @property
    def path(self) -> str: ...

    def write(self, data: Any) -> object:
        """Append a bytes-like object or a C-contiguous array."""


class Part(NamedTuple):
    """Bytes [begin, end) of a file that begins at byte `start` of the whole input. number: of the file."""

    file: InputFile
    begin: int
    end: int
    start: int = 0
    number: int = 0


class InputFile:
    """A regular file that is open for reading by position. Its size is taken once.

    Reads use `pread` and never a memory map, so a file that becomes shorter meanwhile causes an error and not a SIGBUS.
    Raises InputError for a missing path, a directory or a device, ResourceError if the system refuses. columns: the
    columns of a table to read; None: all that its reader knows. groups: of Parquet files, the rows of each row group of
    each file, when they were read. quoted: a line end inside quotes does not end a record, and the first record is a
    header.
    """

    columns: frozenset[str] | None = None
    groups: list[list[int]] | None = None
    quoted = False

    def __init__(self, path: str | os.PathLike[str], what: str) -> None:
        self.path = os.fspath(path)
        self.what = what
        self.fd = _open_regular(self.path, what)
        self.size = os.fstat(self.fd).st_size  # bytes

    def __enter__(self) -> InputFile:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def read_into(self, buffer: memoryview | bytearray, offset: int) -> None:
        """Fill `buffer` (bytes) from `offset`. Raises InputError if the file ends before."""
        view = memoryview(buffer).cast("B")
        done = 0
        while done < len(view):
            with naming(self.path, "read"):
                count = os.preadv(self.fd, [view[done:]], offset + done)
            if count == 0:
                raise InputError(
                    f"the {self.what} shrank while it was read: it had {self.size:,} bytes, and this one is missing",
                    path=self.path,
                    where=f"byte {offset + done}",
                    remedy="let whatever writes it finish, then run again",
                )
            done += count

    def parts(self, begin: int, end: int) -> Iterator[Part]:
        """The pieces of files that make up bytes [begin, end) of the input. Here it is one; `many_files.Files` may have
        more."""
        if begin < end:
            yield Part(self, begin, end)

    def members(self) -> Iterator[InputFile]:
        """All files of the input."""
        yield self

    def member(self, number: int) -> InputFile:
        """The file with this number."""
        return self

    def begin_part(self, part: Part, number: int, before: Callable[[], int]) -> None:
        """Note that the lines of a part come next; see `many_files.Files`."""

    def forget_parts(self) -> None:
        """Forget the parts: another shard comes next."""

    def check_read(self) -> None:
        """Check that the files are still as they were listed. A single file is checked by its job instead."""

    def located(self, number: int) -> tuple[str, int]:
        """(name of the file, or "" if it is the only one, number of the line in it), for a line of the input."""
        return "", number

    def id_of(self, number: int) -> str | int:
        """The id of a record that has none. number: of its line."""
        return number

    def map(self) -> mmap.mmap:
        """The whole file mapped read-only, for weights. Pages are loaded when they are used, and shared with other
        processes."""
        from tilewright.formats.mapped import explain_faults

        try:
            with naming(self.path, f"map the {self.what}"):
                mapped = mmap.mmap(self.fd, self.size, access=mmap.ACCESS_READ)
        except ValueError as error:  # the file has become shorter
            raise InputError(f"cannot map the {self.what}: {error}", path=self.path) from error
        what = f"a page of the {self.what} could not be read: another program cut the file short, or the disk failed"
        remedy = "put the whole file back, then run the same command again: complete shards are reused"
        explain_faults(mapped, InputError(what, path=self.path, remedy=remedy))
        return mapped


def _open_regular(path: str, what: str) -> int:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # NONBLOCK: opening a pipe must not wait
    except (FileNotFoundError, NotADirectoryError) as error:
        raise InputError(f"no such {what}", path=path, remedy="check the path") from error
    except ValueError as error:  # a NUL character
        raise InputError(f"not a file name for the {what}: {error}", path=path) from error
    except OSError as error:
        remedy = _REMEDIES.get(error.errno or 0)
        raise ResourceError(f"cannot open the {what}: {reason(error)}", path=path, remedy=remedy) from error
    mode = os.fstat(fd).st_mode
    if stat.S_ISREG(mode):
        return fd
    os.close(fd)
    kind = "a directory" if stat.S_ISDIR(mode) else "not a regular file"
    raise InputError(f"the {what} is {kind}", path=path, remedy="give a regular file")


def check_no_stream(path: str | os.PathLike[str], what: str, *, written: bool = False) -> None:
    """Raises UsageError for "-", a pipe or a socket. An input is read by position, and again after a stop. An output
    (written) appears when it is complete."""
    name = os.fspath(path)
    try:
        mode = os.stat(name).st_mode
    except (OSError, ValueError):
        mode = 0
    if name != "-" and not stat.S_ISFIFO(mode) and not stat.S_ISSOCK(mode):
        return
    if written:
        kind = "standard output" if name == "-" else "a pipe"
        raise UsageError(f"the {what} is {kind}; it must be a file, which appears when it is whole", path=name,
                         remedy="name a file, and pass it on when the command is done")  # fmt: skip
    kind = "standard input" if name == "-" else "a pipe"
    raise UsageError(f"the {what} is {kind}; it must be a file, which can be read again", path=name,
                     remedy="save it first, as in `cat > FILE`, and name that file")  # fmt: skip


def same_file(a: str | os.PathLike[str], b: str | os.PathLike[str]) -> bool:
    """True if both paths exist and lead to the same file."""
    try:
        return os.path.samefile(a, b)
    except OSError:
        return False
