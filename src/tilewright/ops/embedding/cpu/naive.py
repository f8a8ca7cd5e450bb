"""embedding, one element after the other: out[i, c] = table[ids[i], c]. This is the lowest rung."""

from numba import types

from tilewright import simd


@simd.kernel(types.void(simd.INDICES, simd.INPUT_2D, simd.OUTPUT_2D), name="embedding.naive")
def gather(ids, table, out):
    """ids: int64 (n,). table: float32 (V, C). out: float32 (n, C)."""
    for i in range(ids.size):
        for c in range(table.shape[1]):
            out[i, c] = table[ids[i], c]
