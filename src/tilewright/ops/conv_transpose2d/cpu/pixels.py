"""Vectors along pixels: for so few output channels that the channels of all phases fit in one vector.

A position is a pixel of x; it has stride x stride outputs, one of each phase. Without bias and activation,

    sums[phase, o, position] = sum over taps t and channels c of weights[t, o, c] * plane[c, position + offset(t)]

A task copies its part of x as planes, one per channel (in bfloat16 one per pair of channels), with zeros around the
image. In a plane a tap (one element of the filter) is an offset, and all rows of positions are one long row. For each
phase, O x `vectors` vectors of sums stay in registers while the phase's own taps stream past, one broadcast weight at a
time. At the end the task transposes its sums to channels last.

The limit is the multiply-adds. Changes from `cpu.columns`: at 5 x 5 and stride 2 a phase has only its own taps, 25 in
all, where 4 phases x 9 inputs are 36, and x is packed once, not once per tap. It is slow where a pixel has so many
output channels that vectors along them are full.
"""

import functools
import itertools

import numpy as np

from tilewright import simd
from tilewright.hardware import cpu
from tilewright.ops.conv_transpose2d.cpu.sums import (
    LINE,
    SIGNATURE,
    SUMS,
    Products,
    joined,
    kind_of,
    layout_for,
    outputs_for,
    padded,
    task_count,
    task_of,
)
from tilewright.ops.conv_transpose2d.cpu.taps import bias_of_columns, fill_without_taps, phase_writer, pixel_copier
from tilewright.ops.conv_transpose2d.operands import Axis, Epilogue, Packed
from tilewright.ops.core.launch import launch
from tilewright.ops.core.memory import empty
from tilewright.ops.gemm.cpu.epilogue import activate
from tilewright.ops.gemm.cpu.loops import PLAIN, PRODUCTS
from tilewright.ops.gemm.cpu.pack import TILINGS
from tilewright.ops.gemm.cpu.words import pack_words

MOST_ELEMENTS = 1 << 16  # elements of x per task, without halo: 256 KiB, or 128 KiB as planes of bfloat16
PHASE_ENTRIES = 2  # entries of a phase in the table: its first tap, and its number of taps


