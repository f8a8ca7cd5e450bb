"""Winograd's F(2, 3) over the phases: half the multiplications. `tiles` has the algorithm.

out tile = A ((B d B) * (G g G), summed over C) A, for each phase and tile of 2 x 2 positions; d are its 4 x 4 inputs, g
the phase's taps. A task computes some tiles. It forms the sums B d of x down the rows while it copies its part of x.
For each of the 16 products of a tile it forms the sums across, packs them and multiplies: the columns are all channels
of all phases that need this product. At the end it adds the products up to the outputs of each tile, with bias and
activation. Sums over channels are matrix products, in float32, or in bfloat16 with rounded sums of x and factors.

Changes from `taps`: half the multiplications, for sums of x and of products that cost a few instructions per element.
It is slow where either side has few channels, and its error is larger: see `problem.bound`.
"""

import functools
import itertools
from typing import NamedTuple

import numpy as np

from tilewright import simd
from tilewright.hardware import cpu
from tilewright.ops.conv_transpose2d.cpu.sums import (
    DEPTH,
    LINE,
    PHASE,
    SIGNATURE,
    SUMS,
    Block,
    Outputs,
    Panels,
    Products,
    Rows,
    Task,
    clearer,
    joined,
    kind_of,
    layout_for,
    multiplier,
    outputs_for,
    packer,
    padded,
    steps_of,
    task_count,
    task_of,
)
from tilewright.ops.conv_transpose2d.cpu.taps import bias_of_columns, fill_without_taps, phase_writer
from tilewright.ops.conv_transpose2d.operands import Axis, Epilogue, Packed
from tilewright.ops.conv_transpose2d.tiles import PRODUCTS, SIDE, factors, products_of
from tilewright.ops.core.launch import launch
from tilewright.ops.gemm.cpu.epilogue import activate
from tilewright.ops.gemm.cpu.pack import TILINGS

MOST = 96  # tiles in a task: eight panels of 12
BLOCK = 5  # table entries of a block: its product, first step, steps, first job, end of jobs
FIRST, SECOND, SIGN = (0, 1, 2, 1), (2, 2, 1, 3), (-1, 1, -1, -1)  # the rows of tiles.B: d[FIRST] + SIGN * d[SECOND]


def fits_one_vector(O: int, rows: Axis, columns: Axis) -> bool:
    """The channels of all phases together fit in one vector."""
    return len(rows.phases) * len(columns.phases) * O <= cpu().lanes


