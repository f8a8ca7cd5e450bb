"""What is done between columns of multiply-adds: rows of the planes to come are copied into the ring, a few vectors at
a time, and the lines of out that the block will write are asked for.

A row is asked for AHEAD rows before it is copied, so that it is in the first cache then. Its copy in one piece would
hold up the multiply-adds behind it; two vectors beside a column of taps do not. Nor do one or two lines of out: a core
waits for some sixteen lines at once, and sixteen requests together keep the windows from coming out of L2.

A row is (z, c, r, slot): plane, channel, row of the tile, and the slot of the ring that the plane has.
"""

import functools

from tilewright import simd
from tilewright.ops.conv3d.cpu.gather import NOWHERE, row_rest, row_start

AHEAD = 4  # rows: 4 KiB of 256 columns, an eighth of the first cache, and longer than memory takes to answer
BESIDE = 2  # vectors copied beside a column of taps: the 9 columns of K = 3 copy 18, a row of 288 numbers


@simd.inline
def row_after(row, rows, job):
    """The next row of a tile with so many: through a plane, then its other channels, then the next plane."""
    z, c, r, slot = row
    r += 1
    if r == rows:
        r, c = 0, c + 1
        if c == job.C:
            z, c, slot = z + 1, 0, slot + 1 if slot < job.KD else 0
    return z, c, r, slot


@simd.inline
def start_of(z, rows, job):
    """(the first row of plane z of a tile with so many, the row to ask for beside it)."""
    first = later = (z, 0, 0, z % (job.KD + 1))
    for _ in range(AHEAD):
        later = row_after(later, rows, job)
    return first, later


@functools.cache
def feeder(lanes: int):
    """(piece, take, end, bring): inline functions that copy a row of a tile, by parts or at once.

    pair: (the row, the row to ask for); tile: (first row, rows, span), its halo with it; span: see `row_rest`. source:
    (x, maps, cval).
    """
    rest = row_rest(lanes)

    @simd.inline
    def piece(pair, tile, source, job):
        """(whole vectors of a row; where in x; where in scratch; what to ask for in x; where in x the row begins, or
        NOWHERE; where in scratch)."""
        (x, maps, _), ((z, c, r, slot), (later_z, later_c, later_r, _)), (y0, _, (first, _, low, high)) = (
            source,
            pair,
            tile,
        )
        start = row_start(x, (c, z, y0 + r), maps, job.y_map)
        ask = NOWHERE
        if later_z < job.y_map:
            ask = row_start(x, (later_c, later_z, y0 + later_r), maps, job.y_map)
        at = (c * (job.KD + 1) + slot) * job.plane + r * job.pitch + job.pad
        skip, vectors = low - job.left, (high - low) // lanes if start != NOWHERE else 0
        return vectors, start + skip, at + low - first, (ask if ask != NOWHERE else start) + skip, start, at

    @simd.inline
    def take(k, count, piece, x, scratch):
        """Copy vectors k to k + count of a piece."""
        for i in range(k * lanes, (k + count) * lanes, lanes):
            simd.store(scratch, piece[2] + i, simd.load(x, piece[1] + i, lanes))
            simd.prefetch(x, piece[3] + i)

    @simd.inline
    def end(k, piece, pair, tile, source, scratch, job):
        """All of a piece but its first k vectors; the pair after it."""
        x, maps, cval = source
        take(k, piece[0] - k, piece, x, scratch)
        rest(x, piece[4], tile[2], (job.x_map, job.left), maps, cval, scratch, piece[5])
        return row_after(pair[0], tile[1], job), row_after(pair[1], tile[1], job)

    @simd.inline
    def bring(pair, tile, source, scratch, job):
        """A row at once; the pair after it."""
        return end(0, piece(pair, tile, source, job), pair, tile, source, scratch, job)

    return piece, take, end, bring


@functools.cache
def errands(taps: int, lanes: int):
    """The inline function that does what is to be done beside a column of so many taps (0: any number).

    K = 3 has 9 columns for a block's 16 lines, K = 5 has 25, or 15 folded. A kernel of one plane asks for fewer lines.
    """
    take, asks = feeder(lanes)[1], 1 if taps >= 5 else 2

    @simd.inline
    def beside(done, errand, scratch):
        """Copies some vectors of a piece, asks for some lines of out; how many that makes. done: as many were before;
        errand: (x, piece, out, (where in out the first line is, how many, how far apart))."""
        (k, asked), (x, piece, out, (first, lines, step)) = done, errand
        if k + BESIDE <= piece[0]:
            take(k, BESIDE, piece, x, scratch)
            k += BESIDE
        if asked < lines:
            for line in range(asked, asked + asks):
                simd.prefetch_write(out, first + line * step)
            asked += asks
        return k, asked

    return beside
