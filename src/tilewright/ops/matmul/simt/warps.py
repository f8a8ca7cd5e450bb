"""128 x 128 of out in a block of 128 threads, 8 x 16 of it a thread, in tuples of registers.

A load of 16 bytes a thread takes four cycles of a multiprocessor's shared memory, in which it issues 16 multiply-adds
of warps. 8 x 8 a thread, 4 loads for 64, would keep both busy all the time, which they never are; 8 x 16 is 6 for 128.
b comes padded with zeros to whole tiles and a to whole DEPTHs, so that the loop over K asks nothing; rows of a past the
last are read as the last, and not written.
"""

from functools import cache

from numba import cuda, float32

from tilewright.ops.core.gpu.registers import ALIGNMENT, ZERO, add4, load, load4, rank1, store, store4
from tilewright.ops.core.gpu.simt import inline, kernel_of
from tilewright.ops.gemm.simt.epilogue import activation_for

TILE = 128  # of out, each way
DEPTH = 8  # of K: a tile of a or b is 4 KiB; with 16, the next tiles' registers would be missed
THREADS = 128
REGISTERS = 255  # a thread, the most there are: two blocks share a multiprocessor
PITCH = TILE + 4  # of a's tile, transposed: rows stay 16-byte aligned, and the threads that write meet in few banks
A_TILE, B_TILE = DEPTH * PITCH, DEPTH * TILE  # numbers in a tile
A_TILES, B_TILES = 2 * A_TILE, 2 * B_TILE  # where the next is loaded meanwhile
ZEROS = (ZERO,) * 128
CLOSE = (4, 4)  # rows, columns between the 4 x 4 of which a thread has 2 x 4: side by side
APART = (32, 16)  # or as far apart as a warp's threads reach


@inline
def shares(M, depth, width):
    """Where this thread's share of the first tiles begins: in two rows of a, and in b. depth, width: of their rows.

    Found once, before the loop: the compiler would not take it out.
    """
    thread, last = cuda.threadIdx.x, M - 1
    i, q = cuda.blockIdx.x * TILE + thread // 2, thread % 2 * 4
    return (
        min(i, last) * depth + q,
        min(i + 64, last) * depth + q,
        thread // 32 * width + cuda.blockIdx.y * TILE + thread % 32 * 4,
    )


@inline
def fetch(a, b, places, start, width):
    """This thread's share of the tiles from `start` on, two quads of a's rows and two of b's."""
    at = places[2] + start * width
    return (
        load4(a, places[0] + start),
        load4(a, places[1] + start),
        load4(b, at),
        load4(b, at + 4 * width),
    )


@inline
def stow_column(quad, tile, at):
    """A quad of a row as a column: a's tile is transposed."""
    store(tile, at, quad[0])
    store(tile, at + PITCH, quad[1])
    store(tile, at + 2 * PITCH, quad[2])
    store(tile, at + 3 * PITCH, quad[3])


@inline
def stow(quads, a_tile, a_at, b_tile, b_at):
    """Write what `fetch` gave into shared memory."""
    thread = cuda.threadIdx.x
    at = a_at + thread % 2 * 4 * PITCH + thread // 2
    stow_column(quads[0], a_tile, at)
    stow_column(quads[1], a_tile, at + 64)
    at = b_at + thread // 32 * TILE + thread % 32 * 4
    store4(b_tile, at, quads[2])
    store4(b_tile, at + 4 * TILE, quads[3])


@inline
def step(totals, a_tile, a_at, b_tile, b_at, spread):
    """totals + one column of a's tile x one row of b's, in quads `spread` apart."""
    down, right = spread
    column = load4(a_tile, a_at) + load4(a_tile, a_at + down)
    first = load4(b_tile, b_at) + load4(b_tile, b_at + right)
    second = load4(b_tile, b_at + 2 * right) + load4(b_tile, b_at + 3 * right)
    return rank1(totals, column, first + second)


@inline
def four_steps(totals, a_tile, a_at, b_tile, b_at, spread):
    """totals + four columns of a's tile x four rows of b's."""
    totals = step(totals, a_tile, a_at, b_tile, b_at, spread)
    totals = step(totals, a_tile, a_at + PITCH, b_tile, b_at + TILE, spread)
    totals = step(totals, a_tile, a_at + 2 * PITCH, b_tile, b_at + 2 * TILE, spread)
    return step(totals, a_tile, a_at + 3 * PITCH, b_tile, b_at + 3 * TILE, spread)


@inline
def multiply_tiles(totals, a_tile, a_at, b_tile, b_at, spread):
    """totals + the product of two tiles' parts, which begin at a_at and b_at. Unrolled by hand: the compiler would not,
    and would wait at the head of every round for the first loads of it."""
    totals = four_steps(totals, a_tile, a_at, b_tile, b_at, spread)
    return four_steps(totals, a_tile, a_at + 4 * PITCH, b_tile, b_at + 4 * TILE, spread)


