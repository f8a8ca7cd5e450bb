"""Attention as kernels of their own: scores with the mask, softmax, values. Every score is written to memory."""

import math

import numpy as np
from numba import cuda, float32

from tilewright.ops.core.gpu.simt import SIMULATED, kernel
from tilewright.ops.core.gpu.warp import WARP, larger, over_warp, plus

TILE = 4 if SIMULATED else 16  # queries of a tile, and keys that a block scores; simulated threads are slow
LANES = 2 if SIMULATED else WARP  # of a warp
LOWEST, ZERO = float32(-np.inf), float32(0)
warp_sum, warp_largest = over_warp(plus, LANES), over_warp(larger, LANES)


@kernel
def score(q, keys, scores, tiles, scale, causal):
    """scores (tiles * TILE, heads, longest) = scale * q @ k.T, -inf where a key is masked: one thread per score.

    The mask is the product's epilogue. Loses because scores are written to memory and read back.
    """
    tile, head, t = cuda.blockIdx.x, cuda.blockIdx.y, cuda.blockIdx.z * TILE + cuda.threadIdx.x
    i = cuda.threadIdx.y
    slot, first, count, row, end = tiles[tile, 0], tiles[tile, 1], tiles[tile, 2], tiles[tile, 3], tiles[tile, 4]
    if i < count and t < end:
        D = keys.shape[3]
        total = ZERO
        for d in range(D):
            total += q[row + i, head * D + d] * keys[slot, head, t, d]
        scores[tile * TILE + i, head, t] = LOWEST if causal and t > first + i else total * scale


@kernel
def normalise(scores, tiles):
    """Softmax of each row in place: one warp per row, three passes over it."""
    tile, head, lane = cuda.blockIdx.x // TILE, cuda.blockIdx.y, cuda.threadIdx.x
    line = cuda.blockIdx.x
    if line % TILE < tiles[tile, 2]:
        end = tiles[tile, 4]
        top, weight = LOWEST, ZERO
        for t in range(lane, end, LANES):
            top = max(top, scores[line, head, t])
        top = warp_largest(top)
        for t in range(lane, end, LANES):
            share = math.exp(scores[line, head, t] - top)
            scores[line, head, t] = share
            weight += share
        weight = warp_sum(weight)
        for t in range(lane, end, LANES):
            scores[line, head, t] /= weight


@kernel
def weigh(scores, values, out, tiles, causal):
    """out = shares @ values: one thread per element of a head; a block computes TILE of them for TILE queries."""
    tile, head, d = cuda.blockIdx.x, cuda.blockIdx.y, cuda.blockIdx.z * TILE + cuda.threadIdx.x
    i, D = cuda.threadIdx.y, values.shape[3]
    slot, first, count, row, end = tiles[tile, 0], tiles[tile, 1], tiles[tile, 2], tiles[tile, 3], tiles[tile, 4]
    if d < D and count == 0 and i == 0:
        out[row, head * D + d] = ZERO
    if d < D and i < count:
        total = ZERO
        for t in range(min(first + i + 1, end) if causal else end):
            total += scores[tile * TILE + i, head, t] * values[slot, head, t, d]
        out[row + i, head * D + d] = total
