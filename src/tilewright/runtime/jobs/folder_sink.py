"""Outputs that are a folder of files: one per shard, or one per input file. The folder appears when it is whole."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any

from tilewright.formats.atomic import AtomicDirectory
from tilewright.formats.files import naming
from tilewright.runtime.jobs.placed import digest_of_files
from tilewright.runtime.jobs.sinks import Encoder

SUCCESS = "_SUCCESS"  # an empty file that is written last, as Hadoop and Spark do
_PART = re.compile(r"part-\d{5,}\.(jsonl|txt|parquet)")


def part_name(number: int, suffix: str) -> str:
    """The name of a shard's file: "part-00042.jsonl"."""
    return f"part-{number:05}{suffix}"


class PartNames(frozenset[str]):
    """The names of all files that a job may have written to an output folder. SUCCESS and part names are included."""

    def __contains__(self, name: object) -> bool:
        return name == SUCCESS or super().__contains__(name) or bool(isinstance(name, str) and _PART.fullmatch(name))


class OpenFile:
    """A new file in the folder. path: its name in errors."""

    def __init__(self, path: str) -> None:
        self.path, self.size = path, 0
        self._digest = hashlib.sha256()
        with naming(path, "write"):
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)

    def write(self, data: Any) -> None:
        """Append a bytes-like object."""
        view = memoryview(data).cast("B")
        self._digest.update(view)
        self.size += len(view)
        with naming(self.path, "write"):
            while len(view):
                view = view[os.write(self._fd, view) :]

    def finish(self) -> tuple[int, str]:
        """Flush the file, and return its size in bytes and its sha256."""
        with naming(self.path, "write"):
            os.fsync(self._fd)
        self.close()
        return self.size, self._digest.hexdigest()

    def close(self) -> None:
        """Close the file. A second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class FolderSink:
    """A `Sink` that writes a folder of files.

    make: returns the encoder of a file. suffix: of the parts' names. names: None for one file per shard. For one file
    per input: the names in order, and `of_records(shard)`, the file's name for each record of a shard. Then a shard's
    output has one line per record.
    """

    def __init__(
        self,
        path: str,
        suffix: str,
        make: Callable[[OpenFile], Encoder],
        names: Sequence[str] | None = None,
        of_records: Callable[[int], Iterator[str]] | None = None,
    ) -> None:
        self._folder = AtomicDirectory(path, PartNames(names or ()), "a job's")
        self._suffix, self._make, self._names, self._of_records = suffix, make, names, of_records
        self._found: dict[str, tuple[int, str]] = {}
        self._file: OpenFile | None = None
        self._encoder: Encoder
        self._name, self._rest = "", b""
        self._fd = -1

    def __enter__(self) -> FolderSink:
        self._temporary = self._folder.__enter__()
        with naming(self._folder.path, "write"):
            self._fd = os.open(self._temporary, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if error is None:
                self._finish()
        except BaseException as raised:
            kind, error, trace = type(raised), raised, raised.__traceback__
            raise
        finally:
            if self._file:
                self._file.close()
            try:
                self._folder.__exit__(kind, error, trace)
            finally:
                os.close(self._fd)

    def fileno(self) -> int:
        return self._fd

    def begin(self, number: int) -> None:
        """Begin the next shard."""
        if self._of_records:
            self._records = self._of_records(number)
        else:
            self._open(part_name(number, self._suffix))

    def write(self, block: bytes | memoryview) -> None:
        """Write the next bytes of the shard's output."""
        if not self._of_records:
            self._encoder.write(block)
            return
        *lines, self._rest = (self._rest + bytes(block)).split(b"\n")
        first = 0
        for at, name in zip(range(len(lines)), self._records, strict=False):
            if name != self._name:
                self._pass(lines[first:at])
                self._open(name)
                first = at
        self._pass(lines[first:])

    def _pass(self, lines: list[bytes]) -> None:
        if lines:
            self._encoder.write(b"\n".join([*lines, b""]))

    def _open(self, name: str) -> None:
        self._close()
        self._name, self._file = name, OpenFile(os.path.join(self._temporary, name))
        self._encoder = self._make(self._file)

    def _close(self) -> None:
        if self._file:
            self._encoder.finish()
            self._found[self._name] = self._file.finish()
            self._file = None

    def _finish(self) -> None:
        self._close()
        for name in self._names or ():
            if name not in self._found:  # an input without records
                self._open(name)
                self._close()
        success = OpenFile(os.path.join(self._temporary, SUCCESS))
        self._found[SUCCESS] = success.finish()

    @property
    def digest(self) -> tuple[int, str]:
        return digest_of_files(self._found)
