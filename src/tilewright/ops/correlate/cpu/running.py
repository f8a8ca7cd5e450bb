"""The mean of `size` neighbours as a running sum: each output adds the element that enters its window and subtracts
the one that leaves it.

out[i + 1] * size = out[i] * size + x[i + size] - x[i]. Changes from `tiles`: two additions per output, whatever the
size. The limit is latency: each sum waits for the one before, so ROWS rows, or vectors of columns, are summed side by
side. It is slow for sizes up to 2. A sum carries the rounding errors of its line along, a NaN too, to the end of the
tile.
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
from tilewright.ops.correlate.cpu.tile import SIGNATURE, first_output, outputs, tile_functions
from tilewright.ops.correlate.cpu.tiles import launch_tiles, readable
from tilewright.ops.correlate.frame import Axis, axes_of, frame_of
from tilewright.ops.correlate.operands import Edges, Taps

ROWS = 4  # rows summed side by side: an addition takes 3 cycles, and one starts in each (Zen 5)


def column_runner(width: int):
    """The inline function that takes `width` columns of a tile at a time."""

    @simd.inline
    def run_down(tile, at, pitch, rows, size, divisor):
        """rows means of `size` elements, `pitch` apart; each overwrites its window's first element, which is subtracted
        before."""
        total = start_sums(0.0, 1, width)
        for i in range(size):
            total = add_sums(total, load_sums(tile, at + i * pitch, 1, width))
        divisors = start_sums(divisor, 1, width)
        for i in range(at, at + (rows - 1) * pitch, pitch):
            change = subtract_sums(load_sums(tile, i + size * pitch, 1, width), load_sums(tile, i, 1, width))
            store_sums(tile, i, divide_sums(total, divisors))
            total = add_sums(total, change)
        store_sums(tile, at + (rows - 1) * pitch, divide_sums(total, divisors))

    return run_down


@simd.inline
def slide(tile, i, size, total):
    """Store the sum to tile[i] and return the next one."""
    change = subtract_sums(load_sums(tile, i + size, 1, 1), load_sums(tile, i, 1, 1))
    store_sums(tile, i, total)
    return add_sums(total, change)


@simd.inline
def sum_along(tile, at, pitch, count, size):
    """`count` sums of `size` elements in each of ROWS rows, `pitch` apart."""
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
    """The inline function that takes ROWS rows at a time."""

    @simd.inline
    def run_along(tile, at, pitch, count, size, divisor):
        """`count` means in each row: first the sums, then the division in vectors."""
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
    def run_plane(tile, at, job, sizes):
        """One plane of a tile: means along its rows or down its columns."""
        pitch = job.y.pitch
        if job.x.taps > 1:
            y = 0
            while y + ROWS <= sizes.y:
                run_along(tile, at + y * pitch, pitch, sizes.x, job.x.taps, job.divisor)
                y += ROWS
            while y < sizes.y:
                run_one(tile, at + y * pitch, 1, sizes.x, job.x.taps, job.divisor)
                y += 1
        else:
            x = 0
            while x + lanes <= sizes.x:
                run_vector(tile, at + x, pitch, sizes.y, job.y.taps, job.divisor)
                x += lanes
            while x < sizes.x:
                run_one(tile, at + x, pitch, sizes.y, job.y.taps, job.divisor)
                x += 1

    @simd.kernel(SIGNATURE, name=f"correlate.running.{lanes}")
    def means(job, offsets, taps, weights, tasks, scratch):
        """job: `Job`, filtered along y or x. offsets: `Frame.offsets`. taps, weights: not used. scratch: a tile."""
        tile, offsets = address_of(scratch), address_of(offsets)
        task = simd.draw(tasks)
        while task >= 0:
            start = first_output(job, task)
            sizes = outputs(job, start)
            fill(tile, job, offsets, start, sizes)
            for w in range(sizes.w):
                for z in range(sizes.z):
                    run_plane(tile, w * job.w.pitch + z * job.z.pitch, job, sizes)
            put(tile, job, start, sizes)
            task = simd.draw(tasks)

    return means


def run_means(x: np.ndarray, taps: Taps, edges: Edges, out: np.ndarray) -> None:
    """out = the mean of x under taps, all along one axis."""
    x, whole = readable(x, out, taps.window)
    lanes = cpu().lanes // 2
    frame = frame_of(x, out, _line_last(axes_of(x, out, taps.window)), taps, edges, lanes, whole=whole)
    launch_tiles(running_kernel(lanes), frame, np.zeros((0, 2), np.int64), taps.weights)


def _line_last(axes: list[Axis]) -> list[Axis]:
    """The axes with the filtered one last, or last but one."""
    lines = [axis for axis in axes[:-1] if axis.taps > 1]
    return [*(axis for axis in axes[:-1] if axis not in lines), *lines, *axes[-1:]]
