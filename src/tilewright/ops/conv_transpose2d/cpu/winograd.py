"""Fewer multiplications: Winograd's F(2, 3) over the phases, which share the sums of x; the algorithm is in `tiles`.

A task is some tiles of 2 x 2 positions. It forms the sums of x down the rows while it copies its part of x, then for
each of the 16 products of a tile the sums across, packs them and multiplies: the columns are all channels of all phases
that need the product. At the end the products of each tile and channel are added up to its outputs, which leave with
bias and activation. Sums over channels are matrix products of `sums`, float32 or bfloat16 (sums of x and factors
rounded).

Against `threads`: half the multiplications, for sums of x and of products that cost a few instructions a number. It
loses where there are few channels on either side, and its error is larger: see `spec.bound`.
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
from tilewright.ops.conv_transpose2d.cpu.taps import (
    LINE,
    bias_of_columns,
    deal_out,
    fill_without_taps,
    phase_writer,
)
from tilewright.ops.conv_transpose2d.operands import Axis, Epilogue, Packed
from tilewright.ops.conv_transpose2d.tiles import PRODUCTS, SIDE, factors, products_of
from tilewright.ops.core.launch import launch
from tilewright.ops.gemm.cpu.epilogue import ACTIVATIONS, activate
from tilewright.ops.gemm.cpu.pack import TILINGS

MOST = 96  # tiles in a task: eight panels of 12
BLOCK = 5  # numbers of a block in the table: its product, first step and steps, jobs from, to
FIRST, SECOND, SIGN = (0, 1, 2, 1), (2, 2, 1, 3), (-1, 1, -1, -1)  # the rows of tiles.B: d[FIRST] + SIGN * d[SECOND]


def fits_one_vector(O: int, rows: Axis, columns: Axis) -> bool:
    """All phases' channels together are no more columns than a vector has lanes."""
    return len(rows.phases) * len(columns.phases) * O <= cpu().lanes


