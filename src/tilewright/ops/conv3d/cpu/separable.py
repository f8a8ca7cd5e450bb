"""Three short passes in place of one long one: y, then x, then z, fused in cache; KD + KH + KW products an output.

A task marches along z as in `rows`. Each plane of its tile is gathered, convolved along y and then along x, 16 rows at
a time in the first cache, and kept in a ring; when 16 planes have come, 16 planes of outputs leave by the pass along z.
All three are `slide.block_slide`: down the rows, along a row with one tap at a time, and from plane to plane. The
volume is read once and written once, and what lies between never leaves L2.

Intermediate results round to float32 three times. Where a factor has a zero, an infinity meets it as in the six loops:
the product is a NaN in both. It loses to `rows` for the shortest kernels, whose products wait for memory anyway.
"""

import functools
from typing import NamedTuple

import numpy as np
from numba import types

from tilewright import simd
from tilewright.hardware import cpu
from tilewright.ops.conv3d.cpu import tiles
from tilewright.ops.conv3d.cpu.gather import RESULT, VOLUME, gatherer
from tilewright.ops.conv3d.cpu.slide import block_put, block_slide, block_slide_any, fence
from tilewright.ops.conv3d.operands import Border, Packed
from tilewright.ops.core.launch import launch

ALONE = 1 << 19  # multiply-adds up to which one thread does all


class Passes(NamedTuple):
    """What the kernel is told, named as in `tiles.March`. ring_*: of the ring of planes convolved along y and x."""

    D: int
    H: int
    W: int
    KD: int
    KH: int
    KW: int
    ZT: int
    YT: int
    XT: int
    pitch: int
    ring_pitch: int
    ring_plane: int
    y_map: int
    x_map: int
    left: int
    shift: int
    stream: int


@functools.cache
def plane_kernel(rows: int, lanes: int):
    """The inline function that convolves a gathered plane along y and x, into the ring."""

    @simd.inline
    def along_y_and_x(high, wide, factors, scratch, areas, job):
        """high x wide outputs. areas: where in scratch the gathered plane, 16 rows between the passes, and the plane
        of the ring begin."""
        (gathered, between, to), pitch = areas, job.pitch
        for y in range(0, high, rows):
            for i in range(0, wide + job.KW - 1, lanes):
                at = gathered + y * pitch + i
                block = simd.block_zeros(rows, 1, lanes)
                block = block_slide_any(block, job.KH, factors, job.KD, scratch, at, pitch)
                simd.block_store(block, scratch, between + i, pitch, lanes)
            for i in range(0, wide, lanes):
                block = simd.block_zeros(rows, 1, lanes)
                for t in range(job.KW):
                    w_at = job.KD + job.KH + t
                    block = block_slide(block, 1, factors, w_at, scratch, between + i + t, pitch)
                simd.block_store(block, scratch, to + y * job.ring_pitch + i, job.ring_pitch, lanes)

    return along_y_and_x


@functools.cache
def tile_kernel(rows: int, lanes: int):
    """The kernel for blocks of rows x lanes."""
    gather, along_y_and_x = gatherer(lanes), plane_kernel(rows, lanes)

    @simd.inline
    def along_z(z, z1, corner, factors, out, scratch, job):
        """Up to `rows` planes of outputs from z on, from a ring that is full."""
        (y0, y1, x0, x1), shift = corner, job.shift
        plane, row = out.strides[1] // 4, out.strides[2] // 4
        for y in range(y0, y1):
            i = x0
            while i < x1:
                at = (y - y0) * job.ring_pitch + i - x0
                block = simd.block_zeros(rows, 1, lanes)
                block = block_slide_any(block, job.KD, factors, 0, scratch, at, job.ring_plane)
                stream = job.stream != 0 and (shift == 0 or i != x0)
                block_put(block, out, z * plane + y * row + i, plane, (z1 - z, x1 - i), stream)
                i += shift if shift and i == x0 else lanes

    @simd.inline
    def tile(task, x, factors, maps, cval, out, job, scratch):
        """March along z."""
        across, down = (job.W + job.XT - 1) // job.XT, (job.H + job.YT - 1) // job.YT
        y0, x0 = task % down * job.YT, task // down % across * job.XT
        z0 = task // down // across * job.ZT
        y1, x1, z1 = min(y0 + job.YT, job.H), min(x0 + job.XT, job.W), min(z0 + job.ZT, job.D)
        area = (y1 - y0 + job.KH - 1, x1 - x0 + job.KW - 1, job.pitch)
        axes = (job.y_map, job.x_map, job.left)
        held, full = 0, job.KD - 1 + rows  # planes in the ring, and when it is full
        between = full * job.ring_plane
        gathered = between + rows * job.pitch
        for z in range(z0, z1 + job.KD - 1):
            gather(x, (0, z, y0, x0), area, axes, maps, cval, scratch, gathered)
            areas = (gathered, between, held * job.ring_plane)
            along_y_and_x(y1 - y0, x1 - x0, factors, scratch, areas, job)
            held += 1
            if held == full or z == z1 + job.KD - 2:
                along_z(z - held + 1, z1, (y0, y1, x0, x1), factors, out, scratch, job)
                held = job.KD - 1
                simd.copy(scratch, 0, rows * job.ring_plane, held * job.ring_plane)

    signature = types.void(
        VOLUME, simd.INPUT, simd.INDICES, types.float32, RESULT, simd.record(Passes), simd.TASKS, simd.OUTPUT
    )

    @simd.kernel(signature, name=f"conv3d.separable.{rows}.{lanes}")
    def march(x, factors, maps, cval, out, job, tasks, scratch):
        """factors: wz, wy, wx, one after the other."""
        task = simd.draw(tasks)
        while task >= 0:
            tile(task, x, factors, maps, cval, out, job, scratch)
            task = simd.draw(tasks)
        fence()

    return march


def convolve(x: np.ndarray, weights: Packed, out: np.ndarray, border: Border) -> None:
    """The rung's run function."""
    problem, sizes, lanes, maps = weights.problem, out.shape[1:], cpu().lanes, border.maps
    rows = tiles.ROWS[lanes]
    cut, ring = tiles.fused_tiling(problem, sizes, rows)
    taps = (problem.KD, problem.KH, problem.KW)
    shift, stream = tiles.streaming(out, lanes)
    job = Passes(
        *sizes, *taps, cut.ZT, cut.YT, cut.XT, cut.pitch, ring.pitch, ring.plane, y_map=len(border.z),
        x_map=len(border.z) + len(border.y), left=int(border.left), shift=shift, stream=int(stream),
    )  # fmt: skip
    factors = np.concatenate(weights.factors)
    tasks, alone = cut.tasks(sizes), out.size * sum(taps) <= ALONE
    words = (problem.KD - 1 + rows) * ring.plane + rows * cut.pitch + cut.plane + lanes
    arrays = x, factors, maps, border.cval, out
    launch(tile_kernel(rows, lanes), *arrays, job, tasks=tasks, words=words, alone=alone)
