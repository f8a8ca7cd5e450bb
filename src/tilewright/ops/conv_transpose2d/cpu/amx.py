"""AMX: the rows of a tile are images, so that a position's channels, in sixteen images at once, are a tile as they are.

Every image needs the same products at the same position, and no image needs another's. With images as rows a tap
outside x is skipped, not padded, no row is packed twice for two taps, and small and large pictures fill tiles equally
well. A block of 32 images by 32 channels of a phase lies in four tiles; a step multiplies two tiles of x by two of the
weights, 32 channels deep:

    x, once per call:  [16 images][position][32 channels] -> [group][position][step][16 rows of 16 words], bfloat16
    weights, once:     [phase][32 columns][tap][step][16 words down][32 across]

A task is a block of columns of a phase at some rows of positions: its weights stay in L2 while it goes through them.
Where all phases' columns fit 16, they are one phase over the union of their taps, as in `taps`.

Fewer than sixteen images cost as much as sixteen would; an image's bits do not depend on how many there are.
"""

import functools
import itertools
from dataclasses import dataclass
from typing import NamedTuple

import ml_dtypes
import numpy as np
from numba import types

from tilewright import simd
from tilewright.hardware import cpu
from tilewright.ops.conv_transpose2d.cpu.naive import OUTPUT_4D
from tilewright.ops.conv_transpose2d.cpu.taps import bias_of_columns, fill_without_taps
from tilewright.ops.conv_transpose2d.operands import Axis, Epilogue, Packed
from tilewright.ops.conv_transpose2d.tiles import dense_kernel, taps_of
from tilewright.ops.core.launch import launch
from tilewright.ops.core.memory import empty
from tilewright.ops.gemm.cpu.amx import BLOCK, LANES, STATE, TILE
from tilewright.ops.gemm.cpu.epilogue import ACTIVATIONS, activate
from tilewright.simd import amx

DEPTH = 32  # channels of a step
ROWS = 16  # images of a tile
BAND_BYTES = 512 << 10  # of a task's part of x: with the weights of its columns it stays in L2
PHASE, TAP = 4, 3  # numbers of a phase in the table: row, column, first tap, taps; of a tap: down, across, words
BLOCK_AT = STATE  # in scratch: a block on its way to out


@dataclass(frozen=True, eq=False)
class Panels:
    """words: all weights. phases: (row, column, first column) of each, which differ where they share a block.

    table: PHASE numbers a phase, then TAP numbers a tap. wide: words of a block's columns; columns: of a phase.
    """

    words: np.ndarray
    table: np.ndarray
    phases: int
    columns: int
    together: bool


class Layout(NamedTuple):
    """What a task needs to know."""

    B: int
    H: int
    W: int
    C: int
    O: int
    Jh: int  # rows of positions, positions in a row
    Jw: int
    band: int  # rows of positions in a task
    steps: int
    blocks: int  # of 32 columns in a phase
    phases: int
    taps_at: int  # in the table
    targets_at: int
    targets: int  # phases that a block's columns are dealt out to
    stride_rows: int
    stride_columns: int
    activation: int


SIGNATURE = types.void(
    simd.INPUT, simd.INPUT, simd.INPUT, OUTPUT_4D, simd.INDICES, simd.record(Layout), simd.TASKS, simd.OUTPUT
)  # x, weights, bias, out, table, layout, tasks, scratch


def as_words(b: np.ndarray) -> np.ndarray:
    """b float32 (K, N), K even, rounded to bfloat16: words (K / 2, N), the low half of the even row."""
    bits = np.ascontiguousarray(b).astype(ml_dtypes.bfloat16).view(np.uint16).astype(np.uint32)
    return (bits[0::2] | bits[1::2] << 16).view(np.float32)


