"""Rows of a tile, its halo with them, into scratch: there the arithmetic knows no border, and rows do not collide.

Rows of scratch are an odd number of cache lines apart. Those of a volume are often a power of two apart, and then the
rows under a window share so few sets of the first cache that they push each other out.

A row is a stretch of the volume's own numbers, copied by whole vectors, and what `rest` writes around it.
"""

import functools

from numba import types

from tilewright import simd

VOLUME = types.Array(types.float32, 4, "A", readonly=True)  # (C, D, H, W), rows contiguous
RESULT = types.Array(types.float32, 4, "A")  # (O, D, H, W), rows contiguous
NOWHERE = -(1 << 62)  # where a row of cval begins; a volume's own may begin below 0, where its planes are reversed


@simd.inline
def row_start(x, place, maps, y_map):
    """Where row y of padded plane z of channel c begins in x, or NOWHERE if it is cval. place: (c, z, y)."""
    c, z, y = place
    plane, line = simd.fetch(maps, z), simd.fetch(maps, y_map + y)
    start = c * (x.strides[0] // 4) + plane * (x.strides[1] // 4) + line * (x.strides[2] // 4)
    return start if plane >= 0 and line >= 0 else NOWHERE


@simd.inline
def own(W, first, columns, left):
    """(low, high): which of a tile's padded columns are the volume's own. first, columns: of the tile; W: the
    volume's; left: padded columns before them."""
    last = first + columns
    return min(max(first, left), last), max(min(last, left + W), first)


@functools.cache
def row_parts(lanes: int):
    """(fill, ends): inline functions that write what of a row is not the volume's own."""

    @simd.inline
    def fill(scratch, at, count, value):
        """`count` numbers from `at`, rounded up to whole vectors."""
        for i in range(0, count, lanes):
            simd.store(scratch, at + i, simd.splat(value, lanes))

    @simd.inline
    def ends(x, start, columns, maps, x_map, cval, scratch, at):
        """Columns (first, last) that are not the row's own, by their map."""
        for i in range(columns[0], columns[1]):
            source = simd.fetch(maps, x_map + i)
            scratch[at + i - columns[0]] = cval if source < 0 else simd.fetch(x, start + source)

    return fill, ends


@functools.cache
def row_rest(lanes: int):
    """The inline function that writes what is not a whole vector of a row."""
    fill, ends = row_parts(lanes)

    @simd.inline
    def rest(x, start, span, axis, maps, cval, scratch, at):
        """All of the row at x[start:] but the whole vectors of its own numbers, to scratch at `at`; a row of cval, its
        last vector filled, for NOWHERE. span: the tile's (first column, last, first that is the volume's own,
        last); axis: where in maps x begins, how many columns come before the volume's own."""
        (first, last, low, high), (x_map, left) = span, axis
        if start == NOWHERE:
            fill(scratch, at, last - first, cval)
        else:
            tail = (high - low) % lanes
            if tail > 0:
                numbers = simd.load_first(x, start + high - left - tail, tail, lanes)
                simd.store(scratch, at + high - first - tail, numbers)
            ends(x, start, (first, low), maps, x_map, cval, scratch, at)
            past = max(high, low)
            ends(x, start, (past, last), maps, x_map, cval, scratch, at + past - first)

    return rest


@functools.cache
def gatherer(lanes: int):
    """The inline function that gathers a plane of a tile."""
    rest = row_rest(lanes)

    @simd.inline
    def gather(x, place, area, axes, maps, cval, scratch, to):
        """Rows y to y + area[0], columns to area[1] of padded plane z of channel c to scratch at `to`, area[2] apart.

        place: (c, z, y, column); axes: where in maps y and x begin, how many columns come before the volume's own.
        """
        (c, z, y, first), (rows, columns, pitch), (y_map, x_map, left) = place, area, axes
        low, high = own(x.shape[3], first, columns, left)
        whole, span = (high - low) // lanes * lanes, (first, first + columns, low, high)
        for r in range(rows):
            start, at = row_start(x, (c, z, y + r), maps, y_map), to + r * pitch
            for i in range(0, whole if start != NOWHERE else 0, lanes):
                simd.store(scratch, at + low - first + i, simd.load(x, start + low - left + i, lanes))
            rest(x, start, span, (x_map, left), maps, cval, scratch, at)

    return gather
