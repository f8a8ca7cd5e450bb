"""Zarr metadata, versions 2 and 3, read as data and checked before the zarr package sees any of it.

Only plain chunks of numbers pass, with codecs that are known here, because each chunk is checked before it is decoded:
what it expands to must be what the metadata says. Filters and object codecs never pass; some of them run code.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from tilewright.errors import InputError, brief
from tilewright.formats.files import InputFile
from tilewright.formats.json_keys import check_keys
from tilewright.formats.lines import json_words
from tilewright.formats.npy import named_dtype
from tilewright.formats.volumes import Shape, check_shape

MAX_METADATA = 16 << 20  # bytes
MAX_CHUNK = 1 << 31  # bytes of a chunk's numbers; Blosc and LZ4 count them with 31 bits
DTYPES = (
    "bool",
    "float16",
    "float32",
    "float64",
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
)
COMPRESSORS = ("zstd", "blosc", "gzip", "zlib", "lz4")
SHARDS = "sharding_indexed"


@dataclass(frozen=True)
class Layout:
    """How an array is stored. chunks: what is compressed as one; shards: chunks that share a file, None: each its own.

    compressor: one of COMPRESSORS or None. checksum: bytes behind each chunk. files: the metadata, as it was checked.
    """

    version: int
    shape: Shape
    dtype: np.dtype
    chunks: Shape
    shards: Shape | None
    compressor: str | None
    checksum: int
    files: dict[str, bytes]

    @property
    def chunk_bytes(self) -> int:
        """Of a chunk's numbers."""
        return math.prod(self.chunks) * self.dtype.itemsize

    @property
    def chunks_a_file(self) -> int:
        """1 without shards."""
        return math.prod(s // c for s, c in zip(self.shards or self.chunks, self.chunks, strict=True))


def read_layout(path: str, what: str) -> Layout:
    """The checked layout of the array in directory `path`.

    Raises InputError for a group, for metadata that cannot be read, a codec or data type not known here, other than
    three dimensions, and chunks of MAX_CHUNK bytes or more.
    """
    files = {name: data for name in ("zarr.json", ".zarray", ".zattrs") if (data := _read(path, name)) is not None}
    name = next((name for name in ("zarr.json", ".zarray") if name in files), None)
    if name is None:
        group = os.path.exists(os.path.join(path, ".zgroup"))
        raise _no_array(path, what, group)
    fields = _object(path, name, files[name])
    files.setdefault(".zattrs", b"{}")
    _object(path, ".zattrs", files[".zattrs"])
    try:
        layout = _version_3(path, fields) if name == "zarr.json" else _version_2(fields)
    except InputError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"the metadata is not that of an array: {type(error).__name__}({brief(error)})",
            path=os.path.join(path, name),
        ) from error
    version, shape, dtype, chunks, shards, (compressor, checksum) = layout
    place = os.path.join(path, name)
    check_shape(path, shape, dtype)
    _check_fill(place, fields.get("fill_value"), dtype)
    _check_chunks(place, shape, chunks, shards, dtype)
    if compressor is not None and compressor not in COMPRESSORS:
        raise InputError(
            f"the chunks are stored with {str(compressor)[:60]!r}; none, {', '.join(COMPRESSORS)} are read",
            path=place,
            hint="save the array with one of them and without filters",
        )
    return Layout(version, shape, dtype, chunks, shards, compressor, checksum, files)


def _read(path: str, name: str) -> bytes | None:
    place = os.path.join(path, name)
    if not os.path.lexists(place):
        return None
    with InputFile(place, "metadata") as file:
        if file.size > MAX_METADATA:
            raise InputError(f"the metadata has {file.size:,} bytes; {MAX_METADATA:,} can be", path=place)
        data = bytearray(file.size)
        file.read_into(data, 0)
        return bytes(data)


def _object(path: str, name: str, data: bytes) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(data, type=dict[str, Any])
        check_keys(data)
        return found
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        what = f"the metadata cannot be read: {json_words(error, data)}"
        raise InputError(what, path=os.path.join(path, name)) from error


