"""Writing keys and values into the cache, from rows of a batch or from another slot."""

from numba import cuda

from tilewright.ops.core.gpu.simt import SIMULATED, kernel

THREADS = 4 if SIMULATED else 64


@kernel
def append(k, v, keys, values, pieces):
    """Pieces (n, 4) of positions (slot, first, count, row): a block a head of a piece."""
    piece, head, D = cuda.blockIdx.x, cuda.blockIdx.y, keys.shape[3]
    slot, first, count, row = pieces[piece, 0], pieces[piece, 1], pieces[piece, 2], pieces[piece, 3]
    for at in range(cuda.threadIdx.x, count * D, THREADS):
        i, d = at // D, at % D
        if row >= 0:
            keys[slot, head, first + i, d] = k[row + i, head * D + d]
            values[slot, head, first + i, d] = v[row + i, head * D + d]
        else:
            keys[slot, head, first + i, d] = keys[-1 - row, head, first + i, d]
            values[slot, head, first + i, d] = values[-1 - row, head, first + i, d]
