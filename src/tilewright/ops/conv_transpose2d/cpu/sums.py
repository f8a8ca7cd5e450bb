"""What the fused kernels share: rows of pixels packed and multiplied by panels of weights, into sums that stay in L2.

A task owns `count` rows, positions or tiles of some images. Its sums lie in scratch as [panel][row][column], a panel
NR columns wide: a register block goes there whole, and from there to out when all its products are in. A *block* of
the table is one stretch of depth: taps (or one product of a tile) with the panels that want them; a *job* is one panel.
"""

import functools
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numba import types

from tilewright import simd
from tilewright.hardware import cpu
from tilewright.ops.conv_transpose2d.cpu.naive import OUTPUT_4D
from tilewright.ops.core.launch import thread_count
from tilewright.ops.core.memory import empty
from tilewright.ops.gemm.cpu.loops import PLAIN, stepper
from tilewright.ops.gemm.cpu.pack import TILINGS, Source, pack_panels, row_packer
from tilewright.ops.gemm.cpu.words import pack_words, word_packer, words_of

DEPTH = 768  # most steps of depth in a block: a panel of 12 rows is 36 KiB then, and stays in L1
PANELS = 4  # of weights that a panel of rows meets one after the other
JOB = 2  # numbers of a job in the table: where its panel begins, and the panel of sums it adds to


def kind_of(dtype: str) -> str:
    """The product of an accuracy class on this CPU, as matmul names it."""
    if dtype == "float32":
        return "float32"
    return "dot_pairs" if cpu().multiplies_pairs and cpu().lanes == 16 else "widen_both"


def steps_of(C: int, dtype: str) -> int:
    """Steps along C channels: numbers, or words of two."""
    return C if dtype == "float32" else words_of(C)