def pack_tiles(weights: np.ndarray, rows: Axis, columns: Axis, rung: str, dtype: str) -> Packed:
    """weights (KH, KW, O, C) as panels of factors for each product, all phases that need it side by side; where all of
    them fit one vector, they are as one phase that needs every product."""
    O, C = weights.shape[2:]
    lanes, word = cpu().lanes, 1 if dtype == "float32" else 2
    NR, steps = TILINGS[lanes].NR, steps_of(C, dtype)
    every, together = factors(weights, rows, columns), fits_one_vector(O, rows, columns)
    kernels = [np.concatenate(list(every.values()), axis=2)] if together else list(every.values())
    wide = padded(kernels[0].shape[2], NR)
    length = padded(-(-steps // -(-steps // DEPTH)), LINE) if steps > DEPTH else steps
    panels, blocks, columns_so_far = Panels(dtype), [], 0
    places = np.full((len(kernels), PRODUCTS * PRODUCTS), -1, np.int64)  # the panel where a phase's sums begin
    for p, q in np.ndindex(PRODUCTS, PRODUCTS):
        needing = [n for n, (i, j) in enumerate(every) if p in products_of(rows, i) and q in products_of(columns, j)]
        if not needing:
            continue
        needing = [0] if together else needing
        b = np.zeros((steps * word, len(needing) * wide), np.float32)
        for place, n in enumerate(needing):
            places[n, p * PRODUCTS + q] = (columns_so_far + place * wide) // NR
            b[:C, place * wide : place * wide + kernels[n].shape[2]] = kernels[n][p, q].T
        wanted = list(range(columns_so_far // NR, (columns_so_far + b.shape[1]) // NR))
        for k in range(0, steps, length):
            jobs = panels.add(b[k * word : (k + length) * word], wanted)
            blocks.append((p * PRODUCTS + q, k, min(length, steps - k), *jobs))
        columns_so_far += b.shape[1]
    table = np.concatenate([np.array(part, np.int64).reshape(-1) for part in (panels.jobs, blocks)])
    at = JOB * len(panels.jobs)
    data = Products(panels.joined(), table, len(blocks), at, places, columns_so_far // NR, length)
    return Packed(rung, O, C, rows, columns, dtype, data)


@functools.cache
def tile_summer(lanes: int):
    """The inline function that turns the products of a tile into outputs."""

    @simd.inline
    def product(scratch, table, at, further):
        """A vector of a product, `further` words behind the place that table[at] says; zeros for a place of 0."""
        place = simd.fetch(table, at)
        return simd.load(scratch, place + further if place else 0, lanes)

    @simd.inline
    def across(scratch, table, at, further):
        """The two outputs of one row of products."""
        m0, m1 = product(scratch, table, at, further), product(scratch, table, at + 1, further)
        m2, m3 = product(scratch, table, at + 2, further), product(scratch, table, at + 3, further)
        return simd.add(m0, simd.add(m1, m2)), simd.subtract(simd.subtract(m1, m2), m3)

    @simd.inline
    def tile_outputs(scratch, table, at, further):
        """The four outputs of a phase: (0, 0), (0, 1), (1, 0), (1, 1)."""
        (a0, b0), (a1, b1) = across(scratch, table, at, further), across(scratch, table, at + 4, further)
        (a2, b2), (a3, b3) = across(scratch, table, at + 8, further), across(scratch, table, at + 12, further)
        upper = simd.add(a0, simd.add(a1, a2)), simd.add(b0, simd.add(b1, b2))
        return upper[0], upper[1], simd.subtract(simd.subtract(a1, a2), a3), simd.subtract(simd.subtract(b1, b2), b3)

    return tile_outputs


@simd.inline
def finish(y, bias, activation):
    """activation(y + bias) of a vector."""
    return activate(simd.add(y, bias), activation)


@functools.cache
def tile_filler(lanes: int):
    """The inline function that takes the sums of x down the rows, as a tile's products need them."""
    clear = clearer(lanes)

    @simd.inline
    def put_pixels(x, sources, weights, layout, left, scratch, to):
        """A row of pixels: weights[0] * that at sources[0] + weights[1] * that at sources[1], from column `left` on;
        pixels beside x are zeros. A row above or below x has a weight of 0, and the other's source."""
        C, step, (one, other) = layout.C, layout.step, sources
        first, second = simd.splat(np.float32(weights[0]), lanes), simd.splat(np.float32(weights[1]), lanes)
        begin, end = min(max(-left, 0), layout.pixels), max(min(layout.W - left, layout.pixels), 0)
        end = max(begin, end)
        clear(scratch, to, begin * step)
        one, other, target, pixels = (
            one + (left + begin) * C,
            other + (left + begin) * C,
            to + begin * step,
            end - begin,
        )
        if step == C:  # pixels without gaps: one long one
            pixels, C = 1, pixels * C
        for w in range(pixels):
            at, c = w * C, 0
            while c + lanes <= C:
                y = simd.multiply(first, simd.load(x, one + at + c, lanes))
                simd.store(scratch, target + w * step + c, simd.fma(second, simd.load(x, other + at + c, lanes), y))
                c += lanes
            if c < C:
                y = simd.multiply(first, simd.load_first(x, one + at + c, C - c, lanes))
                y = simd.fma(second, simd.load_first(x, other + at + c, C - c, lanes), y)
                simd.store(scratch, target + w * step + c, y)
        clear(scratch, to + end * step, (layout.pixels - end) * step)

    @simd.inline
    def fill(place, x, layout, scratch):
        """The four sums down the rows of each row of tiles."""
        (b, images, first, rows, left, _), to = place, layout.pixels_at
        row, line = layout.pixels * layout.step, layout.W * layout.C
        for n in range(images * rows):
            image, least = (b + n // rows) * layout.H * line, (first + n % rows) * SIDE + layout.least_row
            for p in range(PRODUCTS):
                h, l = least + FIRST[p], least + SECOND[p]
                above, below = 0 <= h < layout.H, 0 <= l < layout.H
                if above or below:
                    sources = image + (h if above else l) * line, image + (l if below else h) * line
                    weights = 1 if above else 0, SIGN[p] if below else 0
                    put_pixels(x, sources, weights, layout, left * SIDE + layout.least_column, scratch, to)
                else:
                    clear(scratch, to, row)
                to += row

    return fill


@functools.cache
def row_summer(lanes: int):
    """The inline function that takes the sums across, from those that `tile_filler` made."""

    @simd.inline
    def sum_across(product, size, layout, scratch):
        """Row t of the rows = the sums of tile t for one product. size: (rows of tiles, tiles in a row)."""
        p, q, step, to = product // PRODUCTS, product % PRODUCTS, layout.step, layout.rows_at
        sign = simd.splat(np.float32(SIGN[q]), lanes)
        for r in range(size[0]):
            row = layout.pixels_at + (r * PRODUCTS + p) * layout.pixels * step
            for t in range(size[1]):
                one, other = row + (SIDE * t + FIRST[q]) * step, row + (SIDE * t + SECOND[q]) * step
                for c in range(0, step, lanes):
                    second = simd.load(scratch, other + c, lanes)
                    simd.store(scratch, to + c, simd.fma(sign, second, simd.load(scratch, one + c, lanes)))
                to += step

    return sum_across


@functools.cache
def tile_writer(lanes: int):
    """The inline function that takes products to out: a phase and a vector of channels after the other."""
    tile_outputs, NR = tile_summer(lanes), TILINGS[lanes].NR

    @simd.inline
    def put(place, table, bias, out, layout, scratch):
        """Outputs beyond out are stored with no lane."""
        (b, images, first, rows, left, width), O, sh, sw = place, layout.O, layout.stride_rows, layout.stride_columns
        room = layout.images * layout.rows * layout.width * NR  # words of a panel of sums
        stride_b, stride_r, stride_q = out.strides[0] // 4, out.strides[1] // 4, out.strides[2] // 4
        down, right = sh * stride_r, sw * stride_q
        for n in range(layout.phases * images * rows):
            f, row = n // (images * rows), n % (images * rows)
            r = (first + row % rows) * SIDE * sh + simd.fetch(table, layout.phases_at + 2 * f)
            begin = left * SIDE * sw + simd.fetch(table, layout.phases_at + 2 * f + 1)
            upper, lower = r < out.shape[1], r + sh < out.shape[1]
            for o in range(0, O, lanes):
                term = simd.load_first(bias, o, O - o if bias.size else 0, lanes)
                to = (b + row // rows) * stride_b + r * stride_r + begin * stride_q + o
                further, q = row * width * NR + o // NR * room + o % NR, begin
                for _ in range(width):
                    places = layout.offsets_at + PRODUCTS * PRODUCTS * f
                    y00, y01, y10, y11 = tile_outputs(scratch, table, places, further)
                    y00, y01 = finish(y00, term, layout.activation), finish(y01, term, layout.activation)
                    y10, y11 = finish(y10, term, layout.activation), finish(y11, term, layout.activation)
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
                    to, further, q = to + SIDE * right, further + NR, q + SIDE * sw

    return put


@functools.cache
def vector_writer(lanes: int):
    """The inline function that takes products to out where all phases' channels are one vector."""
    tile_outputs, deal = tile_summer(lanes), phase_writer(lanes, 1, True)

    @simd.inline
    def put(place, table, bias, out, layout, scratch):
        """The four positions of a tile, each a vector, to the rows; from there to the phases."""
        (b, images, first, rows, left, width), term = place, simd.load(bias, 0, lanes)
        below, further = SIDE * width * lanes, 0
        for row in range(images * rows):
            to = layout.rows_at + row * SIDE * below
            for _ in range(width):
                y00, y01, y10, y11 = tile_outputs(scratch, table, layout.offsets_at, further)
                simd.store(scratch, to, finish(y00, term, layout.activation))
                simd.store(scratch, to + lanes, finish(y01, term, layout.activation))
                simd.store(scratch, to + below, finish(y10, term, layout.activation))
                simd.store(scratch, to + below + lanes, finish(y11, term, layout.activation))
                to, further = to + SIDE * lanes, further + lanes
        deal((b, images, first * SIDE, rows * SIDE, left * SIDE, width * SIDE), table, bias, out, layout, scratch)

    return put


@functools.cache
def tile_kernel(kind: str, lanes: int, together: bool):
    """The kernel for a kind of product; together: all phases' channels are one vector."""
    vectors = 1 if together else TILINGS[lanes].vectors
    multiply_fresh, multiply_more = multiplier(kind, lanes, vectors, True), multiplier(kind, lanes, vectors, False)
    fill, sum_across = tile_filler(lanes), row_summer(lanes)
    put = vector_writer(lanes) if together else tile_writer(lanes)
    pack, clear = packer(kind, lanes), clearer(lanes)

    @simd.kernel(SIGNATURE, name=f"conv_transpose2d.winograd.{kind}.{lanes}x{vectors}")
    def tiles(x, panels, bias, out, table, layout, tasks, scratch):
        """x (B, H, W, C) without gaps. layout's positions are tiles."""
        starts, room = table[layout.starts_at :], layout.images * layout.rows * layout.width
        here = starts[:1]  # one tap, zero words further than the row itself
        clear(scratch, 0, SUMS)
        task = simd.draw(tasks)
        while task >= 0:
            place = place_of(task, layout)
            size = (place[1] * place[3], place[5])
            count = size[0] * size[1]
            fill(place, x, layout, scratch)
            for block in range(layout.blocks_at, layout.blocks_at + BLOCK * layout.blocks, BLOCK):
                k, depth, jobs = table[block + 1], table[block + 2], (table[block + 3], table[block + 4])
                places = (layout.packed_at, SUMS)
                if k == 0:
                    sum_across(table[block], size, layout, scratch)
                pack(scratch, starts, here, layout.rows_at, (count, k, depth), layout.C, layout.packed_at)
                if k == 0:
                    multiply_fresh(scratch, places, (count, room, depth), panels, table, jobs)
                else:
                    multiply_more(scratch, places, (count, room, depth), panels, table, jobs)
            put(place, table, bias, out, layout, scratch)
            task = simd.draw(tasks)

    return tiles


def convolve(x: np.ndarray, weights: Packed, out: np.ndarray, epilogue: Epilogue) -> None:
    """out (B, OH, OW, O) = activation(bias + the transposed convolution of x (B, H, W, C))."""
    lanes, products, (rows, columns) = cpu().lanes, weights.data, (weights.rows, weights.columns)
    (B, H, W, C), O, bias, together = x.shape, weights.O, epilogue.bias, fits_one_vector(weights.O, rows, columns)
    fill_without_taps(out, rows, columns, epilogue)
    WIDE, stride = lanes if together else TILINGS[lanes].NR, columns.stride
    phases = list(itertools.product(rows.phases, columns.phases))
    if together:
        bias = bias_of_columns(bias, O, len(phases), lanes)
        out, phases, O, stride = deal_out(out, O, rows, columns, O)
    Jh, Jw = -(-rows.positions(H) // SIDE), -(-columns.positions(W) // SIDE)
    images, task_rows, width = cut(B, Jh, Jw, MOST)
    step, pixels, room = padded(C, LINE), SIDE * width + 2, images * task_rows * width
    places = np.where(products.offsets < 0, 0, SUMS + products.offsets * room * WIDE)
    parts = [products.table, places.reshape(-1), np.array(phases).reshape(-1), np.arange(room) * step]
    offsets_at, phases_at, starts_at, _ = np.cumsum([part.size for part in parts]).tolist()
    pixels_at = SUMS + products.columns * room * WIDE
    rows_at = pixels_at + images * task_rows * PRODUCTS * pixels * step
    packed_at = rows_at + room * max(step, SIDE * SIDE * lanes) + LINE
    layout = Layout(
        B=B, H=H, W=W, C=C, O=O, Jh=Jh, Jw=Jw, images=images, rows=task_rows, width=width, step=step, pixels=pixels,
        least_row=rows.window[0], least_column=columns.window[0], window_rows=0,
        stride_rows=rows.stride, stride_columns=stride, phases=len(phases), columns=0,
        blocks=products.blocks, blocks_at=products.blocks_at,
        offsets_at=offsets_at, phases_at=phases_at, starts_at=starts_at,
        pixels_at=pixels_at, packed_at=packed_at, rows_at=rows_at, activation=ACTIVATIONS[epilogue.activation],
    )  # fmt: skip
    words = packed_at + padded(room * products.depth, LINE) + lanes * lanes  # packed rows may end a vector too wide
    arrays = (x.reshape(-1), products.panels, bias, out, np.concatenate(parts), layout)
    launch(tile_kernel(kind_of(weights.dtype), lanes, together), *arrays, tasks=tasks_of(layout), words=words)
