"""Compressed texts, .gz and .zst, read by position like plain files. Memory does not depend on the size that they
claim.

A read continues one of a few streams, or expands the file again from its start. Shards are read in order, so most reads
continue a stream. zstd needs Python 3.14 or the extra `zstd`.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tilewright.errors import InputError, ResourceError, brief
from tilewright.formats.files import InputFile
from tilewright.formats.inflate import EMPTY_MEMBERS, GZIP, MOST_BYTES, Inflater
from tilewright.formats.packages import install_command

PIECE_BYTES = 1 << 20  # bytes that are expanded at a time
STREAMS = 3  # of a file at once: one counts lines, one reads a shard, one reads the start
MOST_RATIO = 1100  # a file may expand to so many times its size: gzip cannot exceed 1,032, and text has far less
SLACK_BYTES = 1 << 20  # any file may expand to so many bytes
WINDOW_LOG = 27  # 128 MiB: the window of zstd for files that `zstd --ultra` and `--long` write


@dataclass(frozen=True)
class Source(os.PathLike[str]):
    """A compressed input whose expanded size (bytes) is known. It is used in place of its path."""

    path: str
    expanded: int

    def __fspath__(self) -> str:
        return self.path


class Expanded(InputFile):
    """The expanded bytes of a compressed file. size: their number, if an earlier `measure` has found it; None: measure
    it.

    Raises InputError for a file that is damaged, cut short, or expands to more than MOST_RATIO times its size.
    """

    def __init__(self, path: str | os.PathLike[str], what: str, size: int | None = None) -> None:
        super().__init__(path, what)
        self.stored = self.size
        try:
            self._streams = [_Stream(self)]
            self.size = self._measured() if size is None else size
        except BaseException:
            self.close()
            raise

    def read_into(self, buffer: memoryview | bytearray, offset: int) -> None:
        """Fill `buffer` from `offset` of the expanded bytes. Raises InputError if they end before."""
        view = memoryview(buffer).cast("B")
        before = [stream for stream in self._streams if stream.position <= offset]
        if before:
            stream = max(before, key=lambda stream: stream.position)
            self._streams.remove(stream)
        else:
            stream = _Stream(self)
        self._streams = [*self._streams, stream][-STREAMS:]  # the ones used last
        stream.read_into(view, offset)

    def read_stored(self, count: int, offset: int) -> bytes:
        """At most `count` bytes of the compressed file; fewer only at its end."""
        piece = bytearray(max(min(count, self.stored - offset), 0))
        super().read_into(piece, offset)
        return bytes(piece)

    def _measured(self) -> int:
        """The number of expanded bytes, counted to the end. The file's checksums are checked."""
        stream = _Stream(self)
        while part := stream.next(PIECE_BYTES):
            if stream.position > MOST_RATIO * self.stored + SLACK_BYTES:
                del part
                raise InputError(
                    f"expands to more than {MOST_RATIO:,} times its {self.stored:,} bytes", path=self.path,
                    remedy="check where it comes from: it is made to fill memory. Or give it expanded",
                )  # fmt: skip
        if not stream.whole:
            raise InputError("ends before its last checksum: it was cut short", path=self.path,
                             remedy="copy or download the file again")  # fmt: skip
        return stream.position


class _Stream:
    """The expanded bytes of a file, in order. position: of the next one."""

    def __init__(self, file: Expanded) -> None:
        self._file, self._offset, self.position = file, 0, 0
        self._inflater: Inflater | _Zstd
        self._inflater = _Zstd(self._read, file.path) if file.path.endswith(".zst") else Inflater(self._read, GZIP)

    @property
    def whole(self) -> bool:
        """True if the file ended at the end of a stream or member."""
        return self._inflater.whole

    def next(self, count: int) -> bytes:
        """Between 1 and `count` bytes; none at the end."""
        try:
            part = self._inflater.next(count)
        except (zlib.error, _Damaged) as error:
            ending = os.path.splitext(self._file.path)[1]
            raise InputError(
                f"is damaged, or no {ending} file: {brief(error)}", path=self._file.path, where=f"byte {self._offset}",
                remedy=f"copy or download the file again, or rename it if it is not compressed as {ending} says",
            ) from error  # fmt: skip
        self.position += len(part)
        return part

    def read_into(self, view: memoryview, offset: int) -> None:
        """Fill `view` from `offset`, which is not before the position."""
        while self.position < offset:
            if not self.next(min(PIECE_BYTES, offset - self.position)):
                raise self._short()
        done = 0
        while done < len(view):
            part = self.next(min(PIECE_BYTES, len(view) - done))
            if not part:
                raise self._short()
            view[done : done + len(part)] = part
            done += len(part)

    def _short(self) -> InputError:
        what = f"expands to {self.position:,} bytes; earlier it had {self._file.size:,}"
        return InputError(what, path=self._file.path, remedy="let whatever writes it finish, then run again")

    def _read(self, count: int) -> bytes:
        piece = self._file.read_stored(count, self._offset)
        self._offset += len(piece)
        return piece


class _Damaged(Exception):
    """The words of zstd about damaged data."""


class _Zstd:
    """All frames of a zstd file, with the methods of `Inflater`."""

    def __init__(self, read: Callable[[int], bytes], path: str) -> None:
        self._read, self._zstd = read, _zstd_module(path)
        self._left, self._empty, self.whole = b"", 0, False
        self._start()

    def _start(self) -> None:
        limit = {self._zstd.DecompressionParameter.window_log_max: WINDOW_LOG}
        self._frame: Any = self._zstd.ZstdDecompressor(options=limit)
        self._had, self._begun = False, False

    def next(self, count: int) -> bytes:
        """Between 1 and `count` bytes; none at the end of the data."""
        while True:
            if self._frame.eof:
                self._left = self._frame.unused_data
                self._empty = 0 if self._had else self._empty + 1
                if self._empty >= EMPTY_MEMBERS:
                    raise _Damaged(f"{EMPTY_MEMBERS:,} frames in a row expand to nothing")
                self._start()
            if not self._left and self._frame.needs_input:
                self._left = self._read(MOST_BYTES)
                if not self._left:
                    self.whole = not self._begun
                    return b""
            self._begun |= bool(self._left)
            try:
                part: bytes = self._frame.decompress(self._left, count)
            except self._zstd.ZstdError as error:
                raise _Damaged(str(error)) from error
            self._left = b""
            if part:
                self._had = True
                return part


def _zstd_module(path: str) -> Any:
    """Python's module for zstd, or its backport. Raises ResourceError if there is neither."""
    try:
        from compression import zstd  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        try:
            from backports import zstd  # type: ignore[import-not-found, no-redef, unused-ignore]
        except ImportError as error:
            remedy = f"install it: {install_command('zstd')}"
            raise ResourceError(
                f".zst needs Python 3.14 or backports.zstd: {error}", path=path, remedy=remedy
            ) from error
    return zstd