def padded(n: int, unit: int) -> int:
    """n rounded up to a multiple."""
    return -(-n // unit) * unit


@functools.cache
def packer(kind: str, lanes: int):
    """The inline function that packs one block of rows."""
    HIGH, MIDDLE, SINGLE = TILINGS[lanes].rows
    pack_rows = row_packer(lanes) if kind in PLAIN else word_packer(lanes)

    @simd.inline
    def pack(scratch, starts, taps, source, size, C, to):
        """Panels of HIGH, MIDDLE and single rows: row i, C channels, from scratch[source + starts[i]], for each tap
        further by its offset. size: (rows, first step, steps)."""
        (count, k, depth), i, at = size, 0, to
        while i < count:
            rows = HIGH if count - i >= HIGH else MIDDLE if count - i >= MIDDLE else SINGLE
            for t in range(taps.size):
                pixels, place = Source(scratch[source + taps[t] :], starts, 1, C), at + t * depth * rows
                if rows == HIGH:
                    pack_rows(HIGH, pixels, i, k, depth, scratch, place)
                elif rows == MIDDLE:
                    pack_rows(MIDDLE, pixels, i, k, depth, scratch, place)
                else:
                    pack_rows(SINGLE, pixels, i, k, depth, scratch, place)
            i, at = i + rows, at + taps.size * depth * rows

    return pack


@functools.cache
def multiplier(kind: str, lanes: int, vectors: int, fresh: bool):
    """The inline function that multiplies packed rows by panels; fresh: into the sums, else onto them."""
    (HIGH, MIDDLE, SINGLE), WIDE = TILINGS[lanes].rows, lanes * vectors
    along = stepper(kind, lanes, vectors)

    @simd.inline
    def micro(rows, scratch, a_at, panels, b_at, depth, to):
        """rows x WIDE sums over one block of depth, in registers from first to last."""
        block = along(simd.block_zeros(rows, vectors, lanes), rows, scratch, a_at, panels, b_at, depth)
        if not fresh:
            block = simd.block_add(block, scratch, to, WIDE, WIDE)
        simd.block_store(block, scratch, to, WIDE, WIDE)

    @simd.inline
    def multiply(scratch, places, size, panels, table, jobs):
        """places: (packed rows, sums); size: (rows, rows there is room for, depth); jobs: (first, end) in the table."""
        (packed, sums), (count, room, depth), (first, end) = places, size, jobs
        for group in range(first, end, PANELS):
            i, a_at = 0, packed
            while i < count:
                rows = HIGH if count - i >= HIGH else MIDDLE if count - i >= MIDDLE else SINGLE
                for job in range(group, min(group + PANELS, end)):
                    b_at, panel = simd.fetch(table, JOB * job), simd.fetch(table, JOB * job + 1)
                    to = sums + (panel * room + i) * WIDE
                    if rows == HIGH:
                        micro(HIGH, scratch, a_at, panels, b_at, depth, to)
                    elif rows == MIDDLE:
                        micro(MIDDLE, scratch, a_at, panels, b_at, depth, to)
                    else:
                        micro(SINGLE, scratch, a_at, panels, b_at, depth, to)
                i, a_at = i + rows, a_at + rows * depth

    return multiply


class Panels:
    """Collects the panels of all blocks, and their jobs."""

    def __init__(self, dtype: str):
        self.dtype, self.arrays, self.jobs, self.size = dtype, [], [], 0

    def add(self, b: np.ndarray, wanted: list[int]) -> tuple[int, int]:
        """b (depth in numbers, columns): its panels go to the panels of sums `wanted`; (first, end) of their jobs."""
        packed = pack_panels(b, "") if self.dtype == "float32" else pack_words(b, "")
        length, first = packed.data.size // len(wanted), len(self.jobs)
        self.jobs += [(self.size + n * length, panel) for n, panel in enumerate(wanted)]
        self.arrays.append(packed.data)
        self.size += packed.data.size
        return first, len(self.jobs)

    def joined(self) -> np.ndarray:
        """All panels, one after the other."""
        return np.concatenate(self.arrays, out=empty(self.size))


@dataclass(frozen=True, eq=False)
class Products:
    """Packed weights of a fused kernel. table: jobs, then blocks, which begin at `blocks_at`; offsets: the taps of
    blocks, down and across; columns: panels of sums; depth: steps of the deepest block, taps counted."""

    panels: np.ndarray
    table: np.ndarray
    blocks: int
    blocks_at: int
    offsets: np.ndarray
    columns: int
    depth: int


class Layout(NamedTuple):
    """What a task needs to know. A task is some rows of positions: of one image, or all rows of several.

    A position gives every phase an output; in `winograd` it is a tile, and gives four. *_at: where something begins, in
    the table or, in words, in scratch. Where the kernels differ, a comment says what it is in `taps`; in `winograd`; in
    `pixels`.
    """

    B: int
    H: int
    W: int
    C: int
    O: int  # channels of a phase; of what `taps.deal_out` makes of phases, where it is asked
    Jh: int  # rows of positions in an image
    Jw: int  # positions in such a row
    images: int  # in a task
    rows: int  # of positions of each of these
    width: int  # positions of such a row
    step: int  # words from pixel to pixel of a task's part of x
    pixels: int  # in a row of that part
    least_row: int  # the window's first row and column
    least_column: int
    window_rows: int  # the window's rows; 0, not read; the window's rows
    stride_rows: int
    stride_columns: int
    phases: int  # that outputs are dealt out to
    columns: int  # panels of sums; 0, not read; rows of sums, a phase's channels after the other's
    blocks: int  # in the table; the same; phases there, before rows of them became one
    blocks_at: int
    offsets_at: int  # of taps in x's part; where each phase's 16 sums begin, 0 for none; of taps in a plane
    phases_at: int  # (row, column, first column of sums) of each phase; for `winograd.tile_writer` (row, column)
    starts_at: int  # of positions in x's part; of tiles' sums of x; of neighbouring pixels, then of rows of sums
    pixels_at: int  # x's part; its sums down the rows; x's part
    packed_at: int  # packed rows; the same; x's part as planes of channels
    rows_at: int  # sums; sums of x across, then outputs to deal out, if any; outputs to deal out
    activation: int
    plane: int = 0  # words of a plane, and how many planes; only in `pixels`
    planes: int = 0


SIGNATURE = types.void(
    simd.INPUT, simd.INPUT, simd.INPUT, OUTPUT_4D, simd.INDICES, simd.record(Layout), simd.TASKS, simd.OUTPUT
)  # x, panels, bias, out, table, layout, tasks, scratch
SUMS = 64  # words of scratch before the sums, which are zeros


def cut(B: int, Jh: int, Jw: int, most: int) -> tuple[int, int, int]:
    """(images, rows, width) of a task: about `most` positions, and as many tasks for each thread. It changes no
    result."""
    threads = thread_count()
    if Jw > most:
        return 1, 1, -(-Jw // -(-Jw // most))
    if Jh * Jw <= most:
        tasks = padded(-(-B // (most // (Jh * Jw))), min(threads, B))
        return -(-B // tasks), Jh, Jw
    bands = -(-Jh * Jw // most)
    return 1, -(-Jh // (padded(bands, threads) if threads > B else bands)), Jw


def tasks_of(layout: Layout) -> int:
    """How many tasks there are."""
    return -(-layout.B // layout.images) * -(-layout.Jh // layout.rows) * -(-layout.Jw // layout.width)


@simd.inline
def place_of(task, layout):
    """(first image, images, first row, rows, first position of a row, positions) of a task."""
    pieces, bands = (layout.Jw + layout.width - 1) // layout.width, (layout.Jh + layout.rows - 1) // layout.rows
    left, band, b = task % pieces * layout.width, task // pieces % bands, task // pieces // bands * layout.images
    row = band * layout.rows
    rows, width = min(layout.rows, layout.Jh - row), min(layout.width, layout.Jw - left)
    return b, min(layout.images, layout.B - b), row, rows, left, width


@functools.cache
def clearer(lanes: int):
    """The inline function that writes zeros."""

    @simd.inline
    def clear(scratch, to, count):
        """A multiple of `lanes` of them."""
        for at in range(to, to + count, lanes):
            simd.store(scratch, at, simd.zeros(lanes))

    return clear
