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

COMPILING = {"float32": 73 << 20, "float64": 120 << 20}  # bytes that Numba and LLVM hold later (Numba 0.68, x86-64)
ZARR = 8 << 20  # bytes of the package zarr and its codecs (measured: zarr 3.1)
MMAP_THRESHOLD = -3  # glibc's M_MMAP_THRESHOLD, in malloc.h
OWN_MAPPING = 1 << 20  # bytes from which malloc uses a separate mapping: those of a chunk of 64^3 float32
AT_ONCE = 10  # chunks that zarr decodes or encodes in parallel: its setting async.concurrency
SLACK = 32 << 20  # reserve in bytes: stacks of threads, free memory that the allocator holds, a larger program
KEPT = 24 << 20  # bytes of the reserve that remain once the program is loaded and its size is known
MERGE = 16 << 20  # bytes of the merge of an output that is written in place, beyond memory that is free by then


def tiling_of(
    volume: Volume, form: Form, kernel: Kernel, box: Shape, dtype: np.dtype, *, path: str, left: int, at_work: bool
) -> Tiling:
    """Choose the fastest tiles that fit into a worker's memory. box: the largest shape of a shard.

    path: of the output. left: bytes that the program leaves free. at_work: True in a worker, which needs less memory
    than the check before the job assumes. Raises MemoryShort if no tiles fit together with the buffers for reading and
    writing.
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
    """Advice how the job would need less memory; None if there is none."""
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
    """Make glibc return freed chunks to the system at once. Other C libraries have no such setting.

    By default glibc holds a freed chunk in each thread's arena. With 512^3 float32 in chunks of 128^3, a job then used
    28 % more than --memory.
    """
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):
        mallopt(MMAP_THRESHOLD, OWN_MAPPING)


def compiling_bytes(dtype: str) -> int:
    """Bytes that stay allocated after the kernels are compiled; 0 if they are compiled already."""
    return 0 if is_compiled("conv3d.*" if dtype == "float32" else "correlate.*") else COMPILING[dtype]


def reading_bytes(volume: Volume, block: Shape) -> int:
    """Bytes that reading a block needs in addition to the block itself."""
    voxels = math.prod(block)
    if isinstance(volume, ZarrVolume):
        layout = volume.layout
        spans = tuple(
            min(-(-size // chunk), (n + chunk - 2) // chunk + 1)  # a block may begin anywhere in a chunk
            for n, size, chunk in zip(block, volume.shape, layout.chunks, strict=True)
        )
        return _chunks_bytes(layout.chunks, spans, layout.shards, block, volume.dtype.itemsize)
    if isinstance(volume, ArrayVolume):
        return min(PIECE_BYTES, 8 * voxels)
    piece = min(max(PIECE_BYTES, volume.dtype.itemsize * voxels // max(1, min(block))), volume.dtype.itemsize * voxels)
    return 4 * piece  # as stored, converted, and scaled in float64


def writing_bytes(form: object, tile: Shape, itemsize: int) -> int:
    """Bytes that writing a tile needs in addition to the tile itself."""
    voxels = math.prod(tile)
    if isinstance(form, ZarrForm):
        spans = tuple(-(-n // unit) for n, unit in zip(tile, form.unit, strict=True))  # a tile begins at a unit's start
        return _chunks_bytes(form.unit, spans, None, tile, itemsize)
    hashing = (writers() - THREADS) * BLOCK_BYTES  # written bytes are read again to hash them
    return min(PIECE_BYTES, itemsize * voxels) + (hashing if isinstance(form, RawForm) else 0)


def _chunks_bytes(chunk: Shape, spans: tuple[int, ...], shard: Shape | None, box: Shape, itemsize: int) -> int:
    """Bytes of one call of zarr on a part of a box: its voxels, and the chunks in flight, both encoded and decoded.

    chunk, box: shapes. spans: the number of chunks along each axis that the box touches. A call reads one box of
    `aligned_boxes`.
    """
    size = math.prod(chunk)
    units, chunks, voxels = max(1, CALL_BYTES // itemsize // size), 1, 1
    for span, n, side in reversed(list(zip(spans, box, chunk, strict=True))):
        step = min(units, span)
        units, chunks, voxels = units // step, chunks * step, voxels * min(n, step * side)
    whole = min(math.prod(shard), math.prod(box)) if shard else 0
    return itemsize * (voxels + 2 * min(AT_ONCE, chunks) * size + whole)
