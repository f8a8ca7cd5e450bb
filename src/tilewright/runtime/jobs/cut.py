"""Divides an input into numbered shards without reading it. Such a division is called a cut.

Rows are divided by their index, lines by the byte at which they begin.
"""

from __future__ import annotations

import hashlib
import os
import struct
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

import msgspec

from tilewright.formats.files import InputFile, Part, naming
from tilewright.formats.quoted import line_starts, quoted_records

if TYPE_CHECKING:
    from tilewright.formats.lines import Line

CHUNK_BYTES = 1 << 20
TAIL_BYTES = 65536  # read at a time after the end of a shard, to find the end of its last line
Size = Annotated[int, msgspec.Meta(ge=0, le=2**62)]  # bytes or rows that a manifest may name
Per = Annotated[int, msgspec.Meta(ge=1, le=2**62)]  # bytes or rows per shard
ENTRY = struct.Struct("<Q8s")  # an entry of lines.index: number of lines of a stretch, checksum


class Records(msgspec.Struct, frozen=True, tag="records", forbid_unknown_fields=True):
    """Rows of one size, contiguous from byte `offset`: raw binary, .npy. per_shard: rows per shard. record_bytes is 0
    if rows are generated, not read.
    """

    record_bytes: Size
    count: Size
    per_shard: Per
    offset: Size = 0

    @property
    def shards(self) -> int:
        return -(-self.count // self.per_shard)

    def span(self, number: int) -> tuple[int, int]:
        """(first row, rows) of a shard."""
        first = number * self.per_shard
        return first, min(self.per_shard, self.count - first)


class Lines(msgspec.Struct, frozen=True, tag="lines", forbid_unknown_fields=True):
    """Text and JSONL: shard k owns the lines that begin in bytes [k * per_shard, (k + 1) * per_shard)."""

    size: Size
    per_shard: Per

    @property
    def shards(self) -> int:
        return -(-self.size // self.per_shard)

    def span(self, number: int) -> tuple[int, int]:
        """(begin, end) of a shard in bytes."""
        begin = number * self.per_shard
        return begin, min(begin + self.per_shard, self.size)


class RowGroups(msgspec.Struct, frozen=True, tag="row_groups", forbid_unknown_fields=True):
    """Parquet: a shard is a row group. rows: the wanted rows of each group."""

    rows: tuple[Size, ...]

    @property
    def shards(self) -> int:
        return len(self.rows)

    @property
    def count(self) -> int:
        return sum(self.rows)

    def span(self, number: int) -> tuple[int, int]:
        """(first row, rows) of a shard."""
        return sum(self.rows[:number]), self.rows[number]


class Whole(msgspec.Struct, frozen=True, tag="whole", forbid_unknown_fields=True):
    """A single shard, for inputs that cannot be divided."""

    @property
    def shards(self) -> int:
        return 1


Cut = Records | Lines | RowGroups | Whole


@dataclass(frozen=True)
class Shard:
    """One piece of the input, for a Worker.

    alone: the worker runs one record at a time, and calls `beat.at(record)` before each. skip: records (rows from 0,
    lines from 1) that have killed their worker, with the reason. The worker does not run them but writes errors.
    """

    number: int
    cut: Cut
    index: LineIndex | None = None
    alone: bool = False
    skip: tuple[tuple[int, str], ...] = ()

    @property
    def rows(self) -> range:
        """The numbers of its rows, from 0."""
        assert isinstance(self.cut, Records)
        first, count = self.cut.span(self.number)
        return range(first, first + count)

    @property
    def offset(self) -> int:
        """The byte at which its first row begins."""
        assert isinstance(self.cut, Records)
        return self.cut.offset + self.rows.start * self.cut.record_bytes

    def share(self, end: int) -> float | None:
        """The fraction of the shard's bytes before byte `end` of the input; None if the input is not text."""
        if not isinstance(self.cut, Lines):
            return None
        first, stop = self.cut.span(self.number)
        return min(max(end - first, 0) / max(stop - first, 1), 1.0)

    def lines(self, file: InputFile) -> Iterator[Line]:
        """Yield (number from 1, line or None if it is too long, byte at which it ends) of the lines that are not blank.

        For Parquet, each row of the row group is a line. The end of such a line is None.
        """
        if isinstance(self.cut, RowGroups):
            from tilewright.formats.parquet import group_rows

            yield from group_rows(file, self.number, *self.cut.span(self.number))
            return
        assert isinstance(self.cut, Lines) and self.index is not None
        index, (begin, end) = self.index, self.cut.span(self.number)
        number, odd = index.first_line(file, self.number), False
        file.forget_parts()
        for part in file.parts(begin, end):
            file.begin_part(part, number, partial(index.lines_before, file, part, number))
            if file.quoted:
                odd = index.odd_quotes(self.number) if part.begin else False
                yield from _rows(part, number, odd)
                if part.start + part.end < end:
                    number += line_starts(part.file, part.begin, part.end, odd)[0]
                continue
            for line, at in lines_between(part.file, part.begin, part.end):
                if line is None or (line and not line.isspace()):
                    yield number, line, part.start + at
                number += 1
        file.check_read()


def _rows(part: Part, first: int, odd: bool) -> Iterator[Line]:
    """The records of a part of a CSV file that are not blank, without the header. first: number of the first line."""
    from tilewright.formats.lines import MAX_LINE_BYTES

    for line, record, end in quoted_records(part.file, part.begin, part.end, odd, MAX_LINE_BYTES):
        if record not in (b"", b"\r") and (part.begin or line):
            yield first + line, record, part.start + end


def lines_between(file: InputFile, begin: int, end: int) -> Iterator[tuple[bytes | None, int]]:
    """(line without its end, or None if it is too long, end in bytes) of each line that begins in [begin, end)."""
    from tilewright.formats.lines import (
        BOM,
        MAX_LINE_BYTES,
    )  # imports NumPy, which processes that only hand out shards do not need

    place = _first_start(file, begin, end)
    if place is None:
        return
    carry, too_long = bytearray(), False
    while place < file.size:
        chunk = bytearray(min(CHUNK_BYTES, max(end - place, 0) + TAIL_BYTES, file.size - place))
        file.read_into(chunk, place)
        if place + len(chunk) == file.size and not chunk.endswith(b"\n"):
            chunk += b"\n"
        start = len(BOM) if place == 0 and chunk.startswith(BOM) else 0
        while (stop := chunk.find(b"\n", start)) >= 0:
            carry += chunk[start:stop]
            start = stop + 1
            yield (None if too_long or len(carry) > MAX_LINE_BYTES else bytes(carry)), min(place + start, file.size)
            if place + start >= end:
                return
            carry.clear()
            too_long = False
        too_long = too_long or len(carry) + len(chunk) - start > MAX_LINE_BYTES
        carry = bytearray() if too_long else carry + chunk[start:]
        place += len(chunk)
        if too_long and place >= end:  # the rest belongs to later shards
            yield None, end
            return


def _first_start(file: InputFile, begin: int, end: int) -> int | None:
    """The byte at which the first line in [begin, end) begins; None if no line does."""
    if begin == 0:
        return 0
    for place in range(begin - 1, end - 1, TAIL_BYTES):
        chunk = bytearray(min(TAIL_BYTES, end - 1 - place))
        file.read_into(chunk, place)
        found = chunk.find(b"\n")
        if found >= 0:
            return place + found + 1
    return None


class LineIndex:
    """lines.index: the number of lines that begin in each stretch of an input. A stretch has the bytes of one shard.

    Any process of the job may add entries. An entry has 16 bytes: the count, and a checksum that depends on the job. If
    an entry is damaged, incomplete or of another job, its lines are counted again. fd: the open file, for reading and
    writing. path: its name in errors.
    """

    def __init__(self, fd: int, path: str, cut: Lines, key: str) -> None:
        self._fd, self._path, self._cut, self._key = fd, path, cut, key.encode()[:64]
        self._firsts = array("Q", [1])  # the number of the first line of each stretch that has been counted
        self._odd = array("B", [0])  # CSV: 1 if an odd number of quotes precedes the stretch

    def first_line(self, file: InputFile, number: int) -> int:
        """The number, from 1, of the first line that begins in stretch `number` or later.

        Reads the stretches that have not been counted yet.
        Raises InputError if the file shrank, ResourceError if the index cannot be written.
        """
        while len(self._firsts) <= number:
            at = len(self._firsts) - 1
            with naming(self._path, "read"):
                known = os.pread(self._fd, ENTRY.size * min(number - at, 1 << 16), ENTRY.size * at)
            whole = len(known) // ENTRY.size * ENTRY.size
            for count, check in ENTRY.iter_unpack(known[:whole]):
                self._add(file, count if check == self._check(len(self._firsts) - 1, count) else None)
            if not whole:
                self._add(file, None)
        return self._firsts[number]

    def odd_quotes(self, number: int) -> bool:
        """True if an odd number of quotes precedes stretch `number` of a CSV file. Call `first_line` before."""
        return bool(self._odd[number])

    def _add(self, file: InputFile, count: int | None) -> None:
        """Add the next stretch's entry. count: lines; for CSV twice that, plus 1 if the number of quotes is odd."""
        at = len(self._firsts) - 1
        if count is None:
            count, odd = self._count(file, *self._cut.span(at), odd=bool(self._odd[at]))
            count = 2 * count + odd if file.quoted else count
            with naming(self._path, "write"):
                os.pwrite(self._fd, ENTRY.pack(count, self._check(at, count)), ENTRY.size * at)
        self._odd.append(count & 1)
        count >>= file.quoted
        self._firsts.append(self._firsts[-1] + count)

    def _count(self, file: InputFile, begin: int, end: int, *, odd: bool) -> tuple[int, bool]:
        """(lines that begin in [begin, end), true if an odd number of quotes precedes `end` in the file)."""
        count = 0
        for part in file.parts(begin, end):
            if file.quoted:
                lines, odd = line_starts(part.file, part.begin, part.end, odd if part.begin else False)
            else:
                lines = _starts(part.file, part.begin, part.end)
            count += lines
        return count, odd

    def lines_before(self, file: InputFile, part: Part, number: int) -> int:
        """The number of lines of a part's file before the part. number: of the part's first line, among all files."""
        if not part.begin:
            return 0
        stretch = part.start // self._cut.per_shard
        in_others, _ = self._count(file, self._cut.span(stretch)[0], part.start, odd=False)
        return number - (self.first_line(file, stretch) + in_others)

    def _check(self, at: int, count: int) -> bytes:
        return hashlib.blake2b(b"%d %d" % (at, count), key=self._key, digest_size=8).digest()


def _starts(file: InputFile, begin: int, end: int) -> int:
    """The number of lines that begin in [begin, end)."""
    count = int(begin == 0)
    for place in range(max(begin - 1, 0), end - 1, CHUNK_BYTES):
        chunk = bytearray(min(CHUNK_BYTES, end - 1 - place))
        file.read_into(chunk, place)
        count += chunk.count(b"\n")
    return count
