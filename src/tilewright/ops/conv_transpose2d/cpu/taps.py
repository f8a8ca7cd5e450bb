"""All phases in one pass over x: the rows of a tap, packed once, serve every phase that has it.

A task is some rows of positions j, of which each gives an output to every phase. It copies its part of x between zeros,
and for each set of phases packs the taps they share and adds their products to the phases' sums; then sums leave with
bias and activation, each phase to its own outputs. Nothing is written out for matmul, and no zero is multiplied but
those beside x.

Against `phases`: x is read once and not a tap at a time, and out is written once. With `together` all phases are
columns of one product over the union of their taps, zeros where one has no tap: for the few channels of an image, which
would each fill a fraction of a register.
"""

import functools
import itertools

import numpy as np

from tilewright import simd
from tilewright.hardware import cpu
from tilewright.ops.conv_transpose2d.cpu.sums import (
    DEPTH,
    JOB,
    SIGNATURE,
    SUMS,
    Layout,
    Panels,
    Products,
    clearer,
    cut,
    kind_of,
    multiplier,
    packer,
    padded,
    place_of,
    steps_of,
    tasks_of,
)
from tilewright.ops.conv_transpose2d.operands import Axis, Epilogue, Packed
from tilewright.ops.conv_transpose2d.tiles import dense_kernel, taps_of
from tilewright.ops.core.launch import launch
from tilewright.ops.gemm.cpu.epilogue import ACTIVATIONS, activate, activate_number
from tilewright.ops.gemm.cpu.pack import TILINGS

MOST = 192  # positions in a task: sixteen panels of 12
BLOCK = 6  # numbers of a block in the table: its first tap and their count, first step and steps a tap, jobs from, to
LINE = 16  # words of a cache line: pixels in scratch begin with one