@cache
def quad_writer(activation: str | None):
    """write_quad(values, out, i, j, bias, residual): four elements of a row, where out has such."""
    activate = activation_for(activation)

    @inline
    def write_one(value, out, at, j, bias, residual):
        if residual.size:
            value += load(residual, at)
        if bias.size:
            value += load(bias, j)
        store(out, at, activate(value))

    @inline
    def write_quad(values, out, i, j, bias, residual):
        M, N = out.shape
        at = i * N + j
        if N % 4 == 0 and i < M and j < N:
            if residual.size:
                values = add4(values, load4(residual, at))
            if bias.size:
                values = add4(values, load4(bias, j))
            store4(out, at, (activate(values[0]), activate(values[1]), activate(values[2]), activate(values[3])))
        elif i < M and j < N:
            write_one(values[0], out, at, j, bias, residual)
            if j + 1 < N:
                write_one(values[1], out, at + 1, j + 1, bias, residual)
            if j + 2 < N:
                write_one(values[2], out, at + 2, j + 2, bias, residual)
            if j + 3 < N:
                write_one(values[3], out, at + 3, j + 3, bias, residual)

    return write_quad


@cache
def _writer(activation: str | None):
    """write(totals, out, y, x, spread, bias, residual): a thread's 8 x 16, where out has such elements.

    Constant indices alone: a tuple that is indexed by a variable leaves the registers.
    """
    write_quad = quad_writer(activation)

    @inline
    def write_row(values, out, i, j, right, bias, residual):
        write_quad(values[0:4], out, i, j, bias, residual)
        write_quad(values[4:8], out, i, j + right, bias, residual)
        write_quad(values[8:12], out, i, j + 2 * right, bias, residual)
        write_quad(values[12:16], out, i, j + 3 * right, bias, residual)

    @inline
    def write(totals, out, y, x, spread, bias, residual):
        (down, right), i, j = spread, cuda.blockIdx.x * TILE + y, cuda.blockIdx.y * TILE + x
        write_row(totals[0:16], out, i, j, right, bias, residual)
        write_row(totals[16:32], out, i + 1, j, right, bias, residual)
        write_row(totals[32:48], out, i + 2, j, right, bias, residual)
        write_row(totals[48:64], out, i + 3, j, right, bias, residual)
        write_row(totals[64:80], out, i + down, j, right, bias, residual)
        write_row(totals[80:96], out, i + down + 1, j, right, bias, residual)
        write_row(totals[96:112], out, i + down + 2, j, right, bias, residual)
        write_row(totals[112:128], out, i + down + 3, j, right, bias, residual)

    return write


@cache
def vectors(activation: str | None):
    """kernel(a, b, out, bias, residual, depth, width) with 16 bytes a load, from device and from shared memory.

    A quarter of the load instructions. Loses on small outputs, of which a block is 128 x 128.
    """
    write = _writer(activation)

    @kernel_of(REGISTERS)
    def multiply(a, b, out, bias, residual, depth, width):
        a_tile = cuda.shared.array(A_TILE, float32, alignment=ALIGNMENT)
        b_tile = cuda.shared.array(B_TILE, float32, alignment=ALIGNMENT)
        y, x = cuda.threadIdx.x // 8 * 8, cuda.threadIdx.x % 8 * 16
        totals, places = ZEROS, shares(out.shape[0], depth, width)
        for start in range(0, depth, DEPTH):
            stow(fetch(a, b, places, start, width), a_tile, 0, b_tile, 0)
            cuda.syncthreads()
            totals = multiply_tiles(totals, a_tile, y, b_tile, x, CLOSE)
            cuda.syncthreads()
        write(totals, out, y, x, CLOSE, bias, residual)

    return multiply


@inline
def warp_place():
    """(row, column) of this thread's first 4 x 4 in the block's tile; the others are APART.

    A warp has 64 x 64 of the tile, its threads lie 8 x 4 in that: a load of 16 bytes a thread then reads 128 adjacent
    bytes of a's tile, or 64 of b's, and no two words of one bank.
    """
    warp, lane = cuda.threadIdx.x // 32, cuda.threadIdx.x % 32
    return warp // 2 * 64 + lane // 4 * 4, warp % 2 * 64 + lane % 4 * 4


@cache
def warps(activation: str | None):
    """kernel(a, b, out, bias, residual, depth, width), a tile of out 64 x 64 to a warp.

    Its threads' loads from shared memory meet in no bank. Loses where those loads were not the limit.
    """
    write = _writer(activation)

    @kernel_of(REGISTERS)
    def multiply(a, b, out, bias, residual, depth, width):
        a_tile = cuda.shared.array(A_TILE, float32, alignment=ALIGNMENT)
        b_tile = cuda.shared.array(B_TILE, float32, alignment=ALIGNMENT)
        y, x = warp_place()
        totals, places = ZEROS, shares(out.shape[0], depth, width)
        for start in range(0, depth, DEPTH):
            stow(fetch(a, b, places, start, width), a_tile, 0, b_tile, 0)
            cuda.syncthreads()
            totals = multiply_tiles(totals, a_tile, y, b_tile, x, APART)
            cuda.syncthreads()
        write(totals, out, y, x, APART, bias, residual)

    return multiply


@cache
def buffered(activation: str | None):
    """kernel(a, b, out, bias, residual, depth, width): the next tiles are on their way while these are multiplied.

    Two tiles of each in shared memory, and one barrier a step. Loses where more blocks would have hidden the wait.
    """
    write = _writer(activation)

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
            totals = multiply_tiles(totals, a_tile, now * A_TILE + y, b_tile, now * B_TILE + x, APART)
            now = 1 - now
            stow(quads, a_tile, now * A_TILE, b_tile, now * B_TILE)
            cuda.syncthreads()
        write(totals, out, y, x, APART, bias, residual)

    return multiply
