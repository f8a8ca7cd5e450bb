"""The course's text files of volumes ("D H W " and its values) and of kernels ("K " and K^3 values)."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tilewright.errors import InputError
from tilewright.formats.atomic import AtomicFile, Headed
from tilewright.formats.files import InputFile
from tilewright.formats.volumes import ArrayVolume, Shape, check_memory

PIECE = 1 << 20  # bytes of text that are parsed at a time
WRITTEN = 1 << 15  # values that are formatted at a time
NUMERIC = b"0123456789+-.eE \t\n\v\f\r"  # the characters of numbers and of the space between them


def open_text(path: str, what: str, *, memory: int | None = None, headers: bool = False) -> ArrayVolume:
    """A volume as text, which is held in memory as float32. headers: see `open_volume`.

    Raises InputError if its sizes are not positive integers or do not match the number of values, or if a value is not
    a finite number. If the file is too short for its sizes, this is found before anything is allocated. Raises
    ResourceError if the volume does not fit into `memory` bytes.
    """
    with InputFile(path, what) as file:
        sizes, begin = _sizes(file, 3, "three sizes D H W of at least 1")
        return ArrayVolume(path, _values(file, tuple(sizes), begin, memory, headers=headers))


def read_text_kernel(path: str) -> np.ndarray:
    """float32 (K, K, K). Raises InputError as `open_text`, and for an even K."""
    with InputFile(path, "kernel") as file:
        (K,), begin = _sizes(file, 1, "one size K of at least 1, then K x K x K taps")
        if K % 2 == 0:
            what = f"the kernel's size is {K}; a kernel as text has an odd one"
            raise InputError(what, path=path, where="its first number", remedy="give an even kernel as .npy")
        return _values(file, (K, K, K), begin, None)


def _sizes(file: InputFile, count: int, wanted: str) -> tuple[list[int], int]:
    """The first `count` integers, and the offset of the byte after them."""
    head = bytearray(min(file.size, 256))
    file.read_into(head, 0)
    found = re.match(rb"\s*" + rb"\s+".join([rb"(\d{1,9})"] * count) + rb"(?=\s|$)", head)
    sizes = [int(word) for word in found.groups()] if found else [0]
    if not found or min(sizes) < 1:
        begins = bytes(head[:24]).decode("ascii", "replace")
        raise InputError(f"begins with {begins!r}; {wanted}, are wanted", path=file.path, where="byte 0")
    return sizes, found.end()


def _values(
    file: InputFile, shape: tuple[int, ...], begin: int, memory: int | None, *, headers: bool = False
) -> np.ndarray:
    total = math.prod(shape)
    most = (file.size - begin) // 2  # each value takes at least two bytes: itself and a space before it
    if total > most:
        raise _count_error(file, shape, f"the {file.size:,} bytes hold at most {most:,}")
    check_memory(file.path, 4 * total, memory)
    if headers:
        return np.broadcast_to(np.float32(0), shape)
    values, done = np.empty(total, np.float32), 0
    for offset, text in _texts(file, begin):
        piece = _numbers(file, text, offset, done)
        if done + piece.size > total:
            raise _count_error(file, shape, "the file holds more")
        with np.errstate(over="ignore"):
            values[done : done + piece.size] = piece
        _check_finite(file, values[done : done + piece.size], done, shape)
        done += piece.size
    if done != total:
        raise _count_error(file, shape, f"the file holds {done:,}")
    return values.reshape(shape)


def _texts(file: InputFile, begin: int) -> Iterator[tuple[int, bytes]]:
    """(offset, bytes) of pieces of text that end between two values."""
    carry = b""
    for offset in range(begin, file.size, PIECE):
        piece = bytearray(min(PIECE, file.size - offset))
        file.read_into(piece, offset)
        text = carry + bytes(piece)
        start = offset - len(carry)
        if offset + len(piece) < file.size:
            cut = max(text.rfind(space) for space in (b" ", b"\n", b"\t", b"\r")) + 1
            if cut == 0 and len(text) > 4096:
                raise InputError("more than 4,096 characters without a space", path=file.path, where=f"byte {start}")
            text, carry = text[:cut], text[cut:]
        yield start, text


def _numbers(file: InputFile, text: bytes, offset: int, done: int) -> np.ndarray:
    """float64 (n,): the values of a piece of text. done: number of values before it."""
    if not text.strip():
        return np.empty(0)
    if not text.translate(None, NUMERIC):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", DeprecationWarning)
                return np.fromstring(text, np.float64, sep=" ")
        except (ValueError, DeprecationWarning):  # DeprecationWarning before NumPy 2.3
            pass
    words = list(re.finditer(rb"\S+", text))
    bad = next((i for i, word in enumerate(words) if not _is_number(word[0])), 0)
    shown, byte = words[bad][0][:40].decode("ascii", "replace"), offset + words[bad].start()
    raise InputError(f"{shown!r} is no finite number", path=file.path, where=f"value {done + bad}, byte {byte}")


def _is_number(word: bytes) -> bool:
    try:
        return not word.translate(None, NUMERIC) and math.isfinite(float(word))
    except ValueError:
        return False


def _check_finite(file: InputFile, values: np.ndarray, done: int, shape: tuple[int, ...]) -> None:
    finite = np.isfinite(values)
    if not finite.all():
        at = done + int(np.argmin(finite))
        index = [int(i) for i in np.unravel_index(at, shape)]
        raise InputError("the value is too large for float32", path=file.path, where=f"value {at}, voxel {index}")


def _count_error(file: InputFile, shape: tuple[int, ...], found: str) -> InputError:
    product = " x ".join(str(n) for n in shape)
    what = f"its sizes ask for {product} = {math.prod(shape):,} values; {found}"
    return InputError(what, path=file.path, remedy="correct the sizes or the data")


@dataclass(frozen=True)
class TextForm:
    """A volume as text: "D H W ", then "%f " per value."""

    shape: Shape
    unit: ClassVar[Shape] = (1, 1, 1)
    axis: ClassVar[int] = 0

    def encode(self, slab: np.ndarray) -> Iterator[bytes]:
        """The text of some of its planes."""
        flat = slab.reshape(-1)
        for first in range(0, flat.size, WRITTEN):
            values = flat[first : first + WRITTEN].tolist()
            yield (("%f " * len(values)) % tuple(values)).encode()

    def encoder(self, file: AtomicFile) -> Headed:
        """A writer of the sizes, followed by the results of `encode`."""
        return Headed(file, " ".join(map(str, self.shape)).encode() + b" ")
