"""The mean of neighbours as a running sum: an output adds the number that comes in, takes off the one that leaves.

Against `threads`: two additions an output, whatever the size. It loses for sizes up to 2, and a sum carries what
earlier numbers of its line left behind in rounding, a NaN too. It starts anew with each tile.
"""

import functools

import numpy as np

from tilewright import simd
from tilewright.hardware import cpu
from tilewright.ops.correlate.cpu.doubles import (
    add_sums,
    address_of,
    divide_sums,
    load_sums,
    start_sums,
    store_sums,
    subtract_sums,
)
from tilewright.ops.correlate.cpu.tile import SIGNATURE, corner, outputs, tile_functions
from tilewright.ops.correlate.cpu.tiles import beside, launch_tiles
from tilewright.ops.correlate.frame import AXIS, Axis, axes_of, frame_of
from tilewright.ops.correlate.operands import Edges, Taps

ROWS = 4  # side by side: an addition takes 3 cycles, and one starts in each (Zen 5)


def column_runner(width: int):
    """The function that takes `width` columns of a tile at a time."""

    @simd.inline
    def run_down(tile, at, pitch, rows, size, divisor):
        """Means replace the first number of each window, once the sum has let go of it."""
        total = start_sums(0.0, 1, width)
        for i in range(size):
            total = add_sums(total, load_sums(tile, at + i * pitch, 1, width))
        shares = start_sums(divisor, 1, width)
        for i in range(at, at + (rows - 1) * pitch, pitch):
            change = subtract_sums(load_sums(tile, i + size * pitch, 1, width), load_sums(tile, i, 1, width))
            store_sums(tile, i, divide_sums(total, shares))
            total = add_sums(total, change)
        store_sums(tile, at + (rows - 1) * pitch, divide_sums(total, shares))

    return run_down


@simd.inline
def slide(tile, i, size, total):
    """The sum goes to tile[i]; the next one."""
    change = subtract_sums(load_sums(tile, i + size, 1, 1), load_sums(tile, i, 1, 1))
    store_sums(tile, i, total)
    return add_sums(total, change)


@simd.inline
def sum_along(tile, at, pitch, count, size):
    """The sums of ROWS rows, `pitch` apart."""
    a = b = c = d = start_sums(0.0, 1, 1)
    for i in range(at, at + size):
        a, b = add_sums(a, load_sums(tile, i, 1, 1)), add_sums(b, load_sums(tile, i + pitch, 1, 1))
        c, d = add_sums(c, load_sums(tile, i + 2 * pitch, 1, 1)), add_sums(d, load_sums(tile, i + 3 * pitch, 1, 1))
    for i in range(at, at + count - 1):
        a, b = slide(tile, i, size, a), slide(tile, i + pitch, size, b)
        c, d = slide(tile, i + 2 * pitch, size, c), slide(tile, i + 3 * pitch, size, d)
    last = at + count - 1
    store_sums(tile, last, a)
    store_sums(tile, last + pitch, b)
    store_sums(tile, last + 2 * pitch, c)
    store_sums(tile, last + 3 * pitch, d)


def row_runner(lanes: int):
    """The function that takes ROWS rows at a time."""

    @simd.inline
    def run_along(tile, at, pitch, count, size, divisor):
        """First their sums, then the division in vectors."""
        sum_along(tile, at, pitch, count, size)
        for row in range(at, at + ROWS * pitch, pitch):
            i = 0
            while i + lanes <= count:
                means = divide_sums(load_sums(tile, row + i, 1, lanes), start_sums(divisor, 1, lanes))
                store_sums(tile, row + i, means)
                i += lanes
            while i < count:
                store_sums(tile, row + i, divide_sums(load_sums(tile, row + i, 1, 1), start_sums(divisor, 1, 1)))
                i += 1

    return run_along


@functools.cache
def running_kernel(lanes: int):
    """The kernel for a vector width."""
    fill, put = tile_functions(lanes)
    run_vector, run_one, run_along = column_runner(lanes), column_runner(1), row_runner(lanes)

    @simd.inline
    def run_plane(tile, at, pitch, sizes, taps, divisor):
        """One plane of a tile: means along its rows or down its columns."""
        if taps[1] > 1:
            y = 0
            while y + ROWS <= sizes[2]:
                run_along(tile, at + y * pitch, pitch, sizes[3], taps[1], divisor)
                y += ROWS
            while y < sizes[2]:
                run_one(tile, at + y * pitch, 1, sizes[3], taps[1], divisor)
                y += 1
        else:
            x = 0
            while x + lanes <= sizes[3]:
                run_vector(tile, at + x, pitch, sizes[2], taps[0], divisor)
                x += lanes
            while x < sizes[3]:
                run_one(tile, at + x, pitch, sizes[2], taps[0], divisor)
                x += 1

    @simd.kernel(SIGNATURE, name=f"correlate.running.{lanes}")
    def means(axes, ends, offsets, taps, weights, numbers, tasks, scratch):
        """The axis along which means are taken is the last one or that before it."""
        tile, offsets_at, extents = address_of(scratch), address_of(offsets), (axes[2, AXIS.taps], axes[3, AXIS.taps])
        task = simd.draw(tasks)
        while task >= 0:
            start = corner(axes, task)
            sizes = outputs(axes, start)
            fill(tile, axes, ends, offsets_at, numbers[0], start, sizes)
            for w in range(sizes[0]):
                for z in range(sizes[1]):
                    at = w * axes[0, AXIS.pitch] + z * axes[1, AXIS.pitch]
                    run_plane(tile, at, axes[2, AXIS.pitch], sizes, extents, numbers[2])
            put(tile, axes, ends, start, sizes)
            task = simd.draw(tasks)

    return means


def run_means(x: np.ndarray, taps: Taps, edges: Edges, out: np.ndarray) -> None:
    """The rung's run function."""
    x, whole = beside(x, out, taps.window)
    lanes = cpu().lanes // 2
    frame = frame_of(x, out, _line_last(axes_of(x, out, taps.window)), taps, edges, lanes, whole=whole)
    launch_tiles(running_kernel(lanes), frame, np.zeros((0, 2), np.int64), taps, edges)


def _line_last(axes: list[Axis]) -> list[Axis]:
    """The filtered axis last, or last but one if it is not last already."""
    lines = [axis for axis in axes[:-1] if axis.taps > 1]
    return [*(axis for axis in axes[:-1] if axis not in lines), *lines, *axes[-1:]]
