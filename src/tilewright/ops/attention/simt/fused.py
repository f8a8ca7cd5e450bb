"""One kernel: a warp has a query, its threads the numbers of the head; scores live in registers, one at a time."""

import math
from functools import cache

from numba import cuda, float32

from tilewright.ops.attention.simt.unfused import LANES, LOWEST, ZERO, warp_sum
from tilewright.ops.core.gpu.simt import SIMULATED, kernel

WARPS = 1 if SIMULATED else 4  # of a block; warps meet nowhere, but in the simulator each would wait for the others


@cache
def fused(D: int):
    """kernel(q, keys, values, out, tiles, scale, causal) for heads of D numbers.

    The running maximum rescales the sums whenever a larger score comes. Keys are read once a query, and a score costs
    five exchanges between threads: loses to blocks of queries, which share both.
    """
    SHARE = -(-D // LANES)

    @kernel
    def look(q, keys, values, out, tiles, scale, causal):
        tile, head, lane = cuda.blockIdx.x, cuda.blockIdx.y, cuda.threadIdx.x
        slot, first, count, row, end = tiles[tile, 0], tiles[tile, 1], tiles[tile, 2], tiles[tile, 3], tiles[tile, 4]
        query = cuda.local.array(SHARE, float32)
        sums = cuda.local.array(SHARE, float32)
        for i in range(cuda.threadIdx.y, count, WARPS):
            for j in range(SHARE):
                d = lane + j * LANES
                query[j] = q[row + i, head * D + d] * scale if d < D else ZERO
                sums[j] = ZERO
            top, weight = LOWEST, ZERO
            for t in range(first + i + 1 if causal else end):
                part = ZERO
                for j in range(SHARE):
                    if lane + j * LANES < D:
                        part += query[j] * keys[slot, head, t, lane + j * LANES]
                score = warp_sum(part)
                peak = max(top, score)
                shrunk, share = math.exp(top - peak), math.exp(score - peak)
                weight = weight * shrunk + share
                for j in range(SHARE):
                    if lane + j * LANES < D:
                        sums[j] = sums[j] * shrunk + share * values[slot, head, t, lane + j * LANES]
                top = peak
            for j in range(SHARE):
                if lane + j * LANES < D:
                    out[row + i, head * D + lane + j * LANES] = sums[j] / weight
        if count == 0 and cuda.threadIdx.y == 0:
            for d in range(lane, D, LANES):
                out[row, head * D + d] = ZERO

    return look
