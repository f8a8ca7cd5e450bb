"""A tile of x in scratch as float64, with its halo: filled from an array of any dtype, copied back to any dtype."""

import functools
from typing import NamedTuple, get_type_hints

import numpy as np
from numba import types

from tilewright import simd
from tilewright.ops.correlate.cpu.doubles import fetch_integer, load_sums, read, start_sums, store_sums, write
from tilewright.ops.correlate.frame import Job, TiledAxis
from tilewright.ops.correlate.operands import KINDS, NEGATED, OUTSIDE

_FIELDS = {TiledAxis: simd.record(TiledAxis), int: types.int64, float: types.float64}
# job; offsets: of `Frame`; taps, weights; tasks; scratch
SIGNATURE = types.void(
    types.NamedTuple([_FIELDS[annotation] for annotation in get_type_hints(Job).values()], Job),
    simd.INDICES,
    types.Array(types.int64, 2, "C", readonly=True),
    types.Array(types.float64, 1, "C", readonly=True),
    simd.TASKS,
    simd.OUTPUT,
)


class PerAxis(NamedTuple):
    """One integer per axis: the index of an element, or the outputs of a tile."""

    w: int
    z: int
    y: int
    x: int


class Row(NamedTuple):
    """A row of the extended x, `count` elements. The elements from `low` to `high` are in x, `step` bytes apart, the
    first at byte `first`. low_offsets, high_offsets: addresses of the byte offsets of the elements before `low` and
    after `high`."""

    first: int
    step: int
    low: int
    high: int
    count: int
    low_offsets: int
    high_offsets: int


def choice(functions):
    """An inline function f(kind, ...) that calls functions[kind](...), one of at most twelve."""
    a, b, c, d, e, f, g, h, i, j, k, l = [*functions, functions[-1]][:12]

    @simd.inline
    def chosen(kind, *args):
        if kind == 0:
            a(*args)
        elif kind == 1:
            b(*args)
        elif kind == 2:
            c(*args)
        elif kind == 3:
            d(*args)
        elif kind == 4:
            e(*args)
        elif kind == 5:
            f(*args)
        elif kind == 6:
            g(*args)
        elif kind == 7:
            h(*args)
        elif kind == 8:
            i(*args)
        elif kind == 9:
            j(*args)
        elif kind == 10:
            k(*args)
        else:
            l(*args)

    return chosen


def element_reader(kind: str):
    """The inline function that copies one element of dtype `kind` to a tile."""

    @simd.inline
    def read_element(tile, at, address):
        store_sums(tile, at, read(address, 0, kind, 1))

    return read_element


def _row_reader(kind: str, lanes: int):
    """The inline function that copies a `Row` of dtype `kind` to a tile."""
    size = np.dtype(kind).itemsize

    @simd.inline
    def read_end(tile, at, source, offsets, count, cval):
        for i in range(count):
            offset = fetch_integer(offsets, i)
            if offset == OUTSIDE:
                store_sums(tile, at + i, start_sums(cval, 1, 1))
            else:
                store_sums(tile, at + i, read(source + offset, 0, kind, 1))

    @simd.inline
    def read_row(tile, at, source, row, cval):
        read_end(tile, at, source, row.low_offsets, row.low, cval)
        address, i, inside = source + row.first, 0, row.high - row.low
        if row.step == size:
            while i + lanes <= inside:
                store_sums(tile, at + row.low + i, read(address, i, kind, lanes))
                i += lanes
        while i < inside:
            store_sums(tile, at + row.low + i, read(address + i * row.step, 0, kind, 1))
            i += 1
        read_end(tile, at + row.high, source, row.high_offsets, row.count - row.high, cval)

    return read_row


def row_writer(kind: str, lanes: int):
    """The inline function that copies `count` elements of a tile to a row of dtype `kind`, `step` bytes apart."""
    size = np.dtype(kind.split()[0]).itemsize

    @simd.inline
    def write_row(tile, at, out, step, count):
        i = 0
        if step == size:
            while i + lanes <= count:
                write(out, i, load_sums(tile, at + i, 1, lanes), kind)
                i += lanes
        while i < count:
            write(out + i * step, 0, load_sums(tile, at + i, 1, 1), kind)
            i += 1

    return write_row