def _blocks(taps: dict, C: int, dtype: str):
    """(phases, taps, first step, steps a tap) of each block: taps that the same phases have, as deep as DEPTH."""
    steps = steps_of(C, dtype)
    sets = {key: [tap for tap in taps if taps[tap] == key] for key in dict.fromkeys(taps.values())}
    for key, members in sets.items():
        side = max(1, DEPTH // steps)
        pieces = -(-steps // DEPTH)
        length = padded(-(-steps // pieces), LINE) if pieces > 1 else steps
        for first in range(0, len(members), side):
            for k in range(0, steps, length):
                yield key, members[first : first + side], k, min(length, steps - k)


def pack_taps(weights: np.ndarray, rows: Axis, columns: Axis, rung: str, dtype: str, together: bool = False) -> Packed:
    """weights (KH, KW, O, C) as panels for each set of taps; together: all phases side by side."""
    O, C = weights.shape[2:]
    down, across = rows.window[1], columns.window[1]
    kernels = [
        dense_kernel(weights, taps_of(rows, i, down), taps_of(columns, j, across))
        for i, j in itertools.product(rows.phases, columns.phases)
    ]  # a phase (down, across, O, C)
    present = {
        tap: tuple(f for f, (i, j) in enumerate(itertools.product(rows.phases, columns.phases))
                   if taps_of(rows, i, down)[tap[0]] >= 0 and taps_of(columns, j, across)[tap[1]] >= 0)
        for tap in np.ndindex(down, across)
    }  # fmt: skip
    if together:
        kernels = [np.concatenate(kernels, axis=2)]
        present = dict.fromkeys(present, (0,))
    NR, word = TILINGS[cpu().lanes].NR, 1 if dtype == "float32" else 2
    wide = padded(kernels[0].shape[2], NR)
    panels, blocks, offsets, depth = Panels(dtype), [], [], 0
    for phases, taps, k, steps in _blocks({tap: key for tap, key in present.items() if key}, C, dtype):
        b = np.zeros((len(taps), steps * word, len(phases), wide), np.float32)
        channels = slice(k * word, min((k + steps) * word, C))
        for t, tap in enumerate(taps):
            for n, phase in enumerate(phases):
                kernel = kernels[phase][tap][:, channels]  # (columns, channels)
                b[t, : kernel.shape[1], n, : len(kernel)] = kernel.T
        wanted = [phase * (wide // NR) + n for phase in phases for n in range(wide // NR)]
        jobs = panels.add(b.reshape(-1, len(phases) * wide), wanted)
        blocks.append((len(offsets), len(taps), k, steps, *jobs))
        offsets += taps
        depth = max(depth, len(taps) * steps)
    table = np.concatenate([np.array(part, np.int64).reshape(-1) for part in (panels.jobs, blocks)])
    at, places = JOB * len(panels.jobs), np.array(offsets, np.int64)
    data = Products(panels.joined(), table, len(blocks), at, places, len(kernels) * (wide // NR), depth)
    return Packed(rung, O, C, rows, columns, dtype, data)


def pack_columns(weights: np.ndarray, rows: Axis, columns: Axis, rung: str, dtype: str) -> Packed:
    """As `pack_taps`, with the channels of all phases side by side."""
    return pack_taps(weights, rows, columns, rung, dtype, together=True)


@functools.cache
def pixel_filler(lanes: int):
    """The inline function that copies a task's part of x between zeros."""
    clear = clearer(lanes)

    @simd.inline
    def copy_row(x, at, inside, C, scratch, to, step):
        """Pixels inside[0] to inside[1] of a row that begins at x[at]."""
        at, to, pixels = at + inside[0] * C, to + inside[0] * step, inside[1] - inside[0]
        if step == C:  # pixels without gaps: one long one
            pixels, C = 1, pixels * C
        for w in range(pixels):
            c = 0
            while c + lanes <= C:
                simd.store(scratch, to + w * step + c, simd.load(x, at + w * C + c, lanes))
                c += lanes
            if c < C:
                simd.store(scratch, to + w * step + c, simd.load_first(x, at + w * C + c, C - c, lanes))

    @simd.inline
    def fill(place, x, layout, scratch):
        """For each image its rows of pixels under the window, each from the window's first column."""
        b, images, first, rows, left, _ = place
        row, to, step = layout.pixels * layout.step, layout.pixels_at, layout.step
        column = left + layout.least_column
        begin, end = min(max(-column, 0), layout.pixels), max(min(layout.W - column, layout.pixels), 0)
        end = max(begin, end)
        for image in range(b, b + images):
            to = layout.pixels_at + (image - b) * (layout.rows + layout.window_rows - 1) * row
            for h in range(first + layout.least_row, first + layout.least_row + rows + layout.window_rows - 1):
                if 0 <= h < layout.H:
                    at = ((image * layout.H + h) * layout.W + column) * layout.C
                    clear(scratch, to, begin * step)
                    copy_row(x, at, (begin, end), layout.C, scratch, to, step)
                    clear(scratch, to + end * step, row - end * step)
                else:
                    clear(scratch, to, row)
                to += row

    return fill


@functools.cache
def phase_writer(lanes: int, vectors: int, together: bool):
    """The inline function that takes sums to out, a phase after the other; together: those that have their bias and
    activation already."""
    WIDE = lanes * vectors

    @simd.inline
    def put(place, table, bias, out, layout, scratch):
        (b, images, first, rows, left, width), O = place, layout.O
        room = layout.images * layout.rows * layout.width * WIDE  # words of a panel of sums
        stride_b, stride_r, stride_q = out.strides[0] // 4, out.strides[1] // 4, out.strides[2] // 4
        apart = layout.stride_columns * stride_q  # from a position's outputs to the next one's
        for row in range(images * rows):
            image, j, t = b + row // rows, first + row % rows, row * width
            for f in range(layout.phases_at, layout.phases_at + 3 * layout.phases, 3):
                r = j * layout.stride_rows + simd.fetch(table, f)
                q, column = left * layout.stride_columns + simd.fetch(table, f + 1), simd.fetch(table, f + 2)
                inside = (out.shape[2] - q + layout.stride_columns - 1) // layout.stride_columns
                for o in range((O - 1) // lanes * lanes, -1, -lanes):  # the last, which may be too wide, comes first
                    source = layout.rows_at + (column + o) // WIDE * room + t * WIDE + (column + o) % WIDE
                    to = image * stride_b + r * stride_r + q * stride_q + o
                    term = simd.load_first(bias, o, O - o if bias.size else 0, lanes)
                    count = min(width, inside) if r < out.shape[1] else 0
                    end = to - o + count * apart  # of what these positions fill, where they lie side by side
                    for _ in range(count):
                        y = simd.load(scratch, source, lanes)
                        if not together:
                            y = activate(simd.add(y, term), layout.activation)
                        # A mask costs much. A whole vector past this position's channels overwrites the first ones of
                        # the next position: they are written later, by the next store or by a later pass over o.
                        if o + lanes <= O or (together and apart == O and to + lanes <= end):
                            simd.store(out, to, y)
                        else:
                            simd.store_first(out, to, y, O - o)
                        source, to = source + WIDE, to + apart

    return put


@functools.cache
def tap_kernel(kind: str, lanes: int, vectors: int, together: bool):
    """The kernel for a kind of product; vectors: columns of a panel that are in use, in vectors."""
    pack, multiply = packer(kind, lanes), multiplier(kind, lanes, vectors, False)
    clear, fill, put = clearer(lanes), pixel_filler(lanes), phase_writer(lanes, vectors, together)
    WIDE = lanes * vectors

    @simd.inline
    def finish(count, bias, layout, scratch):
        """Bias and activation of all phases' columns at once."""
        for t in range(SUMS, SUMS + count * WIDE, WIDE):
            for c in range(0, WIDE, lanes):
                y = simd.add(simd.load(scratch, t + c, lanes), simd.load(bias, c, lanes))
                simd.store(scratch, t + c, activate(y, layout.activation))

    @simd.kernel(SIGNATURE, name=f"conv_transpose2d.taps.{kind}.{lanes}x{vectors}{'.together' if together else ''}")
    def taps(x, panels, bias, out, table, layout, tasks, scratch):
        """x (B, H, W, C) without gaps. bias: (O,), or, together, one for each column of a panel."""
        starts, room = table[layout.starts_at :], layout.images * layout.rows * layout.width
        task = simd.draw(tasks)
        while task >= 0:
            place = place_of(task, layout)
            count = place[1] * place[3] * place[5]
            fill(place, x, layout, scratch)
            clear(scratch, SUMS, layout.columns * room * WIDE)
            for block in range(layout.blocks_at, layout.blocks_at + BLOCK * layout.blocks, BLOCK):
                some = table[layout.offsets_at + table[block] : layout.offsets_at + table[block] + table[block + 1]]
                k, depth, jobs = table[block + 2], table[block + 3], (table[block + 4], table[block + 5])
                pack(scratch, starts, some, layout.pixels_at, (count, k, depth), layout.C, layout.packed_at)
                places, size = (layout.packed_at, SUMS), (count, room, some.size * depth)
                multiply(scratch, places, size, panels, table, jobs)
            if together:
                finish(count, bias, layout, scratch)
            put(place, table, bias, out, layout, scratch)
            task = simd.draw(tasks)

    return taps


def fill_without_taps(out: np.ndarray, rows: Axis, columns: Axis, epilogue: Epilogue) -> None:
    """Outputs that no tap reaches, where a kernel is shorter than the stride: bias and activation of nothing."""
    if all(len(axis.phases) == axis.stride for axis in (rows, columns)):
        return
    bias = epilogue.bias if epilogue.bias.size else np.zeros(out.shape[3], np.float32)
    out[...] = [activate_number.py_func(float(number), ACTIVATIONS[epilogue.activation]) for number in bias]


def deal_out(out: np.ndarray, O: int, rows: Axis, columns: Axis, apart: int) -> tuple[np.ndarray, list, int, int]:
    """(out, (i, j, first column) of its phases, channels of each, stride across) for phases `apart` columns apart.

    Where phases of O columns lie as side by side in out as among the columns, those of a row become one, and out an
    image of stride times as many channels.
    """
    if (
        apart == O
        and len(columns.phases) == (sw := columns.stride)
        and out.shape[2] % sw == 0
        and out.strides[2] == 4 * O
    ):
        shape, strides = (*out.shape[:2], out.shape[2] // sw, sw * O), (*out.strides[:2], 4 * sw * O, 4)
        wide = np.lib.stride_tricks.as_strided(out, shape, strides)
        return wide, [(i, 0, n * sw * O) for n, i in enumerate(rows.phases)], sw * O, 1
    phases = itertools.product(rows.phases, columns.phases)
    return out, [(i, j, n * apart) for n, (i, j) in enumerate(phases)], O, columns.stride


def bias_of_columns(bias: np.ndarray, O: int, phases: int, wide: int) -> np.ndarray:
    """(wide,): the bias of all phases' channels side by side; zeros for none."""
    columns = np.zeros(wide, np.float32)
    columns[: phases * O] = np.tile(bias, phases) if bias.size else 0
    return columns


def convolve(x: np.ndarray, weights: Packed, out: np.ndarray, epilogue: Epilogue, together: bool = False) -> None:
    """out (B, OH, OW, O) from x (B, H, W, C), all images at once.

    together: the channels of all phases are the columns of one product; weights from `pack_columns`, else `pack_taps`.
    """
    lanes, products, (rows, columns) = cpu().lanes, weights.data, (weights.rows, weights.columns)
    (B, H, W, C), O, NR = x.shape, weights.O, TILINGS[lanes].NR
    fill_without_taps(out, rows, columns, epilogue)
    bias, vectors, all_columns = epilogue.bias, NR // lanes, len(rows.phases) * len(columns.phases) * O
    if together:
        bias, vectors = bias_of_columns(bias, O, all_columns // O, NR), 1 if all_columns <= lanes else vectors
    out, phases, O, stride = deal_out(out, O, rows, columns, O if together else padded(O, NR))
    if not together and bias.size:
        bias = np.tile(bias, O // weights.O)  # phases of a row that became one have its bias each
    Jh, Jw = rows.positions(H), columns.positions(W)
    (least_row, down), (least_column, across) = rows.window, columns.window
    images, task_rows, width = cut(B, Jh, Jw, MOST)
    step, pixels, room = padded(C, LINE), width + across - 1, images * task_rows * width
    line = pixels * step
    offsets = products.offsets @ np.array([line, step])
    starts = np.add.outer(np.arange(images) * (task_rows + down - 1) * line, np.arange(task_rows) * line)
    parts = [products.table, offsets, np.array(phases).reshape(-1), np.add.outer(starts, np.arange(width) * step)]
    offsets_at, phases_at, starts_at, _ = np.cumsum([part.size for part in parts]).tolist()
    pixels_at = SUMS + padded(products.columns * room * lanes * vectors + lanes, LINE)
    packed_at = pixels_at + images * (task_rows + down - 1) * line
    layout = Layout(
        B, H, W, C, O, Jh, Jw, images, task_rows, width, step, pixels, least_row, least_column, down, rows.stride,
        stride, len(phases), products.columns, products.blocks, products.blocks_at, offsets_at, phases_at, starts_at,
        pixels_at, packed_at, SUMS, ACTIVATIONS[epilogue.activation],
    )  # fmt: skip
    table, kind = np.concatenate([part.reshape(-1) for part in parts]), kind_of(weights.dtype)
    words = packed_at + padded(room * products.depth, LINE) + lanes * lanes  # packed rows may end a vector too wide
    arrays = (x.reshape(-1), products.panels, bias, out, table, layout)
    launch(tap_kernel(kind, lanes, vectors, together), *arrays, tasks=tasks_of(layout), words=words)


def convolve_each(x: np.ndarray, weights: Packed, out: np.ndarray, epilogue: Epilogue) -> None:
    """As `convolve`, one image after the other: no block of rows has pixels of two images."""
    for image in range(len(x)):
        convolve(x[image : image + 1], weights, out[image : image + 1], epilogue)