def _version_2(fields: dict[str, Any]) -> tuple:
    if fields["zarr_format"] != 2 or fields.get("dimension_separator", ".") not in (".", "/"):
        raise ValueError("zarr_format or dimension_separator")
    dtype = named_dtype(fields["dtype"])
    codec = {"id": "filters"} if fields.get("filters") else fields["compressor"] or {"id": None}
    return 2, _tuple(fields["shape"]), dtype, _tuple(fields["chunks"]), None, (codec["id"], 0)


def _version_3(path: str, fields: dict[str, Any]) -> tuple:
    if fields["node_type"] == "group":
        raise _no_array(path, "input", True)
    if fields["zarr_format"] != 3 or fields["chunk_grid"]["name"] != "regular" or fields.get("storage_transformers"):
        raise ValueError("zarr_format, chunk_grid or storage_transformers")
    data_type = fields["data_type"]
    if data_type not in DTYPES:
        raise InputError(f"the values are {str(data_type)[:60]}; one of {', '.join(DTYPES)} is wanted", path=path)
    dtype = np.dtype(data_type)
    shape, outer = _tuple(fields["shape"]), _tuple(fields["chunk_grid"]["configuration"]["chunk_shape"])
    codecs = fields["codecs"]
    if [codec["name"] for codec in codecs] != [SHARDS]:
        return 3, shape, dtype, outer, None, _codecs(codecs)
    inside = codecs[0]["configuration"]
    index = [codec["name"] for codec in inside["index_codecs"]]
    if index != ["bytes", "crc32c"] or inside.get("index_location", "end") != "end":
        return 3, shape, dtype, outer, None, ("another index of shards", 0)
    return 3, shape, dtype, _tuple(inside["chunk_shape"]), outer, _codecs(inside["codecs"])


def _codecs(codecs: list[dict[str, Any]]) -> tuple[str | None, int]:
    """(compressor, bytes of checksum) of a chunk's codecs; a name that is not known is the compressor."""
    names = [str(codec["name"]) for codec in codecs]
    if names and names[0] == "transpose":
        names = names[1:]
    if not names or names[0] != "bytes":
        return (names[0] if names else "no codec"), 0
    names = names[1:]
    checksum = 4 if names and names[-1] == "crc32c" else 0
    names = names[:-1] if checksum else names
    return (" and ".join(names) or None), checksum


def _tuple(sizes: Any) -> tuple[int, ...]:
    if not isinstance(sizes, list) or any(type(n) is not int or not 0 <= n < 1 << 48 for n in sizes):
        raise ValueError(f"sizes {str(sizes)[:60]}")
    return tuple(sizes)


def _check_fill(place: str, fill: Any, dtype: np.dtype) -> None:
    """Raises InputError for a number that float voxels cannot hold: zarr would make it infinite, with a warning."""
    if dtype.kind == "f" and isinstance(fill, int | float) and float(np.finfo(dtype).max) < abs(fill) < math.inf:
        raise InputError(f"fill_value is {str(fill)[:60]}, too large for {dtype}", path=place)


def _check_chunks(place: str, shape: Shape, chunks: tuple[int, ...], shards: tuple | None, dtype: np.dtype) -> None:
    bad = len(chunks) != 3 or min(chunks) < 1 or math.prod(chunks) * dtype.itemsize >= MAX_CHUNK
    if bad or (shards and (len(shards) != 3 or any(s % c or s < c for s, c in zip(shards, chunks, strict=True)))):
        of = f" in shards of {shards}" if shards else ""
        what = f"the chunks are {chunks}{of} for a shape of {shape}; a chunk takes 1 to {MAX_CHUNK - 1:,} bytes"
        raise InputError(what, path=place)


def _no_array(path: str, what: str, group: bool) -> InputError:
    if not os.path.lexists(path):
        return InputError(f"no such {what}", path=path, hint="check the path")
    if not group:
        return InputError(
            f"the {what} is a directory without zarr.json or .zarray", path=path, hint="give a Zarr array"
        )
    inside = sorted(entry.name for entry in os.scandir(path) if entry.is_dir())[:5]
    hint = f"name one of its arrays: {', '.join(os.path.join(path, name) for name in inside)}" if inside else None
    return InputError(f"the {what} is a Zarr group, not an array", path=path, hint=hint)
