"""Records of CSV and TSV files, in which a line end inside quotes is part of a field.

A quote is the beginning or the end of a quoted field, or half of a doubled quote inside one. So a line end is inside
quotes exactly if an odd number of quotes is before it. A shard needs one bit about what is before it: whether that
number is odd. A file that breaks this rule, with a single quote inside a field, has records that `csv_rows` refuses.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.formats.files import InputFile

BOM = b"\xef\xbb\xbf"  # some editors write it first; it is no part of the text
CHUNK_BYTES = 1 << 20
TAIL_BYTES = 65536  # read at a time after the end of a shard, for the rest of one record
QUOTE, NEWLINE = b'"', b"\n"

Found = tuple[int, bytes | None, int]  # number of its first line, from 0; the record, or None if too long; its end


def quoted_records(file: InputFile, begin: int, end: int, odd: bool, most: int) -> Iterator[Found]:
    """The records that begin in bytes [begin, end), without their line ends, including blank ones.

    odd: an odd number of quotes is before `begin`. most: bytes of the longest record. Lines are counted from the first
    one that begins in [begin, end). A record ends at the end of the file in any case.
    """
    first = bytearray(b"\n")
    if begin:
        file.read_into(first, begin - 1)
    at_line = first == NEWLINE
    lines = int(at_line)  # number of lines that have begun
    record = _Record(most) if at_line and not odd else None  # None: no record has begun yet
    line, offset = 0, begin
    while offset < file.size and (offset < end or record):
        chunk = bytearray(min(CHUNK_BYTES if offset < end else TAIL_BYTES, file.size - offset))
        file.read_into(chunk, offset)
        start = len(BOM) if offset == 0 and chunk.startswith(BOM) else 0
        while (stop := chunk.find(NEWLINE, start)) >= 0:
            odd ^= bool(chunk.count(QUOTE, start, stop) & 1)
            if record:
                record.add(chunk[start : stop + odd])
            after, start = offset + stop + 1, stop + 1
            if not odd:
                if record:
                    yield line, record.whole(), after
                if after >= end:
                    return
                record, line = _Record(most), lines
            lines += 1
        odd ^= bool(chunk.count(QUOTE, start) & 1)
        if record:
            record.add(chunk[start:])
        offset += len(chunk)
    if record and not record.is_empty:
        yield line, record.whole(), file.size


def line_starts(file: InputFile, begin: int, end: int, odd: bool) -> tuple[int, bool]:
    """(number of lines that begin in bytes [begin, end), whether an odd number of quotes is before `end`). odd: the
    same for `begin`."""
    count = int(begin == 0)
    first = max(begin - 1, 0)
    for offset in range(first, end, CHUNK_BYTES):
        chunk = bytearray(min(CHUNK_BYTES, end - offset))
        file.read_into(chunk, offset)
        count += chunk.count(NEWLINE, 0, len(chunk) - (offset + len(chunk) == end))
        odd ^= bool(chunk.count(QUOTE, int(offset < begin)) & 1)
    return count, odd


class _Record:
    """The bytes of a record up to now. most: with more bytes it is too long, and they are dropped."""

    def __init__(self, most: int) -> None:
        self._bytes, self._most, self._too_long = bytearray(), most, False

    def add(self, part: bytearray) -> None:
        self._bytes += part
        if len(self._bytes) > self._most:
            self._bytes, self._too_long = bytearray(), True

    def whole(self) -> bytes | None:
        """The record, or None if it is too long."""
        return None if self._too_long else bytes(self._bytes)

    @property
    def is_empty(self) -> bool:
        return not self._bytes and not self._too_long
