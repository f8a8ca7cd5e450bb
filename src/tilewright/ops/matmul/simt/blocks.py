"""out = activation(a @ b + residual + bias) with several elements per thread.

An element that is loaded from shared memory into a register is used several times. That lowers the limit of `shared`,
the loads from shared memory per multiply-add.
"""

from functools import cache

from numba import cuda, float32

from tilewright.ops.core.gpu.simt import kernel
from tilewright.ops.gemm.simt.epilogue import finish_for

STRIP_DEPTH = 8  # elements of K per step of `strip`, the same for every tile, so that a sweep changes one thing
TILE, DEPTH, BLOCK = 64, 8, 8  # a tile of out, 64 x 64, on 64 threads with 8 x 8 elements each
PITCH = TILE + 1  # row length of a's transposed tile: the column that a warp writes has no bank conflicts


@cache
def strip(activation: str | None, tile: int, wpt: int):
    """kernel(a, b, out, bias, residual) on tile * tile / wpt threads: each has a strip of wpt elements of one column.

    An element of b in a register is multiplied by wpt of a: for wpt = 8, 9 loads from shared memory for 8
    multiply-adds, not 16. It is slow on small outputs: a block computes tile x tile.
    """
    finish, depth = finish_for(activation), STRIP_DEPTH
    threads, count = tile * tile // wpt, tile * depth  # of a block; elements of a tile of a or b
    loads, even = -(-count // threads), count % threads == 0  # elements of each that a thread loads

    @kernel
    def multiply(a, b, out, bias, residual):
        a_tile = cuda.shared.array((tile, depth), float32)
        b_tile = cuda.shared.array((depth, tile), float32)
        M, N, K = out.shape[0], out.shape[1], a.shape[1]
        thread = cuda.threadIdx.x
        top, left = cuda.blockIdx.x * tile, cuda.blockIdx.y * tile
        y, x = thread // tile * wpt, thread % tile  # first element of the strip
        totals = cuda.local.array(wpt, float32)
        for r in range(wpt):
            totals[r] = 0
        for start in range(0, K, depth):
            for load in range(loads):
                e = thread + load * threads
                if even or e < count:
                    ay, ax, by, bx = e // depth, e % depth, e // tile, e % tile
                    inside = top + ay < M and start + ax < K
                    a_tile[ay, ax] = a[top + ay, start + ax] if inside else float32(0)
                    inside = start + by < K and left + bx < N
                    b_tile[by, bx] = b[start + by, left + bx] if inside else float32(0)
            cuda.syncthreads()
            for p in range(depth):
                right = b_tile[p, x]
                for r in range(wpt):
                    totals[r] += a_tile[y + r, p] * right
            cuda.syncthreads()
        for r in range(wpt):
            if top + y + r < M and left + x < N:
                out[top + y + r, left + x] = finish(totals[r], top + y + r, left + x, bias, residual)

    return multiply


@cache
def registers(activation: str | None, T: int, V: int):
    """kernel(a, b, out, bias, residual) on T * V threads for T x T V of out: each thread has T sums of one column.

    An element of b goes from device memory straight to a register of the one thread that uses it; only a's tile, T x T
    and transposed, is in shared memory, and all threads read the same element of it at once. It is slow where the
    outputs are few, and with a small T, which reads b M / T times. Source: Volkov and Demmel, "Benchmarking GPUs to
    tune dense linear algebra", 2008.
    """
    finish, threads, count, pitch = finish_for(activation), T * V, T * T, T + 1  # a pitch without bank conflicts
    loads, even = -(-count // threads), count % threads == 0  # elements of a's tile that a thread loads

    @kernel
    def multiply(a, b, out, bias, residual):
        a_tile = cuda.shared.array((T, pitch), float32)
        M, N, K = out.shape[0], out.shape[1], a.shape[1]
        thread = cuda.threadIdx.x
        top, j = cuda.blockIdx.x * T, cuda.blockIdx.y * threads + thread
        totals = cuda.local.array(T, float32)
        for r in range(T):
            totals[r] = 0
        for start in range(0, K, T):
            for load in range(loads):
                e = thread + load * threads
                if even or e < count:
                    i, q = e // T, e % T
                    a_tile[q, i] = a[top + i, start + q] if top + i < M and start + q < K else float32(0)
            cuda.syncthreads()
            for p in range(T):
                right = b[start + p, j] if start + p < K and j < N else float32(0)
                for r in range(T):
                    totals[r] += a_tile[p, r] * right
            cuda.syncthreads()
        for r in range(T):
            if top + r < M and j < N:
                out[top + r, j] = finish(totals[r], top + r, j, bias, residual)

    return multiply


@cache
def outer(activation: str | None):
    """kernel(a, b, out, bias, residual) on 64 threads: each has a block of 8 x 8, sums of outer products.

    8 + 8 loads for 64 multiply-adds. a's tile is transposed in shared memory, so a step reads 8 adjacent elements of
    each tile. It is slow on small outputs: 64 sums per thread leave few threads to hide latency.
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
