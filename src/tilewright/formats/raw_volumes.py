"""Volumes stored as a sequence of numbers: .npy and uncompressed NIfTI, read and written by position."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from tilewright.formats.files import InputFile
from tilewright.formats.npy import header_bytes, read_header
from tilewright.formats.volumes import Box, Shape, Volume, boxes, check_shape, scaled


class ByPosition(Protocol):
    """A file whose bytes are read by position."""

    path: str

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill `buffer` from the bytes at `offset`. Raises InputError."""

    def close(self) -> None:
        """Close the file."""


class RawVolume(Volume):
    """Numbers of `dtype` from byte `offset` of an open file. fortran: the first index varies fastest.

    Its values are numbers * slope + intercept. It reads by position, so a file that becomes shorter causes an error and
    no SIGBUS.
    """

    def __init__(self, file: ByPosition, shape: Shape, dtype: np.dtype, offset: int, *, fortran: bool = False) -> None:
        super().__init__(file.path, shape, dtype)
        self.scale: tuple[float, float] | None = None
        self._file, self._offset, self._fortran = file, offset, fortran
        self.unit = (*shape[:1], 1, 1) if fortran else (1, 1, shape[2])
        self._scratch = np.empty(0, np.uint8)

    def close(self) -> None:
        self._file.close()

    def _pieces(self, start: tuple[int, ...], shape: tuple[int, ...]) -> Iterator[tuple[Box, np.ndarray]]:
        outermost = 2 if self._fortran else 0
        for part in boxes(shape, self.dtype.itemsize, axis=outermost):
            first = [a + s.start for a, s in zip(start, part, strict=True)]
            sizes = [s.stop - s.start for s in part]
            if self._fortran:
                piece = self._read(first[::-1], sizes[::-1], self.shape[::-1]).T
            else:
                piece = self._read(first, sizes, self.shape)
            yield part, scaled(piece, self.scale)

    def _read(self, start: list[int], sizes: list[int], shape: tuple[int, ...]) -> np.ndarray:
        """A box of a file in C order. The next call uses the same memory again."""
        wanted = math.prod(sizes) * self.dtype.itemsize
        if self._scratch.size < wanted:
            self._scratch = np.empty(wanted, np.uint8)
        memory = self._scratch[:wanted]
        for begin, first, count in runs(start, sizes, shape):
            size = self.dtype.itemsize
            self._file.read_into(memory[begin * size : (begin + count) * size].data, self._offset + first * size)
        return memory.view(self.dtype).reshape(sizes)


@dataclass(frozen=True)
class RawForm:
    """A file of a volume's numbers, float32 or float64, between `head` and `tail`. fortran: the first index varies
    fastest. axis: along it, a slab that is whole along the other axes is stored contiguously."""

    shape: Shape
    dtype: np.dtype
    head: bytes
    tail: bytes = b""
    fortran: bool = False
    unit: ClassVar[Shape] = (1, 1, 1)

    @property
    def axis(self) -> int:
        return 2 if self.fortran else 0

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return len(self.head) + math.prod(self.shape) * self.dtype.itemsize + len(self.tail)

    def span(self, first: int, count: int) -> tuple[int, int]:
        """(offset, bytes) of a slab of `count` planes along `axis`."""
        plane = math.prod(self.shape) // self.shape[self.axis] * self.dtype.itemsize
        return len(self.head) + first * plane, count * plane

    def runs_of(self, start: Shape, tile: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
        """(offset, numbers) of each piece that a tile (d, h, w) at `start` writes."""
        stored = self.dtype.newbyteorder("<")
        for part in boxes(tile.shape, self.dtype.itemsize, axis=self.axis):
            first, piece, shape = [a + s.start for a, s in zip(start, part, strict=True)], tile[part], self.shape
            if self.fortran:
                first, piece, shape = first[::-1], piece.T, shape[::-1]
            values = np.ascontiguousarray(piece, stored).reshape(-1)
            for begin, at, count in runs(first, list(piece.shape), shape):
                yield len(self.head) + at * self.dtype.itemsize, values[begin : begin + count]


def runs(start: list[int], sizes: list[int], shape: tuple[int, ...]) -> Iterator[tuple[int, int, int]]:
    """(element of the box, element of the volume, count) of the contiguous runs that make up a box of a volume in C
    order."""
    _, H, W = shape
    d, h, w = sizes
    z, y, x = start
    if w == W and h == H:
        yield 0, z * H * W, d * h * w
    elif w == W:
        yield from ((i * h * w, ((z + i) * H + y) * W, h * w) for i in range(d))
    else:
        yield from (((i * h + j) * w, ((z + i) * H + y + j) * W + x, w) for i in range(d) for j in range(h))


def open_npy(path: str, what: str) -> RawVolume:
    """The .npy file as a volume of three dimensions. Raises InputError as `read_header` does, and for other
    dimensions."""
    file = InputFile(path, what)
    try:
        header = read_header(file)
        shape = check_shape(path, header.shape, header.dtype, kernel=what == "kernel")
        return RawVolume(file, shape, header.dtype, header.offset, fortran=header.fortran)
    except BaseException:
        file.close()
        raise


def npy_form(shape: Shape, dtype: np.dtype) -> RawForm:
    """A .npy file of float32 or float64 in C order, as `numpy.save` would write it."""
    return RawForm(shape, dtype, header_bytes(shape, dtype.newbyteorder("<")))
