"""Parts that the fused kernels share: tasks, packed rows of pixels times panels of weights, and sums that stay in L2.

A task computes some rows of positions of one image, or all rows of several images. Its sums are in scratch as
[panel][row][column], a panel NR columns wide. A register block of sums goes there and from there to out when all its
products are added. A *block* of the table is one stretch of depth: some taps (or one product of a Winograd tile) with
the panels of weights that use them. A *job* is one of these panels.
"""

import functools
import itertools
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numba import types

from tilewright import simd
from tilewright.hardware import cpu
from tilewright.ops.conv_transpose2d.cpu.naive import OUTPUT_4D
from tilewright.ops.conv_transpose2d.operands import Axis, Epilogue, Packed
from tilewright.ops.conv_transpose2d.tiles import TAPS
from tilewright.ops.core.launch import thread_count
from tilewright.ops.core.memory import empty
from tilewright.ops.gemm.cpu.epilogue import ACTIVATIONS
from tilewright.ops.gemm.cpu.loops import PLAIN, stepper
from tilewright.ops.gemm.cpu.pack import TILINGS, Source, pack_panels, row_packer
from tilewright.ops.gemm.cpu.words import pack_words, word_packer, words_of

DEPTH = 768  # most steps of depth in a block: a panel of 12 rows is 36 KiB then, and stays in L1
PANELS = 4  # panels of weights that one panel of rows is multiplied by
JOB = 2  # table entries of a job: offset of its panel of weights, index of the panel of sums
PHASE = 3  # table entries of a phase: first output row and column, first column of its sums
SUMS = 64  # offset of the sums in scratch; the words before them are zeros
LINE = 16  # words of a cache line, at which each pixel in scratch begins


def kind_of(dtype: str) -> str:
    """The product of an accuracy class on this CPU, as matmul names it."""
    if dtype == "float32":
        return "float32"
    return "dot_pairs" if cpu().multiplies_pairs and cpu().lanes == 16 else "widen_both"


def steps_of(C: int, dtype: str) -> int:
    """Steps along C channels: of one element, or of a word of two."""
    return C if dtype == "float32" else words_of(C)


