"""NumPy's .npy files: the header is read as data, never evaluated, and checked against the file's size."""

from __future__ import annotations

import ast
import io
import math
import warnings
from dataclasses import dataclass

import numpy as np

from tilewright.errors import InputError
from tilewright.formats.files import InputFile

MAGIC = b"\x93NUMPY"
MAX_HEADER = 10_000  # bytes, NumPy's own limit: longer headers slow the parser down and describe no plain array
KINDS = "biuf"  # kinds of dtypes that are numbers


@dataclass(frozen=True)
class NpyHeader:
    """The content of a .npy file: numbers of `dtype` from byte `offset` on. fortran: the first index varies fastest."""

    shape: tuple[int, ...]
    dtype: np.dtype
    fortran: bool
    offset: int


def read_header(file: InputFile) -> NpyHeader:
    """The header of a .npy file of plain numbers (bool, integers, floats of up to 64 bits, either byte order).

    Raises InputError for anything else, such as objects, which are pickles, complex numbers or records. Also raises it
    if the header cannot be read, or if the size of the file differs from the header's.
    """
    text, offset = _header_text(file)
    shape, dtype, fortran = _parsed(file, text)
    expected = offset + math.prod(shape) * dtype.itemsize
    if file.size != expected:
        difference = f"{abs(file.size - expected):,} {'too many' if file.size > expected else 'missing'}"
        raise InputError(
            f"the header states {dtype} {shape}, which takes {expected:,} bytes; the file has {file.size:,} "
            f"({difference})",
            path=file.path,
            remedy="copy or download the file again: it was cut short or is damaged",
        )
    return NpyHeader(shape, dtype, fortran, offset)


def header_bytes(shape: tuple[int, ...], dtype: np.dtype, *, fortran: bool = False) -> bytes:
    """The header that `numpy.save` writes."""
    stream = io.BytesIO()
    fields = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": fortran, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, fields)
    return stream.getvalue()


def _header_text(file: InputFile) -> tuple[str, int]:
    """The header's text, and the offset of the first number."""
    start = bytearray(min(12, file.size))
    file.read_into(start, 0)
    if not file.size:
        raise InputError("the file is empty", path=file.path)
    if not start.startswith(MAGIC) or len(start) < 12 or start[6] not in (1, 2, 3):
        raise InputError(f"is no .npy file of version 1 to 3: it begins with {bytes(start[:8])!r}", path=file.path)
    width = 2 if start[6] == 1 else 4
    length = int.from_bytes(start[8 : 8 + width], "little")
    if length > MAX_HEADER:
        raise InputError(f"the header says it has {length:,} bytes; at most {MAX_HEADER:,} are allowed", path=file.path)
    if 8 + width + length > file.size:
        raise InputError(
            f"the file has {file.size:,} bytes, and its header alone takes {8 + width + length:,}",
            path=file.path,
            remedy="copy or download the file again: it was cut short or is damaged",
        )
    text = bytearray(length)
    file.read_into(text, 8 + width)
    return text.decode("utf-8" if start[6] == 3 else "latin-1", "replace"), 8 + width + length


def named_dtype(name: object) -> np.dtype:
    """The dtype with that name; the object dtype if the name is no text. Raises TypeError or ValueError for an unknown
    name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # NumPy warns of old names, which are refused later
        try:
            return np.dtype(name if isinstance(name, str) else "O")
        except SyntaxError as error:  # NumPy parses names with a comma, such as ",f4", as Python code
            raise ValueError(f"{name!r} is no dtype") from error


def _parsed(file: InputFile, text: str) -> tuple[tuple[int, ...], np.dtype, bool]:
    try:
        fields = ast.literal_eval(text.strip())
        shape, descr, fortran = fields["shape"], fields["descr"], fields["fortran_order"]
        dtype = named_dtype(descr)
    except (ValueError, SyntaxError, TypeError, KeyError, MemoryError, RecursionError) as error:
        raise InputError(f"the header cannot be read: {text[:60]!r}...", path=file.path) from error
    if dtype.kind not in KINDS or dtype.itemsize > 8:
        what = "objects, which are pickles and never loaded" if dtype.hasobject else f"{str(descr)[:60]}"
        remedy = "save an array of integers or floats"
        raise InputError(
            f"holds {what}; bool, integers or floats of up to 64 bits are wanted", path=file.path, remedy=remedy
        )
    sizes = isinstance(shape, tuple) and all(type(n) is int and 0 <= n < 1 << 48 for n in shape)
    if not sizes or len(shape) > 32 or not isinstance(fortran, bool) or math.prod(shape) >= 1 << 56:
        raise InputError(
            f"the header's shape is {str(shape)[:60]} and its fortran_order {str(fortran)[:20]}; a tuple of sizes and "
            "a bool are wanted",
            path=file.path,
        )
    return shape, dtype, fortran
