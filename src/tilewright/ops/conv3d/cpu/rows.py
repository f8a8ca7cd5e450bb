"""Sixteen rows of outputs in registers: a loaded vector feeds as many of them as a column of the kernel has taps.

A block is one vector of x wide and 16 rows of y high. For each channel, plane of the kernel and shift along x, the KH
taps of that column are held in registers and slide down the rows (`slide.block_slide`): 20 loads and 5 taps for 80
multiply-adds with KH = 5, which leaves the FMA units the limit. The rung below loads a vector for every product.

The tile that a task marches through stays in L2 (`tiles`, `gather`); beside the columns of a plane's blocks it copies
the rows of the next (`feed`). With HALF > 0 it is also the rung `cpu.folded`, see there. Where H is 4 or less a block
has 4 rows or 1.

It loses where KH = 1: a vector loaded is then a vector multiplied.
"""

import functools

import numpy as np
from numba import types

from tilewright import simd
from tilewright.hardware import cpu
from tilewright.ops.conv3d.cpu import tiles
from tilewright.ops.conv3d.cpu.feed import errands, feeder, start_of
from tilewright.ops.conv3d.cpu.folded import folder
from tilewright.ops.conv3d.cpu.gather import RESULT, VOLUME, own
from tilewright.ops.conv3d.cpu.slide import OWN, block_put, column, fence
from tilewright.ops.conv3d.cpu.tiles import (
    March,
)
from tilewright.ops.conv3d.operands import Border, Packed
from tilewright.ops.conv3d.problem import Problem
from tilewright.ops.core.launch import launch, thread_count

ALONE = 1 << 21  # multiply-adds up to which one thread does all: 20 us, as long as it takes to wake another


@functools.cache
def block_kernel(rows: int, taps: int, lanes: int):
    """The inline function that computes one block: the sum over channels, planes, shifts and rows of the kernel."""
    slide, beside = column(taps), errands(taps, lanes)

    @simd.inline
    def sums(weights, w_at, scratch, at, first, errand, job):
        """(block, vectors of the piece that were copied beside it). at: (of the block's first row in a plane of the
        ring, in a folded plane); first: slot of the ring's plane; errand: see `feed.errands`."""
        block, done, (ring_at, fold_at) = simd.block_zeros(rows, 1, lanes), (0, 0), at
        planes, half, columns, taps_down, pitch = job.KD, job.half, job.KW, job.KH, job.pitch
        channels, plane = job.C, job.plane
        slots, high = planes + 1, rows + taps_down - 1
        for c in range(channels):
            slot = first
            for a in range(planes - half):
                if a < half:
                    x_at = channels * slots * plane + (c * half + a) * high * pitch + fold_at
                else:
                    x_at = (c * slots + slot) * plane + ring_at
                slot = slot + 1 if slot + 1 < slots else 0  # a division would cost as much as a short column
                for t in range(columns):
                    done = beside(done, errand, scratch)
                    block = slide(block, taps_down, weights, w_at, scratch, x_at + t, pitch)
                    w_at += taps_down
        return block, done[0]

    return sums


