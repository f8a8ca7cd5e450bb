"""The kernel of `rows` for small volumes on CPUs with 16 registers of 8 lanes, which work on strips.

A task is a strip: 5 rows of outputs, a single row of blocks. It marches along z as in `rows`, but the planes under its
window are few enough to stay in L1, not L2. Each plane is copied at once, before the outputs that need it. Where the
rows under the strip are adjacent rows of the volume, an unrolled loop copies them side by side. What lies outside the
volume is cval in all planes of a strip, so it is written once. Neighbouring strips both copy the rows between them.
This takes less time than `feed` needs to count single rows. The sums have the order of `rows`: the bits are the same.

Strips are not used where planes of whole rows do not fit in L1, as strips of 48 columns were slower. Nor are they used
for large results, and with channels.
"""

import functools
import math
from typing import NamedTuple

from numba import types

from tilewright import simd
from tilewright.hardware import cpu
from tilewright.ops.conv3d.cpu import tiles
from tilewright.ops.conv3d.cpu.gather import RESULT, VOLUME, Source, Tile, tile_of
from tilewright.ops.conv3d.cpu.slide import COMPILED_TAPS, block_slide, block_write
from tilewright.ops.conv3d.cpu.tiles import March, Tiling
from tilewright.ops.conv3d.operands import Border
from tilewright.ops.conv3d.problem import Problem

AHEAD = 2  # planes: a strip computes two in about 300 ns, longer than memory takes to answer
LANES = (8,)  # of the CPUs on which strips were measured: 1.3 to 1.6 times as fast (Zen 3)
LARGEST = 4 << 20  # bytes of out: for 128^3 no gain was measured beyond noise


class Strip(NamedTuple):
    """tile: the task's outputs. rows: padded rows under it. adjacent: True if the strip is whole, and its padded rows
    are adjacent rows of the volume. ends: True if columns beside the volume's must be written with each plane."""

    tile: Tile
    rows: int
    adjacent: bool
    ends: bool


