"""Vectors along pixels: for the few channels of an image, which would fill a fraction of a vector along channels.

A task lays its part of x out anew, a plane for each channel (in bfloat16 for each pair of them), between zeros. There a
tap is a shift, and all rows of positions are one long row. For each phase O rows of `vectors` neighbouring vectors of
positions stay in registers, while the phase's own taps pass by as numbers that are broadcast: no product is by a zero
but those beside x, and x is packed once, not once a tap. Sums turn to pixels again when they leave.

Against `columns`: 25 taps at 5 x 5 and stride 2 where the union of four phases' taps has 36, and a ninth of the
packing. It loses where there are many channels of output, whose vectors are full.
"""

import functools
import itertools

import numpy as np

from tilewright import simd
from tilewright.hardware import cpu
from tilewright.ops.conv_transpose2d.cpu.sums import (
    SIGNATURE,
    SUMS,
    Layout,
    Products,
    cut,
    kind_of,
    padded,
    place_of,
    tasks_of,
)
from tilewright.ops.conv_transpose2d.cpu.taps import (
    LINE,
    bias_of_columns,
    deal_out,
    fill_without_taps,
    phase_writer,
    pixel_filler,
)
from tilewright.ops.conv_transpose2d.operands import Axis, Epilogue, Packed
from tilewright.ops.core.launch import launch
from tilewright.ops.core.memory import empty
from tilewright.ops.gemm.cpu.epilogue import ACTIVATIONS, activate
from tilewright.ops.gemm.cpu.loops import PLAIN, PRODUCTS
from tilewright.ops.gemm.cpu.pack import TILINGS
from tilewright.ops.gemm.cpu.words import pack_words

MOST = 1 << 16  # numbers of x in a task: 256 KiB, and as planes of bfloat16 half of that
BLOCK = 2  # numbers of a phase in the table: its first tap, and how many