def padded(n: int, unit: int) -> int:
    """n rounded up to a multiple."""
    return -(-n // unit) * unit


class Rows(NamedTuple):
    """Rows to pack: `count` of them, row i the C channels at scratch[origin + starts[i]]."""

    starts: np.ndarray
    origin: int
    C: int
    count: int


@functools.cache
def packer(kind: str, lanes: int):
    """The inline function that packs rows for one block of the table."""
    HIGH, MIDDLE, SINGLE = TILINGS[lanes].rows
    pack_rows = row_packer(lanes) if kind in PLAIN else word_packer(lanes)

    @simd.inline
    def pack(scratch, rows, taps, k, depth, packed_at):
        """Steps k to k + depth of every row, offset by `taps[t]` words for each tap t, to scratch[packed_at]: panels of
        HIGH, MIDDLE and single rows."""
        i, at = 0, packed_at
        while i < rows.count:
            left = rows.count - i
            high = HIGH if left >= HIGH else MIDDLE if left >= MIDDLE else SINGLE
            for t in range(taps.size):
                source = Source(scratch[rows.origin + taps[t] :], rows.starts, 1, rows.C)
                to = at + t * depth * high
                if high == HIGH:
                    pack_rows(HIGH, source, i, k, depth, scratch, to)
                elif high == MIDDLE:
                    pack_rows(MIDDLE, source, i, k, depth, scratch, to)
                else:
                    pack_rows(SINGLE, source, i, k, depth, scratch, to)
            i, at = i + high, at + taps.size * depth * high

    return pack


class Block(NamedTuple):
    """A block of the table, packed: `rows` rows of `depth` steps at scratch[packed_at], for jobs `first` to `end`.
    capacity: rows of a panel of sums."""

    packed_at: int
    rows: int
    capacity: int
    depth: int
    first: int
    end: int


@functools.cache
def multiplier(kind: str, lanes: int, vectors: int, fresh: bool):
    """The inline function that multiplies a block by its panels of weights. fresh: it overwrites the sums, otherwise it
    adds to them. vectors: of a panel's columns that are in use."""
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
    def multiply(scratch, panels, table, block):
        for group in range(block.first, block.end, PANELS):
            i, a_at = 0, block.packed_at
            while i < block.rows:
                left = block.rows - i
                rows = HIGH if left >= HIGH else MIDDLE if left >= MIDDLE else SINGLE
                for job in range(group, min(group + PANELS, block.end)):
                    b_at, panel = simd.fetch(table, JOB * job), simd.fetch(table, JOB * job + 1)
                    to = SUMS + (panel * block.capacity + i) * WIDE
                    if rows == HIGH:
                        micro(HIGH, scratch, a_at, panels, b_at, block.depth, to)
                    elif rows == MIDDLE:
                        micro(MIDDLE, scratch, a_at, panels, b_at, block.depth, to)
                    else:
                        micro(SINGLE, scratch, a_at, panels, b_at, block.depth, to)
                i, a_at = i + rows, a_at + rows * block.depth

    return multiply


class Panels:
    """Collects the panels of weights of all blocks, and their jobs."""

    def __init__(self, dtype: str):
        self.dtype, self.arrays, self.jobs, self.size = dtype, [], [], 0

    def add(self, b: np.ndarray, targets: list[int]) -> tuple[int, int]:
        """Pack b (channels, columns), whose panels add to the panels of sums `targets`. Returns (first, end) of their
        jobs."""
        packed = pack_panels(b, "") if self.dtype == "float32" else pack_words(b, "")
        length, first = packed.data.size // len(targets), len(self.jobs)
        self.jobs += [(self.size + n * length, panel) for n, panel in enumerate(targets)]
        self.arrays.append(packed.data)
        self.size += packed.data.size
        return first, len(self.jobs)

    def products(self, blocks: list, offsets: np.ndarray, columns: int, depth: int) -> "Products":
        """Packed weights with the table of these blocks."""
        table, (blocks_at,) = joined(self.jobs, blocks)
        panels = np.concatenate(self.arrays, out=empty(self.size))
        return Products(panels, table, len(blocks), blocks_at, offsets, columns, depth)


@dataclass(frozen=True, eq=False)
class Products:
    """Packed weights of a fused kernel. panels: all panels. table: jobs, then `blocks` blocks from blocks_at on.
    offsets: (down, across) of each tap of the blocks; in `winograd` (phases, 16), the panel of sums of each product of
    a phase, or -1. columns: panels of sums. depth: steps of the deepest block, all its taps counted."""

    panels: np.ndarray
    table: np.ndarray
    blocks: int
    blocks_at: int
    offsets: np.ndarray
    columns: int
    depth: int


def joined(*parts) -> tuple[np.ndarray, list[int]]:
    """(the parts as one int64 array, the offset of each part but the first)."""
    flat = [np.array(part, np.int64).reshape(-1) for part in parts]
    return np.concatenate(flat), np.cumsum([part.size for part in flat[:-1]]).tolist()


class Layout(NamedTuple):
    """Sizes of a convolution, of its tasks, and of what they have in scratch.

    A position gives every phase one output; in `winograd` a position is a tile of 2 x 2 of these. A task copies the
    part of x that it reads to scratch, with zeros outside the image. Fields *_at are offsets, in the table for taps,
    phases, starts, products and blocks, otherwise in scratch, in words.
    """

    B: int
    H: int
    W: int
    C: int
    O: int  # channels that a phase writes to out, see `Outputs`
    Jh: int  # rows of positions in an image, and positions in such a row
    Jw: int
    images: int  # images per task
    rows: int  # rows of positions of each image in a task
    width: int  # positions of such a row
    step: int  # words from pixel to pixel of the copy of x
    pixels: int  # pixels in a row of the copy
    least_row: int  # the window's first row and column, relative to the position
    least_column: int
    window_rows: int
    stride_rows: int
    stride_columns: int
    phases: int  # to write to out
    columns: int  # panels of sums; in `pixels` rows of sums, O for each phase
    blocks: int
    blocks_at: int
    activation: int
    taps_at: int = 0  # offset of each tap, in the copy of x or in one of its planes
    phases_at: int = 0
    starts_at: int = 0  # offsets of the rows that are gathered, from the first one
    pixels_at: int = 0  # the copy of x; in `winograd` its sums down the rows
    packed_at: int = 0  # packed rows; in `pixels` the planes
    staging_at: int = 0  # sums that `taps.phase_writer` writes to out; in `winograd` first x's sums of a product
    products_at: int = 0  # `winograd`: 16 entries per phase, where the sums of a product are in scratch, 0 for none
    plane: int = 0  # `pixels`: words of a plane
    planes: int = 0  # `pixels`: how many planes


SIGNATURE = types.void(
    simd.INPUT, simd.INPUT, simd.INPUT, OUTPUT_4D, simd.INDICES, simd.record(Layout), simd.TASKS, simd.OUTPUT
)  # x, panels, bias, out, table, layout, tasks, scratch


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


class Outputs(NamedTuple):
    """How sums are written. out: the result, or a view of it. phases: (first row, first column of out, first column of
    sums). O: channels of each. stride: columns of out from position to position."""

    out: np.ndarray
    phases: list
    O: int
    stride: int


def outputs_for(out: np.ndarray, O: int, rows: Axis, columns: Axis, apart: int) -> Outputs:
    """Outputs of phases whose sums are `apart` columns apart.

    If a row's phases are adjacent in out and among the sums, they become one phase: out is then an image with `stride`
    times as many channels.
    """
    sw = columns.stride
    if apart == O and len(columns.phases) == sw and out.shape[2] % sw == 0 and out.strides[2] == 4 * O:
        shape, strides = (*out.shape[:2], out.shape[2] // sw, sw * O), (*out.strides[:2], 4 * sw * O, 4)
        wide = np.lib.stride_tricks.as_strided(out, shape, strides)
        return Outputs(wide, [(i, 0, n * sw * O) for n, i in enumerate(rows.phases)], sw * O, 1)
    phases = itertools.product(rows.phases, columns.phases)
    return Outputs(out, [(i, j, n * apart) for n, (i, j) in enumerate(phases)], O, columns.stride)


def layout_for(
    x: np.ndarray, weights: Packed, outputs: Outputs, epilogue: Epilogue, most: int, side: int = 1
) -> Layout:
    """The layout without the offsets of table and scratch. most: positions in a task. side: positions of a Winograd
    tile along an axis, which then count as one."""
    rows, columns, products = weights.rows, weights.columns, weights.data
    B, H, W, C = x.shape
    Jh, Jw = -(-rows.positions(H) // side), -(-columns.positions(W) // side)
    images, task_rows, width = cut(B, Jh, Jw, most)
    return Layout(
        B=B, H=H, W=W, C=C, O=outputs.O, Jh=Jh, Jw=Jw, images=images, rows=task_rows, width=width,
        step=padded(C, LINE), pixels=side * width + (columns.window[1] if side == 1 else TAPS) - 1,
        least_row=rows.window[0], least_column=columns.window[0], window_rows=rows.window[1],
        stride_rows=rows.stride, stride_columns=outputs.stride, phases=len(outputs.phases), columns=products.columns,
        blocks=products.blocks, blocks_at=products.blocks_at, activation=ACTIVATIONS[epilogue.activation],
    )  # fmt: skip


def task_count(layout: Layout) -> int:
    """How many tasks there are."""
    return -(-layout.B // layout.images) * -(-layout.Jh // layout.rows) * -(-layout.Jw // layout.width)


class Task(NamedTuple):
    """The positions of a task: `rows` rows from `row` on and `width` positions from `left` on, in `images` images from
    `image` on."""

    image: int
    images: int
    row: int
    rows: int
    left: int
    width: int


@simd.inline
def task_of(number, layout):
    """The `Task` of this number."""
    pieces, bands = (layout.Jw + layout.width - 1) // layout.width, (layout.Jh + layout.rows - 1) // layout.rows
    left, band = number % pieces * layout.width, number // pieces % bands
    image, row = number // pieces // bands * layout.images, band * layout.rows
    rows, width = min(layout.rows, layout.Jh - row), min(layout.width, layout.Jw - left)
    return Task(image, min(layout.images, layout.B - image), row, rows, left, width)


@functools.cache
def clearer(lanes: int):
    """The inline function that writes zeros."""

    @simd.inline
    def clear(scratch, to, count):
        """count: a multiple of `lanes`."""
        for at in range(to, to + count, lanes):
            simd.store(scratch, at, simd.zeros(lanes))

    return clear
