"""TIFF stacks through tifffile. Contiguous ones are read box by box; deflated ones with one channel are held in
memory."""

from __future__ import annotations

import logging
import math
import os
import struct
import tempfile
import zlib
from typing import Any

import numpy as np

from tilewright.errors import InputError, TilewrightError, brief
from tilewright.formats.files import InputFile, naming
from tilewright.formats.packages import package
from tilewright.formats.raw_volumes import RawForm, RawVolume
from tilewright.formats.tiff_metadata import TiffMetadata, options_for, read_metadata
from tilewright.formats.tiff_pages import check_pages
from tilewright.formats.volumes import ArrayVolume, Shape, Volume, check_memory, check_shape
from tilewright.formats.voxels import as_tiff, voxel_size

PLAIN, DEFLATED = (1,), (8, 32946)  # TIFF's numbers for compressions
LEAST_TILE = 16 << 20  # bytes: a tile may be larger than the page, up to this limit


def open_tiff(path: str, what: str, *, memory: int | None = None, headers: bool = False) -> Volume:
    """A TIFF stack (Z, Y, X), with one page per plane. It is read box by box if it is stored as one array, and
    otherwise held in memory. headers: see `open_volume`.

    Raises InputError for a file that tifffile cannot read, for pages with several channels or compressions other than
    deflate, for data that expands beyond the size in its header, or for other than three dimensions. Raises
    ResourceError if it does not fit into `memory` bytes, or if tifffile is missing.
    """
    tifffile = _tifffile()
    damage = (
        tifffile.TiffFileError, ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, EOFError,
        ZeroDivisionError, RuntimeError, MemoryError, AssertionError, NotImplementedError, struct.error, zlib.error,
    )  # fmt: skip
    file = InputFile(path, what)
    try:
        check_pages(file)
        with os.fdopen(os.dup(file.fd), "rb") as stream, tifffile.TiffFile(stream, name="volume.tif") as tiff:
            volume = _read(file, tiff, memory, headers)
            volume.header = read_metadata(tiff)
            return volume
    except TilewrightError:
        file.close()
        raise
    except damage as error:
        file.close()
        remedy = "copy the file again, or save its planes as an uncompressed TIFF or as .npy"
        raise InputError(f"tifffile cannot read it: {brief(error)}", path=path, remedy=remedy) from error
    except OSError as error:
        file.close()
        with naming(path, "read"):
            raise error
    except BaseException:
        file.close()
        raise


def _read(file: InputFile, tiff: Any, memory: int | None, headers: bool) -> Volume:
    series = tiff.series[0]
    page, dtype = series.keyframe, series.dtype
    if len(tiff.series) > 1:
        what = f"holds {len(tiff.series)} images of different sizes: {', '.join(str(s.shape) for s in tiff.series[:4])}"
        raise InputError(what, path=file.path, remedy="save one stack of equal pages")
    if page.samplesperpixel != 1:
        raise InputError(f"has {page.samplesperpixel} channels per pixel; one is wanted", path=file.path)
    shape = check_shape(file.path, tuple(int(n) for n in series.shape), dtype)
    needed = math.prod(shape) * dtype.itemsize
    if series.dataoffset is not None:
        if series.dataoffset + needed > file.size:
            what = f"the header states {dtype} {shape}, {needed:,} bytes; the file has {file.size:,}"
            raise InputError(
                what, path=file.path, remedy="copy or download the file again: it was cut short or is damaged"
            )
        return RawVolume(file, shape, dtype.newbyteorder(tiff.byteorder), series.dataoffset)
    _check_pages(file, series, needed, headers=headers)
    check_memory(file.path, needed, memory)
    if headers:
        file.close()
        return ArrayVolume(file.path, np.broadcast_to(np.zeros((), dtype), shape))
    array = np.empty((len(series.pages), *page.shape), dtype)
    for plane, one in zip(array, series.pages, strict=True):
        plane[...] = one.asarray(maxworkers=1)
    file.close()
    return ArrayVolume(file.path, array.reshape(shape))


