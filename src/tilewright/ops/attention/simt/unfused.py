"""Attention as three kernels: scores = scale * q @ k.T with the mask, softmax, weights @ v. `append` runs before them.

Every score is written to memory and read back, so memory bandwidth is the limit. It is slower than `fused` for that
reason. Parameters: q, out: rows (rows, heads * D). keys, values: the cache (slots, heads, length, D). scores: float32
(tiles * TILE, heads, longest sequence). tiles: int32 (n, 5), see the package.
"""

import math

import numpy as np
from numba import cuda, float32

from tilewright.ops.core.gpu.simt import SIMULATED, kernel
from tilewright.ops.core.gpu.warp import WARP, larger, over_warp, plus

TILE = 4 if SIMULATED else 16  # queries of a tile, and keys that a block scores; simulated threads are slow
LANES = 2 if SIMULATED else WARP  # lanes of a warp
LOWEST, ZERO = float32(-np.inf), float32(0)
warp_sum, warp_largest = over_warp(plus, LANES), over_warp(larger, LANES)


@kernel
def score(q, keys, scores, tiles, scale, causal):
    """scores = scale * q @ k.T, -inf where a key is masked: one thread per score. The mask is the epilogue of the
    product. causal: a query attends to no later position."""
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
        largest, total = LOWEST, ZERO
        for t in range(lane, end, LANES):
            largest = max(largest, scores[line, head, t])
        largest = warp_largest(largest)
        for t in range(lane, end, LANES):
            weight = math.exp(scores[line, head, t] - largest)
            scores[line, head, t] = weight
            total += weight
        total = warp_sum(total)
        for t in range(lane, end, LANES):
            scores[line, head, t] /= total


@kernel
def weigh(scores, values, out, tiles, causal):
    """out = weights @ values: one thread per element of a head; a block computes TILE elements of TILE queries."""
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
