"""Starts the SIMT kernels on torch tensors: on the current stream of a GPU, or in numba-cuda's simulator on the CPU."""

import math

import numpy as np
import torch

from tilewright.errors import Refused, UsageError
from tilewright.ops.conv3d.operands import Packed, Window
from tilewright.ops.conv3d.simt import cubes, naive, shared
from tilewright.ops.conv3d.simt.border import CODES, CONSTANT
from tilewright.ops.conv3d.simt.forms import QUAD, ColumnForm, Form
from tilewright.ops.conv3d.simt.limits import MOST_PLANES, MOST_TAPS, TILE, March, Tile, cube_refusal, halo_bytes
from tilewright.ops.conv3d.simt.march import march
from tilewright.ops.conv3d.simt.separable import separable
from tilewright.ops.core.gpu.limits import SHARED_LIMIT
from tilewright.ops.core.gpu.simt import launch
from tilewright.ops.core.gpu.tensors import multiprocessors

LANES, THREADS = 16, 128  # marching blocks: 16 quads of a row, and 8 threads down
TILES = (4, 16, 3), (4, 8, 3), (4, 8, 2)  # of `separable`: rows per thread, quads per row, planes in shared memory
REGISTERS, CORES = 65536, 128  # of a multiprocessor
LATENCY = 1700  # cycles that a block waits per plane, for loads and barriers; fitted to times of an H100
FUSED = 17  # taps along z whose sums fit in a thread's registers
STRAIGHT = 1400  # multiply-adds in a loop: K 7 took 1.8 ms with 1,372 on an H200 and 2.5 with 2,744 (512^3)
MOST_A_PLANE = 2**31 - 1  # elements: offsets have 32 bits
LINES = 65535  # blocks along a grid's second axis


def on_device(weights: Packed, device):
    """The weights (O, C, KD, KH, KW) as a tensor."""
    return torch.from_numpy(weights.weights).to(device)


def as_constants(weights: Packed, device) -> tuple:
    """The weights as a tuple of float32, passed as parameters of each launch."""
    return tuple(weights.weights.ravel())


