"""Append to the cache: keys[slot, head, first + i] = k[row + i, head], values likewise, or a copy from another slot.

Every byte is read once and written once: memory bandwidth limits long pieces, the launch short ones.
"""

from numba import cuda

from tilewright.ops.core.gpu.simt import SIMULATED, kernel

THREADS = 4 if SIMULATED else 64


@kernel
def append(k, v, keys, values, pieces):
    """One block of THREADS threads per head of a piece; the grid is (n, heads).

    k, v: new rows (rows, heads * D). keys, values: the cache (slots, heads, length, D), of k's dtype. pieces: int32
    (n, 4), a slot, first position, count and row each. row = -1 - s copies the same positions of slot s instead; no
    other piece of the launch writes these.
    """
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
