"""Several rows of outputs in registers: each loaded vector serves as many rows as a column of the kernel has taps.

    out[o, z, y, i] = sum over c, a, t, b of w[o, c, a, b, t] * x[c, z + a, y + b, i + t]

x (C, D, H, W) and out (O, D, H, W) are float32; indices of x are padded, see `gather`. A block of outputs is one vector
of x wide and 16 rows of y high. A CPU with 16 registers of 8 lanes has blocks of two vectors and 5 rows instead. A
block has 4 rows if H is at most 4, and 1 if H is 1. For each channel c, plane a and shift t, the KH taps of a column
stay in registers and slide down the rows (`slide.block_slide`). With KH = 5, 20 loads and 5 taps (elements of the
filter) serve 80 multiply-adds, and the limit is the rate of multiply-adds. `vectors`, the rung below, loads a vector
for every product.

A task marches through its tile along z (`tiles`). The ring of planes under the window stays in L2. Between columns of
taps, the blocks of a plane copy the rows of the next plane into the ring (`feed`). It is slow where KH = 1: each loaded
vector then serves one product. With half > 0 it is also the rung `folded`. Small volumes march in `strips`, with the
same order of sums, where that was measured to be faster.
"""

import functools
from typing import NamedTuple

import numpy as np
from numba import types

from tilewright import simd
from tilewright.hardware import cpu
from tilewright.ops.conv3d.cpu import strips, tiles
from tilewright.ops.conv3d.cpu.feed import Copy, Progress, cursor_at, feeder, worker
from tilewright.ops.conv3d.cpu.folded import folder
from tilewright.ops.conv3d.cpu.gather import RESULT, VOLUME, Source, tile_of
from tilewright.ops.conv3d.cpu.slide import COMPILED_TAPS, block_slide, block_write, fence
from tilewright.ops.conv3d.cpu.tiles import March
from tilewright.ops.conv3d.operands import Border, Packed
from tilewright.ops.conv3d.problem import Problem
from tilewright.ops.core.launch import launch, thread_count

ONE_THREAD = 1 << 21  # multiply-adds up to which one thread does all: 20 us, as long as it takes to wake another


class Operands(NamedTuple):
    """weights: float32 [O][C][KD - half][KW][KH]. out: (O, D, H, W). scratch: the ring of planes, and after it the
    folded planes."""

    source: Source
    weights: np.ndarray
    out: np.ndarray
    scratch: np.ndarray


class Corner(NamedTuple):
    """Offsets of a block's first element: in a plane of the ring, in a folded plane, and in out.

    slot: of the ring's first plane under the window. taps: offset of the first tap in weights. lines: of out, to be
    prefetched.
    """

    ring: int
    folded: int
    out: int
    slot: int
    taps: int
    lines: int


class Quota(NamedTuple):
    """What the blocks of a plane copy: `rows` rows of x per block, of planes before `until`. If there are fewer rows
    than blocks, `of_rows` and `of_blocks`, they are spread evenly, because memory delivers them evenly."""

    until: int
    rows: int
    of_rows: int
    of_blocks: int


@functools.cache
def block_kernel(rows: int, taps: int, lanes: int):
    """The inline function that computes one block: the sum over channels, planes, shifts and rows of the kernel."""
    advance = worker(taps, lanes)

    @simd.inline
    def sums(operands, corner, copy, job):
        """Returns (the block at `corner`, the number of vectors of `copy` that were copied meanwhile)."""
        block, progress = simd.block_zeros(rows, 1, lanes), Progress(0, 0)
        weights, scratch, w_at = operands.weights, operands.scratch, corner.taps
        planes, half, columns, taps_down, pitch = job.KD, job.half, job.KW, job.KH, job.pitch
        channels, plane = job.C, job.plane
        slots, high = planes + 1, rows + taps_down - 1
        for c in range(channels):
            slot = corner.slot
            for a in range(planes - half):
                if a < half:
                    x_at = channels * slots * plane + (c * half + a) * high * pitch + corner.folded
                else:
                    x_at = (c * slots + slot) * plane + corner.ring
                slot = slot + 1 if slot + 1 < slots else 0  # a division would cost as much as a short column
                for t in range(columns):
                    progress = advance(progress, copy, corner, operands)
                    if taps:
                        block = block_slide(block, taps, weights, w_at, scratch, x_at + t, pitch)
                    else:
                        block = block_slide(block, taps_down, weights, w_at, scratch, x_at + t, pitch)
                    w_at += taps_down
        return block, progress.vectors

    return sums


