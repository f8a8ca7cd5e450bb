"""out = activation(a @ b + residual + bias) with several elements per thread.

An element that is loaded from shared memory into a register is used several times. That lowers the limit of `shared`,
the loads from shared memory per multiply-add.
"""

from functools import cache

from numba import cuda, float32

from tilewright.ops.core.gpu.simt import kernel
from tilewright.ops.gemm.simt.epilogue import finish_for

STRIP_TILE, STRIP_DEPTH, STRIP = 64, 8, 8  # a tile of out, 64 x 64, on 512 threads with 8 elements of a column each
TILE, DEPTH, BLOCK = 64, 8, 8  # a tile of out, 64 x 64, on 64 threads with 8 x 8 elements each
PITCH = TILE + 1  # row length of a's transposed tile: the column that a warp writes has no bank conflicts


@cache
def strip(activation: str | None):
    """kernel(a, b, out, bias, residual) on 512 threads: each has a strip of 8 elements of one column.

    An element of b in a register is multiplied by 8 of a: 9 loads from shared memory for 8 multiply-adds, not 16. Loses
    on small outputs: a block computes 64 x 64.
    """
    finish = finish_for(activation)

    @kernel
    def multiply(a, b, out, bias, residual):
        a_tile = cuda.shared.array((STRIP_TILE, STRIP_DEPTH), float32)
        b_tile = cuda.shared.array((STRIP_DEPTH, STRIP_TILE), float32)
        M, N, K = out.shape[0], out.shape[1], a.shape[1]
        thread = cuda.threadIdx.x
        top, left = cuda.blockIdx.x * STRIP_TILE, cuda.blockIdx.y * STRIP_TILE
        y, x = thread // STRIP_TILE * STRIP, thread % STRIP_TILE  # first element of the strip
        ay, ax = thread // STRIP_DEPTH, thread % STRIP_DEPTH  # what this thread loads
        by, bx = thread // STRIP_TILE, thread % STRIP_TILE
        totals = cuda.local.array(STRIP, float32)
        for r in range(STRIP):
            totals[r] = 0
        for start in range(0, K, STRIP_DEPTH):
            inside = top + ay < M and start + ax < K
            a_tile[ay, ax] = a[top + ay, start + ax] if inside else float32(0)
            inside = start + by < K and left + bx < N
            b_tile[by, bx] = b[start + by, left + bx] if inside else float32(0)
            cuda.syncthreads()
            for p in range(STRIP_DEPTH):
                right = b_tile[p, x]
                for r in range(STRIP):
                    totals[r] += a_tile[y + r, p] * right
            cuda.syncthreads()
        for r in range(STRIP):
            if top + y + r < M and left + x < N:
                out[top + y + r, left + x] = finish(totals[r], top + y + r, left + x, bias, residual)

    return multiply


@cache
def outer(activation: str | None):
    """kernel(a, b, out, bias, residual) on 64 threads: each has a block of 8 x 8, sums of outer products.

    8 + 8 loads for 64 multiply-adds. a's tile is transposed in shared memory, so a step reads 8 adjacent elements of
    each tile. Loses on small outputs: 64 sums per thread leave few threads to hide latency.
    """
    finish = finish_for(activation)

    @kernel
    def multiply(a, b, out, bias, residual):
        a_tile = cuda.shared.array((DEPTH, PITCH), float32)
        b_tile = cuda.shared.array((DEPTH, TILE), float32)
        M, N, K = out.shape[0], out.shape[1], a.shape[1]
        thread = cuda.threadIdx.x
        top, left = cuda.blockIdx.x * TILE, cuda.blockIdx.y * TILE
        y, x = thread // 8 * BLOCK, thread % 8 * BLOCK
        totals = cuda.local.array((BLOCK, BLOCK), float32)
        column, row = cuda.local.array(BLOCK, float32), cuda.local.array(BLOCK, float32)
        for r in range(BLOCK):
            for c in range(BLOCK):
                totals[r, c] = 0
        for start in range(0, K, DEPTH):
            for p in range(DEPTH):
                i, q = p * 8 + thread // 8, thread % 8
                a_tile[q, i] = a[top + i, start + q] if top + i < M and start + q < K else float32(0)
                b_tile[p, thread] = b[start + p, left + thread] if start + p < K and left + thread < N else float32(0)
            cuda.syncthreads()
            for p in range(DEPTH):
                for r in range(BLOCK):
                    column[r], row[r] = a_tile[p, y + r], b_tile[p, x + r]
                for r in range(BLOCK):
                    for c in range(BLOCK):
                        totals[r, c] += column[r] * row[c]
            cuda.syncthreads()
        for r in range(BLOCK):
            for c in range(BLOCK):
                i, j = top + y + r, left + x + c
                if i < M and j < N:
                    out[i, j] = finish(totals[r, c], i, j, bias, residual)

    return multiply
