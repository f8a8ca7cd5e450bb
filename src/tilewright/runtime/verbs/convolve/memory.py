"""The memory of a worker of `tilewright convolve`: the program, the tiles, and the buffers of reading and writing.

`tiling_of` chooses tiles that fit in --memory, and `plan` reports the bytes.
"""

from __future__ import annotations

import ctypes
import math
from typing import TYPE_CHECKING

import numpy as np

from tilewright.formats.files import BLOCK_BYTES
from tilewright.formats.names import suffix_of
from tilewright.formats.raw_volumes import RawForm
from tilewright.formats.volumes import PIECE_BYTES, ArrayVolume, MemoryShort, Shape, Volume, check_memory
from tilewright.formats.zarr_volumes import CALL_BYTES, ZarrForm, ZarrVolume
from tilewright.runtime.jobs.pieces import THREADS, writers
from tilewright.runtime.plan import PROGRAM, is_compiled
from tilewright.runtime.verbs.convolve.kernels import Kernel
from tilewright.runtime.verbs.convolve.tiles import Tiling, cheapest, needed_bytes, tilings
from tilewright.runtime.verbs.convolve.volume_shards import held_bytes

if TYPE_CHECKING:
    from tilewright.formats.volume_formats import Form

COMPILING = {"float32": 48 << 20, "float64": 95 << 20}  # what LLVM keeps of compiling (measured: Numba 0.68, x86-64)
ZARR = 8 << 20  # the package zarr and its codecs (measured: zarr 3.1)
MMAP_THRESHOLD = -3  # glibc's M_MMAP_THRESHOLD, in malloc.h
OWN_MAPPING = 1 << 20  # bytes from which a buffer gets a mapping of its own: a chunk of 64^3 float32
AT_ONCE = 10  # chunks that zarr decodes or encodes at a time, its setting async.concurrency
SLACK = 32 << 20  # bytes: threads, and what the allocator keeps
KEPT = 24 << 20  # of that, once the program is loaded; the rest was for a program larger than expected
MERGE = 16 << 20  # memory of the merge of an output in place, beyond the memory that is free by then


def tiling_of(
    volume: Volume, form: Form, kernel: Kernel, box: Shape, dtype: np.dtype, *, path: str, left: int, at_work: bool
) -> Tiling:
    """The fastest tiles that fit into a worker's memory, for a shard of at most this box. path: of the output. left:
    bytes that the program leaves free. at_work: called in a worker, where less memory is needed than the check before
    the job assumed. Raises MemoryShort if no tiles fit together with the buffers of reading and writing.
    """
    held = held_bytes(form, math.prod(box) * dtype.itemsize)
    check_memory(path, held, left)
    spare_blocks = kernel.spare_blocks if dtype == np.float64 else 0
    candidates = tilings(volume.shape, kernel.halo, (volume.unit, form.unit), box)
    needed = [
        needed_bytes(tiling, dtype.itemsize, spare_blocks)
        + reading_bytes(volume, tiling.block)
        + writing_bytes(form, tiling.tile, dtype.itemsize)
        for tiling in candidates
    ]
    memory = left - held - (KEPT if at_work else SLACK) - MERGE * isinstance(form, RawForm)
    try:
        return cheapest(candidates, needed, memory, box, volume.unit)
    except MemoryShort as short:
        short.instead = _less_memory(volume, form)
        short.advise()
        raise


def _less_memory(volume: Volume, form: Form) -> str | None:
    """The advice for a job that needs less memory; None if there is none."""
    if isinstance(volume, ZarrVolume) or isinstance(form, ZarrForm):
        return "a volume in smaller chunks"
    if volume.held or not isinstance(form, RawForm):
        return "use .npy, .nii or .zarr, which are read and written in tiles"
    return None


def program_bytes(dtype: str, *paths: str) -> int:
    """Bytes of a process that has loaded its code for these input and output paths."""
    zarr = any(suffix_of(path) == ".zarr" for path in paths)
    return PROGRAM + ZARR * zarr + compiling_bytes(dtype)


def free_at_once() -> None:
    """Make glibc return a freed chunk to the system. By default it holds one in each thread's arena: 512^3 float32 in
    chunks of 128^3 then used 28 % more than --memory. Other C libraries have no such setting."""
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):
        mallopt(MMAP_THRESHOLD, OWN_MAPPING)


def compiling_bytes(dtype: str) -> int:
    """Bytes that stay allocated after the kernels are compiled; 0 if they are compiled already."""
    return 0 if is_compiled("conv3d.*" if dtype == "float32" else "correlate.*") else COMPILING[dtype]


def reading_bytes(volume: Volume, block: Shape) -> int:
    """Bytes that reading a block takes besides the block."""
    voxels = math.prod(block)
    if isinstance(volume, ZarrVolume):
        layout = volume.layout
        spans = tuple(
            min(-(-size // chunk), (n + chunk - 2) // chunk + 1)  # a block begins anywhere in a chunk
            for n, size, chunk in zip(block, volume.shape, layout.chunks, strict=True)
        )
        return _chunks_bytes(layout.chunks, spans, layout.shards, block, volume.dtype.itemsize)
    if isinstance(volume, ArrayVolume):
        return min(PIECE_BYTES, 8 * voxels)
    piece = min(max(PIECE_BYTES, volume.dtype.itemsize * voxels // max(1, min(block))), volume.dtype.itemsize * voxels)
    return 4 * piece  # as stored, converted, scaled in float64


def writing_bytes(form: object, tile: Shape, itemsize: int) -> int:
    """Bytes that writing a tile takes besides the tile."""
    voxels = math.prod(tile)
    if isinstance(form, ZarrForm):
        spans = tuple(-(-n // unit) for n, unit in zip(tile, form.unit, strict=True))  # it begins where a unit does
        return _chunks_bytes(form.unit, spans, None, tile, itemsize)
    hashing = (writers() - THREADS) * BLOCK_BYTES  # the written bytes are read again
    return min(PIECE_BYTES, itemsize * voxels) + (hashing if isinstance(form, RawForm) else 0)


def _chunks_bytes(chunk: Shape, spans: tuple[int, ...], shard: Shape | None, box: Shape, itemsize: int) -> int:
    """Bytes of one call of zarr on a part of a box: its voxels, and the chunks in flight, each stored and decoded.

    chunk, box: shapes. spans: chunks along each axis that the box has a part of. A call reads one box of
    `aligned_boxes`.
    """
    size = math.prod(chunk)
    units, chunks, voxels = max(1, CALL_BYTES // itemsize // size), 1, 1
    for span, n, side in reversed(list(zip(spans, box, chunk, strict=True))):
        step = min(units, span)
        units, chunks, voxels = units // step, chunks * step, voxels * min(n, step * side)
    whole = min(math.prod(shard), math.prod(box)) if shard else 0
    return itemsize * (voxels + 2 * min(AT_ONCE, chunks) * size + whole)