def vectors_for(O: int, lanes: int) -> int:
    """Vectors of positions in a register block. Their O sums each, as many vectors of x and one weight fit in 32
    registers, or in the 16 registers of AVX2."""
    return max(1, (15 if lanes == 8 else 31) // (O + 1))


def pack_pixels(weights: np.ndarray, rows: Axis, columns: Axis, dtype: str) -> Products:
    """weights (KH, KW, O, C) as [phase][channel][tap][O], in bfloat16 as words [phase][pair of channels][tap][O]."""
    O, C = weights.shape[2:]
    steps, parts, table, offsets = C if dtype == "float32" else -(-C // 2), [], [], []
    for i, j in itertools.product(rows.phases, columns.phases):
        taps = list(itertools.product(rows.taps(i), columns.taps(j)))
        table += [len(offsets), len(taps)]
        offsets += [(d - rows.window[0], e - columns.window[0]) for (d, _), (e, _) in taps]
        kernel = np.stack([weights[k, l] for (_, k), (_, l) in taps])  # (taps, O, C)
        if dtype != "float32":
            kernel = _words(kernel, steps)
        parts.append(np.ascontiguousarray(kernel.transpose(2, 0, 1)).reshape(-1))
    panels = empty(sum(part.size for part in parts))
    np.concatenate(parts, out=panels)
    blocks = len(table) // PHASE_ENTRIES
    return Products(panels, np.array(table, np.int64), blocks, 0, np.array(offsets), blocks * O, steps)


def _words(kernel: np.ndarray, steps: int) -> np.ndarray:
    """kernel (taps, O, C) rounded to bfloat16, two channels in a word: (taps, O, steps), the words' bits as float32."""
    flat = kernel.reshape(-1, kernel.shape[2])
    panels = pack_words(np.ascontiguousarray(flat.T), "").data.reshape(-1, padded(steps, LINE), TILINGS[cpu().lanes].NR)
    return panels.transpose(0, 2, 1).reshape(-1, panels.shape[1])[: len(flat), :steps].reshape(*kernel.shape[:2], steps)


@functools.cache
def plane_packer(kind: str, lanes: int):
    """The inline function that transposes the copy of x to planes."""
    plain = kind in PLAIN
    convert = simd.block_gather_converted if cpu().has("avx512bf16") and lanes == 16 else simd.block_gather_rounded

    @simd.inline
    def pack_planes(count, starts, layout, scratch):
        """Element p of plane c is channel c (or channels 2c and 2c + 1) of pixel p. count: pixels. starts: offsets of
        `lanes` adjacent pixels in the copy of x."""
        for p in range(0, count, lanes):
            for c in range(0, layout.planes, lanes):
                square, source = simd.block_zeros(lanes, 1, lanes), scratch[layout.pixels_at + p * layout.step :]
                if plain:
                    square = simd.block_gather(square, source, starts, 0, lanes - 1, c)
                else:
                    square = convert(square, source, starts, 0, lanes - 1, 2 * c, layout.C - 2 * c)
                to = layout.packed_at + c * layout.plane + p
                simd.block_store(simd.block_transpose(square), scratch, to, layout.plane, lanes)

    return pack_planes


@functools.cache
def pixel_kernel(kind: str, O: int, lanes: int):
    """The kernel for a kind of product and O channels."""
    vectors, product = vectors_for(O, lanes), PRODUCTS[kind]
    copy_pixels, pack_planes, write = pixel_copier(lanes), plane_packer(kind, lanes), phase_writer(lanes, 1, True)
    WIDE = vectors * lanes

    @simd.inline
    def multiply(p, weights, table, layout, scratch):
        """WIDE positions from p on, of all phases: row f * O + o of the sums."""
        w_at, plane = 0, layout.plane
        for f in range(layout.blocks):
            first = layout.taps_at + simd.fetch(table, layout.blocks_at + PHASE_ENTRIES * f)
            end = first + simd.fetch(table, layout.blocks_at + PHASE_ENTRIES * f + 1)
            block = simd.block_zeros(O, vectors, lanes)
            for c in range(layout.planes):
                x_at = layout.packed_at + c * plane + p
                for t in range(first, end):
                    block = product(block, weights, w_at, scratch, x_at + simd.fetch(table, t))
                    w_at += O
            simd.block_store(block, scratch, SUMS + f * O * plane + p, plane, WIDE)

    @simd.inline
    def transpose(rows, width, bias, sum_starts, layout, scratch):
        """Transpose sums to one vector per position at `staging_at`, with bias and activation. rows: rows of positions.
        sum_starts: offsets of the rows of sums."""
        term = simd.load(bias, 0, lanes)
        for row in range(rows):
            image, r = row // layout.rows, row % layout.rows
            at = SUMS + (image * (layout.rows + layout.window_rows - 1) + r) * layout.pixels
            for t in range(0, width, lanes):
                square, sums = simd.block_zeros(lanes, 1, lanes), scratch[at + t :]
                square = simd.block_gather(square, sums, sum_starts, 0, layout.columns - 1, 0)
                to = layout.staging_at + (row * width + t) * lanes
                simd.block_store(simd.block_transpose(square), scratch, to, lanes, lanes)
        for to in range(layout.staging_at, layout.staging_at + rows * width * lanes, lanes):
            simd.store(scratch, to, activate(simd.add(simd.load(scratch, to, lanes), term), layout.activation))

    @simd.kernel(SIGNATURE, name=f"conv_transpose2d.pixels.{kind}.{O}.{lanes}")
    def pixels(x, weights, bias, out, table, layout, tasks, scratch):
        """x: (B * H * W * C,). weights: what `pack_pixels` returns. bias: one element per lane. out: (B, OH, OW, O) or
        the view of `outputs_for`. table: see `Layout`."""
        starts, sum_starts = table[layout.starts_at :], table[layout.starts_at + lanes :]
        number = simd.draw(tasks)
        while number >= 0:
            task = task_of(number, layout)
            count = task.images * (task.rows + layout.window_rows - 1) * layout.pixels
            copy_pixels(task, x, layout, scratch)
            pack_planes(count, starts, layout, scratch)
            for p in range(0, count - (layout.window_rows - 1) * layout.pixels, WIDE):
                multiply(p, weights, table, layout, scratch)
            transpose(task.images * task.rows, task.width, bias, sum_starts, layout, scratch)
            write(task, table, bias, out, layout, scratch)
            number = simd.draw(tasks)

    return pixels


def convolve(x: np.ndarray, weights: Packed, out: np.ndarray, epilogue: Epilogue) -> None:
    """out (B, OH, OW, O) = activation(bias + the transposed convolution of x (B, H, W, C))."""
    lanes, products, rows, columns, O = cpu().lanes, weights.data, weights.rows, weights.columns, weights.O
    fill_without_taps(out, rows, columns, epilogue)
    bias, outputs = bias_of_columns(epilogue.bias, O, products.blocks, lanes), outputs_for(out, O, rows, columns, O)
    layout = layout_for(x, weights, outputs, epilogue, max(1, MOST_ELEMENTS // weights.C))
    step, row_pixels, before = layout.step, layout.pixels, layout.window_rows - 1
    pixels = layout.images * (layout.rows + before) * row_pixels
    block = (vectors_for(O, lanes) + 1) * lanes
    reach = before * row_pixels + columns.window[1] - 1 + block  # of the last block and its taps
    plane = (-(-(pixels + reach) // LINE) | 1) * LINE  # an odd number of lines: planes do not share cache sets
    offsets = products.offsets @ np.array([row_pixels, 1])
    starts, sum_starts = np.arange(lanes) * step, np.arange(products.columns) * plane
    table, (taps_at, phases_at, starts_at, _) = joined(products.table, offsets, outputs.phases, starts, sum_starts)
    planes_at = SUMS + products.columns * plane
    pixels_at = planes_at + padded(products.depth, lanes) * plane
    staging_at = pixels_at + padded(pixels + lanes, LINE) * step
    layout = layout._replace(
        taps_at=taps_at, phases_at=phases_at, starts_at=starts_at, pixels_at=pixels_at, packed_at=planes_at,
        staging_at=staging_at, plane=plane, planes=products.depth,
    )  # fmt: skip
    words = staging_at + (layout.images * layout.rows * layout.width + lanes) * lanes
    arrays = (x.reshape(-1), products.panels, bias, outputs.out, table, layout)
    launch(pixel_kernel(kind_of(weights.dtype), O, lanes), *arrays, tasks=task_count(layout), words=words)
