"""Three short passes in place of one long one: y, then x, then z, fused in cache; KD + KH + KW products an output.

A task marches along z as in `rows`. Each plane of its tile is gathered, convolved along y and then along x, 16 rows at
a time in the first cache, and kept in a ring; when 16 planes have come, 16 planes of outputs leave by the pass along z.
All three are `slide.block_slide`: down the rows, along a row with one tap at a time, and from plane to plane. The
volume is read once and written once, and what lies between never leaves L2.

Intermediate results round to float32 three times. Where a factor has a zero, an infinity meets it as in the six loops:
the product is a NaN in both. It loses to `rows` for the shortest kernels, whose products wait for memory anyway.
"""

import functools

import numpy as np
from numba import types

from tilewright import simd
from tilewright.hardware import cpu
from tilewright.ops.conv3d.cpu import tiles
from tilewright.ops.conv3d.cpu.gather import RESULT, VOLUME, gatherer
from tilewright.ops.conv3d.cpu.slide import block_put, block_slide, block_slide_any, borrow, fence
from tilewright.ops.conv3d.operands import Border, Packed
from tilewright.ops.core.launch import launch

ALONE = 1 << 19  # multiply-adds up to which one thread does all

# what the plan says
NEXT, D, H, W, KD, KH, KW, ZT, YT, XT, PITCH, RING_PITCH, RING_PLANE, Y_MAP, X_MAP, LEFT, SHIFT, STREAM = range(18)


@functools.cache
def plane_kernel(rows: int, lanes: int):
    """The inline function that convolves a gathered plane along y and x, into the ring."""

    @simd.inline
    def along_y_and_x(high, wide, factors, scratch, areas, plan):
        """high x wide outputs. areas: where in scratch the gathered plane, 16 rows between the passes, and the plane
        of the ring begin."""
        (gathered, between, to), pitch = areas, plan[PITCH]
        for y in range(0, high, rows):
            for i in range(0, wide + plan[KW] - 1, lanes):
                at = gathered + y * pitch + i
                block = simd.block_zeros(rows, 1, lanes)
                block = block_slide_any(block, plan[KH], factors, plan[KD], scratch, at, pitch)
                simd.block_store(block, scratch, between + i, pitch, lanes)
            for i in range(0, wide, lanes):
                block = simd.block_zeros(rows, 1, lanes)
                for t in range(plan[KW]):
                    w_at = plan[KD] + plan[KH] + t
                    block = block_slide(block, 1, factors, w_at, scratch, between + i + t, pitch)
                simd.block_store(block, scratch, to + y * plan[RING_PITCH] + i, plan[RING_PITCH], lanes)

    return along_y_and_x


@functools.cache
def tile_kernel(rows: int, lanes: int):
    """The kernel for blocks of rows x lanes."""
    gather, along_y_and_x = gatherer(lanes), plane_kernel(rows, lanes)

    @simd.inline
    def along_z(z, z1, corner, factors, out, scratch, plan):
        """Up to `rows` planes of outputs from z on, from a ring that is full."""
        (y0, y1, x0, x1), shift = corner, plan[SHIFT]
        plane, row = out.strides[1] // 4, out.strides[2] // 4
        for y in range(y0, y1):
            i = x0
            while i < x1:
                at = (y - y0) * plan[RING_PITCH] + i - x0
                block = simd.block_zeros(rows, 1, lanes)
                block = block_slide_any(block, plan[KD], factors, 0, scratch, at, plan[RING_PLANE])
                stream = plan[STREAM] != 0 and (shift == 0 or i != x0)
                block_put(block, out, z * plane + y * row + i, plane, (z1 - z, x1 - i), stream)
                i += shift if shift and i == x0 else lanes

    @simd.inline
    def tile(task, x, factors, maps, cval, out, plan, scratch):
        """March along z."""
        across, down = (plan[W] + plan[XT] - 1) // plan[XT], (plan[H] + plan[YT] - 1) // plan[YT]
        y0, x0 = task % down * plan[YT], task // down % across * plan[XT]
        z0 = task // down // across * plan[ZT]
        y1, x1, z1 = min(y0 + plan[YT], plan[H]), min(x0 + plan[XT], plan[W]), min(z0 + plan[ZT], plan[D])
        area = (y1 - y0 + plan[KH] - 1, x1 - x0 + plan[KW] - 1, plan[PITCH])
        axes = (plan[Y_MAP], plan[X_MAP], plan[LEFT])
        held, full = 0, plan[KD] - 1 + rows  # planes in the ring, and when it is full
        between = full * plan[RING_PLANE]
        gathered = between + rows * plan[PITCH]
        for z in range(z0, z1 + plan[KD] - 1):
            gather(x, (0, z, y0, x0), area, axes, maps, cval, scratch, gathered)
            areas = (gathered, between, held * plan[RING_PLANE])
            along_y_and_x(y1 - y0, x1 - x0, factors, scratch, areas, plan)
            held += 1
            if held == full or z == z1 + plan[KD] - 2:
                along_z(z - held + 1, z1, (y0, y1, x0, x1), factors, out, scratch, plan)
                held = plan[KD] - 1
                simd.copy(scratch, 0, rows * plan[RING_PLANE], held * plan[RING_PLANE])

    signature = types.void(VOLUME, simd.INPUT, simd.INDICES, types.float32, RESULT, simd.PLAN, simd.OUTPUT)

    @simd.kernel(signature, name=f"conv3d.separable.{rows}.{lanes}")
    def march(x, factors, maps, cval, out, plan, scratch):
        """factors: wz, wy, wx, one after the other. plan: the names above."""
        x, factors, maps, out = borrow(x), borrow(factors), borrow(maps), borrow(out)
        plan, scratch = borrow(plan), borrow(scratch)
        z_cuts = (plan[D] + plan[ZT] - 1) // plan[ZT]
        tasks = z_cuts * ((plan[W] + plan[XT] - 1) // plan[XT]) * ((plan[H] + plan[YT] - 1) // plan[YT])
        task = simd.fetch_add(plan, NEXT, 1)
        while task < tasks:
            tile(task, x, factors, maps, cval, out, plan, scratch)
            task = simd.fetch_add(plan, NEXT, 1)
        fence()

    return march


def convolve(x: np.ndarray, weights: Packed, out: np.ndarray, border: Border) -> None:
    """The rung's run function."""
    problem, sizes, lanes, maps = weights.problem, out.shape[1:], cpu().lanes, border.maps
    rows = tiles.ROWS[lanes]
    cut, ring = tiles.fused_tiling(problem, sizes, rows)
    taps = (problem.KD, problem.KH, problem.KW)
    plan = np.array([
        0, *sizes, *taps, cut.ZT, cut.YT, cut.XT, cut.pitch, ring.pitch, ring.plane,
        len(border.z), len(border.z) + len(border.y), border.left, *tiles.streaming(out, lanes),
    ])  # fmt: skip
    factors = np.concatenate(weights.factors)
    tasks = 1 if out.size * sum(taps) <= ALONE else cut.tasks(sizes)
    words = (problem.KD - 1 + rows) * ring.plane + rows * cut.pitch + cut.plane + lanes
    launch(tile_kernel(rows, lanes), x, factors, maps, border.cval, out, plan, tasks=tasks, words=words)