@functools.cache
def plane_copier(high: int, lanes: int):
    """The inline function that copies one plane of a strip of `high` padded rows."""

    @simd.inline
    def copy_run(rows, source, start, span, scratch, to, job):
        """Copy the volume's columns of `rows` rows, the first from offset `start` of x to offset `to` of scratch."""
        x, count = source.x, span.high - span.low
        step, ahead, whole = x.strides[2] // 4, AHEAD * (x.strides[1] // 4), count // lanes * lanes
        at, to = start + span.low - source.left, to + span.low - span.first
        for i in range(0, whole, lanes):
            for r in range(rows):  # unrolled
                simd.store(scratch, to + i + r * job.pitch, simd.load(x, at + i + r * step, lanes))
                simd.prefetch(x, at + i + r * step + ahead)
        if whole < count:
            for r in range(rows):
                values = simd.load_first(x, at + whole + r * step, count - whole, lanes)
                simd.store(scratch, to + whole + r * job.pitch, values)

    @simd.inline
    def copy_ends(first, last, source, start, span, scratch, to):
        """Write padded columns first to last of a row by their map."""
        for i in range(first, last):
            column = simd.fetch(source.maps, source.x_map + i)
            scratch[to + i - span.first] = source.cval if column < 0 else simd.fetch(source.x, start + column)

    @simd.inline
    def copy_plane(z, slot, strip, source, scratch, job):
        """Copy padded plane z to slot `slot` of the ring. Returns the next slot."""
        x, span, to = source.x, strip.tile.span, slot * job.plane + job.pad
        plane, past = simd.fetch(source.maps, z), max(span.high, span.low)
        start, step = plane * (x.strides[1] // 4), x.strides[2] // 4
        lines = source.y_map + strip.tile.y0
        if plane < 0:
            fill(scratch, to - job.pad, job.plane, source.cval, lanes)
        elif strip.adjacent:
            copy_run(high, source, start + simd.fetch(source.maps, lines) * step, span, scratch, to, job)
        for r in range(strip.rows if plane >= 0 and not strip.adjacent else 0):
            line = simd.fetch(source.maps, lines + r)
            if line >= 0:
                copy_run(1, source, start + line * step, span, scratch, to + r * job.pitch, job)
        for r in range(strip.rows if plane >= 0 and strip.ends else 0):
            line, row = simd.fetch(source.maps, lines + r), to + r * job.pitch
            if line >= 0:
                copy_ends(span.first, span.low, source, start + line * step, span, scratch, row)
                copy_ends(past, span.last, source, start + line * step, span, scratch, row)
        return slot + 1 if slot + 1 < job.KD else 0

    return copy_plane


@simd.inline
def fill(scratch, at, count, value, lanes):
    """Store `count` times `value` from offset `at`, rounded up to whole vectors."""
    for i in range(0, count, lanes):
        simd.store(scratch, at + i, simd.splat(value, lanes))


@functools.cache
def strip_kernel(rows: int, taps: int, lanes: int):
    """The kernel for blocks of rows x lanes, and kernels of `taps` rows."""
    copy_plane = plane_copier(rows + taps - 1, lanes)

    @simd.inline
    def strip_of(tile, source, job):
        """The Strip of a tile."""
        maps, y, span, high = source.maps, source.y_map + tile.y0, tile.span, tile.y1 - tile.y0 + job.KH - 1
        first, last = simd.fetch(maps, y), simd.fetch(maps, y + high - 1)
        adjacent = high == rows + taps - 1 and first >= 0 and last == first + high - 1
        ends = (span.high - span.low) % lanes > 0  # the last vector then overwrites columns after the run
        for i in range(span.first, span.last):
            ends = ends or ((i < span.low or i >= span.high) and simd.fetch(maps, source.x_map + i) >= 0)
        return Strip(tile, high, adjacent, ends)

    @simd.inline
    def sums(at, slot, weights, scratch, job):
        """The block at offset `at` of a plane of the ring. slot: of the first plane under the window."""
        block, w_at = simd.block_zeros(rows, 1, lanes), 0
        for _ in range(job.KD):
            plane = slot * job.plane + at
            slot = slot + 1 if slot + 1 < job.KD else 0
            for t in range(job.KW):
                block = block_slide(block, taps, weights, w_at, scratch, plane + t, job.pitch)
                w_at += taps
        return block

    @simd.inline
    def march_strip(strip, source, weights, out, scratch, job):
        """Compute a strip, plane after plane."""
        tile, slot = strip.tile, 0
        fill(scratch, 0, job.KD * job.plane, source.cval, lanes)
        for z in range(tile.z0, tile.z0 + job.KD - 1):
            slot = copy_plane(z, slot, strip, source, scratch, job)
        for z in range(tile.z0, tile.z1):
            slot = copy_plane(z + job.KD - 1, slot, strip, source, scratch, job)
            step, below = out.strides[2] // 4, out.strides[1] // 4
            for i in range(tile.x0, tile.x1, lanes):
                at = z * below + tile.y0 * step + i
                for r in range(tile.y1 - tile.y0 if z + 1 < tile.z1 else 0):
                    simd.prefetch_write(out, at + below + r * step)
                block = sums(i - tile.x0 + job.pad, slot, weights, scratch, job)
                block_write(block, out, at, step, tile.y1 - tile.y0, tile.x1 - i, False)

    signature = types.void(
        VOLUME, simd.INPUT, simd.INDICES, types.float32, RESULT, simd.record(March), simd.TASKS, simd.OUTPUT
    )

    @simd.kernel(signature, name=f"conv3d.strips.{rows}.{taps}.{lanes}")
    def march(x, weights, maps, cval, out, job, tasks, scratch):
        """Compute out (1, D, H, W) of x (1, D, H, W), one strip per task. The arguments are those of `rows`' kernel;
        scratch is the ring of KD planes."""
        source = Source(x, maps, cval, job.y_map, job.x_map, job.left)
        task = simd.draw(tasks)
        while task >= 0:
            march_strip(strip_of(tile_of(task, source, job), source, job), source, weights, out, scratch, job)
            task = simd.draw(tasks)

    return march


def tiling(problem: Problem, sizes: tuple[int, int, int], threads: int) -> Tiling | None:
    """Strips of whole rows whose ring fills at most 3/4 of L1. None where larger tiles are used."""
    (D, H, W), lanes = sizes, cpu().lanes
    rows, columns = tiles.ROWS[lanes], tiles.COLUMNS[lanes]
    if lanes not in LANES or problem.KH not in COMPILED_TAPS[lanes] or rows > H:
        return None
    XT, high, words = -(-W // columns) * columns, rows + problem.KH - 1, (cpu().l1d or tiles.L1) * 3 // 4 // 4
    pitch = tiles.pitch_of(XT, problem.KW, columns)
    if problem.KD * high * pitch > words:
        return None
    cuts = min(-(-2 * tiles.TASKS * threads // -(-H // rows)), max(1, D // (8 * problem.KD)))
    return Tiling(-(-D // cuts), rows, XT, pitch, high)


def plan_for(problem: Problem, border: Border, sizes: tuple[int, int, int], threads: int, lanes: int):
    """As `rows.plan_for`. None where strips are not used."""
    small = problem.O == problem.C == 1 and 4 * math.prod(sizes) <= LARGEST
    return small_plan(problem, border, sizes, threads, lanes) if small else None


@functools.lru_cache(maxsize=16)
def small_plan(problem: Problem, border: Border, sizes: tuple[int, int, int], threads: int, lanes: int):
    """As `plan_for`, for one channel and a small result."""
    cut, columns = tiling(problem, sizes, threads), tiles.COLUMNS[lanes]
    if cut is None:
        return None
    job = March(
        *sizes, problem.O, problem.C, problem.KD, problem.KH, problem.KW, 0,
        cut.ZT, cut.YT, cut.XT, cut.pitch, cut.plane, pad=int(-border.left % columns),
        y_map=len(border.z), x_map=len(border.z) + len(border.y), left=int(border.left),
    )  # fmt: skip
    kernel = strip_kernel(cut.YT, problem.KH, columns)
    return kernel, border.maps, job, cut.tasks(sizes), problem.KD * cut.plane
