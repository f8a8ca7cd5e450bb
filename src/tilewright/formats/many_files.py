"""Many files as one input: a directory, a pattern such as data/*.jsonl.gz, or @names.txt, a file with a list of names.

The files are read as one text, in a fixed order. Shards divide it at bytes, as in one file: a large file has several
shards, and small files share one. A line never crosses the end of its file.
"""

from __future__ import annotations

import glob
import hashlib
import os
import platform
import stat
import time
from bisect import bisect_right, insort
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import accumulate

from tilewright.errors import InputError, UsageError, counted
from tilewright.formats.expanded import Expanded
from tilewright.formats.fetched import etags_below
from tilewright.formats.files import InputFile, Part, naming, spelled
from tilewright.formats.names import COMPRESSED, check_records_name, kind_of_records
from tilewright.formats.quoted import quoted_records

MOST_FILES = 1_000_000
LIST_BYTES = 1 << 28  # of a list of names
OPEN = 16  # files of an input that are open at a time
THREADS = 4  # threads that expand compressed files to measure them
HEADER_BYTES = 1 << 20  # of a CSV file's header, at most
CHECKED_BYTES = 4096  # of a text file; a binary file has a NUL within so many bytes


@dataclass(frozen=True, slots=True)
class ListedFile:
    """path: as a user would open it. name: relative to the directory of all files, for messages and ids. stored: bytes
    on the disk. size: bytes of its text; -1: not measured yet. changed, ctime: in ns. etag: of the object, if this is a
    local copy of one; it replaces the times, which differ on each machine."""

    path: str
    name: str
    stored: int
    size: int
    changed: int
    ctime: int
    etag: str = ""


@dataclass(frozen=True)
class FileList(os.PathLike[str]):
    """Files of one kind, in order. path: what the user gave. kind: as in `kind_of_records`. listed: when, in ns since
    1970, and on which host."""

    path: str
    files: tuple[ListedFile, ...]
    kind: str
    listed: int
    host: str

    def __fspath__(self) -> str:
        return self.path

    @property
    def expanded(self) -> int:
        """Bytes of all texts."""
        return sum(file.size for file in self.files)

    def fields(self) -> dict[str, str | int]:
        """The fields in the job's fingerprint, see `manifest.file_identity`."""
        files, ctimes = hashlib.sha256(), hashlib.sha256()
        for file in self.files:
            files.update(f"{spelled(file.name)!r} {file.stored} {file.etag or file.changed}\n".encode())
            ctimes.update(b"%d\n" % file.ctime)
        times = {} if all(file.etag for file in self.files) else {"input.ctime": ctimes.hexdigest()}
        return {
            "files": len(self.files),
            "input.bytes": sum(file.stored for file in self.files),
            "input.files": files.hexdigest(),
            **times,
            "input.expanded": self.expanded,
        }

    def check(self) -> None:
        """Raises InputError if a file has changed since it was listed."""
        for file in self.files:
            with naming(file.path, "look at"):
                try:
                    status = os.stat(file.path)
                except (FileNotFoundError, NotADirectoryError):
                    raise _changed(file.path, "it is not there any more") from None
            self.check_status(file, status)
            if file.ctime >= self.listed:
                raise _changed(file.path, "it was changed when the job began")

    def check_status(self, file: ListedFile, status: os.stat_result) -> None:
        """Raises InputError unless the file is as it was listed. On another host the ctime may differ."""
        was, now = (file.stored, file.changed), (status.st_size, status.st_mtime_ns)
        if was != now or (platform.node() == self.host and file.ctime != status.st_ctime_ns):
            raise _changed(file.path, "its size or its times have changed")

    def measured(self) -> FileList:
        """The same list with the sizes of compressed files. Each is expanded once, which checks all of it. Raises
        InputError, also for CSV files whose headers differ from the first one."""
        with ThreadPoolExecutor(THREADS) as pool:
            files = tuple(pool.map(_measured, self.files))
        found = replace(self, files=files)
        if self.kind in (".csv", ".tsv"):
            found.check_headers()
        return found

    def check_headers(self) -> None:
        """Raises InputError unless all files that are not empty have the same header."""
        first: tuple[bytes | None, str] | None = None
        with Files(self, "input") as opened:
            for number, file in enumerate(self.files):
                if not file.size:
                    continue
                part = opened.member(number)
                found = next(quoted_records(part, 0, part.size, False, HEADER_BYTES), None)
                header = found and found[1] and found[1].removesuffix(b"\r")
                if first and header != first[0]:
                    raise InputError(f"has another header than {first[1]}", path=file.path, where="line 1",
                                     remedy="give them to jobs of their own, or write one header in all")  # fmt: skip
                first = first or (header, file.name)


