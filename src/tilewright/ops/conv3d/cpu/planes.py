"""The passes of `separable` along y and x, for one plane of a tile.

A block of the pass along y is transposed in registers before it is stored, so that a column of 16 rows is one vector.
The pass along x then slides down columns as the pass along y slides down rows: 62 aligned loads serve 272 multiply-adds
for 17 taps (elements of the filter). Along the rows themselves, each product would load a vector across two cache
lines. The result is transposed back. CPUs with fewer than 32 registers do not transpose (`line_kernel`).

Where the rows under all windows of a tile are adjacent rows of the volume, the pass along y reads the volume itself.
Columns at the sides of the volume are then copies of results, because equal elements have equal sums. Only the tiles at
its upper and lower end copy their planes to scratch first.
"""

import functools
from typing import NamedTuple

import numpy as np

from tilewright import simd
from tilewright.ops.conv3d.cpu.gather import OUTSIDE, row_start
from tilewright.ops.conv3d.cpu.slide import block_along, block_slide


class Areas(NamedTuple):
    """Offsets in scratch: the gathered plane, a strip of rows between the passes along y and x, the first output in a
    plane of the ring."""

    gathered: int
    between: int
    ring: int


@simd.inline
def prefetch_rows(z, y, column, rows, source, tile, job):
    """Prefetch one cache line from each of a few rows of padded plane z to the second cache. The rows are shared out
    among the tile's rows of blocks; y, the first row of a block, says which one this is."""
    if z < tile.z1 + job.KD - 1:
        blocks = (tile.y1 - tile.y0 + rows - 1) // rows
        share = (tile.rows + blocks - 1) // blocks
        first = y // rows * share
        for r in range(first, min(first + share, tile.rows)):
            start = row_start(source, 0, z, tile.y0 + r)
            if start != OUTSIDE:
                simd.prefetch_far(source.x, start + column - job.left)


