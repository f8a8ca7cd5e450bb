"""Rows of a table: a thread a number, a warp a row, and a warp with loads of 16 bytes.

Positions may be empty: none are added.
"""

from numba import cuda, float32

from tilewright.ops.core.gpu.registers import load4, store4
from tilewright.ops.core.gpu.simt import inline, kernel, launch

THREADS, WARP = 256, 32
NAN = float32(float("nan"))


@inline
def picked(table, row, c):
    """table[row, c], or NaN where there is no such row."""
    return table[row, c] if 0 <= row < table.shape[0] else NAN


@kernel
def naive(ids, table, positions, position_table, out):
    """A thread a number. The lowest rung: every thread divides to know its row, and loads the same id as the next."""
    at, C = cuda.grid(1), out.shape[1]
    if at < out.size:
        i, c = at // C, at % C
        number = picked(table, ids[i], c)
        if positions.size:
            number += picked(position_table, positions[i], c)
        out[i, c] = number


@kernel
def warps(ids, table, positions, position_table, out):
    """A warp a row: no division, an id loaded once. Loses where a row has fewer than 32 numbers, and lanes are idle."""
    i, lane = cuda.grid(1) // WARP, cuda.threadIdx.x % WARP
    if i < out.shape[0]:
        row, place = ids[i], positions[i] if positions.size else -1
        for c in range(lane, out.shape[1], WARP):
            number = picked(table, row, c)
            if positions.size:
                number += picked(position_table, place, c)
            out[i, c] = number


@inline
def picked4(table, row, c):
    """Four numbers of table[row] from c on, or NaN where there is no such row."""
    return load4(table, row * table.shape[1] + c) if 0 <= row < table.shape[0] else (NAN, NAN, NAN, NAN)


@kernel
def vectors(ids, table, positions, position_table, out):
    """A warp a row, four numbers a load; C is a multiple of four.

    A quarter of the loads, each of 512 bytes a warp. Loses on rows of fewer than 128 numbers, where lanes have nothing.
    """
    i, lane, C = cuda.grid(1) // WARP, cuda.threadIdx.x % WARP, out.shape[1]
    if i < out.shape[0]:
        row, place = ids[i], positions[i] if positions.size else -1
        for c in range(4 * lane, C, 4 * WARP):
            p, q, r, s = picked4(table, row, c)
            if positions.size:
                w, y, z, v = picked4(position_table, place, c)
                p, q, r, s = p + w, q + y, r + z, s + v
            store4(out, i * C + c, (p, q, r, s))


KERNELS = {"naive": naive, "warps": warps, "vectors": vectors}


def run(ids, table, places, out, *, kernel: str) -> None:
    """out (n, C) = table[ids], and position_table[positions] added where places has both. kernel: a key of KERNELS."""
    positions, position_table = places or (ids[:0], table[:0])
    threads = out.numel() if kernel == "naive" else len(out) * WARP
    launch(KERNELS[kernel], -(-threads // THREADS), THREADS, (ids, table, positions, position_table, out))
