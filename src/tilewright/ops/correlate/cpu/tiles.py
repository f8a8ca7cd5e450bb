"""Tiles in scratch: a task converts its block of x to float64 once. Then it computes a vector of outputs at a time.

out[i] = (start + sum over taps t of weights[t] * x[i + taps[t]]) / divisor. A tap is one element of the filter, and
taps[t] its offset. Inside the tile a tap is one constant offset. `naive` finds and converts an element once per tap;
here a task does so once per tile. The limit is a multiplication and an addition per tap, because fused ones would round
differently. No rung below it is faster at any size.
"""

import functools
from typing import NamedTuple

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
from tilewright.ops.correlate.cpu.tile import SIGNATURE, first_output, outputs, tile_functions
from tilewright.ops.correlate.frame import COLUMNS, LINE_NUMBERS, axes_of, frame_of
from tilewright.ops.correlate.operands import Edges, Taps

WIDE = 8  # vectors of sums side by side: an addition takes 3 cycles and two start in each (Zen 5)


class Terms(NamedTuple):
    """Addresses of the tap offsets (int64 pairs) and of the weights (float64), and the number of taps."""

    taps: int
    weights: int
    count: int


@functools.cache
def tile_kernel(lanes: int, wide: int):
    """The kernel for a vector width, with runs of `wide` vectors where rows are long enough."""
    fill, put = tile_functions(lanes)

    def run_summer(vectors: int):
        @simd.inline
        def sum_run(tile, at, terms, job):
            """Sum vectors * lanes outputs; they overwrite the first elements that their windows read."""
            total = start_sums(job.start, vectors, lanes)
            for t in range(job.singles):
                weight = fetch_double(terms.weights, t)
                total = add_product(total, tile, at + fetch_integer(terms.taps, 2 * t), weight)
            for t in range(job.singles, terms.count):
                weight = fetch_double(terms.weights, t)
                first, second = at + fetch_integer(terms.taps, 2 * t), at + fetch_integer(terms.taps, 2 * t + 1)
                if job.sign > 0:
                    total = add_even_pair(total, tile, first, second, weight)
                else:
                    total = add_odd_pair(total, tile, first, second, weight)
            if job.divisor != 1:
                total = divide_sums(total, start_sums(job.divisor, vectors, lanes))
            store_sums(tile, at, total)

        return sum_run

    sum_wide, sum_narrow = run_summer(wide), run_summer(1)

    @simd.inline
    def sum_row(tile, at, count, terms, job):
        i = 0
        while i + wide * lanes <= count:
            sum_wide(tile, at + i, terms, job)
            i += wide * lanes
        while i < count:
            sum_narrow(tile, at + i, terms, job)
            i += lanes

    @simd.kernel(SIGNATURE, name=f"correlate.tiles.{lanes}.{wide}")
    def tiles(job, offsets, taps, weights, tasks, scratch):
        """job: `Job`. offsets: `Frame.offsets`. taps: `Frame.tile_offsets`. weights: float64 (T,). scratch: a tile."""
        tile, offsets = address_of(scratch), address_of(offsets)
        terms = Terms(address_of(taps), address_of(weights), weights.size)
        task = simd.draw(tasks)
        while task >= 0:
            start = first_output(job, task)
            sizes = outputs(job, start)
            fill(tile, job, offsets, start, sizes)
            rows, count = sizes.y, sizes.x
            if job.merged:
                rows, count = 1, (rows - 1) * job.y.pitch + count
            for w in range(sizes.w):
                for z in range(sizes.z):
                    for y in range(rows):
                        sum_row(tile, w * job.w.pitch + z * job.z.pitch + y * job.y.pitch, count, terms, job)
            put(tile, job, start, sizes)
            task = simd.draw(tasks)

    return tiles


def sum_tiles(x: np.ndarray, taps: Taps, edges: Edges, out: np.ndarray, *, wide: int = WIDE) -> None:
    """out = the correlation of x with taps. wide: vectors of sums side by side."""
    x, whole = readable(x, out, taps.window)
    lanes = cpu().lanes // 2
    frame = frame_of(x, out, axes_of(x, out, taps.window), taps, edges, lanes, whole=whole)
    launch_tiles(tile_kernel(lanes, wide), frame, frame.tile_offsets(taps), taps.weights)


def launch_tiles(kernel, frame, offsets: np.ndarray, weights: np.ndarray) -> None:
    """Run the kernel over the frame's tiles. offsets: of the taps in a tile."""
    launch(kernel, frame.job, frame.offsets, offsets, weights, tasks=frame.tasks, words=2 * frame.words)


def readable(x: np.ndarray, out: np.ndarray, window: tuple[int, ...]) -> tuple[np.ndarray, bool]:
    """(x, whole): x that may be read while out is written, a copy if necessary. whole: only in tiles of whole lines."""
    if not np.may_share_memory(x, out):
        return x, False
    lines = [n + taps for n, taps in zip(x.shape, window, strict=True) if taps > 1]
    if len(lines) <= 1 and all(COLUMNS * line <= LINE_NUMBERS for line in lines):
        return x, True
    return x.copy(), False
