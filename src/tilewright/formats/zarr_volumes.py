"""Zarr arrays, versions 2 and 3, through the zarr package: read and written in tiles, larger than memory."""

from __future__ import annotations

import asyncio
import math
import os
import re
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any

import numpy as np

from tilewright.errors import InputError, ResourceError, TilewrightError
from tilewright.formats.atomic import AtomicDirectory, _check_directory
from tilewright.formats.files import InputFile, naming
from tilewright.formats.volumes import Box, Shape, Volume, aligned_boxes
from tilewright.formats.zarr_layout import Layout, check_chunk, read_layout

CALL_BYTES = 32 << 20  # of numbers in one call of zarr, which works on up to ten chunks at a time
WORKING = 3  # copies of what a call works on: as stored, decoded, and where it goes
CHUNK = 64  # of a new array in each direction: 1 MiB of float32, a file that reads well and halos that stay small
SYNCING = 8  # threads that flush files: a file system commits those that wait together in one go
_OURS = re.compile(r"zarr\.json|\.zarray|\.zattrs|\.zmetadata|c|(c\.)?\d+(\.\d+)*")


class ZarrVolume(Volume):
    """An array of a Zarr store on disk."""

    def __init__(self, path: str, layout: Layout) -> None:
        super().__init__(path, layout.shape, layout.dtype, layout.chunks)
        self.layout = layout
        self.working = WORKING * max(CALL_BYTES, layout.chunk_bytes)
        zarr = _zarr()
        try:
            with naming(path, "read"):
                self.header = zarr.open_array(_checked_store(path, layout), mode="r", zarr_format=layout.version)
        except _DAMAGE as error:
            raise InputError(f"zarr cannot open the array: {error}", path=path) from error

    def _pieces(self, start: tuple[int, ...], shape: tuple[int, ...]) -> Iterator[tuple[Box, np.ndarray]]:
        for place in aligned_boxes(start, shape, self.unit, CALL_BYTES // self.dtype.itemsize):
            box = tuple(slice(a + s.start, a + s.stop) for a, s in zip(start, place, strict=True))
            try:
                yield place, np.asarray(self.header[box])
            except TilewrightError:
                raise
            except OSError as error:
                with naming(self.path, "read"):
                    raise error
            except _DAMAGE as error:
                where = f"voxels {[s.start for s in box]} to {[s.stop - 1 for s in box]}"
                hint = "the chunk was cut short or is damaged"
                raise InputError(
                    f"a chunk cannot be decoded: {error}", path=self.path, where=where, hint=hint
                ) from error


class ZarrOutput(AtomicDirectory):
    """A Zarr array that appears when it is whole; an earlier one is replaced as a whole, other directories never.

    An array like `like` keeps its version, chunks, shards, compressor, attributes and dimension names.
    """

    held = 0

    def __init__(self, path: str, shape: Shape, dtype: np.dtype, like: Volume) -> None:
        super().__init__(path.rstrip("/"), frozenset())
        self._shape, self._dtype = shape, np.dtype(dtype)
        self._options = _options_like(like.header, like.layout) if isinstance(like, ZarrVolume) else {}
        chunks = self._options.setdefault("chunks", tuple(min(CHUNK, n) for n in shape))
        self.unit: Shape = self._options.get("shards") or chunks
        self.working = WORKING * max(CALL_BYTES, math.prod(self.unit) * self._dtype.itemsize)
        self._array: Any = None
        self._zarr = _zarr()

    def __enter__(self) -> ZarrOutput:  # type: ignore[override]
        temporary = super().__enter__()
        try:
            store = self._zarr.storage.LocalStore(temporary)
            with naming(self.path, "write"):
                options = {"shape": self._shape, "dtype": self._dtype, "fill_value": 0, **self._options}
                self._array = self._zarr.create_array(store, overwrite=True, **options)
        except BaseException as error:
            super().__exit__(type(error), error, None)
            raise
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if error is None:
                with naming(self.path, "write"):
                    _sync_tree(self._temporary)
        except BaseException as failure:
            super().__exit__(type(failure), failure, None)
            raise
        super().__exit__(kind, error, trace)

    def write(self, start: tuple[int, int, int], tile: np.ndarray) -> None:
        """Puts tile (d, h, w) at `start`, which is a multiple of `unit`; it ends at one, or where the volume does."""
        for place in aligned_boxes(start, tile.shape, self.unit, CALL_BYTES // self._dtype.itemsize):
            box = tuple(slice(a + s.start, a + s.stop) for a, s in zip(start, place, strict=True))
            with naming(self.path, "write"):
                self._array[box] = tile[place]

    def _check_replaceable(self) -> None:
        _check_directory(self.path)
        if not os.path.lexists(self.path):
            return
        if not os.path.isdir(self.path):
            raise ResourceError(
                "is a file, and a Zarr array is a directory", path=self.path, hint="choose another name"
            )
        others = sorted(name for name in os.listdir(self.path) if not _OURS.fullmatch(name))
        if others:
            raise ResourceError(
                f"holds other things than a Zarr array's ({', '.join(others[:3])}{', ...' if others[3:] else ''})",
                path=self.path,
                hint="choose a new name: nothing was deleted or written",
            )


def open_zarr(path: str, what: str) -> ZarrVolume:
    """The array in the directory `path`. Raises InputError as `read_layout`, and where zarr cannot open it."""
    _zarr()
    return ZarrVolume(path, read_layout(path, what))


def _checked_store(path: str, layout: Layout) -> Any:
    """A store of zarr's that hands out the metadata that was checked, and chunks only after a check."""
    from zarr.storage import LocalStore, WrapperStore

    class CheckedStore(WrapperStore):  # its base class is there once zarr is
        async def get(self, key: str, prototype: Any, byte_range: Any = None) -> Any:
            if key.startswith(".z") or key.endswith("zarr.json"):
                data = layout.files.get(key)
            else:
                data = await asyncio.to_thread(_read_chunk, path, key, byte_range, layout)
            return None if data is None else prototype.buffer.from_bytes(data)

    return CheckedStore(LocalStore(path, read_only=True))


def _read_chunk(path: str, key: str, byte_range: Any, layout: Layout) -> bytes | None:
    """The stored bytes of a chunk, of a shard, or of the part of one that `byte_range` names; None if there is none."""
    place = os.path.join(path, key)
    if not os.path.lexists(place):
        return None
    count = layout.chunks_a_file
    with InputFile(place, "chunk") as file:
        stored = count * (layout.chunk_bytes + layout.chunk_bytes // 8 + (1 << 12))  # compressors add less than that
        if file.size > stored:
            raise InputError(f"the chunk's file has {file.size:,} bytes; at most {stored:,} can be", path=place)
        begin, end = 0, file.size
        if hasattr(byte_range, "suffix"):
            begin = max(0, end - byte_range.suffix)
        elif byte_range is not None:
            begin, end = byte_range.start, byte_range.end
        if not 0 <= begin <= end <= file.size:
            raise InputError(f"bytes {begin:,} to {end:,} are wanted; the shard has {file.size:,}", path=place)
        data = bytearray(end - begin)
        file.read_into(data, begin)
    parts = [(0, len(data))]
    if layout.shards and not hasattr(byte_range, "start"):  # the shard, or its index alone, which is its end
        parts = _shard_index(place, data, file.size, count)
    if not hasattr(byte_range, "suffix"):
        _check_chunks(place, data, parts, layout)
    return bytes(data)


def _check_chunks(place: str, data: bytearray, parts: list[tuple[int, int]], layout: Layout) -> None:
    for offset, count in parts:
        wrong = check_chunk(layout, memoryview(data)[offset : offset + count])
        if wrong:
            hint = "the chunk was cut short, is damaged, or made to fill memory"
            raise InputError(f"the chunk {wrong}", path=place, hint=hint)


def _shard_index(place: str, data: bytearray, size: int, chunks: int) -> list[tuple[int, int]]:
    """(first byte, count) of a shard's chunks, from what ends with its index; a shard has `size` bytes.

    Raises InputError for an index that is cut short or names bytes that the shard has not.
    """
    if len(data) < 16 * chunks + 4:
        raise InputError(f"the shard has {len(data):,} bytes; its index alone takes {16 * chunks + 4:,}", path=place)
    index = np.frombuffer(data, "<u8", 2 * chunks, len(data) - 16 * chunks - 4).reshape(-1, 2).tolist()
    parts = [(offset, count) for offset, count in index if (offset, count) != (2**64 - 1, 2**64 - 1)]
    for offset, count in parts:
        if offset + count > size:
            what = f"the shard's index names bytes {offset:,} to {offset + count:,}; it has {size:,}"
            raise InputError(what, path=place, hint="the shard was cut short or is damaged")
    return parts


def _options_like(array: Any, layout: Layout) -> dict[str, Any]:
    """What `create_array` needs to store an array as `array` is stored."""
    options: dict[str, Any] = {
        "chunks": layout.chunks,
        "shards": layout.shards,
        "zarr_format": layout.version,
        "compressors": array.compressors or None,
        "attributes": dict(array.attrs),
    }
    if layout.version == 3:
        names = array.metadata.dimension_names
        options["dimension_names"] = None if names is None or None in names else list(names)
    separator = getattr(array.metadata, "dimension_separator", None)
    options["chunk_key_encoding"] = (
        {"name": "v2", "separator": separator} if layout.version == 2 else array.metadata.chunk_key_encoding
    )
    return options


def _sync_tree(folder: str) -> None:
    """Every file and directory below `folder` reaches the disk."""
    names = [os.path.join(at, name) for at, _, files in os.walk(folder) for name in files]
    names += [at for at, _, _ in os.walk(folder)]
    with ThreadPoolExecutor(SYNCING) as pool:
        for _ in pool.map(_sync, names):
            pass


def _sync(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _zarr() -> Any:
    try:
        import zarr
        import zarr.storage
    except ImportError as error:
        raise ResourceError(
            "Zarr needs the package zarr, which is not installed", hint="pip install 'tilewright[volume]'"
        ) from error
    return zarr


# what zarr and its codecs raise for data that is not what it should be
_DAMAGE = (
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    RuntimeError,
    EOFError,
    AttributeError,
    NotImplementedError,
    zlib.error,
)
