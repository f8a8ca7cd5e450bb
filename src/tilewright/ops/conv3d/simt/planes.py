"""Parts of the marching kernels: offsets of a thread's quads in a plane, the border beside its rows, and the stores.

Each thread handles several quads, rows or border elements. Numba needs tuples of fixed length, so the factories
recurse: the function for n of them calls the function for n - 1 and handles the last one itself.
"""

from functools import cache

from numba import cuda, int32, int64

from tilewright.ops.conv3d.simt.border import source_index
from tilewright.ops.conv3d.simt.copies import NONE, OUTSIDE
from tilewright.ops.conv3d.simt.forms import QUAD, Form
from tilewright.ops.core.gpu.registers import ZERO, add4, load, load4, store, store4
from tilewright.ops.core.gpu.simt import inline


@inline
def base_of(at, D, plane, mode):
    """Offset of plane `at` of a volume of D planes of `plane` elements; -1 if it is outside, in mode CONSTANT."""
    z = source_index(at, D, mode)
    return z * plane if z >= 0 else int64(-1)


@cache
def offsets_for(form: Form, count: int):
    """offsets(top, left, H, P, mode): int32 offsets of a thread's first `count` quads in a plane (H, P); OUTSIDE beyond
    the border, NONE beyond the tile.

    top, left: row and column of x where the tile with its halo starts.
    """
    across, height = form.across, form.height
    skipped = (count - 1) * form.threads

    @inline
    def last(top, left, H, P, mode):
        quad = cuda.threadIdx.x + skipped
        y, at = source_index(top + quad // across, H, mode), left + quad % across * QUAD
        if quad >= height * across:
            return int32(NONE)
        return int32(y * P + at if y >= 0 and 0 <= at <= P - QUAD else OUTSIDE)

    if count == 1:

        @inline
        def offsets(top, left, H, P, mode):
            return (last(top, left, H, P, mode),)

    else:
        others = offsets_for(form, count - 1)

        @inline
        def offsets(top, left, H, P, mode):
            own = (last(top, left, H, P, mode),)
            return others(top, left, H, P, mode) + own

    return offsets


@cache
def _put_for(adds: bool):
    """put(out, at, columns_left, aligned, values): store the first `columns_left` of four values at offset `at`, or
    add.

    aligned: rows of out start at multiples of 16 bytes, so a row has whole quads, each stored at once.
    """

    @inline
    def put_one(out, at, value):
        store(out, at, load(out, at) + value if adds else value)

    @inline
    def put(out, at, columns_left, aligned, values):
        if aligned:
            if columns_left > 0:
                store4(out, at, add4(load4(out, at), values) if adds else values)
        else:
            v0, v1, v2, v3 = values
            if columns_left > 0:
                put_one(out, at, v0)
            if columns_left > 1:
                put_one(out, at + 1, v1)
            if columns_left > 2:
                put_one(out, at + 2, v2)
            if columns_left > 3:
                put_one(out, at + 3, v3)

    return put


@cache
def writer_for(rows: int, adds: bool = False):
    """write(out, at, pitch, remaining, values): store a quad in each of `rows` rows, `pitch` elements apart.

    at: offset of the first quad. remaining: (rows, columns) of out from there to its end. adds: add to the elements of
    out.
    """
    put = _put_for(adds)
    if rows == 1:

        @inline
        def write(out, at, pitch, remaining, values):
            rows_left, columns_left = remaining
            if rows_left > 0:
                put(out, at, columns_left, pitch % QUAD == 0, values)

    else:
        above, end = writer_for(rows - 1, adds), (rows - 1) * QUAD

        @inline
        def write(out, at, pitch, remaining, values):
            above(out, at, pitch, remaining, values[:end])
            rows_left, columns_left = remaining
            if rows_left >= rows:
                put(out, at + (rows - 1) * pitch, columns_left, pitch % QUAD == 0, values[end:])

    return write


@cache
def column_writer_for(rows: int):
    """write(out, at, pitch, rows_left, values): store a value in each of the first `rows_left` of `rows` rows, `pitch`
    elements apart. at: offset of the first one."""
    above, own = column_writer_for(rows - 1) if rows > 1 else None, rows - 1

    @inline
    def last(out, at, pitch, rows_left, values):
        if rows_left >= rows:
            store(out, at + own * pitch, values[own])

    if above is None:
        return last

    @inline
    def write(out, at, pitch, rows_left, values):
        above(out, at, pitch, rows_left, values)
        last(out, at, pitch, rows_left, values)

    return write


@cache
def edges_for(form: Form):
    """(offsets, fetch, put) for the border elements before and after rows of x that a thread writes into the tile.

    offsets(corner, first, H, W, mode, there): pairs, an element's offset in a plane of x and in the tile; -1 if there
    is none. corner: (row, column) of x where the tile with its halo starts. first: elements from a window's start to
    its output along x. there: False if the tile needs no border. fetch(x, base, edges): loads them. put(tile, now,
    edges, values): stores them in the tile at offset `now`.
    """
    count = max(1, -(-(form.tile[0] + form.sizes[1] - 1) * (form.sizes[2] - 1) // form.threads))
    return _edge_offsets(form, count), _edge_fetch(count), _edge_put(count)


@cache
def _edge_offsets(form: Form, count: int):
    height, sides, pitch = form.tile[0] + form.sizes[1] - 1, form.sizes[2] - 1, form.across * QUAD
    skipped, several = (count - 1) * form.threads, max(sides, 1)

    @inline
    def last(corner, first, H, W, mode, there):
        i = cuda.threadIdx.x + skipped
        row, side = i // several, i % several
        at = side - first if side < first else W + side - first
        top, left = corner
        column = at - left
        if not there or i >= height * sides or not 0 <= column < pitch:
            return int32(-1), int32(-1)
        return int32(source_index(top + row, H, mode) * W + source_index(at, W, mode)), int32(row * pitch + column)

    if count == 1:
        return last
    others = _edge_offsets(form, count - 1)

    @inline
    def offsets(corner, first, H, W, mode, there):
        return others(corner, first, H, W, mode, there) + last(corner, first, H, W, mode, there)

    return offsets


@cache
def _edge_fetch(count: int):
    at = 2 * (count - 1)

    @inline
    def last(x, base, edges):
        return (load(x, base + edges[at]) if edges[at] >= 0 else ZERO,)

    if count == 1:
        return last
    others = _edge_fetch(count - 1)

    @inline
    def fetch(x, base, edges):
        return others(x, base, edges) + last(x, base, edges)

    return fetch


@cache
def _edge_put(count: int):
    own, others = count - 1, _edge_put(count - 1) if count > 1 else None
    at = 2 * own + 1

    @inline
    def last(tile, now, edges, values):
        if edges[at] >= 0:
            store(tile, now + edges[at], values[own])

    if others is None:
        return last

    @inline
    def put(tile, now, edges, values):
        others(tile, now, edges, values)
        last(tile, now, edges, values)

    return put
