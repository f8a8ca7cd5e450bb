"""out = softmax(scale * q @ k.T) @ v in one kernel: one warp per query and head, its threads across D.

One score at a time stays in registers. Against `unfused` no score is written to memory. Keys are read once per query,
and a score takes five exchanges between threads; these are the limit. It is slower than blocks of queries, which share
both.
"""

import math
from functools import cache

from numba import cuda, float32

from tilewright.ops.attention.simt.unfused import LANES, LOWEST, ZERO, warp_sum
from tilewright.ops.core.gpu.simt import SIMULATED, kernel

WARPS = (
    1 if SIMULATED else 4
)  # of a block of threads; warps do not synchronise, but the simulator would make each wait for the others


@cache
def fused(D: int):
    """The kernel for head dimension D. A larger score rescales the sums (running maximum)."""
    PER_THREAD = -(-D // LANES)

    @kernel
    def attend(q, keys, values, out, tiles, scale, causal):
        """q, out: rows (rows, heads * D). keys, values: the cache (slots, heads, length, D). tiles: int32 (n, 5), see
        the package. scale: factor of the scores. causal: a query attends to no later position."""
        tile, head, lane = cuda.blockIdx.x, cuda.blockIdx.y, cuda.threadIdx.x
        slot, first, count, row, end = tiles[tile, 0], tiles[tile, 1], tiles[tile, 2], tiles[tile, 3], tiles[tile, 4]
        query = cuda.local.array(PER_THREAD, float32)
        sums = cuda.local.array(PER_THREAD, float32)
        for i in range(cuda.threadIdx.y, count, WARPS):
            for j in range(PER_THREAD):
                d = lane + j * LANES
                query[j] = q[row + i, head * D + d] * scale if d < D else ZERO
                sums[j] = ZERO
            maximum, total = LOWEST, ZERO
            for t in range(first + i + 1 if causal else end):
                part = ZERO
                for j in range(PER_THREAD):
                    if lane + j * LANES < D:
                        part += query[j] * keys[slot, head, t, lane + j * LANES]
                score = warp_sum(part)
                larger = max(maximum, score)
                rescale, weight = math.exp(maximum - larger), math.exp(score - larger)
                total = total * rescale + weight
                for j in range(PER_THREAD):
                    if lane + j * LANES < D:
                        sums[j] = sums[j] * rescale + weight * values[slot, head, t, lane + j * LANES]
                maximum = larger
            for j in range(PER_THREAD):
                if lane + j * LANES < D:
                    out[row + i, head * D + lane + j * LANES] = sums[j] / total
        if count == 0 and cuda.threadIdx.y == 0:
            for d in range(lane, D, LANES):
                out[row, head * D + d] = ZERO

    return attend