@functools.cache
def plane_kernel(rows: int, taps: int, lanes: int):
    """The inline function that computes a tile's outputs in one plane."""
    fold, sums, (copy_of, _, finish, copy_row) = folder(rows, lanes), block_kernel(rows, taps, lanes), feeder(lanes)

    @simd.inline
    def strip(o, z, y, cursor, quota, tile, operands, job):
        """Compute one row of blocks, from row y of plane z of output channel o. Returns the next cursor."""
        out, shift = operands.out, job.shift
        step = out.strides[2] // 4
        start = o * (out.strides[0] // 4) + z * (out.strides[1] // 4) + y * step
        w_at = o * job.C * (job.KD - job.half) * job.KH * job.KW
        across = (tile.x1 - tile.x0 + lanes - 1) // lanes
        due, i = ((y - tile.y0) // rows * job.O + o) * across * quota.of_rows, tile.x0
        while i < tile.x1:
            copied_rows = cursor.next.c * tile.rows + cursor.next.r
            wanted = cursor.next.z < quota.until and copied_rows * quota.of_blocks <= due
            due += quota.of_rows
            copy = copy_of(cursor, tile, operands, job) if wanted else Copy(0, 0, 0, 0, 0, 0)
            stream = job.stream != 0 and (shift == 0 or i != tile.x0)
            folded = i - tile.x0
            ring = (y - tile.y0) * job.pitch + folded + job.pad
            corner = Corner(ring, folded, start + i, z % (job.KD + 1), w_at, 0 if stream else rows)
            block, copied = sums(operands, corner, copy, job)
            block_write(block, out, start + i, step, tile.y1 - y, tile.x1 - i, stream)
            i += shift if shift and i == tile.x0 else lanes
            if wanted:
                cursor = finish(copy, copied, cursor, tile, operands, job)
            for _ in range(1, quota.rows):
                if cursor.next.z < quota.until:
                    cursor = copy_row(cursor, tile, operands, job)
        return cursor

    @simd.inline
    def plane(z, cursor, quota, tile, operands, job):
        """Compute all of the tile's outputs in plane z. Returns the next cursor."""
        for y in range(tile.y0, tile.y1, rows):
            if job.half:
                fold(z, y - tile.y0, tile.x1 - tile.x0, operands.scratch, job)
            for o in range(job.O):
                cursor = strip(o, z, y, cursor, quota, tile, operands, job)
        return cursor

    return plane


@functools.cache
def tile_kernel(rows: int, taps: int, lanes: int):
    """The kernel for blocks of rows x lanes, and kernels of `taps` rows (0: any number)."""
    plane, copy_row = plane_kernel(rows, taps, lanes), feeder(lanes)[3]

    @simd.inline
    def march_tile(task, operands, job):
        """March along z. Before each plane, copy what its windows read and no block has copied; during it, the next."""
        tile = tile_of(task, operands.source, job)
        down, across = (tile.y1 - tile.y0 + rows - 1) // rows, (tile.x1 - tile.x0 + lanes - 1) // lanes
        of_rows, of_blocks = job.C * tile.rows, job.O * down * across
        cursor, last = cursor_at(tile.z0, tile.rows, job), tile.z1 + job.KD - 1
        for z in range(tile.z0, tile.z1):
            while cursor.next.z < z + job.KD:
                cursor = copy_row(cursor, tile, operands, job)
            quota = Quota(min(z + job.KD + 1, last), max(1, of_rows // of_blocks), of_rows, of_blocks)
            cursor = plane(z, cursor, quota, tile, operands, job)

    signature = types.void(
        VOLUME, simd.INPUT, simd.INDICES, types.float32, RESULT, simd.record(March), simd.TASKS, simd.OUTPUT
    )

    @simd.kernel(signature, name=f"conv3d.rows.{rows}.{taps}.{lanes}")
    def march(x, weights, maps, cval, out, job, tasks, scratch):
        """Compute out (O, D, H, W) of x (C, D, H, W), one tile per task.

        weights: [O][C][KD - half][KW][KH]. maps: `Border.maps`. cval: float32, the border's value. job: `March`.
        scratch: the ring, C channels of KD + 1 planes, then the folded planes.
        """
        operands = Operands(Source(x, maps, cval, job.y_map, job.x_map, job.left), weights, out, scratch)
        task = simd.draw(tasks)
        while task >= 0:
            march_tile(task, operands, job)
            task = simd.draw(tasks)
        fence()

    return march


def columns_first(weights: Packed, half: int = 0) -> np.ndarray:
    """weights (O, C, KD, KH, KW) as [O][C][KD - half][KW][KH]: the taps of a column are adjacent."""
    planes = weights.weights[:, :, : weights.problem.KD - half]
    return np.ascontiguousarray(planes.swapaxes(3, 4)).reshape(-1)


def folded_columns_first(weights: Packed) -> np.ndarray:
    """As `columns_first`, without the planes that equal an earlier one."""
    return columns_first(weights, weights.problem.KD // 2)


@functools.lru_cache(maxsize=16)  # after a kernel has emptied the caches, Python takes several times as long for it
def plan_for(problem: Problem, border: Border, sizes: tuple[int, int, int], half: int, threads: int, lanes: int):
    """(kernel, maps, `March` without `streaming`, tasks, words of scratch) for results (O, *sizes); see `convolve`."""
    _, H, _ = sizes
    taps = problem.KH if problem.KH in COMPILED_TAPS[lanes] else 0
    rows, columns = tiles.rows_of(lanes, H, taps), tiles.COLUMNS[lanes]
    cut = tiles.tiling(problem, sizes, problem.C * (problem.KD + 1), rows, threads)
    job = March(
        *sizes, problem.O, problem.C, problem.KD, problem.KH, problem.KW, half,
        cut.ZT, cut.YT, cut.XT, cut.pitch, cut.plane, pad=int(tiles.pad_of(problem, rows, border.left)),
        y_map=len(border.z), x_map=len(border.z) + len(border.y), left=int(border.left),
    )  # fmt: skip
    words = problem.C * ((problem.KD + 1) * cut.plane + half * (rows + problem.KH - 1) * cut.pitch) + columns
    return tile_kernel(rows, taps, columns), border.maps, job, cut.tasks(sizes), words


def convolve(x: np.ndarray, weights: Packed, out: np.ndarray, border: Border, *, half: int = 0) -> None:
    """out (O, D, H, W) of x (C, D, H, W), float32. half: the number of planes of products that are sums of two."""
    problem, lanes = weights.problem, cpu().lanes
    alone = out.size * problem.C * problem.KD * problem.KH * problem.KW <= ONE_THREAD
    threads = 1 if alone else thread_count()
    shift, stream = tiles.streaming(out, tiles.COLUMNS[lanes])
    plan = None if half else strips.plan_for(problem, border, out.shape[1:], threads, lanes)
    if plan is None:  # strips are not used
        plan = plan_for(problem, border, out.shape[1:], half, threads, lanes)
    kernel, maps, job, tasks, words = plan
    job = job._replace(shift=shift, stream=int(stream))
    launch(kernel, x, weights.data, maps, border.cval, out, job, tasks=tasks, words=words, alone=alone)


def convolve_folded(x: np.ndarray, weights: Packed, out: np.ndarray, border: Border) -> None:
    """As `convolve`, for a kernel that is symmetric along z; see `folded`."""
    convolve(x, weights, out, border, half=weights.problem.KD // 2)
