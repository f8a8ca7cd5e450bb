"""Safetensors. The whole header is checked before anything is mapped. Files are written as a stream.

Layout: the header's length (u64), the header (JSON: name -> dtype, shape, data_offsets), then the tensors without gaps.
Source: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, NamedTuple

import ml_dtypes
import msgspec
import numpy as np

from tilewright.errors import InputError
from tilewright.formats.atomic import AtomicFile
from tilewright.formats.blocks import write_blocks
from tilewright.formats.files import InputFile
from tilewright.formats.lines import json_words

MAX_HEADER_BYTES = 100_000_000  # as in the reference implementation
MAX_HEADER_ITEMS = 1_000_000  # commas and brackets: limits the memory for parsing
ALIGN = 64  # bytes: in files that tilewright writes, tensors start at a cache line

# name in the file -> NumPy type; types of less than a byte and 8-bit floats are not used here
DTYPES = {
    "BOOL": np.dtype(np.bool_), "U8": np.dtype(np.uint8), "I8": np.dtype(np.int8),
    "U16": np.dtype("<u2"), "I16": np.dtype("<i2"), "U32": np.dtype("<u4"), "I32": np.dtype("<i4"),
    "U64": np.dtype("<u8"), "I64": np.dtype("<i8"), "F64": np.dtype("<f8"), "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"), "BF16": np.dtype(ml_dtypes.bfloat16),
}  # fmt: skip

_Size = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    dtype: Annotated[str, msgspec.Meta(max_length=16)]
    shape: Annotated[list[_Size], msgspec.Meta(max_length=8)]
    data_offsets: tuple[_Size, _Size]


class Tensor(NamedTuple):
    """One tensor of a file: its type, its shape, and the offsets of its first byte and its end."""

    dtype: np.dtype
    shape: tuple[int, ...]
    begin: int
    end: int


def read_header(file: InputFile) -> dict[str, Tensor]:
    """The checked table of contents, in the order of the bytes.

    Raises InputError for anything that is not exactly a safetensors file: a length beyond the file or the limit, JSON
    that breaks the format, a name given twice, tensors that overlap or leave a gap, or tensors whose size does not
    match their shape.
    """
    length, header = _header_bytes(file)
    entries = _parse(header, file.path)
    data = 8 + length
    tensors = {}
    last_end = data
    for name, entry in sorted(entries.items(), key=lambda item: item[1].data_offsets):
        dtype = DTYPES.get(entry.dtype)
        if dtype is None:
            raise _bad(file.path, name, f"has type {entry.dtype!r}; {', '.join(DTYPES)} are known")
        begin, end = (data + offset for offset in entry.data_offsets)
        if not begin <= end <= file.size:
            raise _bad(file.path, name, f"lies at bytes {begin} to {end}; the file has {file.size}")
        if begin != last_end:
            raise _bad(file.path, name, f"starts at byte {begin}, but the tensor before it ends at byte {last_end}")
        if math.prod(max(n, 1) for n in entry.shape) >= 2**60:  # a size of zero would hide the others
            raise _bad(file.path, name, f"has sizes {entry.shape}, more than an array can have")
        expected = math.prod(entry.shape) * dtype.itemsize
        if end - begin != expected:
            raise _bad(file.path, name, f"has {end - begin} bytes; {entry.dtype} {tuple(entry.shape)} takes {expected}")
        tensors[name] = Tensor(dtype, tuple(entry.shape), begin, end)
        last_end = end
    if last_end != file.size:
        raise InputError(f"{file.size - last_end} bytes belong to no tensor", path=file.path, where=f"byte {last_end}")
    return tensors


def map_tensors(file: InputFile, tensors: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
    """Read-only views of the mapped file, without a copy. A tensor whose address is not a multiple of its type's size
    is copied."""
    mapped = file.map()
    arrays = {}
    for name, (dtype, shape, begin, _) in tensors.items():
        array = np.frombuffer(mapped, dtype, math.prod(shape), begin).reshape(shape)
        arrays[name] = array if begin % dtype.itemsize == 0 else _readonly(array.copy())
    return arrays


def write_tensors(path: str | os.PathLike[str], tensors: Iterable[tuple[str, tuple[int, ...], Iterable[Any]]]) -> None:
    """Write float32 tensors as they come: (name, shape, blocks of C-contiguous float32 that together fill the shape).

    Only one block is in memory at a time. The file appears when it is complete. Raises ResourceError, and ValueError
    for blocks that do not fill a shape.
    """
    tensors = list(tensors)
    header = _encode_header({name: shape for name, shape, _ in tensors})
    with AtomicFile(path) as file:
        file.write(header)
        for name, shape, blocks in tensors:
            write_blocks(file, name, shape, blocks)


def _header_bytes(file: InputFile) -> tuple[int, bytes]:
    if file.size < 8:
        raise InputError(
            f"it has {file.size} bytes; a safetensors file begins with a length of 8 bytes", path=file.path
        )
    prefix = bytearray(8)
    file.read_into(prefix, 0)
    length = int.from_bytes(prefix, "little")
    if length > min(MAX_HEADER_BYTES, file.size - 8):
        limit = "the limit is 100,000,000" if length > MAX_HEADER_BYTES else f"the file has {file.size:,} in all"
        raise InputError(f"the header claims {length:,} bytes; {limit}", path=file.path, where="byte 0")
    header = bytearray(length)
    file.read_into(header, 8)
    return length, bytes(header)


def _parse(header: bytes, path: str) -> dict[str, _Entry]:
    items = sum(header.count(sign) for sign in (b",", b"{", b"["))
    if not header.startswith(b"{") or items > MAX_HEADER_ITEMS:
        what = "has more than 1,000,000 items" if items > MAX_HEADER_ITEMS else "does not start with '{'"
        raise InputError(f"the header {what}", path=path, where="byte 8")
    try:
        raw = msgspec.json.decode(header, type=dict[str, msgspec.Raw])
        metadata = raw.pop("__metadata__", None)
        if metadata is not None:
            msgspec.json.decode(metadata, type=dict[str, str])
        entries = {name: msgspec.json.decode(entry, type=_Entry) for name, entry in raw.items()}
        json.loads(header, object_pairs_hook=_refuse_duplicates)  # msgspec keeps the last of equal names
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:  # ValueError: UTF-8, digits, a name given twice
        what = json_words(error, header)[:300]
        raise InputError(f"the header breaks the safetensors format: {what}", path=path, where="byte 8") from error
    return entries


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> None:
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            raise ValueError(f"{name!r} is given twice")
        seen.add(name)


def _encode_header(shapes: Mapping[str, tuple[int, ...]]) -> bytes:
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, shape in shapes.items():
        size = 4 * math.prod(shape)
        entries[name] = {"dtype": "F32", "shape": shape, "data_offsets": (offset, offset + size)}
        offset += size
    header = msgspec.json.encode(entries)
    header += b" " * (-(8 + len(header)) % ALIGN)
    return len(header).to_bytes(8, "little") + header


def _bad(path: str, name: str, what: str) -> InputError:
    remedy = "copy or download the file again: it is damaged or was not written as safetensors"
    return InputError(f"tensor {name[:200]!r} {what}", path=path, remedy=remedy)


def _readonly(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array
