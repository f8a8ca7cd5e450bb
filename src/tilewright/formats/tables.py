"""Rows of numbers, noise or images, read a few rows at a time: from text that starts with their count, or from .npy."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import islice
from typing import NamedTuple, NoReturn

import numpy as np

from tilewright.errors import InputError, UsageError
from tilewright.formats.files import InputFile
from tilewright.formats.names import advice
from tilewright.formats.npy import read_header

CHUNK_BYTES = 1 << 20  # bytes of text that are parsed at a time
SCAN_BYTES = 4 << 20  # bytes of an array that are checked at a time
LONGEST = 64  # characters of a number; the longest float that printf writes has 48
SUFFIXES = (".txt", ".npy")


class Rows(NamedTuple):
    """values: float32 (n, *shape). end: bytes of the file used up to now."""

    values: np.ndarray
    end: int


class Table:
    """`with open_table(...) as table: for rows in table.batches(256)`. total: number of rows. bytes: of the file."""

    total: int

    def __init__(
        self, path: str | os.PathLike[str], shape: tuple[int, ...], what: str, row: str, checked: bool
    ) -> None:
        self.shape, self._width, self._row, self._checked = shape, math.prod(shape), row, checked
        self.file = InputFile(path, what)
        self.bytes = self.file.size

    def __enter__(self) -> Table:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file. It may be called twice."""
        self.file.close()

    def batches(self, size: int, rows: range | None = None) -> Iterator[Rows]:
        """These rows in order (None: all), `size` at a time."""
        raise NotImplementedError

    def _counted(self, rows: int, count: int | None) -> int:
        """The number of rows to use. Raises InputError if there are too few."""
        if rows == 0:
            raise InputError(f"the {self.file.what} holds no {self._row}s", path=self.file.path)
        if count is not None and count > rows:
            what = f"the {self.file.what} holds {rows:,} {self._row}s; {count:,} were asked for"
            raise InputError(what, path=self.file.path, remedy="lower -n")
        return rows if count is None else count

    def _check_finite(self, values: np.ndarray, first: int) -> None:
        """values: flat, from element `first` of the table on. Raises InputError, which names the first that is not
        finite."""
        finite = np.isfinite(values)
        if self._checked and not finite.all():
            at = int(np.argmin(finite))
            row, number = divmod(first + at, self._width)
            raise InputError(f"holds {values[at]}; finite 32-bit floats are wanted", path=self.file.path,
                             where=f"{self._row} {row}, number {number} (both from 0)")  # fmt: skip


class TextTable(Table):
    """n, then n rows of numbers, separated by any white space.

    checked: read the whole file once before any row is used, and refuse numbers that are not finite. Raises InputError
    for anything that is no number, and if the numbers are not exactly those of n rows.
    """

    def __init__(self, path, *, shape: tuple[int, ...], count: int | None, what: str, row: str, checked: bool) -> None:
        super().__init__(path, shape, what, row, checked)
        with ExitStack() as failing:
            failing.callback(self.close)
            self.stated = 0
            found = sum(len(values) for values, _ in islice(self._numbers(), None if checked else 1))
            if checked and found != self.stated * self._width:
                self._refuse(found)
            self.total = self._counted(self.stated, count)
            self._stream: Iterator[tuple[np.ndarray, int]] | None = None
            self._at, self._rest, self._end = 0, np.empty(0, np.float32), 0  # next row, parsed numbers
            failing.pop_all()

    def batches(self, size: int, rows: range | None = None) -> Iterator[Rows]:
        """These rows in order (None: all), `size` at a time. Rows after those of the last call are found by reading on,
        others by reading from the start."""
        rows = range(self.total) if rows is None else rows
        if self._stream is None or rows.start < self._at:
            self._stream, self._at, self._rest = self._numbers(), 0, self._rest[:0]
        while self._at < rows.start:
            self._next(min(size, rows.start - self._at))
        for first in range(rows.start, rows.stop, size):
            yield self._next(min(size, rows.stop - first))

    def _next(self, count: int) -> Rows:
        wanted, kept = count * self._width, [self._rest]
        held = len(self._rest)
        while held < wanted:
            values, self._end = next(self._stream or iter(()), (None, 0))
            if values is None:
                self._refuse(held + self._at * self._width)
            kept.append(values)
            held += len(values)
        flat = np.concatenate(kept)
        self._rest, self._at = flat[wanted:], self._at + count
        return Rows(flat[:wanted].reshape(count, *self.shape), self._end)

    def _numbers(self) -> Iterator[tuple[np.ndarray, int]]:
        """(flat finite float32, offset of the end) of all numbers after the count."""
        index = -1  # index of the count
        for fields, end in read_fields(self.file):
            if index < 0 and fields:
                self.stated, fields, index = self._count(fields[0]), fields[1:], 0
            values = self._parsed(fields, index)
            index += len(fields)
            if index > self.stated * self._width:
                self._refuse(index, "at least ")
            yield values, end
        if index < 0:
            raise InputError(f"the {self.file.what} is empty", path=self.file.path,
                             remedy=f"start it with the number of {self._row}s")  # fmt: skip

    def _count(self, field: bytes) -> int:
        if not re.fullmatch(rb"\d{1,18}", field):
            shown = field[:LONGEST].decode("latin-1")
            raise InputError(f"starts with {shown!r}; the number of {self._row}s is wanted", path=self.file.path)
        return int(field)

    def _parsed(self, fields: list[bytes], first: int) -> np.ndarray:
        try:
            if max(map(len, fields), default=0) > LONGEST:
                raise ValueError
            with np.errstate(over="ignore"):
                values = np.array(list(map(_number, fields)), np.float32)
        except ValueError:
            at = next(i for i, field in enumerate(fields) if not _is_number(field))
            row, number = divmod(first + at, self._width)
            shown = fields[at][:LONGEST].decode("latin-1")
            raise InputError(f"{shown!r} is no number", path=self.file.path,
                             where=f"{self._row} {row}, number {number} (both from 0)") from None  # fmt: skip
        self._check_finite(values, first)
        return values

    def _refuse(self, found: int, least: str = "") -> NoReturn:
        wanted = f"{self.stated:,} {self._row}s of {self._width:,} numbers are {self.stated * self._width:,}"
        raise InputError(
            f"the {self.file.what} starts with {self.stated}; {wanted}, and {least}{found:,} follow",
            path=self.file.path,
            remedy=f"check the file: it was cut short, or is for a model with other {self._row}s",
        )


