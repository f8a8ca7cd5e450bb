"""A volume that is read box by box: the base class of every format's reader, a volume in memory, and common checks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product
from types import TracebackType
from typing import Any

import numpy as np

from tilewright.errors import InputError, NotEnoughMemory, counted
from tilewright.formats.names import axes_of

PIECE_BYTES = 4 << 20  # bytes that are read, checked and converted at a time: they stay in a core's cache

Box = tuple[slice, slice, slice]
Shape = tuple[int, int, int]


class Volume:
    """A volume of numbers that can be read in boxes. A subclass for a file format defines `_pieces`.

    shape: (D, H, W). dtype: of the stored numbers. wide: they need float64. finite: refuse values that are not finite.
    unit: boxes whose edges are at its multiples are read with the least work. held: bytes that stay in memory until
    `close`; 0 for a volume that is read from the disk box by box. working: bytes that a read needs in addition. header:
    the part that an output of the same format keeps.
    """

    held = 0
    working = 4 * PIECE_BYTES

    def __init__(self, path: str, shape: Shape, dtype: np.dtype, unit: Shape = (1, 1, 1)) -> None:
        self.path, self.shape, self.dtype, self.unit = path, shape, dtype, unit
        self.header: Any = None
        self.wide = dtype == np.float64
        self.finite = True

    def __enter__(self) -> Volume:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close files and free memory."""

    def read_into(self, start: tuple[int, int, int], target: np.ndarray) -> None:
        """Fill target (d, h, w), float32 or float64, with the box that begins at `start`, converted.

        Raises InputError, which names the first number that is not finite, or if the file cannot be read.
        """
        for part, piece in self._pieces(start, target.shape):
            self._check_finite(piece, [a + b.start for a, b in zip(start, part, strict=True)])
            with np.errstate(invalid="ignore", over="raise" if self.finite else "ignore"):  # NaN may signal
                try:
                    target[part] = piece
                except FloatingPointError as error:
                    what = f"values of {self.dtype}, scaled as the header says, are too large for {target.dtype}"
                    raise InputError(what, path=self.path, remedy="store the volume as float64") from error

    def load(self, dtype: np.dtype) -> np.ndarray:
        """The whole volume, C-contiguous, converted. If it is of `dtype`, this is its own array. Raises as
        `read_into`."""
        array = np.empty(self.shape, dtype)
        self.read_into((0, 0, 0), array)
        return array

    def _pieces(self, start: tuple[int, ...], shape: tuple[int, ...]) -> Iterator[tuple[Box, np.ndarray]]:
        """(position in the box, numbers) of pieces that together fill the box."""
        raise NotImplementedError

    def _check_finite(self, piece: np.ndarray, start: list[int]) -> None:
        if piece.dtype.kind != "f" or not self.finite:
            return
        with np.errstate(all="ignore"):
            if np.isfinite(piece.sum()):  # one fast pass; if the sum overflows, the numbers are checked one by one
                return
        finite = np.isfinite(piece)
        if finite.all():
            return
        index = np.unravel_index(int(np.argmin(finite)), piece.shape)
        voxel = [int(a + b) for a, b in zip(start, index, strict=True)]
        raise InputError(
            f"the value is {piece[index]}; every value must be finite",
            path=self.path,
            where=f"voxel {voxel}",
            remedy="replace such values first: one would spread to all voxels that the kernel reaches from it",
        )


class ArrayVolume(Volume):
    """A volume in memory: array (D, H, W) of any real dtype and strides; its values are array * slope + intercept."""

    def __init__(self, path: str, array: np.ndarray) -> None:
        super().__init__(path, array.shape, array.dtype)  # type: ignore[arg-type]
        self._array: np.ndarray = array
        self.scale: tuple[float, float] | None = None
        self.held = array.nbytes

    def load(self, dtype: np.dtype) -> np.ndarray:
        """See `Volume.load`."""
        if self.scale is not None or self._array.dtype != dtype or not self._array.flags.c_contiguous:
            return super().load(dtype)
        self._check_finite(self._array, [0, 0, 0])
        return self._array

    def _pieces(self, start: tuple[int, ...], shape: tuple[int, ...]) -> Iterator[tuple[Box, np.ndarray]]:
        box = self._array[tuple(slice(a, a + n) for a, n in zip(start, shape, strict=True))]
        for part in boxes(shape, self.dtype.itemsize):
            yield part, scaled(box[part], self.scale)


