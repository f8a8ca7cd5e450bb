"""All phases in one pass over x: the rows of pixels of a tap (one element of the filter), packed once, serve every
phase that has this tap.

For each phase (i, j): sums[position, o] = sum over its taps (d, e) of x[position + (d, e)] @ weights[tap] (C, O). A
task computes some rows of positions, each with an output in every phase. It copies its part of x to scratch, with zeros
around the image. For each set of taps that the same phases have, it packs the rows of these taps once and adds their
products to the sums of those phases. Then it adds bias, applies the activation and writes each phase to its outputs.

Changes from `phases`: no matrix of windows in memory, x is read once and not once per tap, and out is written once.
Packing each tap limits it where O is small: few products share it. Then `together` makes the channels of all phases
columns of one product over the union of their taps, with zeros where a phase lacks a tap.
"""

import functools
import itertools

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
    Panels,
    Products,
    Rows,
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
from tilewright.ops.conv_transpose2d.operands import Axis, Epilogue, Packed
from tilewright.ops.conv_transpose2d.tiles import phase_kernels
from tilewright.ops.core.launch import launch
from tilewright.ops.gemm.cpu.epilogue import ACTIVATIONS, activate, activate_number
from tilewright.ops.gemm.cpu.pack import TILINGS

MOST = 192  # positions in a task: sixteen panels of 12
BLOCK = 6  # table entries of a block: its first tap, number of taps, first step, steps per tap, first job, end of jobs


