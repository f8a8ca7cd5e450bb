"""Volumes that lie in a file number behind number: .npy and uncompressed NIfTI, read and written by position."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from types import TracebackType
from typing import Self

import numpy as np

from tilewright.errors import ResourceError
from tilewright.formats.atomic import AtomicFile
from tilewright.formats.files import InputFile, naming
from tilewright.formats.npy import header_bytes, read_header
from tilewright.formats.volumes import PIECE_BYTES, Box, Shape, Volume, boxes, check_shape, scaled


class RawVolume(Volume):
    """Numbers of `dtype` from byte `offset` of an open file; fortran: the first index runs fastest.

    Its values are numbers * slope + intercept. Reads go by position, so a file that shrinks is an error and no SIGBUS.
    """

    def __init__(self, file: InputFile, shape: Shape, dtype: np.dtype, offset: int, *, fortran: bool = False) -> None:
        super().__init__(file.path, shape, dtype)
        self.scale: tuple[float, float] | None = None
        self._file, self._offset, self._fortran = file, offset, fortran
        self.unit = (*shape[:1], 1, 1) if fortran else (1, 1, shape[2])
        self._scratch = np.empty(0, np.uint8)

    def close(self) -> None:
        self._file.close()

    def _pieces(self, start: tuple[int, ...], shape: tuple[int, ...]) -> Iterator[tuple[Box, np.ndarray]]:
        outermost = 2 if self._fortran else 0
        for place in boxes(shape, self.dtype.itemsize, axis=outermost):
            first = [a + s.start for a, s in zip(start, place, strict=True)]
            sizes = [s.stop - s.start for s in place]
            if self._fortran:
                piece = self._read(first[::-1], sizes[::-1], self.shape[::-1]).T
            else:
                piece = self._read(first, sizes, self.shape)
            yield place, scaled(piece, self.scale)

    def _read(self, start: list[int], sizes: list[int], shape: tuple[int, ...]) -> np.ndarray:
        """A box of a file in C order, into memory that the next call uses again."""
        wanted = math.prod(sizes) * self.dtype.itemsize
        if self._scratch.size < wanted:
            self._scratch = np.empty(wanted, np.uint8)
        memory = self._scratch[:wanted]
        for begin, first, count in runs(start, sizes, shape):
            size = self.dtype.itemsize
            self._file.read_into(memory[begin * size : (begin + count) * size].data, self._offset + first * size)
        return memory.view(self.dtype).reshape(sizes)


class HeldOutput:
    """A volume that is held in memory and written when it is complete, by a subclass's `_write` to `_file`."""

    unit: Shape = (1, 1, 1)
    working = 4 * PIECE_BYTES

    def __init__(self, path: str, shape: Shape, dtype: np.dtype) -> None:
        self._file = AtomicFile(path)
        self._shape, self._dtype = shape, dtype
        self.held = math.prod(shape) * np.dtype(dtype).itemsize

    def __enter__(self) -> Self:
        self._file.__enter__()
        self.array = np.full(self._shape, 0, self._dtype)  # memory that is touched: the work's time is its own
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if error is None:
                self._write()
        except BaseException:
            self._file.discard()
            raise
        self._file.__exit__(kind, error, trace)

    def write(self, start: tuple[int, int, int], tile: np.ndarray) -> None:
        """Puts tile (d, h, w) at `start`."""
        self.array[tuple(slice(a, a + n) for a, n in zip(start, tile.shape, strict=True))] = tile

    def _write(self) -> None:
        raise NotImplementedError


class RawOutput(AtomicFile):
    """A file of `header` and the numbers of a volume behind it, written tile by tile in any order."""

    held = 0
    working = 4 * PIECE_BYTES

    def __init__(self, path: str, header: bytes, shape: Shape, dtype: np.dtype, *, fortran: bool = False) -> None:
        super().__init__(path)
        self._header, self._shape, self._dtype, self._fortran = header, shape, dtype, fortran
        self.unit: Shape = (1, 1, 1)
        self._begin = 0  # byte of the first value

    def __enter__(self) -> RawOutput:
        super().__enter__()
        try:
            self._check_room()
            with naming(self.path, "write"):
                self._begin = self._write_header()
        except BaseException:
            self.discard()
            raise
        return self

    def _write_header(self) -> int:
        """Writes what stands before the values, and makes the file as long as it will be; the byte of the first."""
        AtomicFile.write(self, self._header)
        os.ftruncate(self._fd, len(self._header) + math.prod(self._shape) * self._dtype.itemsize)
        return len(self._header)

    def _check_room(self) -> None:
        """A disk that is too small is found before the work."""
        with naming(self.path, "write"):
            disk = os.fstatvfs(self._fd)
        free, total = disk.f_bavail * disk.f_frsize, math.prod(self._shape) * self._dtype.itemsize
        if total > free:
            what = f"cannot write: the output takes {total:,} bytes and the disk has {free:,} left"
            raise ResourceError(what, path=self.path, hint="free some space or write to another disk")

    def write(self, start: tuple[int, int, int], tile: np.ndarray) -> None:  # type: ignore[override]
        """Puts tile (d, h, w), of the output's dtype, at `start`."""
        for place in boxes(tile.shape, self._dtype.itemsize, axis=2 if self._fortran else 0):
            first, piece, shape = [a + s.start for a, s in zip(start, place, strict=True)], tile[place], self._shape
            if self._fortran:
                first, piece, shape = first[::-1], piece.T, shape[::-1]
            self._write_piece(first, np.ascontiguousarray(piece), shape)

    def _write_piece(self, first: list[int], piece: np.ndarray, shape: Shape) -> None:
        values, size = piece.reshape(-1), self._dtype.itemsize
        with naming(self.path, "write"):
            for begin, at, count in runs(first, list(piece.shape), shape):
                view, offset = values[begin : begin + count].view(np.uint8).data, self._begin + at * size
                while len(view):
                    done = os.pwrite(self._fd, view, offset)
                    view, offset = view[done:], offset + done


def runs(start: list[int], sizes: list[int], shape: tuple[int, ...]) -> Iterator[tuple[int, int, int]]:
    """(element of the box, element of the volume, count) of the runs that a box of a volume in C order is made of."""
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
    """The .npy file as a volume of three dimensions. Raises InputError as `read_header` and for other dimensions."""
    file = InputFile(path, what)
    try:
        header = read_header(file)
        shape = check_shape(path, header.shape, header.dtype)
        return RawVolume(file, shape, header.dtype, header.offset, fortran=header.fortran)
    except BaseException:
        file.close()
        raise


def npy_output(path: str, shape: Shape, dtype: np.dtype) -> RawOutput:
    """A .npy file of float32 or float64 in C order, as `numpy.save` would write it."""
    return RawOutput(path, header_bytes(shape, np.dtype(dtype).newbyteorder("<")), shape, np.dtype(dtype))
