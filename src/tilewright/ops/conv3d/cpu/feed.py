"""Memory work between columns of multiply-adds: copying rows of later planes into the ring, and prefetching out.

Between two columns of taps (elements of the filter), a block copies a few vectors of a row of x to scratch and
prefetches one or two lines of out. A whole row at once would delay the multiply-adds; two vectors do not. A core waits
for some sixteen cache lines at once, so sixteen prefetches together would stop the loads of windows from L2; one or two
do not. Each row of x is prefetched DISTANCE rows before its copy, so that the copy reads the first cache.
"""

import functools
from typing import NamedTuple

from tilewright import simd
from tilewright.ops.conv3d.cpu.gather import OUTSIDE, row_rest, row_start

DISTANCE = 4  # rows: 4 KiB of 256 columns, an eighth of the first cache, and longer than memory takes to answer
VECTORS = 2  # copied per column of taps: the 9 columns of K = 3 copy 18, a row of 288 elements


class Row(NamedTuple):
    """A row of the tile with its halo: padded plane z, channel c, row r. slot: of plane z in the ring."""

    z: int
    c: int
    r: int
    slot: int


class Cursor(NamedTuple):
    """The next row to copy, and the later row to prefetch during that copy."""

    next: Row
    later: Row


class Copy(NamedTuple):
    """The copy of one row: `vectors` whole vectors from offset `source` of x to offset `target` of scratch.

    prefetched: offset in x of the vectors to prefetch. row_source: offset of the row in x, or OUTSIDE. row_target:
    offset of the row in scratch.
    """

    vectors: int
    source: int
    target: int
    prefetched: int
    row_source: int
    row_target: int


class Progress(NamedTuple):
    """A block's memory work so far: vectors copied, and lines of out prefetched."""

    vectors: int
    lines: int


@simd.inline
def row_after(row, rows, job):
    """The row after `row`: through the plane's `rows` rows, then its other channels, then the next plane."""
    z, c, r, slot = row.z, row.c, row.r + 1, row.slot
    if r == rows:
        r, c = 0, c + 1
        if c == job.C:
            z, c, slot = z + 1, 0, slot + 1 if slot < job.KD else 0
    return Row(z, c, r, slot)


@simd.inline
def cursor_at(z, rows, job):
    """The cursor at the first row of padded plane z."""
    first = later = Row(z, 0, 0, z % (job.KD + 1))
    for _ in range(DISTANCE):
        later = row_after(later, rows, job)
    return Cursor(first, later)


@functools.cache
def feeder(lanes: int):
    """The inline functions (copy_of, copy_vectors, finish, copy_row), which copy a row in parts or at once.

    tile: see `gather`. operands: `rows.Operands`. job: `tiles.March`.
    """
    rest = row_rest(lanes)

    @simd.inline
    def copy_of(cursor, tile, operands, job):
        """The Copy of the cursor's row."""
        source, row, later, span = operands.source, cursor.next, cursor.later, tile.span
        start = row_start(source, row.c, row.z, tile.y0 + row.r)
        prefetched = OUTSIDE
        if later.z < job.y_map:
            prefetched = row_start(source, later.c, later.z, tile.y0 + later.r)
        at = (row.c * (job.KD + 1) + row.slot) * job.plane + row.r * job.pitch + job.pad
        skip, vectors = span.low - job.left, (span.high - span.low) // lanes if start != OUTSIDE else 0
        prefetched = (prefetched if prefetched != OUTSIDE else start) + skip
        return Copy(vectors, start + skip, at + span.low - span.first, prefetched, start, at)

    @simd.inline
    def copy_vectors(copy, first, count, operands):
        """Copy `count` vectors from vector `first` on, and prefetch as many of the later row."""
        x, scratch = operands.source.x, operands.scratch
        for i in range(first * lanes, (first + count) * lanes, lanes):
            simd.store(scratch, copy.target + i, simd.load(x, copy.source + i, lanes))
            simd.prefetch(x, copy.prefetched + i)

    @simd.inline
    def finish(copy, copied, cursor, tile, operands, job):
        """Copy all but the first `copied` vectors of a row. Returns the next cursor."""
        copy_vectors(copy, copied, copy.vectors - copied, operands)
        rest(operands.source, copy.row_source, tile.span, operands.scratch, copy.row_target)
        return Cursor(row_after(cursor.next, tile.rows, job), row_after(cursor.later, tile.rows, job))

    @simd.inline
    def copy_row(cursor, tile, operands, job):
        """Copy a whole row. Returns the next cursor."""
        return finish(copy_of(cursor, tile, operands, job), 0, cursor, tile, operands, job)

    return copy_of, copy_vectors, finish, copy_row


@functools.cache
def worker(taps: int, lanes: int):
    """The inline function that does the memory work between two columns of `taps` taps (0: any number).

    K = 3 has 9 columns for a block's 16 lines of out, so two lines per column. K = 5 has 25, or 15 folded: one each.
    """
    copy_vectors, lines = feeder(lanes)[1], 1 if taps >= 5 else 2

    @simd.inline
    def advance(progress, copy, corner, operands):
        """Copy some vectors and prefetch some lines of out. Returns the new progress. corner: `rows.Corner`."""
        vectors, prefetched = progress.vectors, progress.lines
        if vectors + VECTORS <= copy.vectors:
            copy_vectors(copy, vectors, VECTORS, operands)
            vectors += VECTORS
        if prefetched < corner.lines:
            for line in range(prefetched, prefetched + lines):
                simd.prefetch_write(operands.out, corner.out + line * (operands.out.strides[2] // 4))
            prefetched += lines
        return Progress(vectors, prefetched)

    return advance