def is_many(path: str) -> bool:
    """True if an input is a directory, a pattern, or a list of names."""
    if os.path.isdir(path):
        return True
    return (path.startswith("@") or glob.has_magic(path)) and not os.path.lexists(path)


def list_files(path: str) -> FileList:
    """The files of a directory, a pattern or a list of names. Those of a directory and a pattern are sorted.

    A directory gives all files below it, except those whose names, or whose directories' names, begin with "." or "_".
    Raises InputError for an empty list or a missing file; UsageError for files of several kinds, and a file that is
    given twice.
    """
    listed = time.time_ns()
    found = [*_named(path)]
    if not found:
        what = "the directory holds no files" if os.path.isdir(path) else "there are no files of this name"
        raise InputError(what, path=path, remedy="check the path")
    if len(found) > MOST_FILES:
        raise UsageError(f"these are {len(found):,} files; at most {MOST_FILES:,} are possible", path=path,
                         remedy="give fewer files: join some of them")  # fmt: skip
    common = os.path.commonpath([os.path.dirname(os.path.abspath(name)) for name, _ in found])
    etags = etags_below(common)
    seen: dict[tuple[int, int], str] = {}
    kinds: dict[str, str] = {}
    files = []
    for name, where in found:
        status = _status(name, where)
        check_records_name(name, "input")
        kinds.setdefault(kind_of_records(name), name)
        if other := seen.get((status.st_dev, status.st_ino)):
            raise UsageError(f"is given twice, also as {other}", path=name, where=where, remedy="give it once")
        seen[status.st_dev, status.st_ino] = name
        size = -1 if name.endswith(COMPRESSED) else status.st_size
        at = os.path.abspath(name)
        times, etag = (status.st_mtime_ns, status.st_ctime_ns), etags.get(at, "")
        files.append(ListedFile(name, os.path.relpath(at, common), status.st_size, size, *times, etag))
    if len(kinds) > 1:
        said = " and ".join(f"{kind} ({os.path.basename(name)})" for kind, name in [*kinds.items()][:2])
        raise UsageError(f"the files are {said}; files of one kind are wanted", path=path,
                         remedy="give a pattern, as in 'data/*.jsonl'")  # fmt: skip
    if ".bin" in kinds:
        raise UsageError("the files are .bin; text or Parquet is wanted", path=path,
                         remedy="give one file, joined as in `cat a.bin b.bin > all.bin`")  # fmt: skip
    return FileList(path, tuple(files), next(iter(kinds)), listed, platform.node())


def _named(path: str) -> Iterator[tuple[str, str | None]]:
    """(path, the line of the list that names it) of each file."""
    if os.path.isdir(path):
        with naming(path, "list"):
            for at, folders, names in os.walk(path, followlinks=True):
                folders[:] = sorted(name for name in folders if name[0] not in "._")
                yield from ((os.path.join(at, name), None) for name in sorted(names) if name[0] not in "._")
    elif path.startswith("@"):
        with InputFile(path[1:], "list of names") as file:
            if file.size > LIST_BYTES:
                raise InputError(f"the list of names has {file.size:,} bytes; at most {LIST_BYTES:,} are read",
                                 path=file.path, remedy="give a directory or a pattern")  # fmt: skip
            text = bytearray(file.size)
            file.read_into(text, 0)
        for number, line in enumerate(bytes(text).split(b"\n"), 1):
            if name := os.fsdecode(line.removesuffix(b"\r")):
                yield name, f"line {number} of {path[1:]}"
    else:
        yield from ((name, None) for name in sorted(glob.glob(path, recursive=True)) if not os.path.isdir(name))


def _status(path: str, where: str | None) -> os.stat_result:
    with naming(path, "look at"):
        try:
            status = os.stat(path)
        except (FileNotFoundError, NotADirectoryError, ValueError) as error:
            raise InputError("no such input", path=path, where=where, remedy="check the path") from error
    if not stat.S_ISREG(status.st_mode):
        raise InputError("the input is not a regular file", path=path, where=where, remedy="give a regular file")
    return status


def _measured(file: ListedFile) -> ListedFile:
    if file.size >= 0:
        return file
    with Expanded(file.path, "input") as opened:
        return replace(file, size=opened.size)


