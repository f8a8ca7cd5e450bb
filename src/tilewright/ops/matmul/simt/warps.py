"""out = activation(a @ b + residual + bias): 128 x 128 of out per block of 128 threads, 8 x 16 per thread.

Sums and operands are tuples of registers. A load of 16 bytes per thread takes four cycles of a multiprocessor's shared
memory, in which it issues 16 multiply-adds of warps. 8 x 8 per thread, 4 loads for 64, would need both busy all the
time, which they never are; 8 x 16 needs 6 loads for 128. b is padded with zeros to whole tiles and a to whole DEPTHs,
so the loop over K checks no bounds. Rows of a beyond the last are read as the last and not written.
The limit is the rate of multiply-adds.
"""

from functools import cache

from numba import cuda, float32

from tilewright.ops.core.gpu.registers import ALIGNMENT, ZERO, add4, load, load4, rank1, store, store4
from tilewright.ops.core.gpu.simt import inline, kernel_of
from tilewright.ops.gemm.simt.epilogue import activation_for

TILE = 128  # rows and columns of out per block
DEPTH = 8  # along K: a tile of a or b is 4 KiB; with 16, registers for the next tiles would be missing
THREADS = 128
REGISTERS = 255  # per thread, the maximum: two blocks share a multiprocessor
PITCH = TILE + 4  # row length of a's transposed tile: rows stay 16-byte aligned, writes have few bank conflicts
A_TILE, B_TILE = DEPTH * PITCH, DEPTH * TILE  # elements in a tile
A_TILES, B_TILES = 2 * A_TILE, 2 * B_TILE  # in two tiles: one is multiplied while the other is loaded
ZEROS = (ZERO,) * 128
ADJACENT = (4, 4)  # rows, columns from one 4 x 4 of a thread to the next; it has 2 x 4 of these
APART = (32, 16)  # the same, as far apart as the threads of a warp reach


@inline
def thread_offsets(M, depth, width):
    """Offsets of the first elements that this thread loads: in two rows of a, and in b. depth, width: of their rows.

    Computed once, before the loop: the compiler would not take it out.
    """
    thread, last = cuda.threadIdx.x, M - 1
    i, q = cuda.blockIdx.x * TILE + thread // 2, thread % 2 * 4
    return (
        min(i, last) * depth + q,
        min(i + 64, last) * depth + q,
        thread // 32 * width + cuda.blockIdx.y * TILE + thread % 32 * 4,
    )


@inline
def load_quads(a, b, offsets, start, width):
    """Elements of the tiles at step `start` of K that this thread loads: two quads of a's rows and two of b's."""
    first_row, second_row, b_offset = offsets
    at = b_offset + start * width
    return (
        load4(a, first_row + start),
        load4(a, second_row + start),
        load4(b, at),
        load4(b, at + 4 * width),
    )


@inline
def store_column(quad, tile, at):
    """Store a quad of a row as a column: a's tile is transposed."""
    x, y, z, w = quad
    store(tile, at, x)
    store(tile, at + PITCH, y)
    store(tile, at + 2 * PITCH, z)
    store(tile, at + 3 * PITCH, w)


@inline
def store_quads(quads, a_tile, a_at, b_tile, b_at):
    """Store what `load_quads` returned in shared memory."""
    a_first, a_second, b_first, b_second = quads
    thread = cuda.threadIdx.x
    at = a_at + thread % 2 * 4 * PITCH + thread // 2
    store_column(a_first, a_tile, at)
    store_column(a_second, a_tile, at + 64)
    at = b_at + thread // 32 * TILE + thread % 32 * 4
    store4(b_tile, at, b_first)
    store4(b_tile, at + 4 * TILE, b_second)


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
    """totals + the product of the parts of two tiles at offsets a_at and b_at. Unrolled by hand: the compiler would
    not, and would wait at the head of every iteration for its first loads."""
    totals = four_steps(totals, a_tile, a_at, b_tile, b_at, spread)
    return four_steps(totals, a_tile, a_at + 4 * PITCH, b_tile, b_at + 4 * TILE, spread)


@inline
def add_first(quad, array, at, count):
    """quad + the first `count` elements of an array from offset `at`."""
    x, y, z, w = quad
    x += load(array, at)
    if count > 1:
        y += load(array, at + 1)
    if count > 2:
        z += load(array, at + 2)
    if count > 3:
        w += load(array, at + 3)
    return x, y, z, w


@inline
def store_first(array, at, quad, count):
    """Store the first `count` elements of a quad."""
    x, y, z, w = quad
    store(array, at, x)
    if count > 1:
        store(array, at + 1, y)
    if count > 2:
        store(array, at + 2, z)
    if count > 3:
        store(array, at + 3, w)


