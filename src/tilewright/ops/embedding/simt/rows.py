"""embedding in numba-cuda: out[i, c] = table[ids[i], c] + position_table[positions[i], c].

ids, positions: int32 or int64 (n,); an empty `positions` adds nothing. table: float32 (V, C). position_table: float32
(P, C). out: float32 (n, C). All are contiguous. An index outside its table gives NaN. Memory bandwidth is the limit: 4
bytes read and 4 written per element; rows of positions come from a cache.
"""

from numba import cuda, float32

from tilewright.ops.core.gpu.registers import load4, store4
from tilewright.ops.core.gpu.simt import inline, kernel, launch

THREADS, WARP = 256, 32
NAN = float32(float("nan"))


@inline
def element(table, row, c):
    """table[row, c], or NaN if there is no such row."""
    return table[row, c] if 0 <= row < table.shape[0] else NAN


@kernel
def naive(ids, table, positions, position_table, out):
    """One thread per element. It is the lowest rung: each thread divides to know its row, and neighbours load the same
    id."""
    at, C = cuda.grid(1), out.shape[1]
    if at < out.size:
        i, c = at // C, at % C
        value = element(table, ids[i], c)
        if positions.size:
            value += element(position_table, positions[i], c)
        out[i, c] = value


@kernel
def warps(ids, table, positions, position_table, out):
    """One warp per row: no division, and an id is loaded once. It is slow on rows of fewer than 32 elements: lanes
    idle."""
    i, lane = cuda.grid(1) // WARP, cuda.threadIdx.x % WARP
    if i < out.shape[0]:
        row, position = ids[i], positions[i] if positions.size else -1
        for c in range(lane, out.shape[1], WARP):
            value = element(table, row, c)
            if positions.size:
                value += element(position_table, position, c)
            out[i, c] = value


@inline
def elements4(table, row, c):
    """table[row, c:c + 4] as four values, or NaN if there is no such row."""
    return load4(table, row * table.shape[1] + c) if 0 <= row < table.shape[0] else (NAN, NAN, NAN, NAN)


@kernel
def vectors(ids, table, positions, position_table, out):
    """`warps` with loads and stores of 16 bytes; C is a multiple of four.

    It needs a quarter of the loads: 512 bytes per warp each. It is slow on rows of fewer than 128 elements, where lanes
    are idle.
    """
    i, lane, C = cuda.grid(1) // WARP, cuda.threadIdx.x % WARP, out.shape[1]
    if i < out.shape[0]:
        row, position = ids[i], positions[i] if positions.size else -1
        for c in range(4 * lane, C, 4 * WARP):
            p, q, r, s = elements4(table, row, c)
            if positions.size:
                w, y, z, v = elements4(position_table, position, c)
                p, q, r, s = p + w, q + y, r + z, s + v
            store4(out, i * C + c, (p, q, r, s))


KERNELS = {"naive": naive, "warps": warps, "vectors": vectors}


def run(ids, table, positional, out, *, kernel: str) -> None:
    """Launch a kernel on tensors. positional: (positions, position_table) or None. kernel: a key of KERNELS."""
    positions, position_table = positional or (ids[:0], table[:0])
    threads = out.numel() if kernel == "naive" else len(out) * WARP
    launch(KERNELS[kernel], -(-threads // THREADS), THREADS, (ids, table, positions, position_table, out))
