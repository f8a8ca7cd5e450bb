"""What marching kernels share: where a thread's quads of a plane lie, what stands beyond its rows, and how results
leave."""

from functools import cache

from numba import cuda, int32, int64

from tilewright.ops.conv3d.simt.border import place
from tilewright.ops.conv3d.simt.window import QUAD, Form
from tilewright.ops.core.gpu.registers import ZERO, add4, load, load4, store, store4
from tilewright.ops.core.gpu.simt import inline


@inline
def base_of(at, D, plane, mode):
    """The number with which plane `at` of D begins; -1 where none stands there."""
    z = place(at, D, mode)
    return z * plane if z >= 0 else int64(-1)


@cache
def offsets_for(form: Form, count: int):
    """offsets(top, left, H, P, mode): where a thread's first `count` quads of a plane lie in it, -1 for none.

    top, left: of the plane with its halo, in the volume.
    """
    across, height = form.across, form.tile[0] + form.sizes[1] - 1
    skipped = (count - 1) * form.threads

    @inline
    def last(top, left, H, P, mode):
        quad = cuda.threadIdx.x + skipped
        y, at = place(top + quad // across, H, mode), left + quad % across * QUAD
        return int32(y * P + at if quad < height * across and y >= 0 and 0 <= at <= P - QUAD else -1)

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
    """put(out, at, left, whole, values): write `left` of four values to number `at` of out on, or add them there.

    whole: quads of a row lie at multiples of 16 bytes.
    """

    @inline
    def put_one(out, at, value):
        store(out, at, load(out, at) + value if adds else value)

    @inline
    def put(out, at, left, whole, values):
        if whole:
            if left > 0:
                store4(out, at, add4(load4(out, at), values) if adds else values)
        else:
            if left > 0:
                put_one(out, at, values[0])
            if left > 1:
                put_one(out, at + 1, values[1])
            if left > 2:
                put_one(out, at + 2, values[2])
            if left > 3:
                put_one(out, at + 3, values[3])

    return put


@cache
def writer_for(rows: int, adds: bool = False):
    """write(out, at, pitch, left, values): quads of so many rows `pitch` apart, from number `at` of out on.

    left: (rows, columns) that out has there. adds: to what it holds.
    """
    put = _put_for(adds)
    if rows == 1:

        @inline
        def write(out, at, pitch, left, values):
            if left[0] > 0:
                put(out, at, left[1], pitch % QUAD == 0, values)

    else:
        above, end = writer_for(rows - 1, adds), (rows - 1) * QUAD

        @inline
        def write(out, at, pitch, left, values):
            above(out, at, pitch, left, values[:end])
            if left[0] >= rows:
                put(out, at + (rows - 1) * pitch, left[1], pitch % QUAD == 0, values[end:])

    return write


@cache
def edges_for(form: Form):
    """(places, fetch, put) for the numbers before and behind rows of x that a thread writes into the tile.

    places(corner, first, H, W, mode, there): where each lies in a plane of x, and in the tile; -1 for none. corner:
    (row, column) of x at which the tile, with its halo, begins. first: how far a window begins before its output, along
    x. there: whether there are any. fetch(x, base, places): the numbers. put(tile, now, places, numbers): writes them.
    """
    count = max(1, -(-(form.tile[0] + form.sizes[1] - 1) * (form.sizes[2] - 1) // form.threads))
    return _edge_places(form, count), _edge_fetch(count), _edge_put(count)


@cache
def _edge_places(form: Form, count: int):
    height, sides, pitch = form.tile[0] + form.sizes[1] - 1, form.sizes[2] - 1, form.across * QUAD
    skipped, several = (count - 1) * form.threads, max(sides, 1)

    @inline
    def last(corner, first, H, W, mode, there):
        i = cuda.threadIdx.x + skipped
        row, side = i // several, i % several
        at = side - first if side < first else W + side - first
        column = at - corner[1]
        if not there or i >= height * sides or not 0 <= column < pitch:
            return int32(-1), int32(-1)
        return int32(place(corner[0] + row, H, mode) * W + place(at, W, mode)), int32(row * pitch + column)

    if count == 1:
        return last
    others = _edge_places(form, count - 1)

    @inline
    def places(corner, first, H, W, mode, there):
        return others(corner, first, H, W, mode, there) + last(corner, first, H, W, mode, there)

    return places


@cache
def _edge_fetch(count: int):
    at = 2 * (count - 1)

    @inline
    def last(x, base, places):
        return (load(x, base + places[at]) if places[at] >= 0 else ZERO,)

    if count == 1:
        return last
    others = _edge_fetch(count - 1)

    @inline
    def fetch(x, base, places):
        return others(x, base, places) + last(x, base, places)

    return fetch


@cache
def _edge_put(count: int):
    own, others = count - 1, _edge_put(count - 1) if count > 1 else None
    at = 2 * own + 1

    @inline
    def last(tile, now, places, numbers):
        if places[at] >= 0:
            store(tile, now + places[at], numbers[own])

    if others is None:
        return last

    @inline
    def put(tile, now, places, numbers):
        others(tile, now, places, numbers)
        last(tile, now, places, numbers)

    return put
