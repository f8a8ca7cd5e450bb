"""Three short passes in place of one long one: along y, then x, then z, fused in cache.

    out[z, y, i] = sum over a of wz[a] * (sum over t of wx[t] * (sum over b of wy[b] * x[z + a, y + b, i + t]))

x and out (D, H, W) are float32, and the kernel is the outer product of wz, wy and wx. An output costs KD + KH + KW
products; `rows` needs KD * KH * KW. A task marches along z as in `rows`. Each plane of its tile is convolved along y,
then along x, 16 rows at a time in the first cache, and stored in a ring (`planes`). When the ring is full, the pass
along z computes 16 planes of outputs. A CPU with 16 registers of 8 lanes takes 5 rows and 5 planes at a time. All three
passes are those of `slide`. The volume is read once and written once. Intermediate results stay in L2, or in L3 with 8
lanes (`tiles.SHARE`). The limit is memory bandwidth for short kernels, multiply-adds for long ones.

Intermediate results are rounded to float32, so a sum is rounded three times. A zero of a factor times an infinity is a
NaN, as in the six loops. It is slower than `rows` for the shortest kernels, where `rows` is limited by memory as well.
"""

import functools
from typing import NamedTuple

import numpy as np
from numba import types

from tilewright import simd
from tilewright.hardware import cpu
from tilewright.ops.conv3d.cpu import tiles
from tilewright.ops.conv3d.cpu.gather import OUTSIDE, RESULT, VOLUME, Source, gatherer, row_start, tile_of
from tilewright.ops.conv3d.cpu.planes import Areas, line_kernel, reads_volume, square_kernel
from tilewright.ops.conv3d.cpu.slide import block_slide_listed, block_write, fence
from tilewright.ops.conv3d.operands import Border, Packed
from tilewright.ops.core.launch import launch, thread_count

ONE_THREAD = 1 << 19  # multiply-adds up to which one thread does all


class Passes(NamedTuple):
    """Parameters of the kernel, named as in `tiles.March`. ring_*: of the ring of planes convolved along y and x. pad:
    words before the first column there, so that the columns of a streamed vector are a vector of the ring, too. slots:
    index in the maps of the list of the ring's planes, see `convolve`."""

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
    pad: int
    slots: int


@functools.cache
def plane_step(rows: int, lanes: int):
    """The inline function that convolves a plane along y and x, into the ring."""
    gather = gatherer(lanes)
    from_scratch, from_volume = square_kernel(lanes) if rows == lanes else line_kernel(rows, lanes)

    @simd.inline
    def convolve_plane(z, straight, tile, source, factors, scratch, areas, job):
        """straight: `reads_volume` of the tile."""
        if straight and row_start(source, 0, z, tile.y0) != OUTSIDE:
            from_volume(z, tile, source, factors, scratch, areas, job)
        else:
            gather(source, z, tile, job.pitch, scratch, areas.gathered)
            from_scratch(z, tile, source, factors, scratch, areas, job)

    return convolve_plane


@functools.cache
def depth_step(rows: int, lanes: int):
    """The inline function of the pass along z."""

    @simd.inline
    def along_z(z, slot, tile, source, factors, out, scratch, job):
        """Up to `rows` planes of outputs from z on, from a ring that is full. slot: of the ring's first plane."""
        plane, row, shift = out.strides[1] // 4, out.strides[2] // 4, job.shift
        for y in range(tile.y0, tile.y1):
            i = tile.x0
            while i < tile.x1:
                at = (y - tile.y0) * job.ring_pitch + i - tile.x0 + job.pad
                block = simd.block_zeros(rows, 1, lanes)
                block = block_slide_listed(block, job.KD, factors, scratch, at, source.maps, job.slots + slot)
                columns = shift if shift and i == tile.x0 else lanes  # no line is both cached and streamed
                stream = job.stream != 0 and columns == lanes
                columns = min(columns, tile.x1 - i)
                block_write(block, out, z * plane + y * row + i, plane, tile.z1 - z, columns, stream)
                i += columns

    return along_z


@functools.cache
def tile_kernel(rows: int, lanes: int):
    """The kernel for blocks of rows x lanes."""
    convolve_plane, along_z = plane_step(rows, lanes), depth_step(rows, lanes)

    @simd.inline
    def march_tile(task, source, factors, out, scratch, job):
        """March along z."""
        tile = tile_of(task, source, job)
        planes, full = 0, job.KD - 1 + rows  # planes in the ring, and its capacity
        between = full * job.ring_plane
        gathered = between + rows * job.pitch
        straight = reads_volume(source, tile, rows, lanes, job)
        slot = 0  # of the first plane in the ring
        for z in range(tile.z0, tile.z1 + job.KD - 1):
            next_slot = slot + planes if slot + planes < full else slot + planes - full
            areas = Areas(gathered, between, next_slot * job.ring_plane + job.pad)
            convolve_plane(z, straight, tile, source, factors, scratch, areas, job)
            planes += 1
            if planes == full or z == tile.z1 + job.KD - 2:
                along_z(z - planes + 1, slot, tile, source, factors, out, scratch, job)
                planes = job.KD - 1
                slot = slot + rows if slot + rows < full else slot + rows - full

    signature = types.void(
        VOLUME, simd.INPUT, simd.INDICES, types.float32, RESULT, simd.record(Passes), simd.TASKS, simd.OUTPUT
    )

    @simd.kernel(signature, name=f"conv3d.separable.{rows}.{lanes}")
    def march(x, factors, maps, cval, out, job, tasks, scratch):
        """Compute out (1, D, H, W) of x (1, D, H, W), one tile per task.

        factors: wz, wy, wx, one after another. maps: `Border.maps`. cval: float32, the border's value. job: `Passes`.
        scratch: the ring, rows between the passes, and a gathered plane.
        """
        source = Source(x, maps, cval, job.y_map, job.x_map, job.left)
        task = simd.draw(tasks)
        while task >= 0:
            march_tile(task, source, factors, out, scratch, job)
            task = simd.draw(tasks)
        fence()

    return march


def convolve(x: np.ndarray, weights: Packed, out: np.ndarray, border: Border) -> None:
    """The rung's run function."""
    problem, sizes, lanes, maps = weights.problem, out.shape[1:], cpu().lanes, border.maps
    rows, lanes = tiles.ROWS[lanes], tiles.COLUMNS[lanes]
    alone = out.size * (problem.KD + problem.KH + problem.KW) <= ONE_THREAD
    cut, ring = tiles.fused_tiling(problem, sizes, rows, 1 if alone else thread_count())
    taps = (problem.KD, problem.KH, problem.KW)
    shift, stream = tiles.streaming(out, lanes)
    ring_plane = tiles.plane_of(ring)
    job = Passes(
        *sizes, *taps, cut.ZT, cut.YT, cut.XT, cut.pitch, ring.pitch, ring_plane, y_map=len(border.z),
        x_map=len(border.z) + len(border.y), left=int(border.left), shift=shift, stream=int(stream),
        pad=-shift % lanes, slots=len(maps),
    )  # fmt: skip
    offsets = np.arange(problem.KD - 1 + rows) * ring_plane
    maps = np.concatenate((maps, offsets, offsets))  # all planes are adjacent there, whichever comes first
    factors = np.concatenate(weights.factors)
    tasks = cut.tasks(sizes)
    words = (problem.KD - 1 + rows) * ring_plane + rows * cut.pitch + cut.plane + lanes
    arrays = x, factors, maps, border.cval, out
    launch(tile_kernel(rows, lanes), *arrays, job, tasks=tasks, words=words, alone=alone)
