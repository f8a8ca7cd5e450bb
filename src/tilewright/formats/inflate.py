"""Deflated data is expanded piece by piece, in memory that does not depend on the size that the data claims."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from copy import copy

ZLIB, GZIP = 15, 31  # zlib's numbers (wbits) for the two formats
FIRST_BYTES, MOST_BYTES = 256, 64 << 10  # of compressed data per call, because zlib copies what it has not used
EMPTY_MEMBERS = 1000  # the most in a row: no program writes so many, and each costs time without output


class Inflater:
    """Expands one zlib stream, or all members of a gzip file. read: returns at most `count` bytes of compressed data,
    fewer only at the end. Raises zlib.error for damaged data."""

    def __init__(self, read: Callable[[int], bytes | memoryview], wbits: int) -> None:
        self._read, self._wbits = read, wbits
        self._left: bytes | memoryview = b""
        self._inflate = zlib.decompressobj(wbits)
        self._count, self._empty, self._had = FIRST_BYTES, 0, False
        self.whole = False  # the data ended at the end of a stream or member

    def copy(self, read: Callable[[int], bytes | memoryview]) -> Inflater:
        """A second Inflater that continues from this position independently, with the data of `read`."""
        other = copy(self)
        other._read, other._inflate = read, self._inflate.copy()
        return other

    def next(self, count: int) -> bytes:
        """Between 1 and `count` bytes; none at the end of the data."""
        while True:
            if not self._left:
                self._left = self._read(self._count)
                self._count = min(2 * self._count, MOST_BYTES)
                if not self._left:
                    self.whole = self._inflate.eof
                    return b""
            if self._inflate.eof:
                self._start_member()
            part = self._inflate.decompress(self._left, count)
            self._left = self._inflate.unconsumed_tail or self._inflate.unused_data
            if part:
                self._had = True
                return part

    def _start_member(self) -> None:
        if self._wbits != GZIP:
            raise zlib.error("there is more data after the end of the stream")
        self._empty = 0 if self._had else self._empty + 1
        if self._empty >= EMPTY_MEMBERS:
            raise zlib.error(f"{EMPTY_MEMBERS:,} members in a row expand to nothing")
        self._inflate = zlib.decompressobj(self._wbits)
        self._count, self._had = FIRST_BYTES, False


def expanded_bytes(data: memoryview, wbits: int, limit: int) -> int | None:
    """The number of bytes that `data` expands to, counted up to at least `limit` + 1. None for data that is damaged or
    cut short."""
    position = 0

    def read(count: int) -> memoryview:
        nonlocal position
        piece = data[position : position + count]
        position += len(piece)
        return piece

    inflater, total = Inflater(read, wbits), 0
    try:
        while total <= limit and (part := inflater.next(1 << 20)):
            total += len(part)
    except zlib.error:
        return None
    return total if total > limit or inflater.whole else None
