"""out = activation(a @ b + residual + bias) with a tile of a and one of b in shared memory.

A block loads each tile from device memory once; all its threads read it. The limit is then shared memory: two loads for
each multiply-add.
"""

from functools import cache

from numba import cuda, float32

from tilewright.ops.core.gpu.simt import kernel
from tilewright.ops.gemm.simt.epilogue import finish_for

LARGEST = 32  # rows and columns of threads: 1024 is the maximum of a block


@cache
def shared(activation: str | None):
    """kernel(a, b, out, bias, residual) on T x T threads; T is the size of the block, known at run time.

    Each thread loads one element of each tile, then multiplies T pairs from shared memory: the device memory traffic is
    a T-th of `naive.coalesced`'s. Loses where K is small: a tile costs two barriers.
    """
    finish = finish_for(activation)

    @kernel
    def multiply(a, b, out, bias, residual):
        a_tile = cuda.shared.array((LARGEST, LARGEST), float32)
        b_tile = cuda.shared.array((LARGEST, LARGEST), float32)
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
def unrolled(activation: str | None):
    """kernel(a, b, out, bias, residual) on 32 x 32 threads: a constant, so the compiler unrolls the inner loop.

    The loop counter is gone, and addresses in shared memory become constant offsets. Costs only code size.
    """
    finish, T = finish_for(activation), LARGEST

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
