"""Image files: the course's text and .bmp, .npy, and PNG with one image per file or all in a grid.

Images are float32 (n, height, width, channels) with values from -1 to 1, or their 8-bit pixels.
"""

from __future__ import annotations

import io
import math
import os
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np

from tilewright.errors import InputError, UsageError
from tilewright.formats.atomic import AtomicFile
from tilewright.formats.npy import header_bytes
from tilewright.formats.tables import suffix

SCALE = 10_000  # "%.4f" has four decimals
NEGATIVE_ZERO = 2 * SCALE + 1  # the index of "-0.0000 " in the table of texts
BMP_HEADER = 54  # bytes: 14 of the file's header and 40 of the image's
MAX_BMP_BYTES, MAX_SIDE = 2**32 - 1, 2**31 - 1  # the limits of fields in their headers
KINDS = (".txt", ".npy", ".png", ".bmp")
PIXELS = {1: "L", 3: "RGB"}  # channels -> Pillow's name
PNG_NAME = re.compile(r"\d{5,}\.png")


def kind_of(path: str) -> str:
    """The kind of an output: "/" for a directory, which ends with "/" or exists already; otherwise one of KINDS.

    Raises UsageError for another name.
    """
    if path.endswith("/") or os.path.isdir(path):
        return "/"
    if suffix(path) not in KINDS:
        raise UsageError(f"images are written to {', '.join(KINDS)}, or to a directory", path=path,
                         remedy="end its name with one of these, or with / for one .png per image")  # fmt: skip
    return suffix(path)


def text_header(count: int) -> bytes:
    """The beginning of the course's text: the number of images. One line per image follows."""
    return b"%d\n" % count


def text_of(images: np.ndarray) -> bytes:
    """The course's text of images: one line per image, each value as "%.4f "."""
    return b"".join(formatted(image) + b"\n" for image in images)


def array_header(count: int, shape: tuple[int, ...]) -> bytes:
    """The beginning of a .npy file of float32 (count, *shape)."""
    return header_bytes((count, *shape), np.dtype("<f4"))


class GridEncoder:
    """All images as tiles of one picture, row by row, with black unused tiles. Their 8-bit pixels are kept until the
    end.

    suffix: ".bmp" for a square of tiles, or ".png" with only as many rows as are needed.
    """

    def __init__(self, file: Any, count: int, shape: tuple[int, int, int], suffix: str) -> None:
        self._file, self._suffix, self._done = file, suffix, 0
        rows, self._columns = grid(count, suffix)
        self._height, self._width, channels = self._shape = shape
        self._canvas = np.zeros((rows * self._height, self._columns * self._width, channels), np.uint8)
        self._rest = bytearray()  # the beginning of an incomplete image

    def write(self, block: bytes | memoryview) -> None:
        """Add pixels that follow those before, in pieces of any size."""
        pixels = np.frombuffer(block, np.uint8)
        size = math.prod(self._shape)
        if self._rest:  # complete this image first
            more = -len(self._rest) % size
            self._rest += pixels[:more].tobytes()
            pixels = pixels[more:]
            if len(self._rest) == size:
                self._draw(np.frombuffer(self._rest, np.uint8))
                self._rest = bytearray()
        whole = len(pixels) // size * size
        self._draw(pixels[:whole])
        self._rest += pixels[whole:].tobytes()

    def _draw(self, pixels: np.ndarray) -> None:
        """Draw whole images, one row of tiles at a time."""
        height, width, channels = self._shape
        tiles = pixels.reshape(-1, height, width, channels)
        slots = self._canvas.reshape(-1, height, self._columns, width, channels)
        while len(tiles):
            row, column = divmod(self._done, self._columns)
            some = tiles[: self._columns - column]
            slots[row, :, column : column + len(some)] = some.transpose(1, 0, 2, 3)
            self._done += len(some)
            tiles = tiles[len(some) :]

    def finish(self) -> None:
        """Write the picture."""
        if self._suffix == ".png":
            write_png(self._file, self._canvas)
        else:
            write_bmp(self._file, self._canvas)


def png_of(picture: np.ndarray) -> bytes:
    """uint8 (height, width, 1 or 3) as a .png file."""
    stream = io.BytesIO()
    write_png(stream, picture)
    return stream.getvalue()


def png_name(number: int) -> str:
    """The file name of an image in a directory."""
    return f"{number:05d}.png"


def png_names(directory: str) -> frozenset[str]:
    """The names of files in a directory that an earlier job wrote there."""
    names = os.listdir(directory) if os.path.isdir(directory) else ()
    return frozenset(name for name in names if PNG_NAME.fullmatch(name))


