"""Copies rows of a tile, with their halo, from the volume into scratch, where the arithmetic needs no border test.

    scratch[r, i] = x[c, map_z[z], map_y[y0 + r], map_x[x0 + i]]       or cval where a map says -1

Rows of scratch are an odd number of cache lines apart. Rows of a volume are often a power of two apart: the rows under
a window then share a few sets of the first cache and evict each other. A copied row has one run of the volume's
columns, copied by whole vectors; `row_rest` writes the columns before and after it, one element at a time.
"""

import functools
from typing import NamedTuple

import numpy as np
from numba import types

from tilewright import simd

VOLUME = types.Array(types.float32, 4, "A", readonly=True)  # (C, D, H, W), rows contiguous
RESULT = types.Array(types.float32, 4, "A")  # (O, D, H, W), rows contiguous
OUTSIDE = -(1 << 62)  # offset of a row of cval. Offsets in x may be below 0, where planes are reversed


class Source(NamedTuple):
    """A volume and its border. x: float32 (C, D, H, W). maps: `Border.maps`, int64, z first; the maps of y and x start
    at y_map and x_map. left: padded columns before the volume's first."""

    x: np.ndarray
    maps: np.ndarray
    cval: np.float32
    y_map: int
    x_map: int
    left: int


class Span(NamedTuple):
    """Padded columns first to last of a tile with its halo. Of these, columns `low` to `high` are one run of x's
    columns."""

    first: int
    last: int
    low: int
    high: int


class Tile(NamedTuple):
    """A task's outputs: planes z0 to z1, rows y0 to y1, columns x0 to x1. rows, span: with the halo."""

    z0: int
    z1: int
    y0: int
    y1: int
    x0: int
    x1: int
    rows: int
    span: Span


@simd.inline
def tile_of(task, source, job):
    """The Tile of a task. job: a record with the result's D, H, W, the tile's ZT, YT, XT, and KH, KW."""
    across, down = (job.W + job.XT - 1) // job.XT, (job.H + job.YT - 1) // job.YT
    y0, x0 = task % down * job.YT, task // down % across * job.XT
    z0 = task // down // across * job.ZT
    y1, x1, z1 = min(y0 + job.YT, job.H), min(x0 + job.XT, job.W), min(z0 + job.ZT, job.D)
    last, left = x1 + job.KW - 1, source.left
    low = min(max(x0, left), last)
    high = max(min(last, left + source.x.shape[3]), x0)
    return Tile(z0, z1, y0, y1, x0, x1, y1 - y0 + job.KH - 1, Span(x0, last, low, high))


@simd.inline
def row_start(source, c, z, y):
    """The offset in x of row y of padded plane z of channel c, or OUTSIDE if the row is cval."""
    x = source.x
    plane, line = simd.fetch(source.maps, z), simd.fetch(source.maps, source.y_map + y)
    start = c * (x.strides[0] // 4) + plane * (x.strides[1] // 4) + line * (x.strides[2] // 4)
    return start if plane >= 0 and line >= 0 else OUTSIDE


@functools.cache
def row_rest(lanes: int):
    """The inline function that completes a row after its whole vectors are copied."""

    @simd.inline
    def fill(scratch, at, count, value):
        """Store `count` times `value` from offset `at`, rounded up to whole vectors."""
        for i in range(0, count, lanes):
            simd.store(scratch, at + i, simd.splat(value, lanes))

    @simd.inline
    def mapped(source, start, first, last, scratch, at):
        """Copy padded columns first to last of the row at offset `start` by their map."""
        for i in range(first, last):
            column = simd.fetch(source.maps, source.x_map + i)
            scratch[at + i - first] = source.cval if column < 0 else simd.fetch(source.x, start + column)

    @simd.inline
    def rest(source, start, span, scratch, at):
        """Write to scratch, at offset `at`, all of a row except the whole vectors of its run.

        start: the row's offset in x. For OUTSIDE the whole row is cval, its last vector filled up.
        """
        first, low, high = span.first, span.low, span.high
        if start == OUTSIDE:
            fill(scratch, at, span.last - first, source.cval)
        else:
            tail = (high - low) % lanes
            if tail > 0:
                values = simd.load_first(source.x, start + high - source.left - tail, tail, lanes)
                simd.store(scratch, at + high - first - tail, values)
            mapped(source, start, first, low, scratch, at)
            past = max(high, low)
            mapped(source, start, past, span.last, scratch, at + past - first)

    return rest


@functools.cache
def gatherer(lanes: int):
    """The inline function that copies one plane of a tile."""
    rest = row_rest(lanes)

    @simd.inline
    def gather(source, z, tile, pitch, scratch, to):
        """Copy padded plane z of channel 0 to scratch at offset `to`, its rows `pitch` elements apart."""
        span = tile.span
        skip, whole = span.low - span.first, (span.high - span.low) // lanes * lanes
        for r in range(tile.rows):
            start, at = row_start(source, 0, z, tile.y0 + r), to + r * pitch
            for i in range(0, whole if start != OUTSIDE else 0, lanes):
                simd.store(scratch, at + skip + i, simd.load(source.x, start + span.low - source.left + i, lanes))
            rest(source, start, span, scratch, at)

    return gather
