"""out = activation(a @ b + residual + bias) with a tile of a and one of b in shared memory.

A block loads each tile from device memory once; all its threads read it. The limit is then shared memory: two loads for
each multiply-add.
"""

from functools import cache

from numba import cuda, float32

from tilewright.ops.core.gpu.simt import kernel
from tilewright.ops.gemm.simt.epilogue import finish_for


@cache
def shared(activation: str | None, tile: int):
    """kernel(a, b, out, bias, residual) on tile x tile threads. It reads the length of its loops from the block, so
    the compiler does not know it.

    Each thread loads one element of each tile, then multiplies T pairs from shared memory: the device memory traffic is
    a T-th of `naive.coalesced`'s. It is slow where K is small: a tile costs two barriers.
    """
    finish = finish_for(activation)

    @kernel
    def multiply(a, b, out, bias, residual):
        a_tile = cuda.shared.array((tile, tile), float32)
        b_tile = cuda.shared.array((tile, tile), float32)
        T, y, x = cuda.blockDim.x, cuda.threadIdx.y, cuda.threadIdx.x
        i, j = cuda.blockIdx.x * T + y, cuda.blockIdx.y * T + x
        M, N, K = out.shape[0], out.shape[1], a.shape[1]
        total = float32(0)
        for start in range(0, K, T):
            a_tile[y, x] = a[i, start + x] if i < M and start + x < K else float32(0)
            b_tile[y, x] = b[start + y, j] if start + y < K and j < N else float32(0)
            cuda.syncthreads()
            for p in range(T):
                total += a_tile[y, p] * b_tile[p, x]
            cuda.syncthreads()
        if i < M and j < N:
            out[i, j] = finish(total, i, j, bias, residual)

    return multiply


@cache
def unrolled(activation: str | None, tile: int):
    """kernel(a, b, out, bias, residual) on tile x tile threads: a constant, so the compiler unrolls the inner loop.

    The loop counter is gone, and addresses in shared memory become constant offsets. The only cost is code size.
    """
    finish, T = finish_for(activation), tile

    @kernel
    def multiply(a, b, out, bias, residual):
        a_tile = cuda.shared.array((T, T), float32)
        b_tile = cuda.shared.array((T, T), float32)
        y, x = cuda.threadIdx.y, cuda.threadIdx.x
        i, j = cuda.blockIdx.x * T + y, cuda.blockIdx.y * T + x
        M, N, K = out.shape[0], out.shape[1], a.shape[1]
        total = float32(0)
        for start in range(0, K, T):
            a_tile[y, x] = a[i, start + x] if i < M and start + x < K else float32(0)
            b_tile[y, x] = b[start + y, j] if start + y < K and j < N else float32(0)
            cuda.syncthreads()
            for p in range(T):
                total += a_tile[y, p] * b_tile[p, x]
            cuda.syncthreads()
        if i < M and j < N:
            out[i, j] = finish(total, i, j, bias, residual)

    return multiply