def grid(count: int, suffix: str) -> tuple[int, int]:
    """(rows, columns) of tiles for `count` images, with as many columns as in a square."""
    columns = math.isqrt(max(count - 1, 0)) + 1
    return (columns if suffix == ".bmp" else -(-count // columns)), columns


def bmp_bytes(count: int, shape: tuple[int, int, int]) -> int:
    """Bytes of a .bmp file with all images."""
    rows, columns = grid(count, ".bmp")
    return BMP_HEADER + rows * shape[0] * _stride(columns * shape[1])


def check_grid(path: str, count: int, shape: tuple[int, int, int], suffix: str) -> int:
    """Bytes of memory for a GridEncoder and its output. Raises UsageError for a picture that its file format cannot
    hold."""
    rows, columns = grid(count, suffix)
    height, width = rows * shape[0], columns * shape[1]
    size = bmp_bytes(count, shape)
    if max(height, width) > MAX_SIDE or (suffix == ".bmp" and size > MAX_BMP_BYTES):
        limit = f"{MAX_BMP_BYTES:,} bytes" if suffix == ".bmp" else f"{MAX_SIDE:,} pixels per side"
        raise UsageError(
            f"{count:,} images make a picture of {width:,} x {height:,} pixels; a {suffix} file holds {limit}",
            path=path,
            remedy="ask for fewer images, or write one file per image into a directory",
        )
    own = height * width * shape[2]
    return own + height * width * (4 if suffix == ".png" else 0)  # Pillow keeps 4 bytes per pixel


def check_channels(path: str, channels: int) -> None:
    """Raises UsageError if a picture cannot have so many channels."""
    if channels not in PIXELS:
        raise UsageError(f"the model's images have {channels} channels; pictures have 1 or 3", path=path,
                         remedy="write them to a .npy or .txt file")  # fmt: skip


def check_finite_images(images: np.ndarray, first: int) -> None:
    """Raises InputError, which names the first image that is not finite, if there is one. first: number of the first
    image."""
    finite = np.isfinite(images).all(axis=(1, 2, 3))
    if not finite.all():
        raise InputError(f"image {first + int(np.argmin(finite))} (from 0) is not finite",
                         remedy="use another checkpoint: its weights are too large for the sums to stay in"
                         " range")  # fmt: skip


def pixels(images: np.ndarray) -> np.ndarray:
    """uint8 of the same shape: int((x + 1) / 2 * 255) in float32, truncated. uint8 images are returned unchanged."""
    if images.dtype == np.uint8:
        return images
    scaled = (images + np.float32(1)) / np.float32(2) * np.float32(255)
    return np.clip(scaled, 0, 255).astype(np.uint8)


def formatted(values: np.ndarray) -> bytes:
    """Each float32 of an array in printf's format "%.4f ".

    A float32 times 10**4 needs 38 bits, so float64 holds it exactly. `rint` then rounds as printf does, ties to even.
    """
    flat = values.reshape(-1)
    scaled = np.rint(flat.astype(np.float64) * SCALE)
    if not (np.abs(scaled) <= SCALE).all():
        return "".join(f"{value:.4f} " for value in flat.tolist()).encode()
    indices = scaled.astype(np.int32)
    indices += SCALE
    indices[(indices == SCALE) & np.signbit(flat)] = NEGATIVE_ZERO
    return _texts()[indices].tobytes().translate(None, b"\0")


@cache
def _texts() -> np.ndarray:
    """uint64 (2 * SCALE + 2,): the 8 bytes of every text from "-1.0000 " to "1.0000 ", and of "-0.0000 "."""
    texts = [b"%.4f " % (value / SCALE) for value in range(-SCALE, SCALE + 1)]
    return np.array([*texts, b"-0.0000 "], "S8").view(np.uint64)


def write_bmp(file: AtomicFile, canvas: np.ndarray) -> None:
    """Write uint8 (height, width, 1 or 3), gray or red, green, blue: 24 bits per pixel, the lowest row first."""
    height, width, _ = canvas.shape
    size = height * _stride(width)
    fields = ((BMP_HEADER + size, 4), (0, 4), (BMP_HEADER, 4), (40, 4), (width, 4), (height, 4), (1, 2), (24, 2),
              (0, 4), (size, 4), (0, 4), (0, 4), (0, 4), (0, 4))  # fmt: skip
    file.write(b"BM" + b"".join(value.to_bytes(count, "little") for value, count in fields))
    for band in _bands(canvas):
        rows = np.zeros((len(band), _stride(width)), np.uint8)
        rows[:, : 3 * width].reshape(len(band), width, 3)[:] = band[::-1, :, ::-1]
        file.write(rows)


def _bands(canvas: np.ndarray) -> Iterator[np.ndarray]:
    """A few rows at a time, the lowest first."""
    step = 64
    for end in range(len(canvas), 0, -step):
        yield canvas[max(0, end - step) : end]


def _stride(width: int) -> int:
    """Bytes of a row, rounded up to whole 32-bit words."""
    return -(-3 * width // 4) * 4


def write_png(file: Any, canvas: np.ndarray) -> None:
    """Write uint8 (height, width, 1 or 3). file: an object with `write`."""
    from PIL import Image

    height, width, channels = canvas.shape
    picture = Image.frombuffer(PIXELS[channels], (width, height), np.ascontiguousarray(canvas), "raw",
                               PIXELS[channels], 0, 1)  # fmt: skip
    picture.save(file, "PNG")