@functools.cache
def plane_kernel(rows: int, taps: int, lanes: int):
    """The inline function that computes a tile's outputs in one plane."""
    fold, sums, (piece_of, _, end, bring) = folder(rows, lanes), block_kernel(rows, taps, lanes), feeder(lanes)

    @simd.inline
    def strip(place, corner, pair, feed, source, operands, scratch, job):
        """One row of blocks of output channel o, and beside each `many` rows of the tile, of planes before `until`; the
        next pair. corner: the tile's (first row, end, first column, end); feed: (until, many, tile); source:
        (x, maps, cval); operands: (weights, out)."""
        weights, out = operands
        (o, z, y), (y0, y1, x0, x1), step, shift = place, corner, out.strides[2] // 4, job.shift
        start = o * (out.strides[0] // 4) + z * (out.strides[1] // 4) + y * step
        w_at = o * job.C * (job.KD - job.half) * job.KH * job.KW
        until, many, tile = feed
        i = x0
        while i < x1:
            wanted = pair[0][0] < until
            piece = piece_of(pair, tile, source, job) if wanted else (0, 0, 0, 0, 0, 0)
            stream = job.stream != 0 and (shift == 0 or i != x0)
            errand = (source[0], piece, out, (start + i, 0 if stream else rows, step))
            at = ((y - y0) * job.pitch + i - x0 + job.pad, i - x0)
            block, k = sums(weights, w_at, scratch, at, z % (job.KD + 1), errand, job)
            block_put(block, out, start + i, step, (y1 - y, x1 - i), stream)
            i += shift if shift and i == x0 else lanes
            if wanted:
                pair = end(k, piece, pair, tile, source, scratch, job)
            for _ in range(1, many):
                if pair[0][0] < until:
                    pair = bring(pair, tile, source, scratch, job)
        return pair

    @simd.inline
    def plane(z, corner, pair, feed, source, operands, scratch, job):
        """All of the tile's outputs in plane z."""
        y0, y1, x0, x1 = corner
        for y in range(y0, y1, rows):
            if job.half:
                fold(z, y - y0, x1 - x0, scratch, job)
            for o in range(job.O):
                pair = strip((o, z, y), corner, pair, feed, source, operands, scratch, job)
        return pair

    return plane


@functools.cache
def tile_kernel(rows: int, taps: int, lanes: int):
    """The kernel for blocks of rows x lanes, and kernels of `taps` rows (0: any number)."""
    plane, bring = plane_kernel(rows, taps, lanes), feeder(lanes)[3]

    @simd.inline
    def tile(task, x, weights, maps, cval, out, job, scratch):
        """March along z: before a plane, what its windows see and no block has brought; beside it, the next plane."""
        across, down = (job.W + job.XT - 1) // job.XT, (job.H + job.YT - 1) // job.YT
        y0, x0 = task % down * job.YT, task // down % across * job.XT
        z0 = task // down // across * job.ZT
        y1, x1, z1 = min(y0 + job.YT, job.H), min(x0 + job.XT, job.W), min(z0 + job.ZT, job.D)
        high, wide = y1 - y0 + job.KH - 1, x1 - x0 + job.KW - 1
        whole = (y0, high, (x0, x0 + wide, *own(x.shape[3], x0, wide, job.left)))
        blocks = job.O * ((y1 - y0 + rows - 1) // rows) * ((x1 - x0 + lanes - 1) // lanes)
        many = max(1, job.C * high // blocks)
        source = (x, maps, cval)
        pair, last = start_of(z0, high, job), z1 + job.KD - 1
        for z in range(z0, z1):
            while pair[0][0] < z + job.KD:
                pair = bring(pair, whole, source, scratch, job)
            feed = (min(z + job.KD + 1, last), many, whole)
            pair = plane(z, (y0, y1, x0, x1), pair, feed, source, (weights, out), scratch, job)

    signature = types.void(
        VOLUME, simd.INPUT, simd.INDICES, types.float32, RESULT, simd.record(March), simd.TASKS, simd.OUTPUT
    )

    @simd.kernel(signature, name=f"conv3d.rows.{rows}.{taps}.{lanes}")
    def march(x, weights, maps, cval, out, job, tasks, scratch):
        """weights [O][C][KD - half][KW][KH]."""
        task = simd.draw(tasks)
        while task >= 0:
            tile(task, x, weights, maps, cval, out, job, scratch)
            task = simd.draw(tasks)
        fence()

    return march


def columns_first(weights: Packed, half: int = 0) -> np.ndarray:
    """weights (O, C, KD, KH, KW) as [O][C][KD - half][KW][KH]: the taps of a column side by side."""
    planes = weights.weights[:, :, : weights.problem.KD - half]
    return np.ascontiguousarray(planes.swapaxes(3, 4)).reshape(-1)


def folded_columns_first(weights: Packed) -> np.ndarray:
    """As `columns_first`, without the planes that equal an earlier one."""
    return columns_first(weights, weights.problem.KD // 2)


@functools.lru_cache(maxsize=16)  # after a kernel has emptied the caches, Python takes several times as long for it
def laid_out(problem: Problem, border: Border, sizes: tuple[int, int, int], half: int, threads: int, lanes: int):
    """(kernel, maps, `March` without `streaming`, tiles, words of scratch) for volumes of one shape; see `convolve`."""
    rows, taps = tiles.rows_of(lanes, sizes[1]), problem.KH if problem.KH in OWN[lanes] else 0
    cut = tiles.tiling(problem, sizes, problem.C * (problem.KD + 1), rows, threads)
    job = March(
        *sizes, problem.O, problem.C, problem.KD, problem.KH, problem.KW, half,
        cut.ZT, cut.YT, cut.XT, cut.pitch, cut.plane, pad=int(tiles.pad_of(problem, rows, border.left)),
        y_map=len(border.z), x_map=len(border.z) + len(border.y), left=int(border.left),
    )  # fmt: skip
    words = problem.C * ((problem.KD + 1) * cut.plane + half * (rows + problem.KH - 1) * cut.pitch) + lanes
    return tile_kernel(rows, taps, lanes), border.maps, job, cut.tasks(sizes), words


def convolve(x: np.ndarray, weights: Packed, out: np.ndarray, border: Border, *, half: int = 0) -> None:
    """out (O, D, H, W) of x (C, D, H, W), float32. half: so many planes are the sums of two."""
    problem, lanes = weights.problem, cpu().lanes
    kernel, maps, job, tasks, words = laid_out(problem, border, out.shape[1:], half, thread_count(), lanes)
    shift, stream = tiles.streaming(out, lanes)
    job = job._replace(shift=shift, stream=int(stream))
    alone = out.size * problem.C * problem.KD * problem.KH * problem.KW <= ALONE
    launch(kernel, x, weights.data, maps, border.cval, out, job, tasks=tasks, words=words, alone=alone)


def convolve_folded(x: np.ndarray, weights: Packed, out: np.ndarray, border: Border) -> None:
    """As `convolve`, for a kernel that reads the same backwards along z; see `folded`."""
    convolve(x, weights, out, border, half=weights.problem.KD // 2)
