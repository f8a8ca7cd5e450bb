"""A tile in scratch: filled from an array of any dtype with what lies beyond its ends, and put back as any dtype."""

import functools

import numpy as np
from numba import types

from tilewright import simd
from tilewright.ops.correlate.cpu.doubles import fetch_integer, load_sums, read, start_sums, store_sums, write
from tilewright.ops.correlate.frame import AXIS, ENDS
from tilewright.ops.correlate.operands import KINDS, NEGATED, OUTSIDE

TABLE = types.Array(types.int64, 2, "C", readonly=True)
NUMBERS = types.Array(types.float64, 1, "C", readonly=True)
# axes, ends, offsets: of `Frame`; taps, weights; numbers: cval, start, divisor; tasks; scratch
SIGNATURE = types.void(TABLE, simd.INDICES, simd.INDICES, TABLE, NUMBERS, NUMBERS, simd.TASKS, simd.OUTPUT)


def choice(functions):
    """f(kind, ...): calls functions[kind](...), of at most twelve."""
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


def number_reader(kind: str):
    """The function that copies one number of dtype `kind` to a tile."""

    @simd.inline
    def read_number(tile, at, address):
        store_sums(tile, at, read(address, 0, kind, 1))

    return read_number


def _row_reader(kind: str, lanes: int):
    """The function that copies a row of dtype `kind` with its ends to a tile."""
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
    def read_row(tile, at, source, first, step, span, ends, cval):
        """span: numbers before those that follow each other in the array, from source + first on, the first behind
        them, all. ends: addresses of the offsets of the row's two ends."""
        low, high, count = span
        read_end(tile, at, source, ends[0], low, cval)
        address, i = source + first, 0
        if step == size:
            while i + lanes <= high - low:
                store_sums(tile, at + low + i, read(address, i, kind, lanes))
                i += lanes
        while i < high - low:
            store_sums(tile, at + low + i, read(address + i * step, 0, kind, 1))
            i += 1
        read_end(tile, at + high, source, ends[1], count - high, cval)

    return read_row


def row_writer(kind: str, lanes: int):
    """The function that copies numbers of a tile to a row of dtype `kind`."""
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
def offset_of(axes, offsets, axis, index):
    """Bytes from the array's first number to that of `index` of the extended axis; OUTSIDE if there is none."""
    place, size = index - axes[axis, AXIS.before], axes[axis, AXIS.size]
    if 0 <= place < size:
        return place * axes[axis, AXIS.step]
    return fetch_integer(offsets, axes[axis, AXIS.first] + (index if place < 0 else index - size))


@simd.inline
def rows_inside(axes, index, most):
    """How many rows from `index` of the extended third axis on follow each other in the array, at least 1."""
    place = index - axes[2, AXIS.before]
    return min(most, axes[2, AXIS.size] - place) if 0 <= place < axes[2, AXIS.size] else 1


@simd.inline
def corner(axes, task):
    """The first output of tile `task`, a number an axis."""
    x = task % axes[3, AXIS.tiles]
    task //= axes[3, AXIS.tiles]
    y = task % axes[2, AXIS.tiles]
    task //= axes[2, AXIS.tiles]
    z = task % axes[1, AXIS.tiles]
    w = task // axes[1, AXIS.tiles]
    return w * axes[0, AXIS.tile], z * axes[1, AXIS.tile], y * axes[2, AXIS.tile], x * axes[3, AXIS.tile]


@simd.inline
def outputs(axes, start):
    """How many outputs the tile that begins at `start` has, a number an axis."""
    w, z, y, x = start
    return (
        min(axes[0, AXIS.tile], axes[0, AXIS.size] - w),
        min(axes[1, AXIS.tile], axes[1, AXIS.size] - z),
        min(axes[2, AXIS.tile], axes[2, AXIS.size] - y),
        min(axes[3, AXIS.tile], axes[3, AXIS.size] - x),
    )


@functools.cache
def tile_functions(lanes: int):
    """(fill, put) for a vector width of `lanes` float64."""
    read_row = choice([_row_reader(kind, lanes) for kind in KINDS])
    write_row = choice([row_writer(kind, lanes) for kind in (*KINDS, NEGATED)])

    @simd.inline
    def blank(tile, at, count, cval):
        for i in range(0, count, lanes):  # beyond the row lies what is filled later, or nothing
            store_sums(tile, at + i, start_sums(cval, 1, lanes))

    @simd.inline
    def fill(tile, axes, ends, offsets, cval, start, sizes):
        """The tile that begins at `start` and has `sizes` outputs, with its halo."""
        before, step, kind = axes[3, AXIS.before], axes[3, AXIS.step], ends[ENDS.source_kind]
        count, x0 = sizes[3] + axes[3, AXIS.taps] - 1, start[3]
        low = min(max(before - x0, 0), count)
        high = max(min(axes[3, AXIS.size] + before - x0, count), low)
        own = offsets + 8 * (axes[3, AXIS.first] + x0)
        row_ends = own, own + 8 * (high - axes[3, AXIS.size])
        for w in range(sizes[0] + axes[0, AXIS.taps] - 1):
            from_w = offset_of(axes, offsets, 0, start[0] + w)
            for z in range(sizes[1] + axes[1, AXIS.taps] - 1):
                from_z = offset_of(axes, offsets, 1, start[1] + z)
                y, rows = 0, sizes[2] + axes[2, AXIS.taps] - 1
                while y < rows:
                    from_y = offset_of(axes, offsets, 2, start[2] + y)
                    at = w * axes[0, AXIS.pitch] + z * axes[1, AXIS.pitch] + y * axes[2, AXIS.pitch]
                    if from_w == OUTSIDE or from_z == OUTSIDE or from_y == OUTSIDE:
                        blank(tile, at, count, cval)
                    else:
                        source, first = ends[ENDS.source] + from_w + from_z + from_y, (x0 + low - before) * step
                        if ends[ENDS.joined]:
                            follow = rows_inside(axes, start[2] + y, rows - y)
                            read_row(
                                kind, tile, at, source, 0, step, (0, follow * count, follow * count), row_ends, cval
                            )
                            y += follow - 1
                        else:
                            read_row(kind, tile, at, source, first, step, (low, high, count), row_ends, cval)
                    y += 1

    @simd.inline
    def put(tile, axes, ends, start, sizes):
        """The first `sizes` numbers of the tile to the outputs from `start` on."""
        w0, z0, y0, x0 = start
        for w in range(sizes[0]):
            for z in range(sizes[1]):
                rows, count = (1, sizes[2] * sizes[3]) if ends[ENDS.joined] else (sizes[2], sizes[3])
                for y in range(rows):
                    at = w * axes[0, AXIS.pitch] + z * axes[1, AXIS.pitch] + y * axes[2, AXIS.pitch]
                    out = ends[ENDS.out] + (w0 + w) * axes[0, AXIS.out_step] + (z0 + z) * axes[1, AXIS.out_step]
                    out += (y0 + y) * axes[2, AXIS.out_step] + x0 * axes[3, AXIS.out_step]
                    write_row(ends[ENDS.out_kind], tile, at, out, axes[3, AXIS.out_step], count)

    return fill, put
