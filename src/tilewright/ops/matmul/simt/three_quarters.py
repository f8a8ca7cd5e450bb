"""128 x 96 of out in a block of 128 threads, 8 x 12 of it a thread: three quarters of what `warps.buffered` has.

Blocks are worked on in turns, two a multiprocessor, and the last turn may be nearly empty: of 8192 x 768, 384 blocks
of 128 columns take two turns of 264, and 512 of 96 columns take two shorter ones. A tile of b is 192 quads; the upper
half of the threads load theirs twice, which costs less than to ask.
"""

from functools import cache

from numba import cuda, float32

from tilewright.ops._simt import inline, kernel_of
from tilewright.ops.matmul.simt.registers import ALIGNMENT, ZERO, load4, rank1, store4
from tilewright.ops.matmul.simt.warps import (
    A_TILE,
    A_TILES,
    DEPTH,
    PITCH,
    REGISTERS,
    THREADS,
    TILE,
    quad_writer,
    stow_column,
)

COLUMNS = 96  # of a block's part of out
QUADS = COLUMNS // 4  # of a row of b's tile
B_TILE = DEPTH * COLUMNS  # numbers in a tile
B_TILES = 2 * B_TILE
ZEROS = (ZERO,) * 96
DOWN, RIGHT = 32, 16  # rows, columns between the 4 x 4 of which a thread has 2 x 3


@inline
def second(thread):
    """The second quad of b's tile that a thread loads: one of the last third, or its first again."""
    return thread + THREADS if thread < DEPTH * QUADS - THREADS else thread


@inline
def shares(M, depth, width):
    """Where this thread's share of the first tiles begins: in two rows of a, and twice in b. depth, width: of rows."""
    thread, last, left = cuda.threadIdx.x, M - 1, cuda.blockIdx.y * COLUMNS
    i, q, other = cuda.blockIdx.x * TILE + thread // 2, thread % 2 * 4, second(thread)
    return (
        min(i, last) * depth + q,
        min(i + 64, last) * depth + q,
        thread // QUADS * width + left + thread % QUADS * 4,
        other // QUADS * width + left + other % QUADS * 4,
    )


@inline
def fetch(a, b, places, start, width):
    """This thread's share of the tiles from `start` on."""
    down = start * width
    return (
        load4(a, places[0] + start),
        load4(a, places[1] + start),
        load4(b, places[2] + down),
        load4(b, places[3] + down),
    )


@inline
def stow(quads, a_tile, a_at, b_tile, b_at):
    """Write what `fetch` gave into shared memory."""
    thread = cuda.threadIdx.x
    at = a_at + thread % 2 * 4 * PITCH + thread // 2
    stow_column(quads[0], a_tile, at)
    stow_column(quads[1], a_tile, at + 64)
    store4(b_tile, b_at + thread * 4, quads[2])
    store4(b_tile, b_at + second(thread) * 4, quads[3])


@inline
def step(totals, a_tile, a_at, b_tile, b_at):
    """totals + one column of a's tile x one row of b's."""
    column = load4(a_tile, a_at) + load4(a_tile, a_at + DOWN)
    row = load4(b_tile, b_at) + load4(b_tile, b_at + RIGHT) + load4(b_tile, b_at + 2 * RIGHT)
    return rank1(totals, column, row)


@inline
def multiply_tiles(totals, a_tile, a_at, b_tile, b_at):
    """totals + the product of two tiles' parts, which begin at a_at and b_at: unrolled by hand, as in `warps`."""
    totals = step(totals, a_tile, a_at, b_tile, b_at)
    totals = step(totals, a_tile, a_at + PITCH, b_tile, b_at + COLUMNS)
    totals = step(totals, a_tile, a_at + 2 * PITCH, b_tile, b_at + 2 * COLUMNS)
    totals = step(totals, a_tile, a_at + 3 * PITCH, b_tile, b_at + 3 * COLUMNS)
    totals = step(totals, a_tile, a_at + 4 * PITCH, b_tile, b_at + 4 * COLUMNS)
    totals = step(totals, a_tile, a_at + 5 * PITCH, b_tile, b_at + 5 * COLUMNS)
    totals = step(totals, a_tile, a_at + 6 * PITCH, b_tile, b_at + 6 * COLUMNS)
    return step(totals, a_tile, a_at + 7 * PITCH, b_tile, b_at + 7 * COLUMNS)


@inline
def warp_place():
    """(row, column) of this thread's first 4 x 4 in the block's tile: a warp has 64 x 48, its threads lie 8 x 4."""
    warp, lane = cuda.threadIdx.x // 32, cuda.threadIdx.x % 32
    return warp // 2 * 64 + lane // 4 * 4, warp % 2 * 48 + lane % 4 * 4


@cache
def buffered(activation: str | None):
    """kernel(a, b, out, bias, residual, depth, width) as `warps.buffered`; b's rows are whole tiles of 96."""
    write_quad = quad_writer(activation)

    @inline
    def write_row(values, out, i, j, bias, residual):
        write_quad(values[0:4], out, i, j, bias, residual)
        write_quad(values[4:8], out, i, j + RIGHT, bias, residual)
        write_quad(values[8:12], out, i, j + 2 * RIGHT, bias, residual)

    @kernel_of(REGISTERS)
    def multiply(a, b, out, bias, residual, depth, width):
        a_tile = cuda.shared.array(A_TILES, float32, alignment=ALIGNMENT)
        b_tile = cuda.shared.array(B_TILES, float32, alignment=ALIGNMENT)
        y, x = warp_place()
        totals, places, now = ZEROS, shares(out.shape[0], depth, width), 0
        if depth > 0:
            stow(fetch(a, b, places, 0, width), a_tile, 0, b_tile, 0)
        cuda.syncthreads()
        for start in range(0, depth, DEPTH):
            following = min(start + DEPTH, depth - DEPTH)  # after the last, the last again: it is not used
            quads = fetch(a, b, places, following, width)
            totals = multiply_tiles(totals, a_tile, now * A_TILE + y, b_tile, now * B_TILE + x)
            now = 1 - now
            stow(quads, a_tile, now * A_TILE, b_tile, now * B_TILE)
            cuda.syncthreads()
        i, j = cuda.blockIdx.x * TILE + y, cuda.blockIdx.y * COLUMNS + x
        write_row(totals[0:12], out, i, j, bias, residual)
        write_row(totals[12:24], out, i + 1, j, bias, residual)
        write_row(totals[24:36], out, i + 2, j, bias, residual)
        write_row(totals[36:48], out, i + 3, j, bias, residual)
        write_row(totals[48:60], out, i + DOWN, j, bias, residual)
        write_row(totals[60:72], out, i + DOWN + 1, j, bias, residual)
        write_row(totals[72:84], out, i + DOWN + 2, j, bias, residual)
        write_row(totals[84:96], out, i + DOWN + 3, j, bias, residual)

    return multiply
