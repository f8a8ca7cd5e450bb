"""The expanded bytes of a gzip file, as a stream, or by position through an index of zlib's states."""

from __future__ import annotations

import zlib
from bisect import bisect_right
from copy import copy

from tilewright.errors import InputError, brief
from tilewright.formats.files import InputFile
from tilewright.formats.inflate import GZIP, MOST_BYTES, Inflater
from tilewright.formats.volumes import PIECE_BYTES

SPACING = 8 << 20  # the fewest expanded bytes between two states
STATES = 1024  # the most states
STATE_BYTES = (64 << 10) + MOST_BYTES  # zlib's window and tables, and compressed bytes that it holds


class GzipStream:
    """The expanded bytes of a gzip file. Only as many as are read are expanded."""

    def __init__(self, file: InputFile) -> None:
        self.file, self.position = file, 0
        self._offset = 0
        self._inflater = Inflater(self._compressed, GZIP)

    def copy(self) -> GzipStream:
        """A second stream that continues from this position independently."""
        other = copy(self)
        other._inflater = self._inflater.copy(other._compressed)
        return other

    def read(self, count: int) -> bytes:
        """At most `count` bytes; fewer only at the end."""
        parts = []
        while count > 0 and (part := self._next(count)):
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def skip(self, count: int) -> None:
        """Expand `count` bytes and drop them. Raises InputError if the stream ends before."""
        while count > 0:
            part = self._next(min(count, PIECE_BYTES))
            if not part:
                raise self._short(count)
            count -= len(part)

    def read_into(self, target: memoryview) -> None:
        """Fill `target`. Raises InputError if the stream ends before."""
        done = 0
        while done < len(target):
            part = self._next(min(len(target) - done, PIECE_BYTES))
            if not part:
                raise self._short(len(target) - done)
            target[done : done + len(part)] = part
            done += len(part)

    def expect_end(self) -> None:
        """Raises InputError if there is more data than the header says, or if gzip's checksum is missing."""
        if self._next(1):
            what = f"expands beyond the {self.position - 1:,} bytes that its header states"
            raise InputError(
                what,
                path=self.file.path,
                remedy="copy or download the file again: it is damaged, or made to fill memory",
            )
        if not self._inflater.whole:
            what = "ends before the checksum of its last gzip member"
            raise InputError(what, path=self.file.path, remedy="copy or download the file again: it was cut short")

    def _short(self, missing: int) -> InputError:
        what = f"ends {missing:,} bytes before the values that its header states"
        return InputError(
            what, path=self.file.path, remedy="copy or download the file again: it was cut short or is damaged"
        )

    def _next(self, count: int) -> bytes:
        """Between 1 and `count` bytes; none at the end of the file."""
        try:
            part = self._inflater.next(count)
        except zlib.error as error:
            what = f"is no gzip file or damaged: {brief(error)}"
            remedy = "copy or download the file again: it is damaged, or its name should not end with .gz"
            raise InputError(what, path=self.file.path, where=f"byte {self._offset}", remedy=remedy) from error
        self.position += len(part)
        return part

    def _compressed(self, count: int) -> bytes:
        piece = bytearray(min(count, self.file.size - self._offset))
        self.file.read_into(piece, self._offset)
        self._offset += len(piece)
        return bytes(piece)


class GzipByPosition:
    """The `size` bytes that a gzip file expands to, from the position of `stream` on, read by position like an
    InputFile.

    `index` expands the file once, checks all of it, and keeps zlib's state every SPACING bytes or more. A read
    continues where the last one ended, or begins at the nearest state before it. held: bytes of the states. Only one
    thread may use it at a time.
    """

    def __init__(self, stream: GzipStream, size: int) -> None:
        self.path, self.size = stream.file.path, size
        self._spacing = max(SPACING, -(-size // STATES))
        self.held = STATE_BYTES * -(-size // self._spacing)
        self._states, self._stream = [stream.copy()], stream

    def index(self) -> None:
        """Raises InputError for a file that is damaged, or does not expand to exactly `size` bytes."""
        stream = self._stream
        while (left := self.size - stream.position) > 0:
            stream.skip(min(self._spacing, left))
            self._states.append(stream.copy())
        stream.expect_end()

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill `buffer` from the bytes at `offset`, which is not before the first state. Raises InputError."""
        nearest = self._states[bisect_right(self._states, offset, key=lambda state: state.position) - 1]
        if not nearest.position <= self._stream.position <= offset:
            self._stream = nearest.copy()
        self._stream.skip(offset - self._stream.position)
        self._stream.read_into(buffer)

    def close(self) -> None:
        """Close the file and free the states."""
        self._stream.file.close()
        self._states.clear()
