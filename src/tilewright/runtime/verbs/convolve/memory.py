"""The memory of a worker of `tilewright convolve`: the program, and what reading and writing take beside tiles.

`ConvolveTask` keeps to it where --memory says how much there is, and `plan` tells it.
"""

from __future__ import annotations

import ctypes
import math

from tilewright.formats.files import BLOCK_BYTES
from tilewright.formats.names import suffix_of
from tilewright.formats.raw_volumes import RawForm
from tilewright.formats.volumes import PIECE_BYTES, Shape, Volume
from tilewright.formats.zarr_volumes import CALL_BYTES, ZarrForm, ZarrVolume
from tilewright.runtime.jobs.pieces import THREADS, writers
from tilewright.runtime.plan import PROGRAM, is_compiled

COMPILING = {"float32": 48 << 20, "float64": 95 << 20}  # what LLVM keeps of compiling (measured: Numba 0.68, x86-64)
ZARR = 8 << 20  # the package zarr and its codecs (measured: zarr 3.1)
MMAP_THRESHOLD = -3  # glibc's M_MMAP_THRESHOLD, in malloc.h
OWN_MAPPING = 1 << 20  # bytes from which a buffer gets a mapping of its own: a chunk of 64^3 float32
AT_ONCE = 10  # chunks that zarr decodes or encodes at a time, its setting async.concurrency


def program_bytes(dtype: str, *paths: str) -> int:
    """Of a process that has loaded all it needs to convolve from and to these paths."""
    zarr = any(suffix_of(path) == ".zarr" for path in paths)
    return PROGRAM + ZARR * zarr + compiling_bytes(dtype)


def free_at_once() -> None:
    """Makes glibc give a freed chunk back to the system. It keeps one in each thread's arena else: 512^3 float32 in
    chunks of 128^3 took 28 % more than --memory. Other C libraries have no such setting."""
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):
        mallopt(MMAP_THRESHOLD, OWN_MAPPING)


def compiling_bytes(dtype: str) -> int:
    """What compiling the kernels keeps; 0 where they are compiled."""
    return 0 if is_compiled("conv3d.*" if dtype == "float32" else "correlate.*") else COMPILING[dtype]


def reading_bytes(volume: Volume, block: Shape) -> int:
    """What reading a block takes beside it."""
    voxels = math.prod(block)
    if isinstance(volume, ZarrVolume):
        layout = volume.layout
        spans = tuple(
            min(-(-size // chunk), (n + chunk - 2) // chunk + 1)  # a block begins anywhere in a chunk
            for n, size, chunk in zip(block, volume.shape, layout.chunks, strict=True)
        )
        return _chunks_bytes(layout.chunks, spans, layout.shards, block, volume.dtype.itemsize)
    if volume.held:
        return min(PIECE_BYTES, 8 * voxels)
    piece = min(max(PIECE_BYTES, volume.dtype.itemsize * voxels // max(1, min(block))), volume.dtype.itemsize * voxels)
    return 4 * piece  # as stored, converted, scaled in float64


def writing_bytes(form: object, tile: Shape, itemsize: int) -> int:
    """What writing a tile takes beside it."""
    voxels = math.prod(tile)
    if isinstance(form, ZarrForm):
        spans = tuple(-(-n // unit) for n, unit in zip(tile, form.unit, strict=True))  # it begins where a unit does
        return _chunks_bytes(form.unit, spans, None, tile, itemsize)
    hashing = (writers() - THREADS) * BLOCK_BYTES  # what was written is read again
    return min(PIECE_BYTES, itemsize * voxels) + (hashing if isinstance(form, RawForm) else 0)


def _chunks_bytes(chunk: Shape, spans: tuple[int, ...], shard: Shape | None, box: Shape, itemsize: int) -> int:
    """Bytes of one call of zarr on a part of a box: its voxels, and the chunks in flight, each stored and decoded.

    chunk, box: shapes. spans: chunks along each axis that the box has a part of. A call is what `aligned_boxes` yields.
    """
    size = math.prod(chunk)
    units, chunks, voxels = max(1, CALL_BYTES // itemsize // size), 1, 1
    for span, n, side in reversed(list(zip(spans, box, chunk, strict=True))):
        step = min(units, span)
        units, chunks, voxels = units // step, chunks * step, voxels * min(n, step * side)
    whole = min(math.prod(shard), math.prod(box)) if shard else 0
    return itemsize * (voxels + 2 * min(AT_ONCE, chunks) * size + whole)
