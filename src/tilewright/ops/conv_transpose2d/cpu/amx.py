"""AMX: the rows of a tile are images. A position's channels in sixteen images are a tile of the left operand.

sums[image, column] = sum over the taps of a phase of x[image, position + tap] @ weights[tap], for each position of each
phase. Every image needs the same products at a position. With images as rows a tap (one element of the filter) outside
x is skipped, not padded, no row is packed once per tap, and images of all sizes fill the tiles equally well. A block of
32 images by 32 channels of a phase is four tiles; a step multiplies two tiles of x by two of the weights, 32 channels
deep:

    x, once per call:  [16 images][position][32 channels] -> [group][position][step][16 rows of 16 words], bfloat16
    weights, once:     [phase][32 columns][tap][step][16 words down][32 across]

A task is a block of columns of a phase at some rows of positions: its weights stay in L2 while it visits these. If the
columns of all phases together are at most 16, they are one phase over the union of their taps, as in `taps`.

It is slow with few images: fewer than sixteen cost as much as sixteen.
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
from tilewright.ops.conv_transpose2d.cpu.sums import PHASE, joined
from tilewright.ops.conv_transpose2d.cpu.taps import bias_of_columns, fill_without_taps
from tilewright.ops.conv_transpose2d.operands import Axis, Epilogue, Packed
from tilewright.ops.conv_transpose2d.tiles import phase_kernels
from tilewright.ops.core.arrays import BFLOAT16
from tilewright.ops.core.launch import launch
from tilewright.ops.core.memory import empty
from tilewright.ops.gemm.cpu.amx import BLOCK, LANES, STATE, TILE
from tilewright.ops.gemm.cpu.epilogue import ACTIVATIONS, activate
from tilewright.simd import amx

DEPTH = 32  # channels of a step
ROWS = 16  # images of a tile
BAND_BYTES = 512 << 10  # bytes of a task's part of x: with the weights of its columns it stays in L2
PRODUCT, TAP = 4, 3  # table entries of a product: row, column, first tap, taps; of a tap: down, across, offset of words
BLOCK_AT = STATE  # offset in scratch of a block of sums


@dataclass(frozen=True, eq=False)
class PackedTiles:
    """words: all weights. table: PRODUCT entries for each of `products` phases (or one, for all of them together), then
    TAP entries for each tap. columns: of a product."""

    words: np.ndarray
    table: np.ndarray
    products: int
    columns: int
    together: bool


class Layout(NamedTuple):
    """Sizes of a convolution and of its tasks. Fields *_at are offsets in the table."""

    B: int
    H: int
    W: int
    C: int
    O: int
    Jh: int  # rows of positions, and positions in a row
    Jw: int
    band: int  # rows of positions in a task
    steps: int  # of DEPTH channels
    blocks: int  # of 32 columns in a product
    products: int
    taps_at: int
    phases_at: int
    phases: int  # to which a block's columns are written, if it is all phases
    stride_rows: int
    stride_columns: int
    activation: int


SIGNATURE = types.void(
    simd.INPUT, simd.INPUT, simd.INPUT, OUTPUT_4D, simd.INDICES, simd.record(Layout), simd.TASKS, simd.OUTPUT
)  # x, panels, bias, out, table, layout, tasks, scratch


def as_words(b: np.ndarray) -> np.ndarray:
    """b float32 (K, N), K even, rounded to bfloat16: words (K / 2, N), the even row in the low half."""
    bits = np.ascontiguousarray(b).astype(BFLOAT16).view(np.uint16).astype(np.uint32)
    return (bits[0::2] | bits[1::2] << 16).view(np.float32)


def pack_images(weights: np.ndarray, rows: Axis, columns: Axis, dtype: str) -> PackedTiles:
    """weights (KH, KW, O, C) as the panels of each phase, or of all of them together where they fit a tile."""
    O, C = weights.shape[2:]
    phases = list(itertools.product(rows.phases, columns.phases))
    kernels, present = zip(*phase_kernels(weights, rows, columns), strict=True)
    together = len(phases) * O <= LANES
    if together:
        kernels, present, phases = [np.concatenate(kernels, axis=2)], [np.ones_like(present[0])], [(0, 0)]
    parts, products, taps, words = [], [], [], 0
    wide, deep = -(-kernels[0].shape[2] // BLOCK) * BLOCK, -(-C // DEPTH) * DEPTH
    for (i, j), kernel, has in zip(phases, kernels, present, strict=True):  # kernel (down, across, columns, C)
        own = np.argwhere(has).tolist()
        b = np.zeros((len(own), deep, wide), np.float32)
        for t, (down, across) in enumerate(own):
            b[t, :C, : kernel.shape[2]] = kernel[down, across].T
        panels = as_words(b.reshape(-1, wide)).reshape(-1, wide // BLOCK, BLOCK).swapaxes(0, 1)
        products.append((i, j, len(taps), len(own)))
        for t, (down, across) in enumerate(own):
            taps.append((rows.window[0] + down, columns.window[0] + across, words + t * deep // 2 * BLOCK))
        parts.append(panels.reshape(-1))
        words += panels.size
    table, _ = joined(products, taps)
    return PackedTiles(np.concatenate(parts, out=empty(words)), table, len(products), kernels[0].shape[2], together)


@functools.cache
def packing_kernel(convert: bool):
    """The kernel that packs x as tiles. convert: by the instruction that rounds two vectors to bfloat16."""
    signature = types.void(simd.INPUT, simd.record(Layout), simd.OUTPUT, simd.TASKS, simd.OUTPUT)

    @simd.kernel(signature, name=f"conv_transpose2d.amx.fill{'.converted' if convert else ''}")
    def pack(x, layout, tiles, tasks, scratch):
        """A task is one row of pixels in sixteen images. Images after the last one are zeros."""
        H, W, C, steps = layout.H, layout.W, layout.C, layout.steps
        task = simd.draw(tasks)
        while task >= 0:
            group, h = task // H, task % H
            for w in range(W):
                first = ((group * H + h) * W + w) * steps * TILE
                for n in range(ROWS):
                    image = group * ROWS + n
                    at, to = ((image * H + h) * W + w) * C, first + n * LANES
                    for c in range(0, C, DEPTH):
                        if image >= layout.B:
                            words = simd.zeros(LANES)
                        elif convert and c + DEPTH <= C:
                            words = simd.load_converted(x, at + c, LANES)
                        else:
                            words = simd.load_rounded(x, at + c, C - c, LANES)
                        simd.store(tiles, to, words)
                        to += TILE
            task = simd.draw(tasks)

    return pack


class Operands(NamedTuple):
    """x: the packed images. panels: all weights. table: see `PackedTiles`."""

    x: np.ndarray
    panels: np.ndarray
    table: np.ndarray


def multiplier(tiles):
    """Inline functions (clear, multiply, store) for a block of `high` x `wide` tiles, 1 or 2 each."""
    zero, load, dot, put = tiles.zero, tiles.load, tiles.dot, tiles.store

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
    def multiply(high, wide, state, operands, a, second, b, steps):
        """Add one tap to tiles 0 to 3. a, b: offsets of its tile of x and of its weights. second: words from a tile of
        x to that of the next sixteen images."""
        x, panels = operands.x, operands.panels
        for _ in range(steps):
            load(state, 4, x, a, LANES)
            load(state, 6, panels, b, BLOCK)
            dot(state, 0, 4, 6)
            if wide == 2:
                load(state, 7, panels, b + LANES, BLOCK)
                dot(state, 1, 4, 7)
            if high == 2:
                load(state, 5, x, a + second, LANES)
                dot(state, 2, 5, 6)
                if wide == 2:
                    dot(state, 3, 5, 7)
            a, b = a + TILE, b + LANES * BLOCK

    @simd.inline
    def store(high, wide, state, scratch):
        put(state, 0, scratch, BLOCK_AT, BLOCK)
        if wide == 2:
            put(state, 1, scratch, BLOCK_AT + LANES, BLOCK)
        if high == 2:
            put(state, 2, scratch, BLOCK_AT + LANES * BLOCK, BLOCK)
            if wide == 2:
                put(state, 3, scratch, BLOCK_AT + LANES * BLOCK + LANES, BLOCK)

    return clear, multiply, store


class Block(NamedTuple):
    """A block of sums: up to 32 images from `image` on, block `column` of 32 columns of the product whose entries in
    the table begin at `product`."""

    image: int
    images: int
    column: int
    product: int


@simd.inline
def write_channels(block, r, q, bias, out, layout, scratch):
    """Write a block of one phase: up to 32 channels of each image, to output (r, q)."""
    first, stride = block.column * BLOCK, out.strides[0] // 4
    to = block.image * stride + r * (out.strides[1] // 4) + q * (out.strides[2] // 4) + first
    for c in range(0, min(BLOCK, layout.O - first), LANES):
        left = layout.O - first - c
        term = simd.load_first(bias, first + c, left if bias.size else 0, LANES)
        for n in range(block.images):
            y = activate(simd.add(simd.load(scratch, BLOCK_AT + n * BLOCK + c, LANES), term), layout.activation)
            if left >= LANES:
                simd.store(out, to + n * stride + c, y)
            else:
                simd.store_first(out, to + n * stride + c, y, left)


@simd.inline
def write_phases(block, j, k, bias, out, table, layout, scratch):
    """Write a block of all phases: each to its own output of position (j, k)."""
    term, stride = simd.load(bias, 0, LANES), out.strides[0] // 4
    for n in range(block.images):
        at = BLOCK_AT + n * BLOCK
        y = simd.add(simd.load(scratch, at, LANES), term)
        simd.store(scratch, at, activate(y, layout.activation))
    for f in range(layout.phases_at, layout.phases_at + PHASE * layout.phases, PHASE):
        r = j * layout.stride_rows + simd.fetch(table, f)
        q, column = k * layout.stride_columns + simd.fetch(table, f + 1), simd.fetch(table, f + 2)
        if r < out.shape[1] and q < out.shape[2]:
            to = block.image * stride + r * (out.strides[1] // 4) + q * (out.strides[2] // 4)
            for n in range(block.images):
                y = simd.load(scratch, BLOCK_AT + n * BLOCK + column, LANES)
                simd.store_first(out, to + n * stride, y, layout.O)


@functools.cache
def image_kernel(emulated: bool, together: bool):
    """The kernel that multiplies, on the hardware's tiles or on their emulation."""
    tiles = amx.Emulated if emulated else amx.Hardware
    (clear, multiply, store), configure, release = multiplier(tiles), tiles.configure, tiles.release
    wide = 1 if together else 2

    @simd.inline
    def one_block(high, operands, block, j, k, layout, scratch):
        """Write the sums of a block at position (j, k) to scratch. high: tiles of images, 1 or 2."""
        table, state = operands.table, scratch[:STATE].reshape(9, LANES, LANES)
        first, count = simd.fetch(table, block.product + 2), simd.fetch(table, block.product + 3)
        before, images = block.column * count * layout.steps * LANES * BLOCK, layout.H * layout.W * layout.steps * TILE
        clear(high, wide, state)
        for t in range(layout.taps_at + TAP * first, layout.taps_at + TAP * (first + count), TAP):
            h, w = j + simd.fetch(table, t), k + simd.fetch(table, t + 1)
            if 0 <= h < layout.H and 0 <= w < layout.W:
                a = block.image // ROWS * images + (h * layout.W + w) * layout.steps * TILE
                multiply(high, wide, state, operands, a, images, simd.fetch(table, t + 2) + before, layout.steps)
        store(high, wide, state, scratch)

    @simd.inline
    def one_task(task, operands, bias, out, layout, scratch):
        """A block of columns of a product at a band of positions, for 32 images or fewer."""
        table = operands.table
        column, rest = task % layout.blocks, task // layout.blocks
        product, rest = PRODUCT * (rest % layout.products), rest // layout.products
        bands = (layout.Jh + layout.band - 1) // layout.band
        image, j0 = rest // bands * 2 * ROWS, rest % bands * layout.band
        block = Block(image, min(2 * ROWS, layout.B - image), column, product)
        for j in range(j0, min(j0 + layout.band, layout.Jh)):
            r = j * layout.stride_rows + simd.fetch(table, product)
            for k in range(layout.Jw):
                q = k * layout.stride_columns + simd.fetch(table, product + 1)
                if together or (r < out.shape[1] and q < out.shape[2]):
                    if block.images > ROWS:
                        one_block(2, operands, block, j, k, layout, scratch)
                    else:
                        one_block(1, operands, block, j, k, layout, scratch)
                    if together:
                        write_phases(block, j, k, bias, out, table, layout, scratch)
                    else:
                        write_channels(block, r, q, bias, out, layout, scratch)

    form = f"{'.together' if together else ''}{'.emulated' if emulated else ''}"

    @simd.kernel(SIGNATURE, name=f"conv_transpose2d.amx{form}")
    def multiply_images(x, panels, bias, out, table, layout, tasks, scratch):
        """x: images as `packing_kernel` packs them. panels, table: see `PackedTiles`; the phases are appended to the
        table. bias: (O,) or empty; together, one element per lane. out: (B, OH, OW, O)."""
        configure(scratch[:STATE].reshape(9, LANES, LANES), min(layout.B, ROWS))
        task = simd.draw(tasks)
        while task >= 0:
            one_task(task, Operands(x, panels, table), bias, out, layout, scratch)
            task = simd.draw(tasks)
        release(scratch[:STATE].reshape(9, LANES, LANES))

    return multiply_images