def pack_images(weights: np.ndarray, rows: Axis, columns: Axis, rung: str, dtype: str) -> Packed:
    """weights (KH, KW, O, C) as the panels of each phase, or of all of them together where they fit a tile."""
    O, C = weights.shape[2:]
    down, across = rows.window[1], columns.window[1]
    phases = list(itertools.product(rows.phases, columns.phases))
    kernels = [dense_kernel(weights, taps_of(rows, i, down), taps_of(columns, j, across)) for i, j in phases]
    together = len(phases) * O <= LANES
    if together:
        kernels, phases = [np.concatenate(kernels, axis=2)], [(0, 0)]
    parts, places, taps, words = [], [], [], 0
    blocks, deep = -(-kernels[0].shape[2] // BLOCK), -(-C // DEPTH) * DEPTH
    for (i, j), kernel in zip(phases, kernels, strict=True):  # (down, across, columns, C)
        present = [
            tap
            for tap in np.ndindex(down, across)
            if together or (taps_of(rows, i, down)[tap[0]] >= 0 and taps_of(columns, j, across)[tap[1]] >= 0)
        ]
        b = np.zeros((len(present), deep, blocks * BLOCK), np.float32)
        for t, tap in enumerate(present):
            b[t, :C, : kernel.shape[2]] = kernel[tap].T
        panels = as_words(b.reshape(-1, blocks * BLOCK)).reshape(-1, blocks, BLOCK).swapaxes(0, 1)
        places.append((i, j, len(taps), len(present)))
        taps += [
            (rows.window[0] + dh, columns.window[0] + dw, words + t * deep // 2 * BLOCK)
            for t, (dh, dw) in enumerate(present)
        ]
        parts.append(panels.reshape(-1))
        words += panels.size
    table = np.concatenate([np.array(part, np.int64).reshape(-1) for part in (places, taps)])
    data = Panels(np.concatenate(parts, out=empty(words)), table, len(places), kernels[0].shape[2], together)
    return Packed(rung, O, C, rows, columns, dtype, data)


class Images(NamedTuple):
    """x (B, H, W, C) and the steps of DEPTH channels that a pixel is packed in."""

    B: int
    H: int
    W: int
    C: int
    steps: int


@functools.cache
def fill_kernel(convert: bool):
    """The kernel that packs x. convert: with the instruction that rounds two vectors."""
    signature = types.void(simd.INPUT, simd.record(Images), simd.OUTPUT, simd.TASKS, simd.OUTPUT)

    @simd.kernel(signature, name=f"conv_transpose2d.amx.fill{'.converted' if convert else ''}")
    def fill(x, images, tiles, tasks, scratch):
        """A task is a row of sixteen images."""
        B, H, W, C, steps = images
        task = simd.draw(tasks)
        while task >= 0:
            group, h = task // H, task % H
            for w in range(W):
                first = ((group * H + h) * W + w) * steps * TILE
                for n in range(ROWS):
                    image = group * ROWS + n
                    at, to = ((image * H + h) * W + w) * C, first + n * LANES
                    for c in range(0, C, DEPTH):
                        if image >= B:
                            words = simd.zeros(LANES)
                        elif convert and c + DEPTH <= C:
                            words = simd.load_converted(x, at + c, LANES)
                        else:
                            words = simd.load_rounded(x, at + c, C - c, LANES)
                        simd.store(tiles, to, words)
                        to += TILE
            task = simd.draw(tasks)

    return fill


def multiplier(tiles):
    """(clear the tiles of a block, multiply into them, take them to scratch); high, wide: tiles down and across."""
    zero, load, dot, store = tiles.zero, tiles.load, tiles.dot, tiles.store

    @simd.inline
    def clear(high, wide, state):
        zero(state, 0)
        if wide == 2:
            zero(state, 1)
        if high == 2:
            zero(state, 2)
            if wide == 2:
                zero(state, 3)

    @simd.inline
    def multiply(high, wide, state, x, panels, places, steps):
        """Tiles 0 to 3 += one tap. places: its tile of x, words to that of the next sixteen images, its weights."""
        at, further, b = places
        for _ in range(steps):
            load(state, 4, x, at, LANES)
            load(state, 6, panels, b, BLOCK)
            dot(state, 0, 4, 6)
            if wide == 2:
                load(state, 7, panels, b + LANES, BLOCK)
                dot(state, 1, 4, 7)
            if high == 2:
                load(state, 5, x, at + further, LANES)
                dot(state, 2, 5, 6)
                if wide == 2:
                    dot(state, 3, 5, 7)
            at, b = at + TILE, b + LANES * BLOCK

    @simd.inline
    def put(high, wide, state, scratch):
        store(state, 0, scratch, BLOCK_AT, BLOCK)
        if wide == 2:
            store(state, 1, scratch, BLOCK_AT + LANES, BLOCK)
        if high == 2:
            store(state, 2, scratch, BLOCK_AT + LANES * BLOCK, BLOCK)
            if wide == 2:
                store(state, 3, scratch, BLOCK_AT + LANES * BLOCK + LANES, BLOCK)

    return clear, multiply, put


@simd.inline
def write_channels(images, out, place, bias, first, layout, scratch):
    """A block of one phase: up to 32 channels, from `first` on, of each image at the output `place` (r, q)."""
    b, (r, q), stride = images[0], place, out.strides[0] // 4
    to = b * stride + r * (out.strides[1] // 4) + q * (out.strides[2] // 4) + first
    for c in range(0, min(BLOCK, layout.O - first), LANES):
        left = layout.O - first - c
        term = simd.load_first(bias, first + c, left if bias.size else 0, LANES)
        for n in range(images[1]):
            y = activate(simd.add(simd.load(scratch, BLOCK_AT + n * BLOCK + c, LANES), term), layout.activation)
            if left >= LANES:
                simd.store(out, to + n * stride + c, y)
            else:
                simd.store_first(out, to + n * stride + c, y, left)


@simd.inline
def write_phases(images, out, position, bias, table, layout, scratch):
    """A block of all phases: each to its own output of the position."""
    term, stride = simd.load(bias, 0, LANES), out.strides[0] // 4
    for n in range(images[1]):
        at = BLOCK_AT + n * BLOCK
        y = simd.add(simd.load(scratch, at, LANES), term)
        simd.store(scratch, at, activate(y, layout.activation))
    for f in range(layout.targets_at, layout.targets_at + 3 * layout.targets, 3):
        r = position[0] * layout.stride_rows + simd.fetch(table, f)
        q, column = position[1] * layout.stride_columns + simd.fetch(table, f + 1), simd.fetch(table, f + 2)
        if r < out.shape[1] and q < out.shape[2]:
            to = images[0] * stride + r * (out.strides[1] // 4) + q * (out.strides[2] // 4)
            for n in range(images[1]):
                y = simd.load(scratch, BLOCK_AT + n * BLOCK + column, LANES)
                simd.store_first(out, to + n * stride, y, layout.O)


@functools.cache
def image_kernel(emulated: bool, together: bool):
    """The kernel that multiplies, on the hardware's tiles or on their emulation."""
    tiles = amx.Emulated if emulated else amx.Hardware
    (clear, multiply, put), configure, release = multiplier(tiles), tiles.configure, tiles.release
    wide = 1 if together else 2

    @simd.inline
    def one_block(high, operands, phase, corner, table, layout, scratch):
        """Sums of a phase's block at a position, in scratch. operands: x, weights; corner: (group, block), position."""
        (group, block), (j, left), state = corner[0], corner[1], scratch[:STATE].reshape(9, LANES, LANES)
        first, count = simd.fetch(table, phase + 2), simd.fetch(table, phase + 3)
        before, images = block * count * layout.steps * LANES * BLOCK, layout.H * layout.W * layout.steps * TILE
        clear(high, wide, state)
        for t in range(layout.taps_at + TAP * first, layout.taps_at + TAP * (first + count), TAP):
            h, w = j + simd.fetch(table, t), left + simd.fetch(table, t + 1)
            if 0 <= h < layout.H and 0 <= w < layout.W:
                at = group * images + (h * layout.W + w) * layout.steps * TILE
                places = (at, images, simd.fetch(table, t + 2) + before)
                multiply(high, wide, state, operands[0], operands[1], places, layout.steps)
        put(high, wide, state, scratch)

    @simd.inline
    def one_task(task, operands, bias, out, table, layout, scratch):
        """A block of a phase at a band of positions, for 32 images or what is left of them."""
        block, rest = task % layout.blocks, task // layout.blocks
        phase, rest = PHASE * (rest % layout.phases), rest // layout.phases
        bands = (layout.Jh + layout.band - 1) // layout.band
        group, j0 = rest // bands * 2, rest % bands * layout.band
        images = (group * ROWS, min(2 * ROWS, layout.B - group * ROWS))
        for j in range(j0, min(j0 + layout.band, layout.Jh)):
            r = j * layout.stride_rows + simd.fetch(table, phase)
            for left in range(layout.Jw):
                q = left * layout.stride_columns + simd.fetch(table, phase + 1)
                if together or (r < out.shape[1] and q < out.shape[2]):
                    corner = ((group, block), (j, left))
                    if images[1] > ROWS:
                        one_block(2, operands, phase, corner, table, layout, scratch)
                    else:
                        one_block(1, operands, phase, corner, table, layout, scratch)
                    if together:
                        write_phases(images, out, (j, left), bias, table, layout, scratch)
                    else:
                        write_channels(images, out, (r, q), bias, block * BLOCK, layout, scratch)

    form = f"{'.together' if together else ''}{'.emulated' if emulated else ''}"

    @simd.kernel(SIGNATURE, name=f"conv_transpose2d.amx{form}")
    def multiply_images(x, panels, bias, out, table, layout, tasks, scratch):
        """x: what `fill` made. bias: (O,) or, together, of every column."""
        configure(scratch[:STATE].reshape(9, LANES, LANES), min(layout.B, ROWS))
        task = simd.draw(tasks)
        while task >= 0:
            one_task(task, (x, panels), bias, out, table, layout, scratch)
            task = simd.draw(tasks)
        release(scratch[:STATE].reshape(9, LANES, LANES))

    return multiply_images


def convolve(x: np.ndarray, weights: Packed, out: np.ndarray, epilogue: Epilogue, *, emulated: bool = False) -> None:
    """out (B, OH, OW, O) = activation(bias + the transposed convolution of x (B, H, W, C))."""
    data, (rows, columns) = weights.data, (weights.rows, weights.columns)
    (B, H, W, C), O, bias = x.shape, weights.O, epilogue.bias
    fill_without_taps(out, rows, columns, epilogue)
    steps, groups = -(-C // DEPTH), -(-B // ROWS)
    tiles = empty(groups * H * W * steps * TILE)
    fill = fill_kernel(cpu().has("avx512bf16"))
    launch(fill, x.reshape(-1), Images(B, H, W, C, steps), tiles, tasks=groups * H, words=1)
    targets = [(i, j, n * O) for n, (i, j) in enumerate(itertools.product(rows.phases, columns.phases))]
    if data.together:
        bias = bias_of_columns(bias, O, len(targets), LANES)
    Jh, Jw = rows.positions(H), columns.positions(W)
    band = min(max(1, BAND_BYTES // (W * steps * TILE * 8)), Jh)
    blocks = -(-data.columns // BLOCK)
    table = np.concatenate([data.table, np.array(targets, np.int64).reshape(-1)])
    layout = Layout(
        B, H, W, C, O, Jh, Jw, band, steps, blocks, data.phases, PHASE * data.phases, data.table.size, len(targets),
        rows.stride, columns.stride, ACTIVATIONS[epilogue.activation],
    )  # fmt: skip
    tasks = -(-B // (2 * ROWS)) * -(-Jh // band) * data.phases * blocks
    arrays = (tiles, data.words, bias, out, table, layout)
    launch(image_kernel(emulated, data.together), *arrays, tasks=tasks, words=BLOCK_AT + BLOCK * BLOCK + LANES)
