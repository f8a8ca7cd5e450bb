"""A block's outputs and their halo in shared memory: a number is loaded once, and read by all windows over it."""

from functools import cache

from numba import cuda, float32

from tilewright.ops.conv3d.simt.border import place
from tilewright.ops.conv3d.simt.limits import TILE
from tilewright.ops.conv3d.simt.window import taps_for
from tilewright.ops.core.gpu.simt import inline, kernel

THREADS = TILE[::-1]


@inline
def gather(x, tile, corner, extents, mode, fill):
    """Fill the tile, of these extents, with what stands from position `corner` of x (D, H, W) on."""
    for i in range(cuda.threadIdx.z, extents[0], TILE[0]):
        z = place(corner[0] + i, x.shape[0], mode)
        for j in range(cuda.threadIdx.y, extents[1], TILE[1]):
            y, start = place(corner[1] + j, x.shape[1], mode), (i * extents[1] + j) * extents[2]
            for k in range(cuda.threadIdx.x, extents[2], TILE[2]):
                at = place(corner[2] + k, x.shape[2], mode)
                tile[start + k] = fill if z < 0 or y < 0 or at < 0 else x[z, y, at]


@inline
def corner_of(out):
    """(o, plane, row, column) of the block's first output."""
    across, down = (out.shape[3] + TILE[2] - 1) // TILE[2], (out.shape[2] + TILE[1] - 1) // TILE[1]
    layers, block = (out.shape[1] + TILE[0] - 1) // TILE[0], cuda.blockIdx.x
    plane, row = block // (across * down) % layers * TILE[0], block // across % down * TILE[1]
    return block // (across * down * layers), plane, row, block % across * TILE[2]


@inline
def put(out, o, plane, row, column, total):
    """Write this thread's output, if out has it; plane, row, column: the block's first."""
    plane, row, column = plane + cuda.threadIdx.z, row + cuda.threadIdx.y, column + cuda.threadIdx.x
    if plane < out.shape[1] and row < out.shape[2] and column < out.shape[3]:
        out[o, plane, row, column] = total


@inline
def place_in(extents):
    """Where this thread's window begins in a tile of these extents."""
    return (cuda.threadIdx.z * extents[1] + cuda.threadIdx.y) * extents[2] + cuda.threadIdx.x


@kernel
def shared(x, weights, out, first, mode, fill):
    """As `naive`, from a tile in shared memory, whose size the launch gives.

    (TILE + K - 1)**3 loads a block from device memory, for K**3 an output from shared memory. Loses on volumes smaller
    than a tile.
    """
    tile = cuda.shared.array(0, float32)
    C, KD, KH, KW = weights.shape[1:]
    o, plane, row, column = corner_of(out)
    extents = (TILE[0] + KD - 1, TILE[1] + KH - 1, TILE[2] + KW - 1)
    at, total = place_in(extents), float32(0)
    for c in range(C):
        gather(x[c], tile, (plane - first[0], row - first[1], column - first[2]), extents, mode, fill)
        cuda.syncthreads()
        for a in range(KD):
            for b in range(KH):
                start = at + (a * extents[1] + b) * extents[2]
                for t in range(KW):
                    total += weights[o, c, a, b, t] * tile[start + t]
        cuda.syncthreads()
    put(out, o, plane, row, column, total)


@cache
def constant(sizes: tuple[int, int, int]):
    """kernel(x (1, D, H, W), out (1, ...), weights, first, mode, fill): weights a tuple of a kernel of these sizes.

    Parameters of a kernel lie in constant memory: a multiply-add takes one from there as it takes a register, and the
    loops over taps are unrolled. Loses the first time: a kernel is compiled for each size.
    """
    extents = tuple(tile + K - 1 for tile, K in zip(TILE, sizes, strict=True))
    numbers, taps = extents[0] * extents[1] * extents[2], taps_for(sizes, extents)

    @kernel
    def convolve(x, out, weights, first, mode, fill):
        tile = cuda.shared.array(numbers, float32)
        _, plane, row, column = corner_of(out)
        gather(x[0], tile, (plane - first[0], row - first[1], column - first[2]), extents, mode, fill)
        cuda.syncthreads()
        put(out, 0, plane, row, column, taps(tile, place_in(extents), weights))

    return convolve
