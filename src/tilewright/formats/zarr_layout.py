"""The layout of a Zarr array, from its metadata of version 2 or 3 as the zarr package reads it; and what may be
decoded.

Only plain chunks of numbers are accepted, with codecs that are known here. Each chunk is checked before it is decoded:
it must expand to the number of bytes that the metadata states. Filters and object codecs are refused, because some of
them run code.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from tilewright.errors import InputError
from tilewright.formats.files import InputFile
from tilewright.formats.json_keys import check_keys
from tilewright.formats.lines import json_words
from tilewright.formats.volumes import Shape, check_shape

METADATA = ("zarr.json", ".zarray", ".zattrs")
MAX_METADATA = 16 << 20  # bytes
MAX_CHUNK = 1 << 31  # bytes of a decoded chunk; Blosc and LZ4 count them with 31 bits
COMPRESSORS = ("zstd", "blosc", "gzip", "zlib", "lz4")
READ = f"plain chunks of numbers are read, stored as they are or with {', '.join(COMPRESSORS)}"
SHARD_INDEX = [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]


@dataclass(frozen=True)
class Layout:
    """How an array is stored. chunks: the shape that is compressed as one. shards: the shape of chunks that share a
    file; None: each chunk has its own file.

    compressor: one of COMPRESSORS or None. checksum: bytes after each chunk.
    """

    shape: Shape
    dtype: np.dtype
    chunks: Shape
    shards: Shape | None
    compressor: str | None
    checksum: int

    @property
    def chunk_bytes(self) -> int:
        """Bytes of a decoded chunk."""
        return math.prod(self.chunks) * self.dtype.itemsize

    @property
    def chunks_a_file(self) -> int:
        """Chunks per file; 1 without shards."""
        return math.prod(s // c for s, c in zip(self.shards or self.chunks, self.chunks, strict=True))


def read_metadata(path: str, what: str) -> tuple[str, dict[str, Any], dict[str, bytes]]:
    """(path of the file that describes the array in directory `path`, its fields, the content of each metadata file).

    Raises InputError for a group, and for files that are missing, too large or no JSON.
    """
    files = {name: data for name in METADATA if (data := _read(path, name)) is not None}
    fields = {name: _object(os.path.join(path, name), data) for name, data in files.items()}
    name = next((name for name in METADATA[:2] if name in files), None)
    if name is None or fields[name].get("node_type") == "group":
        raise _no_array(path, what, name is not None or os.path.exists(os.path.join(path, ".zgroup")))
    return os.path.join(path, name), fields[name], {".zattrs": b"{}"} | files


def layout_of(path: str, array: Any) -> Layout:
    """The layout of an array of the zarr package. path: of the file that describes it.

    Raises InputError for an unknown codec or data type, for other than three dimensions, and for chunks of MAX_CHUNK
    bytes or more.
    """
    shape, dtype = check_shape(path, array.shape, array.dtype), array.dtype
    chunks, shards = array.chunks, array.shards
    bad = len(chunks) != 3 or min(chunks) < 1 or math.prod(chunks) * dtype.itemsize >= MAX_CHUNK
    if bad or (shards and (len(shards) != 3 or any(s % c or s < c for s, c in zip(shards, chunks, strict=True)))):
        of = f" in shards of {shards}" if shards else ""
        what = f"the chunks are {chunks}{of} for a shape of {shape}; a chunk takes 1 to {MAX_CHUNK - 1:,} bytes"
        raise InputError(what, path=path)
    names = _codecs(array.metadata)
    checksum = 4 if names[-1:] == ["crc32c"] else 0
    compressor = " and ".join(names[:-1] if checksum else names) or None
    if compressor is not None and compressor not in COMPRESSORS:
        what = f"the chunks are stored with {compressor[:60]!r}; only {', '.join(COMPRESSORS)} or none is read"
        raise InputError(what, path=path, remedy="save the array with one of them and without filters")
    return Layout(shape, dtype, chunks, shards, compressor, checksum)


def _codecs(metadata: Any) -> list[str]:
    """Names of the codecs that a chunk's bytes pass. These are all its codecs, if those before the bytes are not known
    here."""
    if metadata.zarr_format == 2:
        return ["filters"] if metadata.filters else [metadata.compressor.codec_id] if metadata.compressor else []
    if metadata.shards:
        said = metadata.codecs[0].to_dict()["configuration"]
        if [*said["index_codecs"]] != SHARD_INDEX or said.get("index_location", "end") != "end":
            return ["another index of shards"]
    names = [str(codec.to_dict()["name"]) for codec in metadata.inner_codecs]
    plain = names[1:] if names[0] == "transpose" else names
    return plain[1:] if plain[:1] == ["bytes"] else names


def _read(path: str, name: str) -> bytes | None:
    file_path = os.path.join(path, name)
    if not os.path.lexists(file_path):
        return None
    with InputFile(file_path, "metadata") as file:
        if file.size > MAX_METADATA:
            raise InputError(
                f"the metadata has {file.size:,} bytes; at most {MAX_METADATA:,} are allowed", path=file_path
            )
        data = bytearray(file.size)
        file.read_into(data, 0)
        return bytes(data)


def _object(path: str, data: bytes) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(data, type=dict[str, Any])
        check_keys(data)
        return found
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"the metadata cannot be read: {json_words(error, data)}", path=path) from error


def _no_array(path: str, what: str, group: bool) -> InputError:
    if not os.path.lexists(path):
        return InputError(f"no such {what}", path=path, remedy="check the path")
    if not group:
        return InputError(
            f"the {what} is a directory without zarr.json or .zarray", path=path, remedy="give a Zarr array"
        )
    inside = sorted(entry.name for entry in os.scandir(path) if entry.is_dir())[:5]
    remedy = f"name one of its arrays: {', '.join(os.path.join(path, name) for name in inside)}" if inside else None
    return InputError(f"the {what} is a Zarr group, not an array", path=path, remedy=remedy)