def pack_tiles(weights: np.ndarray, rows: Axis, columns: Axis, dtype: str) -> Products:
    """weights (KH, KW, O, C) as panels of factors for each product, side by side for all phases that need it. If all
    phases fit one vector, they are packed as one phase that needs every product."""
    O, C = weights.shape[2:]
    NR, steps, word = TILINGS[cpu().lanes].NR, steps_of(C, dtype), 1 if dtype == "float32" else 2
    every, together = factors(weights, rows, columns), fits_one_vector(O, rows, columns)
    kernels = [np.concatenate(list(every.values()), axis=2)] if together else list(every.values())
    wide = padded(kernels[0].shape[2], NR)
    length = padded(-(-steps // -(-steps // DEPTH)), LINE) if steps > DEPTH else steps
    panels, blocks, panels_so_far = Panels(dtype), [], 0
    targets = np.full((len(kernels), PRODUCTS * PRODUCTS), -1, np.int64)  # first panel of sums of a phase's product
    for p, q in np.ndindex(PRODUCTS, PRODUCTS):
        users = [n for n, (i, j) in enumerate(every) if p in products_of(rows, i) and q in products_of(columns, j)]
        if not users:
            continue
        users = [0] if together else users
        b = np.zeros((steps * word, len(users), wide), np.float32)
        for n, phase in enumerate(users):
            targets[phase, p * PRODUCTS + q] = panels_so_far + n * wide // NR
            b[:C, n, : kernels[phase].shape[2]] = kernels[phase][p, q].T
        b = b.reshape(steps * word, -1)
        own = list(range(panels_so_far, panels_so_far + b.shape[1] // NR))
        for k in range(0, steps, length):
            jobs = panels.add(b[k * word : (k + length) * word], own)
            blocks.append((p * PRODUCTS + q, k, min(length, steps - k), *jobs))
        panels_so_far += len(own)
    return panels.products(blocks, targets, panels_so_far, length)


class RowPair(NamedTuple):
    """Two rows of x to add: offsets of their first pixels, and the factor of each."""

    first: int
    second: int
    first_factor: int
    second_factor: int


@functools.cache
def row_adder(lanes: int):
    """The inline function that copies a task's part of x as its sums down the rows, four for each row of tiles."""
    clear = clearer(lanes)

    @simd.inline
    def add_rows(x, pair, layout, left, scratch, to):
        """A row of sums at scratch[to], from column `left` of x on; pixels outside x are zeros."""
        C, step = layout.C, layout.step
        begin = min(max(-left, 0), layout.pixels)
        end = max(begin, max(min(layout.W - left, layout.pixels), 0))
        f, g = simd.splat(np.float32(pair.first_factor), lanes), simd.splat(np.float32(pair.second_factor), lanes)
        first, second = pair.first + (left + begin) * C, pair.second + (left + begin) * C
        clear(scratch, to, begin * step)
        target, pixels = to + begin * step, end - begin
        if step == C:  # no gaps between pixels: one long pixel
            pixels, C = 1, pixels * C
        for w in range(pixels):
            at, c = w * C, 0
            while c + lanes <= C:
                y = simd.multiply(f, simd.load(x, first + at + c, lanes))
                simd.store(scratch, target + w * step + c, simd.fma(g, simd.load(x, second + at + c, lanes), y))
                c += lanes
            if c < C:
                y = simd.multiply(f, simd.load_first(x, first + at + c, C - c, lanes))
                y = simd.fma(g, simd.load_first(x, second + at + c, C - c, lanes), y)
                simd.store(scratch, target + w * step + c, y)
        clear(scratch, to + end * step, (layout.pixels - end) * step)

    @simd.inline
    def add_down(task, x, layout, scratch):
        """A row outside x has a factor of 0, and the other row's offset, so that the loads stay inside x."""
        line, to, column = layout.W * layout.C, layout.pixels_at, task.left * SIDE + layout.least_column
        for n in range(task.images * task.rows):
            image = (task.image + n // task.rows) * layout.H * line
            least = (task.row + n % task.rows) * SIDE + layout.least_row
            for p in range(PRODUCTS):
                h, l = least + FIRST[p], least + SECOND[p]
                above, below = 0 <= h < layout.H, 0 <= l < layout.H
                if above or below:
                    first, second = image + (h if above else l) * line, image + (l if below else h) * line
                    pair = RowPair(first, second, 1 if above else 0, SIGN[p] if below else 0)
                    add_rows(x, pair, layout, column, scratch, to)
                else:
                    clear(scratch, to, layout.pixels * layout.step)
                to += layout.pixels * layout.step

    return add_down


@functools.cache
def column_adder(lanes: int):
    """The inline function that forms the sums across from the sums down the rows."""

    @simd.inline
    def add_across(product, rows, width, layout, scratch):
        """The sums of every tile for one product, one after another at `staging_at`. rows: of tiles; width: tiles in
        a row."""
        p, q, step, to = product // PRODUCTS, product % PRODUCTS, layout.step, layout.staging_at
        sign = simd.splat(np.float32(SIGN[q]), lanes)
        for r in range(rows):
            row = layout.pixels_at + (r * PRODUCTS + p) * layout.pixels * step
            for t in range(width):
                first, second = row + (SIDE * t + FIRST[q]) * step, row + (SIDE * t + SECOND[q]) * step
                for c in range(0, step, lanes):
                    y = simd.fma(sign, simd.load(scratch, second + c, lanes), simd.load(scratch, first + c, lanes))
                    simd.store(scratch, to + c, y)
                to += step

    return add_across


@functools.cache
def tile_adder(lanes: int):
    """The inline function that adds the products of a tile up to its outputs."""

    @simd.inline
    def product(scratch, table, at, position):
        """A vector of the product of table[at], `position` words after its first; zeros where table[at] is 0."""
        first = simd.fetch(table, at)
        return simd.load(scratch, first + position if first else 0, lanes)

    @simd.inline
    def across(scratch, table, at, position):
        """The two outputs of one row of products."""
        m0, m1 = product(scratch, table, at, position), product(scratch, table, at + 1, position)
        m2, m3 = product(scratch, table, at + 2, position), product(scratch, table, at + 3, position)
        return simd.add(m0, simd.add(m1, m2)), simd.subtract(simd.subtract(m1, m2), m3)

    @simd.inline
    def finish(y, term, activation):
        """activation(y + bias) of a vector."""
        return activate(simd.add(y, term), activation)

    @simd.inline
    def tile_outputs(scratch, table, at, position, term, activation):
        """The four outputs of a phase: (0, 0), (0, 1), (1, 0), (1, 1). at: of its 16 products in the table. term: the
        bias."""
        (a0, b0), (a1, b1) = across(scratch, table, at, position), across(scratch, table, at + 4, position)
        (a2, b2), (a3, b3) = across(scratch, table, at + 8, position), across(scratch, table, at + 12, position)
        y00 = finish(simd.add(a0, simd.add(a1, a2)), term, activation)
        y01 = finish(simd.add(b0, simd.add(b1, b2)), term, activation)
        y10 = finish(simd.subtract(simd.subtract(a1, a2), a3), term, activation)
        y11 = finish(simd.subtract(simd.subtract(b1, b2), b3), term, activation)
        return y00, y01, y10, y11

    return tile_outputs


@functools.cache
def tile_writer(lanes: int):
    """The inline function that writes outputs from the products: one phase and vector of channels after the other."""
    tile_outputs, NR = tile_adder(lanes), TILINGS[lanes].NR

    @simd.inline
    def write(task, table, bias, out, layout, scratch):
        """For outputs outside `out` the store's mask is empty."""
        O, sh, sw, rows = layout.O, layout.stride_rows, layout.stride_columns, task.images * task.rows
        panel = layout.images * layout.rows * layout.width * NR  # words of a panel of sums
        stride_b, stride_r, stride_q = out.strides[0] // 4, out.strides[1] // 4, out.strides[2] // 4
        down, right = sh * stride_r, sw * stride_q
        for n in range(layout.phases * rows):
            f, row = n // rows, n % rows
            phase, products = layout.phases_at + PHASE * f, layout.products_at + PRODUCTS * PRODUCTS * f
            r = (task.row + row % task.rows) * SIDE * sh + simd.fetch(table, phase)
            begin = task.left * SIDE * sw + simd.fetch(table, phase + 1)
            upper, lower = r < out.shape[1], r + sh < out.shape[1]
            for o in range(0, O, lanes):
                term = simd.load_first(bias, o, O - o if bias.size else 0, lanes)
                to = (task.image + row // task.rows) * stride_b + r * stride_r + begin * stride_q + o
                position, q = row * task.width * NR + o // NR * panel + o % NR, begin
                for _ in range(task.width):
                    y00, y01, y10, y11 = tile_outputs(scratch, table, products, position, term, layout.activation)
                    if lower and q + sw < out.shape[2] and o + lanes <= O:  # a mask costs more than all of the sums
                        simd.store(out, to, y00)
                        simd.store(out, to + right, y01)
                        simd.store(out, to + down, y10)
                        simd.store(out, to + down + right, y11)
                    else:
                        west, east = O - o if q < out.shape[2] else 0, O - o if q + sw < out.shape[2] else 0
                        simd.store_first(out, to, y00, west if upper else 0)
                        simd.store_first(out, to + right, y01, east if upper else 0)
                        simd.store_first(out, to + down, y10, west if lower else 0)
                        simd.store_first(out, to + down + right, y11, east if lower else 0)
                    to, position, q = to + SIDE * right, position + NR, q + SIDE * sw

    return write


@functools.cache
def vector_writer(lanes: int):
    """The inline function that writes outputs from the products where all phases' channels are one vector."""
    tile_outputs, write_phases = tile_adder(lanes), phase_writer(lanes, 1, True)

    @simd.inline
    def write(task, table, bias, out, layout, scratch):
        """The four positions of each tile, one vector each, to `staging_at`, and from there to out."""
        term, below, position = simd.load(bias, 0, lanes), SIDE * task.width * lanes, 0
        products = layout.products_at
        for row in range(task.images * task.rows):
            to = layout.staging_at + row * SIDE * below
            for _ in range(task.width):
                y00, y01, y10, y11 = tile_outputs(scratch, table, products, position, term, layout.activation)
                simd.store(scratch, to, y00)
                simd.store(scratch, to + lanes, y01)
                simd.store(scratch, to + below, y10)
                simd.store(scratch, to + below + lanes, y11)
                to, position = to + SIDE * lanes, position + lanes
        positions = Task(
            task.image, task.images, task.row * SIDE, task.rows * SIDE, task.left * SIDE, task.width * SIDE
        )
        write_phases(positions, table, bias, out, layout, scratch)

    return write


@functools.cache
def tile_kernel(kind: str, lanes: int, together: bool):
    """The kernel for a kind of product. together: all phases' channels are one vector."""
    vectors = 1 if together else TILINGS[lanes].vectors
    multiply_first, multiply_more = multiplier(kind, lanes, vectors, True), multiplier(kind, lanes, vectors, False)
    add_down, add_across = row_adder(lanes), column_adder(lanes)
    write = vector_writer(lanes) if together else tile_writer(lanes)
    pack, clear = packer(kind, lanes), clearer(lanes)

    @simd.kernel(SIGNATURE, name=f"conv_transpose2d.winograd.{kind}.{lanes}x{vectors}")
    def tiles(x, panels, bias, out, table, layout, tasks, scratch):
        """x: (B * H * W * C,). panels, table: see `Products` and `Layout`, whose positions are tiles. bias: (O,) or
        empty; together, one element per lane. out: (B, OH, OW, O)."""
        starts, capacity = table[layout.starts_at :], layout.images * layout.rows * layout.width
        tap = starts[:1]  # one tap, zero words after the row itself
        clear(scratch, 0, SUMS)
        number = simd.draw(tasks)
        while number >= 0:
            task = task_of(number, layout)
            rows = task.images * task.rows
            count = rows * task.width
            add_down(task, x, layout, scratch)
            source = Rows(starts, layout.staging_at, layout.C, count)
            for b in range(layout.blocks_at, layout.blocks_at + BLOCK * layout.blocks, BLOCK):
                k, depth = table[b + 1], table[b + 2]
                if k == 0:
                    add_across(table[b], rows, task.width, layout, scratch)
                pack(scratch, source, tap, k, depth, layout.packed_at)
                block = Block(layout.packed_at, count, capacity, depth, table[b + 3], table[b + 4])
                if k == 0:
                    multiply_first(scratch, panels, table, block)
                else:
                    multiply_more(scratch, panels, table, block)
            write(task, table, bias, out, layout, scratch)
            number = simd.draw(tasks)

    return tiles


def convolve(x: np.ndarray, weights: Packed, out: np.ndarray, epilogue: Epilogue) -> None:
    """out (B, OH, OW, O) = activation(bias + the transposed convolution of x (B, H, W, C))."""
    lanes, products, rows, columns = cpu().lanes, weights.data, weights.rows, weights.columns
    O, bias, together = weights.O, epilogue.bias, fits_one_vector(weights.O, rows, columns)
    fill_without_taps(out, rows, columns, epilogue)
    WIDE, phases = lanes if together else TILINGS[lanes].NR, list(itertools.product(rows.phases, columns.phases))
    outputs = Outputs(out, [(i, j, 0) for i, j in phases], O, columns.stride)
    if together:
        bias, outputs = bias_of_columns(bias, O, len(phases), lanes), outputs_for(out, O, rows, columns, O)
    layout = layout_for(x, weights, outputs, epilogue, MOST, SIDE)
    step, rows_of_tiles = layout.step, layout.images * layout.rows
    tiles = rows_of_tiles * layout.width
    sums = np.where(products.offsets < 0, 0, SUMS + products.offsets * tiles * WIDE)
    table, (products_at, phases_at, starts_at) = joined(products.table, sums, outputs.phases, np.arange(tiles) * step)
    pixels_at = SUMS + products.columns * tiles * WIDE
    staging_at = pixels_at + rows_of_tiles * PRODUCTS * layout.pixels * step
    packed_at = staging_at + tiles * max(step, SIDE * SIDE * lanes) + LINE
    layout = layout._replace(products_at=products_at, phases_at=phases_at, starts_at=starts_at, pixels_at=pixels_at,
                             packed_at=packed_at, staging_at=staging_at)  # fmt: skip
    words = packed_at + padded(tiles * products.depth, LINE) + lanes * lanes  # the last row may end a vector late
    arrays = (x.reshape(-1), products.panels, bias, outputs.out, table, layout)
    launch(tile_kernel(kind_of(weights.dtype), lanes, together), *arrays, tasks=task_count(layout), words=words)
