"""A cube of outputs per block, and one thread per element of the cube with its halo: each loads one element."""

import math
from functools import cache

from numba import cuda, float32

from tilewright.ops.conv3d.simt.border import source_index
from tilewright.ops.conv3d.simt.limits import Tile
from tilewright.ops.conv3d.simt.shared import corner_for
from tilewright.ops.core.gpu.simt import kernel


@cache
def cubes(tile: int, sizes: tuple[int, int, int]):
    """kernel(x, weights, out, first, mode, fill), arguments as of `naive`, for weights (O, C, *sizes).

    A block computes tile**3 outputs, and has (tile + KD - 1) * (tile + KH - 1) * (tile + KW - 1) threads. Tile and
    sizes are constants of the compiled kernel. Changes `naive` by shared memory: a block loads each element once for
    all windows over it. It is slow because most threads only load: with K = 3, 64 of 216 compute if tile is 4, and 1 of
    27 if it is 1.
    """
    extents = _, rows, columns = tuple(tile + K - 1 for K in sizes)
    (KD, KH, KW), elements, outputs = sizes, math.prod(extents), tile**3
    corner_of = corner_for(Tile(tile, tile, tile))

    @kernel
    def convolve(x, weights, out, first, mode, fill):
        cube, i, C = cuda.shared.array(elements, float32), cuda.threadIdx.x, x.shape[0]
        (o, plane, row, column), (above, before, left) = corner_of(out), first
        z = source_index(plane - above + i // (rows * columns), x.shape[1], mode)
        y = source_index(row - before + i // columns % rows, x.shape[2], mode)
        at = source_index(column - left + i % columns, x.shape[3], mode)
        plane, row, column = plane + i // (tile * tile), row + i // tile % tile, column + i % tile
        start = (i // (tile * tile) * rows + i // tile % tile) * columns + i % tile  # of this thread's window
        total = float32(0)
        for c in range(C):
            cube[i] = fill if z < 0 or y < 0 or at < 0 else x[c, z, y, at]
            cuda.syncthreads()
            if i < outputs:
                for a in range(KD):
                    for b in range(KH):
                        for t in range(KW):
                            total += weights[o, c, a, b, t] * cube[start + (a * rows + b) * columns + t]
            cuda.syncthreads()
        if i < outputs and plane < out.shape[1] and row < out.shape[2] and column < out.shape[3]:
            out[o, plane, row, column] = total

    return convolve
