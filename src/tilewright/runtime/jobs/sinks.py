"""Sinks: consumers of a job's shards, for outputs that are not just the joined shards. A sink encodes the shards, or
renames an output that the shards wrote in place (pieces.py)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from tilewright.formats.atomic import AtomicFile
from tilewright.runtime.jobs import made
from tilewright.runtime.jobs.directory import JobDirectory, Record
from tilewright.runtime.jobs.manifest import Damaged, DamagedShards
from tilewright.runtime.jobs.stop import Stop

if TYPE_CHECKING:
    from typing_extensions import Buffer

Beat = Callable[[], object]


class Sink(Protocol):
    """Receives the shards in order. It is a context manager: the output appears at its end, except after an error."""

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None: ...

    def fileno(self) -> int:
        """A descriptor of the file or directory that will be renamed to the output."""

    def begin(self, number: int) -> None:
        """Begin a shard. Raises Damaged if pieces that it wrote in place are missing or have changed."""

    def write(self, block: bytes | memoryview) -> None:
        """Receive the next bytes of the shard's output."""

    @property
    def digest(self) -> tuple[int, str]:
        """(bytes, sha256) of the output, as `digest_of` returns them. Read it after the end."""


def deliver(directory: JobDirectory, shards: int, sinks: Sequence[Sink], stop: Stop) -> list[tuple[int, str]]:
    """Pass all shards to each sink, and return the sinks' digests. The first sink's output appears last.

    Raises DamagedShards, Interrupted and ResourceError; then the first output is as it was.
    """
    bad: list[int] = []
    with ExitStack() as opened:
        for sink in sinks:
            opened.enter_context(sink)
        for number in range(shards):
            try:
                for sink in sinks:
                    sink.begin(number)
                with closing(directory.blocks(number)) as blocks:
                    for block in blocks:
                        stop.check()
                        for sink in () if bad else sinks:  # after damage was found, only search for more
                            sink.write(block)
            except Damaged:
                bad.append(number)
        if bad:
            raise DamagedShards(bad)
        made.note(directory, [sink.fileno() for sink in sinks])
    return [sink.digest for sink in sinks]


class Encoder(Protocol):
    """Encodes the shards as the bytes of a file."""

    def write(self, block: bytes | memoryview) -> None:
        """Receive the next bytes of the shards."""

    def finish(self) -> None:
        """Write the rest of the file. Called after the last shard."""


class FileSink:
    """A sink that writes one file with the encoder that `make(file)` returns."""

    def __init__(self, path: str, make: Callable[[HashedFile], Encoder]) -> None:
        self._file, self._make = HashedFile(path), make

    def __enter__(self) -> FileSink:
        self._file.__enter__()
        try:
            self._encoder = self._make(self._file)
        except BaseException:
            self._file.discard()
            raise
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if error is None:
                self._encoder.finish()
        except BaseException:
            self._file.discard()
            raise
        self._file.__exit__(kind, error, trace)

    def fileno(self) -> int:
        return self._file.fileno()

    def begin(self, number: int) -> None:
        """Do nothing: these shards write nothing in place."""

    def write(self, block: bytes | memoryview) -> None:
        self._encoder.write(block)

    @property
    def digest(self) -> tuple[int, str]:
        return self._file.bytes_written, self._file.digest.hexdigest()


class Section:
    """Passes a section of each shard's output, bytes begin to end of `span(record)`, to another sink."""

    def __init__(self, sink: FileSink, directory: JobDirectory, span: Callable[[Record], tuple[int, int]]) -> None:
        self._sink, self._directory, self._span = sink, directory, span

    def __enter__(self) -> Section:
        self._sink.__enter__()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._sink.__exit__(kind, error, trace)

    def fileno(self) -> int:
        return self._sink.fileno()

    def begin(self, number: int) -> None:
        (self._begin, self._end), self._at = self._span(self._directory.checked_record(number)), 0

    def write(self, block: bytes | memoryview) -> None:
        part = memoryview(block)[max(self._begin - self._at, 0) : max(self._end - self._at, 0)]
        self._at += len(block)
        if part:
            self._sink.write(part)

    @property
    def digest(self) -> tuple[int, str]:
        return self._sink.digest


class HashedFile(AtomicFile):
    """An AtomicFile with `digest`, the sha256 of all written bytes. A thread hashes each block while it is written."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.digest = hashlib.sha256()
        self._pool = ThreadPoolExecutor(1, "tilewright-hash")
        self._hashed = self._pool.submit(self.digest.update, b"")

    def write(self, data: Buffer) -> None:
        """See AtomicFile."""
        self._hashed.result()
        self._hashed = self._pool.submit(self.digest.update, data)
        try:
            super().write(data)
        finally:
            if not memoryview(data).readonly:  # the caller may overwrite the buffer
                self._hashed.result()

    def discard(self) -> None:
        """As AtomicFile's, which calls it at the end, also after success."""
        self._pool.shutdown()
        super().discard()