def _check_pages(file: InputFile, series: Any, needed: int, *, headers: bool) -> None:
    """Raises InputError unless every piece of every page has the right number of bytes. headers: judge only by the
    headers."""
    page = series.keyframe
    if page.compression not in (*PLAIN, *DEFLATED):
        name = getattr(page.compression, "name", page.compression)
        remedy = "save the stack uncompressed or deflated"
        raise InputError(f"compression {name} is not read", path=file.path, remedy=remedy)
    size = math.prod(page.chunks) * page.dtype.itemsize
    if len(series.pages) * page.nbytes != needed or size > max(needed, LEAST_TILE):
        what = f"{len(series.pages)} pages of {page.shape} in pieces of {page.chunks} do not make up {series.shape}"
        raise InputError(what, path=file.path)
    for number, one in enumerate(series.pages):
        for offset, count in zip(one.dataoffsets, one.databytecounts, strict=True):
            if offset + count > file.size:
                raise InputError(
                    f"TIFF page {number} lies after the end of the file",
                    path=file.path,
                    remedy="copy or download the file again: it was cut short",
                )
            if not headers and page.compression in DEFLATED and _expands_beyond(file, offset, count, size):
                what = f"TIFF page {number} expands beyond the {size:,} bytes that its header states"
                raise InputError(
                    what,
                    path=file.path,
                    where=f"byte {offset}",
                    remedy="copy or download the file again: it is damaged",
                )


def _expands_beyond(file: InputFile, offset: int, count: int, size: int) -> bool:
    if 1032 * count <= size:  # deflate never expands more than this
        return False
    data = bytearray(count)
    file.read_into(data, offset)
    inflate, left, total = zlib.decompressobj(), bytes(data), 0
    while left and not inflate.eof and total <= size:
        total += len(inflate.decompress(left, 1 << 20))
        left = inflate.unconsumed_tail
    return total > size


def tiff_form(shape: Shape, dtype: np.dtype, like: Volume) -> RawForm:
    """A TIFF stack with one page per plane, its values stored as one array. It keeps the metadata of `like` if that is
    a TIFF."""
    size = math.prod(shape) * dtype.itemsize
    options, _ = tiff_options(shape, dtype, like)
    try:
        head, tail = _around(shape, dtype, size, options)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, struct.error):
        head, tail = _around(shape, dtype, size, options_for(TiffMetadata(), shape, dtype, big=_is_big(size))[0])
    return RawForm(shape, dtype, head, tail)


def tiff_options(shape: Shape, dtype: np.dtype, like: Volume) -> tuple[dict[str, Any], str | None]:
    """(what tifffile gets besides the values' shape and dtype, what is lost of the metadata of `like`)."""
    size = math.prod(shape) * dtype.itemsize
    found = like.header if isinstance(like.header, TiffMetadata) else None
    if found is None and (voxels := voxel_size(like)):
        found = as_tiff(voxels)
    found = found or TiffMetadata()
    options, lost = options_for(found, shape, dtype, big=_is_big(size))
    if found:
        try:
            _around(shape, dtype, size, options)
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, struct.error) as error:
            lost = f"the input's resolution and metadata: tifffile cannot write them ({brief(error)})"
    return options, lost


def _is_big(size: int) -> bool:
    return size > 0xF0000000  # otherwise offsets have 32 bits


def _around(shape: Shape, dtype: np.dtype, size: int, options: dict[str, Any]) -> tuple[bytes, bytes]:
    """The bytes before and after the values."""
    with tempfile.TemporaryFile() as stream, naming(tempfile.gettempdir(), "write"):
        tifffile = _tifffile()
        begin, _ = tifffile.imwrite(  # a file with a hole in place of the values
            tifffile.FileHandle(stream, name="volume.tif"),
            shape=shape,
            dtype=dtype,
            bigtiff=_is_big(size),
            byteorder="<",
            photometric="minisblack",
            returnoffset=True,
            **options,
        )
        stream.seek(0)
        head = stream.read(begin)
        stream.seek(begin + size)
        return head, stream.read()


def _tifffile() -> Any:
    tifffile = package("tifffile", "TIFF")
    logging.getLogger("tifffile").addHandler(logging.NullHandler())  # errors are raised, not written to stderr
    return tifffile