def convolve_naive(x, weights: Packed, out, window: Window) -> None:
    """out (O, D, H, W) of x (C, ...), float32 on one device, one thread per output."""
    grid, border = -(-out.numel() // naive.THREADS), (CODES[window.mode], window.cval)
    launch(naive.naive, grid, naive.THREADS, (x, weights.data, out), window.first, *border)


def convolve_cubes(x, weights: Packed, out, window: Window, *, tile: int) -> None:
    """As `convolve_naive`, tile**3 outputs per block, which has one thread per element of the tile with its halo.

    Raises Refused if these are more threads than a block may have.
    """
    if why := cube_refusal(weights.sizes, tile):
        raise Refused(f"conv3d.simt.cubes: {why}")
    kernel, border = cubes.cubes(tile, weights.sizes), (CODES[window.mode], window.cval)
    threads = math.prod(tile + K - 1 for K in weights.sizes)
    launch(kernel, _tiles(out, Tile(tile, tile, tile)), threads, (x, weights.data, out), window.first, *border)


def convolve_shared(x, weights: Packed, out, window: Window) -> None:
    """As `convolve_naive`, one tile of outputs per block."""
    nbytes, border = halo_bytes(weights.sizes), (CODES[window.mode], window.cval)
    arrays = (x, weights.data, out)
    launch(shared.shared, _tiles(out, TILE), shared.THREADS, arrays, window.first, *border, shared=nbytes)


def convolve_constant(x, weights: Packed, out, window: Window) -> None:
    """As `convolve_shared`, with weights from `as_constants`."""
    kernel, border = shared.constant(weights.sizes), (CODES[window.mode], window.cval)
    launch(kernel, _tiles(out, TILE), shared.THREADS, (x, out), weights.data, window.first, *border)


def _tiles(out, tile: Tile) -> int:
    """How many tiles cover out (O, D, H, W)."""
    return len(out) * math.prod(-(-extent // step) for extent, step in zip(out.shape[1:], tile, strict=True))


def parts_of(weights: Packed, device=None) -> list[tuple[int, tuple]]:
    """The weights in parts that `march` accepts: (first plane, its planes as a flat tuple) of each."""
    KD, KH, KW = weights.sizes
    parts = -(-KD // min(MOST_PLANES, MOST_TAPS // (KH * KW)))
    step, planes = -(-KD // parts), weights.weights.reshape(KD, KH * KW)
    return [(first, tuple(planes[first : first + step].ravel())) for first in range(0, KD, step)]


def march_in_parts(x, weights: Packed, out, window: Window) -> None:
    """out (1, D, H, W) of x (1, ...) by `march`, one launch per part of the weights; each after the first adds to
    out."""
    KH, KW = weights.sizes[1:]
    for first, taps in weights.data:
        here = Window((window.first[0] - first, *window.first[1:]), window.mode, window.cval)
        form = form_for((len(taps) // (KH * KW), KH, KW), here, adds=first > 0)
        march_on(march, form, (x.squeeze(0), out.squeeze(0)), taps, here)


def form_for(sizes: tuple[int, int, int], window: Window, *, adds: bool = False) -> Form:
    """The form of `march` for these sizes: the most rows whose loop fits in the instruction cache."""
    KD, _, _ = sizes
    fitting = [rows for rows in (4, 2, 1) if rows * QUAD * math.prod(sizes) <= STRAIGHT and rows * KD <= 14]
    rows = max(fitting, default=1)
    sums = KD * rows * QUAD
    return Form(sizes, -window.first[2] % QUAD, rows, LANES, THREADS, 96 if sums <= 28 else 128, adds)


def convolve_separably(x, weights: Packed, out, window: Window) -> None:
    """out (1, D, H, W) of x (1, ...): three passes fused, or a separate pass along z if that needs too many
    registers."""
    (KD, KH, KW), x, out = weights.sizes, x.squeeze(0), out.squeeze(0)
    if KD <= FUSED:
        march_on(separable, separable_form(weights.sizes, window), (x, out), weights.data[0], window)
        return
    between = x.new_empty(out.shape[0] + KD - 1, *out.shape[1:])
    march_on(separable, separable_form((1, KH, KW), window), (x, between), weights.data[1], window)
    along = Window((0, 0, 0), "valid", window.cval)
    form = Form((KD, 1, 1), 0, 1, LANES, THREADS, 255)
    march_on(march, form, (between, out), weights.data[2], along)


def factors_of(weights: Packed, device=None) -> list[tuple]:
    """For `convolve_separably`: tuples of all three factors, of (1, wy, wx), and of wz."""
    wz, wy, wx = weights.factors
    one = np.ones(1, np.float32)
    return [tuple(np.concatenate(vectors)) for vectors in ((wz, wy, wx), (one, wy, wx), (wz,))]


def separable_form(sizes: tuple[int, int, int], window: Window) -> ColumnForm:
    """The form of `separable` for factors of these sizes: the first tile that fits in shared memory.

    Many sums need many registers, and then blocks of fewer threads fill a multiprocessor better.
    """
    (KD, _, _), lead = sizes, -window.first[2] % QUAD
    if KD <= 9:
        threads, registers, tiles = 256, 80 if max(sizes) <= 17 else 96, TILES
    else:
        threads, registers, tiles = 128, 128 if KD <= 13 else 168, TILES[1:]
    forms = [ColumnForm(sizes, lead, rows, lanes, threads, registers, stages=stages) for rows, lanes, stages in tiles]
    return next((form for form in forms if form.shared <= SHARED_LIMIT), forms[-1])


def march_on(create, form: Form, arrays: tuple, weights: tuple, window: Window) -> None:
    """arrays: x and out (D, H, W). create: `march` or `separable`; chunks of planes keep all multiprocessors busy.

    If rows have no whole number of quads, or x is not aligned to 16 bytes, x is copied with its border.
    """
    (x, out), mode, before = arrays, CODES[window.mode], window.first[2] + form.lead
    row_mode = mode
    if x.shape[2] % QUAD or x.data_ptr() % (4 * QUAD):
        x = widened(x, before, out.shape[2] + form.lead + form.sizes[2] - 1, window)
        row_mode, before = CONSTANT, 0
    if x.shape[1] * x.shape[2] > MOST_A_PLANE:
        raise UsageError(
            f"conv3d: a plane has {x.shape[1]} x {x.shape[2]} elements, over 2**31 - 1; use rung simt.naive"
        )
    across, down = -(-out.shape[2] // form.tile[1]), -(-out.shape[1] // form.tile[0])
    planes = chunk(form, across * down, out.shape[0])
    z, y, _ = window.first
    job, grid = March(z, y, before, planes, mode, row_mode), (across * down, -(-out.shape[0] // planes))
    launch(create(form), grid, form.threads, (x, out), weights, job, window.cval)


def widened(x, before: int, width: int, window: Window):
    """x (D, H, W) with its border in rows of `width` elements, rounded up to quads; `before` elements precede each
    row."""
    wide = x.new_empty(*x.shape[:2], -(-width // QUAD) * QUAD)
    border = CODES[window.mode], window.cval
    launch(naive.widen, len(x) * x.shape[1], naive.ROW_THREADS, (x, wide), before, *border)
    return wide


def chunk(form: Form, tiles: int, planes: int) -> int:
    """Planes of out per block, for the least estimated time. Blocks that exceed the slots run in further waves.

    The blocks of a multiprocessor share its arithmetic, but not the time that each of them waits for loads.
    """
    count, halo, best, cost = multiprocessors(), form.sizes[0] - 1, planes, float("inf")
    slots, cycles = max(1, REGISTERS // (form.registers * form.threads)), form.work * form.threads // CORES
    for pieces in range(1, min(planes, 64) + 1):
        length = -(-planes // pieces)
        blocks = tiles * -(-planes // length)
        waves, together = -(-blocks // (count * slots)), min(slots, -(-blocks // count))
        estimate = waves * (length + halo) * math.hypot(together * cycles, LATENCY)
        if estimate < cost:
            best, cost = length, estimate
    return max(best, -(-planes // LINES))