@cache
def _writer(activation: str | None):
    """write(totals, out, y, x, spread, bias, residual): finish and store the 8 x 16 of a thread, where out has them.

    Constant indices only: a tuple that is indexed by a variable leaves the registers.
    """
    activate = activation_for(activation)

    @inline
    def activate4(quad):
        x, y, z, w = quad
        return activate(x), activate(y), activate(z), activate(w)

    @inline
    def write_quad(quad, out, i, j, bias, residual):
        M, N = out.shape
        at, count = i * N + j, N - j
        if N % 4 == 0 and i < M and j < N:
            if residual.size:
                quad = add4(quad, load4(residual, at))
            if bias.size:
                quad = add4(quad, load4(bias, j))
            store4(out, at, activate4(quad))
        elif i < M and j < N:
            if residual.size:
                quad = add_first(quad, residual, at, count)
            if bias.size:
                quad = add_first(quad, bias, j, count)
            store_first(out, at, activate4(quad), count)

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


def _single(activation: str | None, corner, spread: tuple[int, int]):
    """kernel(a, b, out, bias, residual, depth, width) with one tile of a and one of b in shared memory.

    corner(): (row, column) of this thread's first 4 x 4 in the block's tile; the others are `spread` apart. a: (M,
    depth), b: (depth, width), padded.
    """
    write = _writer(activation)

    @kernel_of(REGISTERS)
    def multiply(a, b, out, bias, residual, depth, width):
        a_tile = cuda.shared.array(A_TILE, float32, alignment=ALIGNMENT)
        b_tile = cuda.shared.array(B_TILE, float32, alignment=ALIGNMENT)
        y, x = corner()
        totals, offsets = ZEROS, thread_offsets(out.shape[0], depth, width)
        for start in range(0, depth, DEPTH):
            store_quads(load_quads(a, b, offsets, start, width), a_tile, 0, b_tile, 0)
            cuda.syncthreads()
            totals = multiply_tiles(totals, a_tile, y, b_tile, x, spread)
            cuda.syncthreads()
        write(totals, out, y, x, spread, bias, residual)

    return multiply


@inline
def adjacent_corner():
    """The 8 x 16 of a thread are adjacent."""
    return cuda.threadIdx.x // 8 * 8, cuda.threadIdx.x % 8 * 16


@cache
def vectors(activation: str | None):
    """The kernel of `_single` with 16 bytes per load, from device memory and from shared memory.

    A quarter of the load instructions of `blocks.outer`. It is slow on small outputs: a block computes 128 x 128.
    """
    return _single(activation, adjacent_corner, ADJACENT)


@inline
def warp_corner():
    """A warp has 64 x 64 of the tile, and its threads are 8 x 4 in that: a load of 16 bytes per thread reads 128
    adjacent bytes of a's tile, or 64 of b's, without bank conflicts."""
    warp, lane = cuda.threadIdx.x // 32, cuda.threadIdx.x % 32
    return warp // 2 * 64 + lane // 4 * 4, warp % 2 * 64 + lane % 4 * 4


@cache
def warps(activation: str | None):
    """The kernel of `_single` with a 64 x 64 tile of out per warp.

    Loads from shared memory have no bank conflicts. It gains nothing over `vectors` where those loads are not the
    limit.
    """
    return _single(activation, warp_corner, APART)


@cache
def buffered(activation: str | None):
    """kernel(a, b, out, bias, residual, depth, width) as `warps`: the next tiles are loaded while these are multiplied.

    Two tiles of each operand in shared memory, and one barrier per step. It is slow where more blocks per
    multiprocessor would have hidden the latency.
    """
    write = _writer(activation)

    @kernel_of(REGISTERS)
    def multiply(a, b, out, bias, residual, depth, width):
        a_tile = cuda.shared.array(A_TILES, float32, alignment=ALIGNMENT)
        b_tile = cuda.shared.array(B_TILES, float32, alignment=ALIGNMENT)
        y, x = warp_corner()
        totals, offsets, now = ZEROS, thread_offsets(out.shape[0], depth, width), 0
        if depth > 0:
            store_quads(load_quads(a, b, offsets, 0, width), a_tile, 0, b_tile, 0)
        cuda.syncthreads()
        for start in range(0, depth, DEPTH):
            following = min(start + DEPTH, depth - DEPTH)  # the last step loads its own tiles again, unused
            quads = load_quads(a, b, offsets, following, width)
            totals = multiply_tiles(totals, a_tile, now * A_TILE + y, b_tile, now * B_TILE + x, APART)
            now = 1 - now
            store_quads(quads, a_tile, now * A_TILE, b_tile, now * B_TILE)
            cuda.syncthreads()
        write(totals, out, y, x, APART, bias, residual)

    return multiply