def vectors_for(O: int, lanes: int) -> int:
    """Vectors of positions in registers: with O sums each, themselves and a number, they fill 32, or 16 of AVX2."""
    return max(1, (15 if lanes == 8 else 31) // (O + 1))


def pack_pixels(weights: np.ndarray, rows: Axis, columns: Axis, rung: str, dtype: str) -> Packed:
    """weights (KH, KW, O, C) as [phase][channel][tap][O], in bfloat16 [phase][pair of channels][tap][O] words."""
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
    blocks = len(table) // BLOCK
    data = Products(panels, np.array(table, np.int64), blocks, 0, np.array(offsets), blocks * O, steps)
    return Packed(rung, O, C, rows, columns, dtype, data)


def _words(kernel: np.ndarray, steps: int) -> np.ndarray:
    """kernel (taps, O, C) rounded, two channels a word: (taps, O, steps), float32 by its bits alone."""
    flat = kernel.reshape(-1, kernel.shape[2])
    panels = pack_words(np.ascontiguousarray(flat.T), "").data.reshape(-1, padded(steps, LINE), TILINGS[cpu().lanes].NR)
    return panels.transpose(0, 2, 1).reshape(-1, panels.shape[1])[: len(flat), :steps].reshape(*kernel.shape[:2], steps)


@functools.cache
def plane_filler(kind: str, lanes: int):
    """The inline function that lays pixels out in planes."""
    plain = kind in PLAIN
    convert = simd.block_gather_converted if cpu().has("avx512bf16") and lanes == 16 else simd.block_gather_rounded

    @simd.inline
    def planes(count, plane, steps, starts, layout, scratch):
        """Number p of plane c: channel c (or channels 2c and 2c + 1) of pixel p. count: of pixels; starts: where
        `lanes` neighbouring pixels begin."""
        for p in range(0, count, lanes):
            for c in range(0, steps, lanes):
                square, source = simd.block_zeros(lanes, 1, lanes), scratch[layout.pixels_at + p * layout.step :]
                if plain:
                    square = simd.block_gather(square, source, starts, 0, lanes - 1, c)
                else:
                    square = convert(square, source, starts, 0, lanes - 1, 2 * c, layout.C - 2 * c)
                to = layout.packed_at + c * plane + p
                simd.block_store(simd.block_transpose(square), scratch, to, plane, lanes)

    return planes


@functools.cache
def pixel_kernel(kind: str, O: int, lanes: int):
    """The kernel for a kind of product and O channels."""
    vectors, product = vectors_for(O, lanes), PRODUCTS[kind]
    fill, planes, put = pixel_filler(lanes), plane_filler(kind, lanes), phase_writer(lanes, 1, True)
    WIDE = vectors * lanes

    @simd.inline
    def sums_of(p, plane, steps, weights, table, layout, scratch):
        """WIDE positions from p on, of all phases: row f * O + o of the sums."""
        w_at = 0
        for f in range(layout.blocks):
            first = layout.offsets_at + simd.fetch(table, layout.blocks_at + BLOCK * f)
            end = first + simd.fetch(table, layout.blocks_at + BLOCK * f + 1)
            block = simd.block_zeros(O, vectors, lanes)
            for c in range(steps):
                x_at = layout.packed_at + c * plane + p
                for t in range(first, end):
                    block = product(block, weights, w_at, scratch, x_at + simd.fetch(table, t))
                    w_at += O
            simd.block_store(block, scratch, SUMS + f * O * plane + p, plane, WIDE)

    @simd.inline
    def turn(rows, width, bias, starts, layout, scratch):
        """Rows of sums as rows of positions, a vector each, with bias and activation."""
        term = simd.load(bias, 0, lanes)
        for row in range(rows):
            image, r = row // layout.rows, row % layout.rows
            at = SUMS + (image * (layout.rows + layout.window_rows - 1) + r) * layout.pixels
            for t in range(0, width, lanes):
                square, sums = simd.block_zeros(lanes, 1, lanes), scratch[at + t :]
                square = simd.block_gather(square, sums, starts, 0, layout.columns - 1, 0)
                to = layout.rows_at + (row * width + t) * lanes
                simd.block_store(simd.block_transpose(square), scratch, to, lanes, lanes)
        for to in range(layout.rows_at, layout.rows_at + rows * width * lanes, lanes):
            simd.store(scratch, to, activate(simd.add(simd.load(scratch, to, lanes), term), layout.activation))

    @simd.kernel(SIGNATURE, name=f"conv_transpose2d.pixels.{kind}.{O}.{lanes}")
    def pixels(x, weights, bias, out, table, layout, tasks, scratch):
        """x (B, H, W, C) without gaps. bias: one element per column."""
        plane, steps = layout.plane, layout.planes
        starts, sums = table[layout.starts_at :], table[layout.starts_at + lanes :]
        task = simd.draw(tasks)
        while task >= 0:
            place = place_of(task, layout)
            count = place[1] * (place[3] + layout.window_rows - 1) * layout.pixels
            fill(place, x, layout, scratch)
            planes(count, plane, steps, starts, layout, scratch)
            for p in range(0, count - (layout.window_rows - 1) * layout.pixels, WIDE):
                sums_of(p, plane, steps, weights, table, layout, scratch)
            turn(place[1] * place[3], place[5], bias, sums, layout, scratch)
            put(place, table, bias, out, layout, scratch)
            task = simd.draw(tasks)

    return pixels


def convolve(x: np.ndarray, weights: Packed, out: np.ndarray, epilogue: Epilogue) -> None:
    """out (B, OH, OW, O) = activation(bias + the transposed convolution of x (B, H, W, C))."""
    lanes, products, (rows, columns) = cpu().lanes, weights.data, (weights.rows, weights.columns)
    (B, H, W, C), O = x.shape, weights.O
    fill_without_taps(out, rows, columns, epilogue)
    bias = bias_of_columns(epilogue.bias, O, products.blocks, lanes)
    out, phases, O_out, stride = deal_out(out, O, rows, columns, O)
    Jh, Jw = rows.positions(H), columns.positions(W)
    (least_row, down), (least_column, across) = rows.window, columns.window
    images, task_rows, width = cut(B, Jh, Jw, max(1, MOST // C))
    step, line = padded(C, LINE), width + across - 1
    pixels = images * (task_rows + down - 1) * line
    reach = (down - 1) * line + across - 1 + vectors_for(O, lanes) * lanes + lanes  # of the last block, and its taps
    plane = (-(-(pixels + reach) // LINE) | 1) * LINE
    offsets = products.offsets @ np.array([line, 1])
    starts = [np.arange(lanes) * step, np.arange(products.columns) * plane]
    parts = [products.table, offsets, np.array(phases).reshape(-1), *starts]
    offsets_at, phases_at, starts_at = np.cumsum([part.size for part in parts[:3]]).tolist()
    planes_at = SUMS + products.columns * plane
    pixels_at = planes_at + padded(products.depth, lanes) * plane
    rows_at = pixels_at + padded(pixels + lanes, LINE) * step
    layout = Layout(
        B=B, H=H, W=W, C=C, O=O_out, Jh=Jh, Jw=Jw, images=images, rows=task_rows, width=width, step=step, pixels=line,
        least_row=least_row, least_column=least_column, window_rows=down,
        stride_rows=rows.stride, stride_columns=stride, phases=len(phases), columns=products.columns,
        blocks=products.blocks, blocks_at=products.blocks_at,
        offsets_at=offsets_at, phases_at=phases_at, starts_at=starts_at,
        pixels_at=pixels_at, packed_at=planes_at, rows_at=rows_at, activation=ACTIVATIONS[epilogue.activation],
        plane=plane, planes=products.depth,
    )  # fmt: skip
    words = rows_at + (images * task_rows * width + lanes) * lanes
    kernel = pixel_kernel(kind_of(weights.dtype), O, lanes)
    arrays = (x.reshape(-1), products.panels, bias, out, np.concatenate(parts), layout)
    launch(kernel, *arrays, tasks=tasks_of(layout), words=words)
