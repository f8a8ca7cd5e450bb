"""Writes shards of a volume, and makes the output from them. Raw values are written in place, Zarr chunks as files, and
text and compressed formats as a stream."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from tilewright.errors import ResourceError
from tilewright.formats.atomic import AtomicFile, check_writable
from tilewright.formats.names import suffix_of
from tilewright.formats.raw_volumes import RawForm
from tilewright.formats.volumes import Shape
from tilewright.formats.zarr_volumes import ZarrForm, check_zarr
from tilewright.runtime.jobs.directory import Attempt, JobDirectory
from tilewright.runtime.jobs.durable import check_space
from tilewright.runtime.jobs.pieces import Placing
from tilewright.runtime.jobs.placed import PlacedFile, PlacedTree, is_finished, room
from tilewright.runtime.jobs.sinks import FileSink, Sink, deliver
from tilewright.runtime.jobs.stop import Stop
from tilewright.runtime.jobs.task import Totals
from tilewright.runtime.verbs.convolve.tiles import Tile

if TYPE_CHECKING:
    from tilewright.formats.volume_formats import Form

IN_PLACE = (".npy", ".nii", ".tif", ".tiff")
SPARSE = 16  # the largest Zarr array, as a multiple of the free disk: chunks of zeros take no space
MOST_CHUNKS = 10**9  # of a Zarr array: checking for one missing chunk takes 20 us, so more chunks would take hours
SHARD_BYTES = 256 << 20  # of values per shard: several tiles, and some tenths of a second of work
STREAM_BYTES = 16 << 20  # of values per shard, if the worker holds a shard in memory until it is complete


def shard_bytes(form: Form) -> int:
    """The best size of a shard, in bytes of its values."""
    return SHARD_BYTES if isinstance(form, RawForm | ZarrForm) else STREAM_BYTES


def held_bytes(form: Form, shard: int) -> int:
    """Bytes of memory that writing needs besides tiles. shard: bytes of the shard's values."""
    return 0 if isinstance(form, RawForm | ZarrForm) else 2 * shard


@contextmanager
def writing(form: Form, out: Attempt, box: Tile, dtype: np.dtype) -> Iterator[Callable[[Tile, np.ndarray], None]]:
    """Within the block: a function write(tile, voxels) for all tiles of the shard `out`, in any order.

    box: the shard's box in the volume. voxels: (d, h, w), C-contiguous, of `dtype`. Raises ResourceError.
    """
    if isinstance(form, RawForm):
        with Placing(out) as place:
            yield lambda tile, numbers: place.put(form.runs_of(tile.start, numbers))
            place.note(*form.span(box.start[form.axis], box.shape[form.axis]))
    elif isinstance(form, ZarrForm):
        with Placing(out) as place:
            yield lambda tile, numbers: place.files(form.encode(tile.start, numbers))
    else:
        slab = np.empty(box.shape, dtype)

        def keep(tile: Tile, numbers: np.ndarray) -> None:
            first = [a - b for a, b in zip(tile.start, box.start, strict=True)]
            slab[tuple(slice(a, a + n) for a, n in zip(first, tile.shape, strict=True))] = numbers

        yield keep
        for block in form.encode(slab):
            out.write(block)


def check_output(path: str, shape: Shape, dtype: np.dtype) -> None:
    """Raises ResourceError if a volume cannot be written to this path, or if the disk has too little space."""
    check_room(path, shape, dtype)
    if suffix_of(path) != ".zarr":
        AtomicFile(path).__enter__().discard()


def check_room(path: str, shape: Shape, dtype: np.dtype) -> None:
    """As `check_output`, but only the checks that write nothing."""
    if suffix_of(path) == ".zarr":
        check_zarr(path)
        return
    check_writable(path)
    if suffix_of(path) not in IN_PLACE or is_finished(path):
        return
    needed = math.prod(shape) * dtype.itemsize
    if needed > (free := room(path)):
        what = f"cannot write: the output takes {needed:,} bytes and the disk has {free:,} left"
        raise ResourceError(what, path=path, remedy="free some space or write to another disk")


def check_chunks(path: str, shape: Shape, chunks: Shape, dtype: np.dtype, what: str) -> None:
    """Raises ResourceError for a Zarr array with too many chunks. what: "input" or "output", for the message.

    A small header may declare any number of chunks that do not exist.
    """
    count = math.prod(-(-n // size) for n, size in zip(shape, chunks, strict=True))
    remedy = "check the array's shape, store it in larger chunks, or filter a part of it"
    if count > MOST_CHUNKS:
        raise ResourceError(f"the {what} has {count:,} chunks of {chunks} for a shape of {shape}; at most "
                            f"{MOST_CHUNKS:,} are read or written", path=path, remedy=remedy)  # fmt: skip
    needed = math.prod(shape) * dtype.itemsize
    if what == "output" and needed > SPARSE * (free := room(path)):
        raise ResourceError(
            f"the output's {shape} values take {needed:,} bytes and the disk has {free:,} left; at most {SPARSE} times "
            "that is allowed", path=path, remedy=remedy)  # fmt: skip


def assemble(
    form: Form, directory: JobDirectory, totals: Totals, stop: Stop, box: Callable[[range], Tile]
) -> list[tuple[int, str]]:
    """Turn the shards into the output, and return its (bytes, sha256). box: returns the box of a shard's rows.

    Raises DamagedShards, Interrupted and ResourceError.
    """
    sink: Sink
    if isinstance(form, RawForm):
        values = form.size - len(form.head) - len(form.tail)
        sink = PlacedFile(directory, form.head, values, form.tail, stop.check)
    elif isinstance(form, ZarrForm):

        def names(number: int) -> list[str]:
            return form.names(*box(directory.shard(number).rows))

        sink = PlacedTree(directory, form.metadata, check_zarr(directory.output), stop.check, names)
    else:
        check_space(directory.output, totals.size if suffix_of(directory.output) == ".txt" else 0)
        sink = FileSink(directory.output, form.encoder)
    return deliver(directory, totals.shards, [sink], stop)
