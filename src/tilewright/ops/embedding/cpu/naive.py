"""One number after the other."""

from numba import types

from tilewright import simd


@simd.kernel(types.void(simd.INDICES, simd.INPUT_2D, simd.OUTPUT_2D), name="embedding.naive")
def gather(ids, table, out):
    """out[i] = table[ids[i]]."""
    for i in range(ids.size):
        for c in range(table.shape[1]):
            out[i, c] = table[ids[i], c]
