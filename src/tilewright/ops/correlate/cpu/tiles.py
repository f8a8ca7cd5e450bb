"""A tile of outputs with its halo as float64 in scratch; then a vector of outputs takes one tap after the other.

Against `naive`: a number is converted and its place looked up once a tile, and not once a tap. It loses nowhere.
"""

import functools

import numpy as np

from tilewright import simd
from tilewright.hardware import cpu
from tilewright.ops.core.launch import launch
from tilewright.ops.correlate.cpu.doubles import (
    add_even_pair,
    add_odd_pair,
    add_product,
    address_of,
    divide_sums,
    fetch_double,
    fetch_integer,
    start_sums,
    store_sums,
)
from tilewright.ops.correlate.cpu.tile import SIGNATURE, corner, outputs, tile_functions
from tilewright.ops.correlate.frame import AXIS, COLUMNS, ENDS, LINE_NUMBERS, axes_of, frame_of
from tilewright.ops.correlate.operands import Edges, Taps

WIDE = 8  # vectors of sums side by side: an addition takes 3 cycles and two start in each (Zen 5)


@functools.cache
def tile_kernel(lanes: int, wide: int):
    """The kernel for a vector width, with runs of `wide` vectors where a row has them."""
    fill, put = tile_functions(lanes)

    def run_summer(vectors: int):
        @simd.inline
        def sum_run(tile, at, taps, weights, counts, start, divisor):
            """vectors * lanes outputs; they take the place of the first numbers they read. counts: single taps, all,
            the sign of pairs."""
            total = start_sums(start, vectors, lanes)
            for t in range(counts[0]):
                total = add_product(total, tile, at + fetch_integer(taps, 2 * t), fetch_double(weights, t))
            for t in range(counts[0], counts[1]):
                first, second = at + fetch_integer(taps, 2 * t), at + fetch_integer(taps, 2 * t + 1)
                if counts[2] > 0:
                    total = add_even_pair(total, tile, first, second, fetch_double(weights, t))
                else:
                    total = add_odd_pair(total, tile, first, second, fetch_double(weights, t))
            if divisor != 1:
                total = divide_sums(total, start_sums(divisor, vectors, lanes))
            store_sums(tile, at, total)

        return sum_run

    sum_wide, sum_narrow = run_summer(wide), run_summer(1)

    @simd.inline
    def sum_row(tile, at, count, taps, weights, counts, start, divisor):
        i = 0
        while i + wide * lanes <= count:
            sum_wide(tile, at + i, taps, weights, counts, start, divisor)
            i += wide * lanes
        while i < count:
            sum_narrow(tile, at + i, taps, weights, counts, start, divisor)
            i += lanes

    @simd.kernel(SIGNATURE, name=f"correlate.tiles.{lanes}.{wide}")
    def tiles(axes, ends, offsets, taps, weights, numbers, tasks, scratch):
        """taps: two columns, how far a tap and its partner lie from an output's place."""
        tile, offsets_at, taps_at = address_of(scratch), address_of(offsets), address_of(taps)
        weights_at, counts = address_of(weights), (ends[ENDS.singles], weights.size, ends[ENDS.sign])
        cval, first, divisor = numbers[0], numbers[1], numbers[2]
        task = simd.draw(tasks)
        while task >= 0:
            start = corner(axes, task)
            sizes = outputs(axes, start)
            fill(tile, axes, ends, offsets_at, cval, start, sizes)
            rows, count = sizes[2], sizes[3]
            if ends[ENDS.merged]:
                rows, count = 1, (rows - 1) * axes[2, AXIS.pitch] + count
            for w in range(sizes[0]):
                for z in range(sizes[1]):
                    for y in range(rows):
                        at = w * axes[0, AXIS.pitch] + z * axes[1, AXIS.pitch] + y * axes[2, AXIS.pitch]
                        sum_row(tile, at, count, taps_at, weights_at, counts, first, divisor)
            put(tile, axes, ends, start, sizes)
            task = simd.draw(tasks)

    return tiles


def sum_tiles(x: np.ndarray, taps: Taps, edges: Edges, out: np.ndarray, *, wide: int = WIDE) -> None:
    """out = the correlation of x with taps. wide: vectors of sums side by side."""
    x, whole = beside(x, out, taps.window)
    lanes = cpu().lanes // 2
    frame = frame_of(x, out, axes_of(x, out, taps.window), taps, edges, lanes, whole=whole)
    launch_tiles(tile_kernel(lanes, wide), frame, frame.tile_offsets(taps), taps, edges)


def launch_tiles(kernel, frame, taps_at: np.ndarray, taps: Taps, edges: Edges) -> None:
    """Run the kernel over the frame's tiles."""
    numbers = np.array([edges.cval, taps.start, taps.divisor])
    tables = frame.axes, frame.ends, frame.offsets, taps_at, taps.weights, numbers
    launch(kernel, *tables, tasks=frame.tasks, words=2 * frame.words)


def beside(x: np.ndarray, out: np.ndarray, window: tuple[int, ...]) -> tuple[np.ndarray, bool]:
    """(x, whole): x if out may be written while it is read, maybe only in tiles of whole lines; else a copy of it."""
    if not np.may_share_memory(x, out):
        return x, False
    lines = [n + taps for n, taps in zip(x.shape, window, strict=True) if taps > 1]
    if len(lines) <= 1 and all(COLUMNS * line <= LINE_NUMBERS for line in lines):
        return x, True
    return x.copy(), False