def _changed(path: str, what: str) -> InputError:
    return InputError(f"an input was changed while the job ran: {what}", path=path,
                      remedy="put back what was there and run again; or run again with --restart")  # fmt: skip


class Files(InputFile):
    """The files of a list, read as one text. size: bytes of all files. Files are opened as they are read."""

    def __init__(self, source: FileList, what: str) -> None:
        self.path, self.what, self.fd = source.path, what, -1
        self.source = source
        self.quoted = source.kind in (".csv", ".tsv")
        self._starts = [0, *accumulate(file.size for file in source.files)]
        self.size = self._starts[-1]
        self._opened: dict[int, InputFile] = {}
        self._read: set[int] = set()  # files that were read since the last `check_read`
        self._marks: dict[int, tuple[int, Callable[[], int]]] = {}  # by file, see `begin_part`
        self._order: list[tuple[int, int]] = []  # (number of the first line, file) of these marks, sorted

    def close(self) -> None:
        for file in self._opened.values():
            file.close()
        self._opened.clear()

    def member(self, number: int) -> InputFile:
        """The file with this number, opened. Raises InputError if it has changed since it was listed, or is no text."""
        file = self._opened.pop(number, None)
        if file is None:
            listed = self.source.files[number]
            compressed = listed.path.endswith(COMPRESSED)
            file = Expanded(listed.path, self.what, listed.size) if compressed else InputFile(listed.path, self.what)
            file.quoted, file.columns = self.quoted, self.columns
            try:
                self.source.check_status(listed, os.fstat(file.fd))
                if self.source.kind in (".txt", ".csv", ".tsv"):
                    _check_text(file)
            except BaseException:
                file.close()
                raise
        self._opened[number] = file
        self._read.add(number)
        while len(self._opened) > OPEN:
            oldest = next(iter(self._opened))
            self._check(oldest)
            self._opened.pop(oldest).close()
        return file

    def members(self) -> Iterator[InputFile]:
        """All files, one after another."""
        yield from map(self.member, range(len(self.source.files)))

    def parts(self, begin: int, end: int) -> Iterator[Part]:
        """The pieces of files that make up bytes [begin, end)."""
        number = bisect_right(self._starts, begin) - 1
        while begin < end:
            start, stop = self._starts[number], self._starts[number + 1]
            if stop > begin:
                last = min(end, stop)
                yield Part(self.member(number), begin - start, last - start, start, number)
                begin = last
            number += 1

    def read_into(self, buffer: memoryview | bytearray, offset: int) -> None:
        """As in `InputFile`, for the joined files."""
        view = memoryview(buffer).cast("B")
        for part in self.parts(offset, offset + len(view)):
            first = part.start + part.begin - offset
            part.file.read_into(view[first : first + part.end - part.begin], part.begin)

    def begin_part(self, part: Part, number: int, before: Callable[[], int]) -> None:
        """Note that the lines of a part come next. number: of the first one, in the whole input. before: the number of
        lines before it in its file."""
        if part.number not in self._marks:
            insort(self._order, (number, part.number))
        self._marks[part.number] = number, before

    def forget_parts(self) -> None:
        """Forget the parts: another shard comes next."""
        self._marks.clear()
        self._order.clear()

    def located(self, number: int) -> tuple[str, int]:
        """(name of the file, number of the line in it, from 1), for a line of the whole input."""
        first, at = self._order[bisect_right(self._order, (number, len(self._starts))) - 1]
        return self.source.files[at].name, number - first + self._marks[at][1]() + 1

    def id_of(self, number: int) -> str | int:
        """The id of a record that has none."""
        name, line = self.located(number)
        return f"{spelled(name)}:{line}"

    def check_read(self) -> None:
        """Raises InputError if a file that was read has changed since it was listed."""
        for number in self._read:
            self._check(number)
        self._read.clear()

    def _check(self, number: int) -> None:
        if number in self._opened:
            self.source.check_status(self.source.files[number], os.fstat(self._opened[number].fd))


def _check_text(file: InputFile) -> None:
    block = bytearray(min(file.size, CHECKED_BYTES))
    file.read_into(block, 0)
    if (at := block.find(0)) >= 0:
        raise InputError(f"is not text: byte 0x00 at offset {at}", path=file.path,
                         remedy="give files of UTF-8 text")  # fmt: skip


def empty_files(source: FileList) -> str:
    """The notice about empty files; "" if there are none."""
    empty = [file.name for file in source.files if not file.size]
    if not empty:
        return ""
    return f"{len(empty):,} of {counted(len(source.files), 'input file')} without a byte; the first is {empty[0]}"
