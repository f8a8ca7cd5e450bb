"""A plane of a tile, its halo with it, into scratch: there the arithmetic knows no border, and rows do not collide.

Rows of scratch are an odd number of cache lines apart. Those of a volume are often a power of two apart, and then the
rows under a window share so few sets of the first cache that they push each other out.
"""

import functools

from numba import types

from tilewright import simd

VOLUME = types.Array(types.float32, 4, "A", readonly=True)  # (C, D, H, W), rows contiguous
RESULT = types.Array(types.float32, 4, "A")  # (O, D, H, W), rows contiguous


@functools.cache
def gatherer(lanes: int):
    """The inline function that gathers a plane of a tile."""

    @simd.inline
    def fill(scratch, at, count, value):
        """`count` numbers from `at`, rounded up to whole vectors."""
        for i in range(0, count, lanes):
            simd.store(scratch, at + i, simd.splat(value, lanes))

    @simd.inline
    def ends(x, row, columns, maps, x_map, cval, scratch, at):
        """Columns (first, last) that are not the row's own, by their map."""
        for i in range(columns[0], columns[1]):
            source = simd.fetch(maps, x_map + i)
            scratch[at + i - columns[0]] = cval if source < 0 else simd.fetch(x, row + source)

    @simd.inline
    def gather(x, place, area, axes, maps, cval, scratch, to):
        """Rows y to y + area[0], columns to area[1] of padded plane z of channel c to scratch at `to`, area[2] apart.

        place: (c, z, y, column); axes: where in maps y and x begin, how many columns come before the volume's own.
        """
        (c, z, y, first), (rows, columns, pitch), (y_map, x_map, left) = place, area, axes
        W, last = x.shape[3], first + columns
        low, high = min(max(first, left), last), max(min(last, left + W), first)
        plane = simd.fetch(maps, z)
        for r in range(rows):
            line, at = simd.fetch(maps, y_map + y + r), to + r * pitch
            if plane < 0 or line < 0:
                fill(scratch, at, columns, cval)
                continue
            row = c * (x.strides[0] // 4) + plane * (x.strides[1] // 4) + line * (x.strides[2] // 4)
            target, source = at + low - first, row + low - left
            whole = (high - low) // lanes * lanes
            for i in range(0, whole, lanes):
                simd.store(scratch, target + i, simd.load(x, source + i, lanes))
            rest = high - low - whole
            if rest > 0:
                simd.store(scratch, target + whole, simd.load_first(x, source + whole, rest, lanes))
            ends(x, row, (first, low), maps, x_map, cval, scratch, at)
            ends(x, row, (max(high, low), last), maps, x_map, cval, scratch, at + max(high, low) - first)

    return gather


@simd.inline
def ask(x, c, plane, rows, column, maps, y_map):
    """Prefetch rows (first, end) of plane `plane` from one column on: a step later they are gathered."""
    if plane >= 0:
        base = c * (x.strides[0] // 4) + plane * (x.strides[1] // 4) + column
        for r in range(y_map + rows[0], y_map + rows[1]):
            simd.prefetch(x, base + simd.fetch(maps, r) * (x.strides[2] // 4))