class ArrayTable(Table):
    """Rows of a .npy file (n, *shape), of any real type. They are rounded to float32.

    checked: find numbers that are not finite before any row is used. Raises InputError for them, or for another shape.
    """

    def __init__(self, path, *, shape: tuple[int, ...], count: int | None, what: str, row: str, checked: bool) -> None:
        super().__init__(path, shape, what, row, checked)
        with ExitStack() as failing:
            failing.callback(self.close)
            self._header = read_header(self.file)
            found = self._header.shape
            if found[1:] != shape or len(found) != len(shape) + 1:
                wanted = f"({', '.join(map(str, ('n', *shape)))})"
                raise InputError(f"the {what} has shape {found}; {wanted} is wanted", path=self.file.path)
            if self._header.fortran and found[0] > 1:
                raise InputError(f"the {what} is in Fortran order; C order is read", path=self.file.path,
                                 remedy="save numpy.ascontiguousarray of it")  # fmt: skip
            self.total = self._counted(found[0], count)
            for _ in self.batches(max(1, SCAN_BYTES // (4 * self._width))) if checked else ():
                pass
            failing.pop_all()

    def batches(self, size: int, rows: range | None = None) -> Iterator[Rows]:
        """These rows in order (None: all), `size` at a time."""
        dtype, begin = self._header.dtype, self._header.offset
        rows = range(self.total) if rows is None else rows
        for first in range(rows.start, rows.stop, size):
            stored = np.empty((min(size, rows.stop - first), *self.shape), dtype)
            offset = begin + first * self._width * dtype.itemsize
            self.file.read_into(stored.reshape(-1).view(np.uint8).data, offset)
            with np.errstate(over="ignore"):
                values = stored.astype(np.float32, copy=False)
            self._check_finite(values.reshape(-1), first * self._width)
            yield Rows(values, offset + stored.nbytes)


def open_table(
    path: str | os.PathLike[str], *, shape: tuple[int, ...], count: int | None = None, what: str = "input",
    row: str = "image", checked: bool = True,
) -> Table:  # fmt: skip
    """The rows of a .txt or .npy file.

    shape: of a row. count: number of rows to use from the start; None: all. what, row: the words for the file and a row
    in messages. checked: read every number before any is
    used, and refuse NaN and infinity. Raises UsageError
    for another kind of file, and InputError.
    """
    kinds = {".txt": TextTable, ".npy": ArrayTable}
    kind = kinds.get(suffix(path))
    if kind is None:
        raise UsageError(
            f"the {what} is no {' or '.join(SUFFIXES)} file", path=path, remedy=advice(path, "save it as one")
        )
    return kind(path, shape=shape, count=count, what=what, row=row, checked=checked)


def suffix(path: str | os.PathLike[str]) -> str:
    """The suffix of a name in lower case, with its dot; "" if it has none."""
    return os.path.splitext(os.fspath(path))[1].lower()


def read_fields(file: InputFile) -> Iterator[tuple[list[bytes], int]]:
    """(fields between white space, offset of the end), one chunk at a time. Raises InputError for a field without an
    end."""
    carry = b""
    for offset in range(0, file.size, CHUNK_BYTES):
        chunk = bytearray(min(CHUNK_BYTES, file.size - offset))
        file.read_into(chunk, offset)
        end = offset + len(chunk)
        text = carry + bytes(chunk)
        fields = text.split()
        carry = fields.pop() if end < file.size and fields and not text[-1:].isspace() else b""
        if len(carry) > LONGEST:
            raise InputError(f"{carry[:LONGEST].decode('latin-1')!r}... is no number", path=file.path,
                             where=f"byte {end - len(carry)}")  # fmt: skip
        yield fields, end


def _number(field: bytes) -> float:
    if b"_" in field:  # Python accepts 1_000, other programs do not
        raise ValueError
    return float(field)


def _is_number(field: bytes) -> bool:
    try:
        _number(field)
    except ValueError:
        return False
    return len(field) <= LONGEST
