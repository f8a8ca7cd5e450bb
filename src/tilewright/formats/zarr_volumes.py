"""Zarr arrays, versions 2 and 3, through the zarr package: read and written in tiles, larger than memory."""

from __future__ import annotations

import asyncio
import math
import os
import re
import warnings
import zlib
from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

from tilewright.errors import InputError, ResourceError, TilewrightError, brief
from tilewright.formats.atomic import AtomicDirectory, check_directory
from tilewright.formats.files import InputFile, naming
from tilewright.formats.packages import package
from tilewright.formats.volumes import Box, Shape, Volume, aligned_boxes
from tilewright.formats.zarr_chunks import check_chunk
from tilewright.formats.zarr_layout import READ, Layout, layout_of, read_metadata

CALL_BYTES = 32 << 20  # bytes of numbers in one call of zarr, which processes up to ten chunks at a time
WORKING = 3  # copies of the data of a call: stored, decoded, and in the target
CHUNK = 64  # of a new array along each axis: 1 MiB of float32, large enough to read well, small enough for small halos
_OURS = re.compile(r"zarr\.json|\.zarray|\.zattrs|\.zmetadata|c|(c\.)?\d+(\.\d+)*")


class ZarrVolume(Volume):
    """An array of a Zarr store on disk."""

    def __init__(self, path: str, what: str) -> None:
        zarr = package("zarr.storage", "Zarr")
        described, fields, files = read_metadata(path, what)
        store = _checked_store(path, files)
        try:
            with np.errstate(over="raise"), warnings.catch_warnings():  # a fill value that would become infinite
                warnings.simplefilter("ignore")  # zarr warns about what is refused below
                array = zarr.open_array(store, mode="r", zarr_format=3 if "zarr.json" in files else 2)
            self.layout = store.layout = layout_of(described, array)
        except TilewrightError:
            raise
        except ArithmeticError as error:
            fill, kind = str(fields["fill_value"])[:60], fields.get("data_type") or fields.get("dtype")
            raise InputError(f"fill_value is {fill}, too large for {str(kind)[:60]}", path=described) from error
        except _DAMAGE as error:
            said = brief(error) if isinstance(error, ValueError) else f"{type(error).__name__}({brief(error)})"
            raise InputError(f"zarr cannot open the array: {said}", path=described, remedy=READ) from error
        super().__init__(path, self.layout.shape, self.layout.dtype, self.layout.chunks)
        self.header, self.working = array, WORKING * max(CALL_BYTES, self.layout.chunk_bytes)

    def _pieces(self, start: tuple[int, ...], shape: tuple[int, ...]) -> Iterator[tuple[Box, np.ndarray]]:
        for part in aligned_boxes(start, shape, self.unit, CALL_BYTES // self.dtype.itemsize):
            box = tuple(slice(a + s.start, a + s.stop) for a, s in zip(start, part, strict=True))
            try:
                yield part, np.asarray(self.header[box])
            except TilewrightError:
                raise
            except OSError as error:
                with naming(self.path, "read"):
                    raise error
            except _DAMAGE as error:
                where = f"voxels {[s.start for s in box]} to {[s.stop - 1 for s in box]}"
                remedy = "copy the array again: the chunk was cut short or is damaged"
                raise InputError(
                    f"a chunk cannot be decoded: {brief(error)}", path=self.path, where=where, remedy=remedy
                ) from error


class ZarrForm:
    """A Zarr array of float32 or float64, in files whose names `names` and `metadata` give.

    An array made from `like` keeps its version, chunks, shards, compressor, attributes and dimension names.
    """

    axis = 0

    def __init__(self, shape: Shape, dtype: np.dtype, like: Volume) -> None:
        options = _options_like(like.header, like.layout) if isinstance(like, ZarrVolume) else {}
        chunks = options.setdefault("chunks", tuple(min(CHUNK, n) for n in shape))
        self.unit: Shape = options.get("shards") or chunks
        self.working = WORKING * max(CALL_BYTES, math.prod(self.unit) * dtype.itemsize)
        self._zarr, self._itemsize = package("zarr.storage", "Zarr"), dtype.itemsize
        files: dict[str, Any] = {}
        store = self._zarr.storage.MemoryStore(files)
        self._array = self._zarr.create_array(store, shape=shape, dtype=dtype, fill_value=0, **options)
        self.metadata = {name: content.to_bytes() for name, content in files.items()}

    def names(self, start: tuple[int, ...], shape: tuple[int, ...]) -> list[str]:
        """The names of the files of a box."""
        return chunk_names(self._array, self.unit, start, shape)

    def encode(self, start: tuple[int, ...], tile: np.ndarray) -> Iterator[tuple[str, bytes]]:
        """(name, content) of the files of a tile (d, h, w).

        The tile begins at `start`, a multiple of `unit`, and ends at another multiple or at the end of the volume. A
        chunk that contains only zeros has no file: its content is empty.
        """
        files: dict[str, Any] = {}
        store = self._zarr.storage.MemoryStore(files)
        buffer = self._zarr.core.buffer.default_buffer_prototype().buffer
        files |= {name: buffer.from_bytes(content) for name, content in self.metadata.items()}
        array = self._zarr.open_array(store, mode="r+")
        for part in aligned_boxes(start, tile.shape, self.unit, CALL_BYTES // self._itemsize):
            array[tuple(slice(a + s.start, a + s.stop) for a, s in zip(start, part, strict=True))] = tile[part]
            first = tuple(a + s.start for a, s in zip(start, part, strict=True))
            for name in self.names(first, tile[part].shape):
                yield name, files.pop(name).to_bytes() if name in files else b""


def chunk_names(array: Any, unit: Shape, start: tuple[int, ...], shape: tuple[int, ...]) -> list[str]:
    """Names of the files with a box of an array. unit: the shape that one file holds."""
    spans = [range(a // u, -(-(a + n) // u)) for a, n, u in zip(start, shape, unit, strict=True)]
    return [array.metadata.encode_chunk_key(index) for index in product(*spans)]


def check_zarr(path: str) -> AtomicDirectory:
    """How an array at `path` is replaced: as a whole. Raises ResourceError for other directories, which are never
    replaced."""
    directory = _ZarrDirectory(path.rstrip("/"), frozenset())
    directory.check_replaceable()
    return directory


class _ZarrDirectory(AtomicDirectory):
    def check_replaceable(self) -> None:
        check_directory(self.path)
        if not os.path.lexists(self.path):
            return
        if not os.path.isdir(self.path):
            raise ResourceError(
                "is a file, and a Zarr array is a directory", path=self.path, remedy="choose another name"
            )
        others = sorted(name for name in os.listdir(self.path) if not _OURS.fullmatch(name))
        if others:
            raise ResourceError(
                f"holds files that no Zarr array has ({', '.join(others[:3])}{', ...' if others[3:] else ''})",
                path=self.path,
                remedy="choose a new name: nothing was deleted or written",
            )


def _checked_store(path: str, files: dict[str, bytes]) -> Any:
    """A store for zarr that returns the metadata files that were read before. It returns a chunk only after a check
    against its `layout`, which is set when zarr has read the metadata."""
    from zarr.storage import LocalStore, WrapperStore

    class CheckedStore(WrapperStore):  # its base class exists only if zarr is installed
        layout: Layout

        async def get(self, key: str, prototype: Any, byte_range: Any = None) -> Any:
            if key.startswith(".z") or key.endswith("zarr.json"):
                data: bytes | bytearray | None = files.get(key)
            else:
                data = await asyncio.to_thread(_read_chunk, path, key, byte_range, self.layout)
            return None if data is None else prototype.buffer.from_bytes(data)

    return CheckedStore(LocalStore(path, read_only=True))


def _read_chunk(path: str, key: str, byte_range: Any, layout: Layout) -> bytearray | None:
    """The stored bytes of a chunk, of a shard, or of the part that `byte_range` selects. None if there is no file."""
    chunk = os.path.join(path, key)
    if not os.path.lexists(chunk):
        return None
    count = layout.chunks_a_file
    with InputFile(chunk, "chunk") as file:
        stored = count * (layout.chunk_bytes + layout.chunk_bytes // 8 + (1 << 12))  # compressors add less than this
        if file.size > stored:
            what = f"the chunk's file has {file.size:,} bytes; at most {stored:,} are allowed"
            remedy = "write the chunk again: it is damaged, or the array's metadata states smaller chunks"
            raise InputError(what, path=chunk, remedy=remedy)
        begin, end = 0, file.size
        if hasattr(byte_range, "suffix"):
            begin = max(0, end - byte_range.suffix)
        elif byte_range is not None:
            begin, end = byte_range.start, byte_range.end
        if not 0 <= begin <= end <= file.size:
            what = f"the shard has {file.size:,} bytes; its index names bytes {begin:,} to {end:,}"
            raise InputError(what, path=chunk, remedy="copy the shard again: it was cut short or is damaged")
        data = bytearray(end - begin)
        file.read_into(data, begin)
    parts = [(0, len(data))]
    if layout.shards and not hasattr(byte_range, "start"):  # the whole shard, or only its index, which is at its end
        parts = _shard_index(chunk, data, file.size, count)
    if not hasattr(byte_range, "suffix"):
        _check_chunks(chunk, data, parts, layout)
    return data


def _check_chunks(chunk: str, data: bytearray, parts: list[tuple[int, int]], layout: Layout) -> None:
    for offset, count in parts:
        wrong = check_chunk(layout, memoryview(data)[offset : offset + count])
        if wrong:
            remedy = "copy the array again: the chunk was cut short, is damaged, or made to fill memory"
            raise InputError(f"the chunk {wrong}", path=chunk, remedy=remedy)


def _shard_index(chunk: str, data: bytearray, size: int, chunks: int) -> list[tuple[int, int]]:
    """(first byte, count) of a shard's chunks, from bytes that end with its index. size: bytes of the shard.

    Raises InputError for an index that is cut short or names bytes outside the shard.
    """
    if len(data) < 16 * chunks + 4:
        raise InputError(f"the shard has {len(data):,} bytes; its index alone takes {16 * chunks + 4:,}", path=chunk)
    index = np.frombuffer(data, "<u8", 2 * chunks, len(data) - 16 * chunks - 4).reshape(-1, 2).tolist()
    parts = [(offset, count) for offset, count in index if (offset, count) != (2**64 - 1, 2**64 - 1)]
    for offset, count in parts:
        if offset + count > size:
            what = f"the shard's index names bytes {offset:,} to {offset + count:,}; the shard has {size:,}"
            raise InputError(what, path=chunk, remedy="copy the array again: the shard was cut short or is damaged")
    return parts


def _options_like(array: Any, layout: Layout) -> dict[str, Any]:
    """The arguments with which `create_array` stores an array like `array`."""
    options: dict[str, Any] = {
        "chunks": layout.chunks,
        "shards": layout.shards,
        "zarr_format": array.metadata.zarr_format,
        "compressors": array.compressors or None,
        "attributes": dict(array.attrs),
    }
    if options["zarr_format"] == 3:
        names = array.metadata.dimension_names
        options["dimension_names"] = None if names is None or None in names else list(names)
    separator = getattr(array.metadata, "dimension_separator", None)
    options["chunk_key_encoding"] = (
        {"name": "v2", "separator": separator} if options["zarr_format"] == 2 else array.metadata.chunk_key_encoding
    )
    return options


# errors that zarr and its codecs raise for wrong data
_DAMAGE = (
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    RuntimeError,  # also RecursionError and NotImplementedError
    SyntaxError,  # NumPy parses names of dtypes with a comma, such as ",f4", as Python code
    EOFError,
    AttributeError,
    zlib.error,
)