def convolve(x: np.ndarray, weights: Packed, out: np.ndarray, epilogue: Epilogue, *, emulated: bool = False) -> None:
    """out (B, OH, OW, O) = activation(bias + the transposed convolution of x (B, H, W, C))."""
    data, rows, columns = weights.data, weights.rows, weights.columns
    (B, H, W, C), O, bias = x.shape, weights.O, epilogue.bias
    fill_without_taps(out, rows, columns, epilogue)
    steps, groups = -(-C // DEPTH), -(-B // ROWS)
    phases = [(i, j, n * O) for n, (i, j) in enumerate(itertools.product(rows.phases, columns.phases))]
    if data.together:
        bias = bias_of_columns(bias, O, len(phases), LANES)
    table, (phases_at,) = joined(data.table, phases)
    Jh, Jw = rows.positions(H), columns.positions(W)
    band, blocks = min(max(1, BAND_BYTES // (W * steps * TILE * 8)), Jh), -(-data.columns // BLOCK)
    layout = Layout(
        B=B, H=H, W=W, C=C, O=O, Jh=Jh, Jw=Jw, band=band, steps=steps, blocks=blocks, products=data.products,
        taps_at=PRODUCT * data.products, phases_at=phases_at, phases=len(phases), stride_rows=rows.stride,
        stride_columns=columns.stride, activation=ACTIVATIONS[epilogue.activation],
    )  # fmt: skip
    tiles = empty(groups * H * W * steps * TILE)
    launch(packing_kernel(cpu().has("avx512bf16")), x.reshape(-1), layout, tiles, tasks=groups * H, words=1)
    tasks = -(-B // (2 * ROWS)) * -(-Jh // band) * data.products * blocks
    arrays = (tiles, data.words, bias, out, table, layout)
    launch(image_kernel(emulated, data.together), *arrays, tasks=tasks, words=BLOCK_AT + BLOCK * BLOCK + LANES)
