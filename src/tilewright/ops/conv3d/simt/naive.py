"""One thread per output: it loads every element under its window from device memory or a cache."""

from numba import cuda, float32

from tilewright.ops.conv3d.simt.border import source_index
from tilewright.ops.core.gpu.simt import kernel

THREADS = 256
ROW_THREADS = 128  # threads per block of `widen`, which copy one row


@kernel
def naive(x, weights, out, first, mode, fill):
    """out (O, planes, height, width) of x (C, D, H, W) and weights (O, C, KD, KH, KW); adjacent threads along x.

    first: elements from a window's start to its output, along planes, rows and columns. mode: a code of `border.CODES`.
    fill: float32, the border's value in mode "constant". It is the lowest rung. The limit is loads from the caches:
    each multiply-add loads an element and a weight.
    """
    O, C, KD, KH, KW = weights.shape
    _, planes, height, width = out.shape
    _, D, H, W = x.shape
    above, before, left = first
    i = cuda.grid(1)
    if i >= out.size:
        return
    column, row, plane, o = i % width, i // width % height, i // (width * height) % planes, i // (out.size // O)
    total = float32(0)
    for c in range(C):
        for a in range(KD):
            z = source_index(plane + a - above, D, mode)
            for b in range(KH):
                y = source_index(row + b - before, H, mode)
                for t in range(KW):
                    at = source_index(column + t - left, W, mode)
                    value = fill if z < 0 or y < 0 or at < 0 else x[c, z, y, at]
                    total += weights[o, c, a, b, t] * value
    out[o, plane, row, column] = total


@kernel
def widen(x, wide, first, mode, fill):
    """wide (D, H, P) = x (D, H, W) with its border before and after each row; one block per row.

    first: border elements before each row. mode, fill: as in `naive`. The marching kernels use it: they load 16 bytes
    at a time, so their rows must start at multiples of 16 bytes.
    """
    plane, row = cuda.blockIdx.x // x.shape[1], cuda.blockIdx.x % x.shape[1]
    for i in range(cuda.threadIdx.x, wide.shape[2], ROW_THREADS):
        at = source_index(i - first, x.shape[2], mode)
        wide[plane, row, i] = fill if at < 0 else x[plane, row, at]