@functools.cache
def line_kernel(rows: int, lanes: int):
    """The inline functions (from_scratch, from_volume) of `square_kernel`, in blocks of rows x lanes that are not
    transposed: 16 registers hold no transpose beside its sums. The pass along x loads a vector for every product."""

    @simd.inline
    def along_y(array, at, step, to, factors, scratch, job):
        """Store a block of the pass along y. at, step: its first element in `array`, and its next row."""
        block = simd.block_zeros(rows, 1, lanes)
        block = block_slide(block, job.KH, factors, job.KD, array, at, step)
        simd.block_store(block, scratch, to, job.pitch, lanes)

    @simd.inline
    def along_x(y, tile, factors, scratch, areas, job):
        """Compute the rows of outputs from row y of the tile on, from the rows between the passes."""
        for i in range(0, tile.x1 - tile.x0, lanes):
            block = simd.block_zeros(rows, 1, lanes)
            block = block_along(block, job.KW, factors, job.KD + job.KH, scratch, areas.between + i, job.pitch)
            simd.block_store(block, scratch, areas.ring + y * job.ring_pitch + i, job.ring_pitch, lanes)

    @simd.inline
    def from_scratch(z, tile, source, factors, scratch, areas, job):
        """All outputs of the tile in padded plane z, which was gathered."""
        wide = tile.x1 - tile.x0
        for y in range(0, tile.y1 - tile.y0, rows):
            for i in range(0, wide + job.KW - 1, lanes):
                prefetch_rows(z + 1, y, tile.x0 + i, rows, source, tile, job)
                at = areas.gathered + y * job.pitch + i
                along_y(scratch, at, job.pitch, areas.between + i, factors, scratch, job)
            along_x(y, tile, factors, scratch, areas, job)

    @simd.inline
    def from_volume(z, tile, source, factors, scratch, areas, job):
        """All outputs of the tile in padded plane z; `reads_volume` is true. See `square_kernel`."""
        span, step = tile.span, source.x.strides[2] // 4
        start = row_start(source, 0, z, tile.y0) - job.left
        head = -(np.int64(source.x.ctypes.data) // 4 + start + span.low) % lanes
        constant = simd.reduce_max(border_sum(source, factors, lanes, job))
        zero = areas.between - span.first
        for y in range(0, tile.y1 - tile.y0, rows):
            i = span.low
            while i < span.high:
                prefetch_rows(z + 1, y, i, rows, source, tile, job)
                column = min(i, span.high - lanes)
                along_y(source.x, start + y * step + column, step, zero + column, factors, scratch, job)
                i += head if head and i == span.low else lanes
            for first, last in ((span.first, span.low), (span.high, span.last)):
                copy_columns(first, last, rows, source, constant, scratch, zero, job)
            along_x(y, tile, factors, scratch, areas, job)

    return from_scratch, from_volume


@simd.inline
def copy_columns(first, last, rows, source, constant, scratch, at, job):
    """Padded columns first to last of `rows` rows: the column of the run that has the same elements, or `constant` for
    cval. at: offset in scratch of padded column 0 of the first row."""
    for i in range(first, last):
        column = simd.fetch(source.maps, job.x_map + i)
        for row in range(at, at + rows * job.pitch, job.pitch):
            scratch[row + i] = constant if column < 0 else simd.fetch(scratch, row + column + job.left)


@simd.inline
def border_sum(source, factors, lanes, job):
    """A vector of sums along y over cval alone, in the order of `block_slide`: the same bits."""
    cval, total = simd.splat(source.cval, lanes), simd.zeros(lanes)
    for b in range(job.KH):
        total = simd.fma(simd.broadcast(factors, job.KD + b, lanes), cval, total)
    return total


@functools.cache
def square_kernel(lanes: int):
    """The inline functions (from_scratch, from_volume) that convolve a plane along y and x, into the ring, in blocks of
    lanes x lanes. One reads a gathered plane, the other one the volume."""
    copy_sides = side_kernel(lanes)

    @simd.inline
    def along_y(array, at, step, to, factors, scratch, job):
        """Store a block of the pass along y, transposed. at, step: its first element in `array`, and its next row."""
        block = simd.block_zeros(lanes, 1, lanes)
        block = block_slide(block, job.KH, factors, job.KD, array, at, step)
        simd.block_store(simd.block_transpose(block), scratch, to, lanes, lanes)

    @simd.inline
    def along_x(y, tile, factors, scratch, areas, job):
        """Compute the rows of outputs from row y of the tile on, from the columns between the passes."""
        for i in range(0, tile.x1 - tile.x0, lanes):
            block = simd.block_zeros(lanes, 1, lanes)
            at, to = areas.between + i * lanes, areas.ring + y * job.ring_pitch + i
            block = block_slide(block, job.KW, factors, job.KD + job.KH, scratch, at, lanes)
            simd.block_store(simd.block_transpose(block), scratch, to, job.ring_pitch, lanes)

    @simd.inline
    def from_scratch(z, tile, source, factors, scratch, areas, job):
        """All outputs of the tile in padded plane z, which was gathered."""
        wide = tile.x1 - tile.x0
        for y in range(0, tile.y1 - tile.y0, lanes):
            for i in range(0, wide + job.KW - 1, lanes):
                prefetch_rows(z + 1, y, tile.x0 + i, lanes, source, tile, job)
                at, to = areas.gathered + y * job.pitch + i, areas.between + i * lanes
                along_y(scratch, at, job.pitch, to, factors, scratch, job)
            along_x(y, tile, factors, scratch, areas, job)

    @simd.inline
    def from_volume(z, tile, source, factors, scratch, areas, job):
        """All outputs of the tile in padded plane z; `reads_volume` is true.

        From the second vector of a row on, vectors are aligned in memory. The first two overlap, and the last two.
        """
        span, step = tile.span, source.x.strides[2] // 4
        start = row_start(source, 0, z, tile.y0) - job.left
        head = -(np.int64(source.x.ctypes.data) // 4 + start + span.low) % lanes
        for y in range(0, tile.y1 - tile.y0, lanes):
            i = span.low
            while i < span.high:
                prefetch_rows(z + 1, y, i, lanes, source, tile, job)
                column = min(i, span.high - lanes)
                at, to = start + y * step + column, areas.between + (column - span.first) * lanes
                along_y(source.x, at, step, to, factors, scratch, job)
                i += head if head and i == span.low else lanes
            copy_sides(tile.span, source, factors, scratch, areas.between, job)
            along_x(y, tile, factors, scratch, areas, job)

    return from_scratch, from_volume


@simd.inline
def reads_volume(source, tile, rows, lanes, job):
    """True if windows along y are runs of the volume's rows, in all rows of whole blocks, and if each column beside the
    tile's run of columns is cval or a column of the run."""
    first = simd.fetch(source.maps, job.y_map + tile.y0)
    last = simd.fetch(source.maps, job.y_map + tile.y0 + tile.rows - 1)
    span = tile.span
    if first < 0 or last - first != tile.rows - 1 or (tile.y1 - tile.y0) % rows or span.high - span.low < lanes:
        return False
    for i in range(span.first, span.last):
        column = simd.fetch(source.maps, job.x_map + i)
        if column >= 0 and not span.low <= column + job.left < span.high:
            return False
    return True


@functools.cache
def side_kernel(lanes: int):
    """The inline function that completes the columns between the passes."""

    @simd.inline
    def copy_some(first, last, span, source, constant, scratch, between, job):
        """Padded columns first to last: the column of the run that has the same elements, or `constant` for cval."""
        for i in range(first, last):
            column, to = simd.fetch(source.maps, job.x_map + i), between + (i - span.first) * lanes
            if column < 0:
                simd.store(scratch, to, constant)
            else:
                at = between + (column + job.left - span.first) * lanes
                simd.store(scratch, to, simd.load(scratch, at, lanes))

    @simd.inline
    def copy_sides(span, source, factors, scratch, between, job):
        """The columns before and after the run."""
        constant = border_sum(source, factors, lanes, job)
        copy_some(span.first, span.low, span, source, constant, scratch, between, job)
        copy_some(span.high, span.last, span, source, constant, scratch, between, job)

    return copy_sides