@simd.inline
def offset_of(axis, offsets, index):
    """Bytes from the array's first element to that of `index` of the extended axis; OUTSIDE if there is none."""
    inside = index - axis.before
    if 0 <= inside < axis.size:
        return inside * axis.step
    return fetch_integer(offsets, axis.first + (index if inside < 0 else index - axis.size))


@simd.inline
def rows_inside(axis, index, most):
    """How many rows from `index` of the extended axis on are contiguous in x, at least 1, at most `most`."""
    inside = index - axis.before
    return min(most, axis.size - inside) if 0 <= inside < axis.size else 1


@simd.inline
def first_output(job, task):
    """The index of the first output of tile `task`."""
    x = task % job.x.tiles
    task //= job.x.tiles
    y = task % job.y.tiles
    task //= job.y.tiles
    z = task % job.z.tiles
    w = task // job.z.tiles
    return PerAxis(w * job.w.tile, z * job.z.tile, y * job.y.tile, x * job.x.tile)


@simd.inline
def outputs(job, start):
    """The outputs, per axis, of the tile whose first output is `start`."""
    return PerAxis(
        min(job.w.tile, job.w.size - start.w),
        min(job.z.tile, job.z.size - start.z),
        min(job.y.tile, job.y.size - start.y),
        min(job.x.tile, job.x.size - start.x),
    )


@functools.cache
def tile_functions(lanes: int):
    """The inline functions (fill, put) for a vector width of `lanes` float64."""
    read_row = choice([_row_reader(kind, lanes) for kind in KINDS])
    write_row = choice([row_writer(kind, lanes) for kind in (*KINDS, NEGATED)])

    @simd.inline
    def blank(tile, at, count, cval):
        for i in range(0, count, lanes):  # elements after the row are filled later, or never read
            store_sums(tile, at + i, start_sums(cval, 1, lanes))

    @simd.inline
    def row_of(job, offsets, x0, count):
        """A row of the tile whose first output has index x0."""
        before, step = job.x.before, job.x.step
        low = min(max(before - x0, 0), count)
        high = max(min(job.x.size + before - x0, count), low)
        own = offsets + 8 * (job.x.first + x0)
        return Row((x0 + low - before) * step, step, low, high, count, own, own + 8 * (high - job.x.size))

    @simd.inline
    def fill(tile, job, offsets, start, sizes):
        """Copy the tile with its halo. start: index of the first output. sizes: outputs per axis."""
        row = row_of(job, offsets, start.x, sizes.x + job.x.taps - 1)
        for w in range(sizes.w + job.w.taps - 1):
            from_w = offset_of(job.w, offsets, start.w + w)
            for z in range(sizes.z + job.z.taps - 1):
                from_z = offset_of(job.z, offsets, start.z + z)
                y, rows = 0, sizes.y + job.y.taps - 1
                while y < rows:
                    from_y = offset_of(job.y, offsets, start.y + y)
                    at = w * job.w.pitch + z * job.z.pitch + y * job.y.pitch
                    if from_w == OUTSIDE or from_z == OUTSIDE or from_y == OUTSIDE:
                        blank(tile, at, row.count, job.cval)
                    else:
                        source = job.source + from_w + from_z + from_y
                        if job.joined:
                            follow = rows_inside(job.y, start.y + y, rows - y)
                            plane = follow * row.count
                            joined = Row(0, row.step, 0, plane, plane, row.low_offsets, row.high_offsets)
                            read_row(job.source_kind, tile, at, source, joined, job.cval)
                            y += follow - 1
                        else:
                            read_row(job.source_kind, tile, at, source, row, job.cval)
                    y += 1

    @simd.inline
    def put(tile, job, start, sizes):
        """Copy the tile's results to out. start: index of the first output. sizes: outputs per axis."""
        rows, count = sizes.y, sizes.x
        if job.joined:
            rows, count = 1, rows * count
        for w in range(sizes.w):
            for z in range(sizes.z):
                for y in range(rows):
                    at = w * job.w.pitch + z * job.z.pitch + y * job.y.pitch
                    out = job.out + (start.w + w) * job.w.out_step + (start.z + z) * job.z.out_step
                    out += (start.y + y) * job.y.out_step + start.x * job.x.out_step
                    write_row(job.out_kind, tile, at, out, job.x.out_step, count)

    return fill, put