def boxes(shape: tuple[int, ...], itemsize: int, axis: int = 0) -> Iterator[Box]:
    """Boxes of at most PIECE_BYTES, or one plane, that fill `shape`. They are divided along `axis`."""
    plane = itemsize * math.prod(shape) // max(1, shape[axis])
    step = max(1, PIECE_BYTES // max(1, plane))
    whole = [slice(0, n) for n in shape]
    for first in range(0, shape[axis], step):
        whole[axis] = slice(first, min(first + step, shape[axis]))
        yield tuple(whole)  # type: ignore[misc]


def aligned_boxes(start: tuple[int, ...], shape: tuple[int, ...], unit: Shape, most: int) -> Iterator[Box]:
    """Boxes that fill `shape`, divided at the volume's units. Each is one unit, or as many as fit into `most` voxels.

    start: of the first box in the volume.
    """
    units = max(1, most // math.prod(unit))  # the most units of a box, first along x, then y, then z
    cuts: list[list[tuple[int, int]]] = []
    for first, count, size in reversed(list(zip(start, shape, unit, strict=True))):
        span = -(-(first + count) // size) - first // size
        step = min(units, span)
        units //= step
        edges = range(first // size * size, first + count, step * size)
        cuts.append([(max(e, first) - first, min(e + step * size, first + count) - first) for e in edges])
    for z, y, x in product(*reversed(cuts)):
        yield slice(*z), slice(*y), slice(*x)


def scaled(piece: np.ndarray, scale: tuple[float, float] | None) -> np.ndarray:
    """piece * slope + intercept in float64. Without a scale, piece itself."""
    if scale is None:
        return piece
    with np.errstate(invalid="ignore", over="ignore"):  # a NaN may signal; what is not finite is refused afterwards
        return piece * np.float64(scale[0]) + np.float64(scale[1])


def check_shape(path: str, shape: tuple[int, ...], dtype: np.dtype, *, kernel: bool = False) -> Shape:
    """Returns `shape`, of a volume or kernel. Raises InputError unless it has three dimensions and voxels, and dtype is
    bool, integer or float of at most 64 bits."""
    if len(shape) != 3:
        what, axes = ("kernel", "(KD, KH, KW)") if kernel else ("volume", axes_of(path))
        raise InputError(
            f"the {what} has {counted(len(shape), 'dimension')}, {shape}; three are wanted: {axes}",
            path=path,
            remedy=_to_three_dimensions(path, shape, kernel=kernel),
        )
    if min(shape) < 1 or max(shape) >= 1 << 48 or math.prod(shape) >= 1 << 56:
        raise InputError(f"the shape is {shape}; every size must be at least 1", path=path)
    if dtype.kind not in "biuf" or dtype.itemsize > 8:
        raise InputError(f"the values are {dtype}; bool, integers or floats of up to 64 bits are wanted", path=path)
    return shape  # type: ignore[return-value]


def _to_three_dimensions(path: str, shape: tuple[int, ...], *, kernel: bool) -> str:
    """What to do about a volume or kernel with another number of dimensions."""
    if kernel:
        return "give a kernel of one plane as (1, KH, KW), and of one line as (1, 1, KW)"
    if len(shape) > 3:
        return "save one channel or one time of it as a file of its own"
    if len(shape) < 2:
        return "use tilewright.ndimage in Python, which filters arrays of fewer dimensions"
    last = axes_of(path) == "(i, j, k)"
    plane, kernel_name = ("array[:, :, None]", "gaussian:1.5,1.5,0") if last else ("array[None]", "gaussian:0,1.5,1.5")
    return (
        f"save the image as a volume of one plane, {plane}, and give a kernel of one plane, such as {kernel_name}; or "
        "use tilewright.ndimage in Python, which filters images"
    )


class MemoryShort(NotEnoughMemory):
    """More memory is needed than a job may take. missing: bytes that this process lacks, if known.

    remedy: what else would help. `advise` changes the remedy.
    """

    def __init__(self, message: str, *, missing: int = 0, path: str | None = None, remedy: str | None = None) -> None:
        super().__init__(message, path=path)
        self.missing, self.instead = missing, remedy
        self.advise()

    def advise(self, *, enough: int | None = None) -> None:
        """Set the remedy to the memory in bytes that would be enough, and to `instead`, which would help, too."""
        about = f", about {enough >> 20}M" if enough else ""
        self.remedy = f"give more --memory{about}" + (f", or {self.instead}" if self.instead else "")


def check_memory(path: str, needed: int, memory: int | None) -> None:
    """Raises MemoryShort if a volume that is held in memory needs more bytes than `memory`."""
    if memory is not None and needed > max(memory, 0):
        raise MemoryShort(
            f"the volume takes {needed:,} bytes in memory, and {max(memory, 0):,} are left",
            missing=needed - memory,
            path=path,
            remedy="use .npy, .nii or .zarr, which are read and written in tiles",
        )