def _blocks(taps: dict, C: int, dtype: str):
    """(phases, taps, first step, steps per tap) of each block: taps of the same phases, at most DEPTH steps deep."""
    steps = steps_of(C, dtype)
    sets = {key: [tap for tap in taps if taps[tap] == key] for key in dict.fromkeys(taps.values())}
    for key, members in sets.items():
        side = max(1, DEPTH // steps)
        pieces = -(-steps // DEPTH)
        length = padded(-(-steps // pieces), LINE) if pieces > 1 else steps
        for first in range(0, len(members), side):
            for k in range(0, steps, length):
                yield key, members[first : first + side], k, min(length, steps - k)


def pack_taps(weights: np.ndarray, rows: Axis, columns: Axis, dtype: str, together: bool = False) -> Products:
    """weights (KH, KW, O, C) as panels for each set of taps; together: all phases side by side."""
    kernels, present = zip(*phase_kernels(weights, rows, columns), strict=True)
    window = np.ndindex(present[0].shape)
    users = {tap: tuple(f for f, has in enumerate(present) if together or has[tap]) for tap in window}
    if together:
        kernels, users = [np.concatenate(kernels, axis=2)], dict.fromkeys(users, (0,))
    C, NR, word = weights.shape[3], TILINGS[cpu().lanes].NR, 1 if dtype == "float32" else 2
    wide = padded(kernels[0].shape[2], NR)
    panels, blocks, offsets, depth = Panels(dtype), [], [], 0
    for phases, taps, k, steps in _blocks({tap: key for tap, key in users.items() if key}, C, dtype):
        b = np.zeros((len(taps), steps * word, len(phases), wide), np.float32)
        channels = slice(k * word, min((k + steps) * word, C))
        for (t, tap), (n, phase) in itertools.product(enumerate(taps), enumerate(phases)):
            kernel = kernels[phase][tap][:, channels]  # (columns, channels)
            b[t, : kernel.shape[1], n, : len(kernel)] = kernel.T
        targets = [phase * (wide // NR) + n for phase in phases for n in range(wide // NR)]
        jobs = panels.add(b.reshape(-1, len(phases) * wide), targets)
        blocks.append((len(offsets), len(taps), k, steps, *jobs))
        offsets += taps
        depth = max(depth, len(taps) * steps)
    return panels.products(blocks, np.array(offsets, np.int64), len(kernels) * (wide // NR), depth)


pack_columns = functools.partial(pack_taps, together=True)


@functools.cache
def pixel_copier(lanes: int):
    """The inline function that copies a task's part of x to scratch, with zeros outside the image."""
    clear = clearer(lanes)

    @simd.inline
    def copy_row(x, at, begin, end, layout, scratch, to):
        """Copy the pixels from `begin` to `end` of the row at x[at] to the row at scratch[to]."""
        C, step, pixels = layout.C, layout.step, end - begin
        at, to = at + begin * C, to + begin * step
        if step == C:  # no gaps between pixels: copy the row as one long pixel
            pixels, C = 1, pixels * C
        for w in range(pixels):
            c = 0
            while c + lanes <= C:
                simd.store(scratch, to + w * step + c, simd.load(x, at + w * C + c, lanes))
                c += lanes
            if c < C:
                simd.store(scratch, to + w * step + c, simd.load_first(x, at + w * C + c, C - c, lanes))

    @simd.inline
    def copy_pixels(task, x, layout, scratch):
        """For each image the rows of pixels that its positions read, from the window's first column on."""
        row, step, high = layout.pixels * layout.step, layout.step, task.rows + layout.window_rows - 1
        column, first = task.left + layout.least_column, task.row + layout.least_row
        begin = min(max(-column, 0), layout.pixels)
        end = max(begin, max(min(layout.W - column, layout.pixels), 0))
        for image in range(task.image, task.image + task.images):
            to = layout.pixels_at + (image - task.image) * (layout.rows + layout.window_rows - 1) * row
            for h in range(first, first + high):
                if 0 <= h < layout.H:
                    at = ((image * layout.H + h) * layout.W + column) * layout.C
                    clear(scratch, to, begin * step)
                    copy_row(x, at, begin, end, layout, scratch, to)
                    clear(scratch, to + end * step, row - end * step)
                else:
                    clear(scratch, to, row)
                to += row

    return copy_pixels


@functools.cache
def phase_writer(lanes: int, vectors: int, together: bool):
    """The inline function that writes the sums at `staging_at` to out, one phase after the other. together: the sums
    have their bias and activation already."""
    WIDE = lanes * vectors

    @simd.inline
    def write(task, table, bias, out, layout, scratch):
        O, width, panel = layout.O, task.width, layout.images * layout.rows * layout.width * WIDE
        stride_b, stride_r, stride_q = out.strides[0] // 4, out.strides[1] // 4, out.strides[2] // 4
        apart = layout.stride_columns * stride_q  # step from one position's outputs to those of the next
        for row in range(task.images * task.rows):
            image, j, t = task.image + row // task.rows, task.row + row % task.rows, row * width
            for f in range(layout.phases_at, layout.phases_at + PHASE * layout.phases, PHASE):
                r = j * layout.stride_rows + simd.fetch(table, f)
                q, column = task.left * layout.stride_columns + simd.fetch(table, f + 1), simd.fetch(table, f + 2)
                inside = (out.shape[2] - q + layout.stride_columns - 1) // layout.stride_columns
                for o in range((O - 1) // lanes * lanes, -1, -lanes):  # the last one, which may be too wide, first
                    source = layout.staging_at + (column + o) // WIDE * panel + t * WIDE + (column + o) % WIDE
                    to = image * stride_b + r * stride_r + q * stride_q + o
                    term = simd.load_first(bias, o, O - o if bias.size else 0, lanes)
                    count = min(width, inside) if r < out.shape[1] else 0
                    end = to - o + count * apart  # of the outputs of these positions, if they are adjacent
                    for _ in range(count):
                        y = simd.load(scratch, source, lanes)
                        if not together:
                            y = activate(simd.add(y, term), layout.activation)
                        # A masked store is slow. So a whole vector may overwrite the first channels of the next
                        # position: a later store, or a later pass over o, writes them again.
                        if o + lanes <= O or (together and apart == O and to + lanes <= end):
                            simd.store(out, to, y)
                        else:
                            simd.store_first(out, to, y, O - o)
                        source, to = source + WIDE, to + apart

    return write


@functools.cache
def tap_kernel(kind: str, lanes: int, vectors: int, together: bool):
    """The kernel for a kind of product. vectors: of a panel's columns that are in use."""
    pack, multiply = packer(kind, lanes), multiplier(kind, lanes, vectors, False)
    clear, copy_pixels, write = clearer(lanes), pixel_copier(lanes), phase_writer(lanes, vectors, together)
    WIDE = lanes * vectors

    @simd.inline
    def finish(count, bias, layout, scratch):
        """Bias and activation of all phases' columns, for `count` positions."""
        for t in range(SUMS, SUMS + count * WIDE, WIDE):
            for c in range(0, WIDE, lanes):
                y = simd.add(simd.load(scratch, t + c, lanes), simd.load(bias, c, lanes))
                simd.store(scratch, t + c, activate(y, layout.activation))

    @simd.kernel(SIGNATURE, name=f"conv_transpose2d.taps.{kind}.{lanes}x{vectors}{'.together' if together else ''}")
    def taps(x, panels, bias, out, table, layout, tasks, scratch):
        """x: (B * H * W * C,). panels, table: see `Products` and `Layout`. bias: (O,) or empty; together, one element
        per column of a panel. out: (B, OH, OW, O)."""
        starts, capacity = table[layout.starts_at :], layout.images * layout.rows * layout.width
        number = simd.draw(tasks)
        while number >= 0:
            task = task_of(number, layout)
            count = task.images * task.rows * task.width
            copy_pixels(task, x, layout, scratch)
            clear(scratch, SUMS, layout.columns * capacity * WIDE)
            rows = Rows(starts, layout.pixels_at, layout.C, count)
            for b in range(layout.blocks_at, layout.blocks_at + BLOCK * layout.blocks, BLOCK):
                offsets = table[layout.taps_at + table[b] : layout.taps_at + table[b] + table[b + 1]]
                k, depth = table[b + 2], table[b + 3]
                pack(scratch, rows, offsets, k, depth, layout.packed_at)
                block = Block(layout.packed_at, count, capacity, offsets.size * depth, table[b + 4], table[b + 5])
                multiply(scratch, panels, table, block)
            if together:
                finish(count, bias, layout, scratch)
            write(task, table, bias, out, layout, scratch)
            number = simd.draw(tasks)

    return taps


def fill_without_taps(out: np.ndarray, rows: Axis, columns: Axis, epilogue: Epilogue) -> None:
    """Write activation(bias) to all of out if a kernel is shorter than the stride: no tap reaches some outputs."""
    if all(len(axis.phases) == axis.stride for axis in (rows, columns)):
        return
    bias = epilogue.bias if epilogue.bias.size else np.zeros(out.shape[3], np.float32)
    out[...] = [activate_number.py_func(float(term), ACTIVATIONS[epilogue.activation]) for term in bias]


def bias_of_columns(bias: np.ndarray, O: int, phases: int, wide: int) -> np.ndarray:
    """(wide,): the bias of all phases' channels side by side; zeros for none."""
    columns = np.zeros(wide, np.float32)
    columns[: phases * O] = np.tile(bias, phases) if bias.size else 0
    return columns


def convolve(x: np.ndarray, weights: Packed, out: np.ndarray, epilogue: Epilogue, together: bool = False) -> None:
    """out (B, OH, OW, O) from x (B, H, W, C), all images at once.

    together: the channels of all phases are the columns of one product; weights are from `pack_columns`.
    """
    lanes, products, rows, columns = cpu().lanes, weights.data, weights.rows, weights.columns
    O, NR, bias = weights.O, TILINGS[lanes].NR, epilogue.bias
    fill_without_taps(out, rows, columns, epilogue)
    vectors, phases = NR // lanes, len(rows.phases) * len(columns.phases)
    outputs = outputs_for(out, O, rows, columns, O if together else padded(O, NR))
    if together:
        bias, vectors = bias_of_columns(bias, O, phases, NR), 1 if phases * O <= lanes else vectors
    elif bias.size:
        bias = np.tile(bias, outputs.O // O)  # one for each of the phases that became one
    layout = layout_for(x, weights, outputs, epilogue, MOST)
    step, line, positions = layout.step, layout.pixels * layout.step, layout.images * layout.rows * layout.width
    image_words = (layout.rows + layout.window_rows - 1) * line
    row_starts = np.add.outer(np.arange(layout.images) * image_words, np.arange(layout.rows) * line)
    starts, offsets = (
        np.add.outer(row_starts, np.arange(layout.width) * step),
        products.offsets @ np.array([line, step]),
    )
    table, (taps_at, phases_at, starts_at) = joined(products.table, offsets, outputs.phases, starts)
    pixels_at = SUMS + padded(products.columns * positions * lanes * vectors + lanes, LINE)
    packed_at = pixels_at + layout.images * image_words
    layout = layout._replace(taps_at=taps_at, phases_at=phases_at, starts_at=starts_at, pixels_at=pixels_at,
                             packed_at=packed_at, staging_at=SUMS)  # fmt: skip
    words = packed_at + padded(positions * products.depth, LINE) + lanes * lanes  # the last row may end a vector late
    kernel = tap_kernel(kind_of(weights.dtype), lanes, vectors, together)
    arrays = (x.reshape(-1), products.panels, bias, outputs.out, table, layout)
    launch(kernel, *arrays, tasks=task_count(layout), words=words)


def convolve_each(x: np.ndarray, weights: Packed, out: np.ndarray, epilogue: Epilogue) -> None:
    """As `convolve`, one image after the other: no block of rows has pixels of two images."""
    for image in range(len(x)):
        convolve(x[image : image + 1], weights, out[image : image + 1], epilogue)
