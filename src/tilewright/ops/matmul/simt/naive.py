"""out = activation(a @ b + residual + bias) with one thread per element of out.

The sum is kept in memory, then in a register; then the threads of a warp read adjacent elements. The limit is memory
traffic: each thread reads a row of a and a column of b, with no reuse but the caches'. The shape of a block is an
argument of the launch, so all shapes run the same machine code.
"""

from functools import cache

from numba import cuda, float32

from tilewright.ops.core.gpu.simt import kernel
from tilewright.ops.gemm.simt.epilogue import finish_for


@cache
def memory(activation: str | None):
    """kernel(a, b, out, bias, residual). The sum is kept in out, so each of K steps reads and writes device memory.

    The lowest rung. The threads of a warp run along a column: each step reads 16 rows of a and writes 16 of out.
    """
    finish = finish_for(activation)

    @kernel
    def multiply(a, b, out, bias, residual):
        i, j = cuda.grid(2)
        if i < out.shape[0] and j < out.shape[1]:
            out[i, j] = 0
            for p in range(a.shape[1]):
                out[i, j] += a[i, p] * b[p, j]
            out[i, j] = finish(out[i, j], i, j, bias, residual)

    return multiply


@cache
def register(activation: str | None):
    """kernel(a, b, out, bias, residual). The sum stays in a register and is written once.

    The compiler may not do this to `memory` by itself, since out could share memory with a. It is never slower than
    `memory`.
    """
    finish = finish_for(activation)

    @kernel
    def multiply(a, b, out, bias, residual):
        i, j = cuda.grid(2)
        if i < out.shape[0] and j < out.shape[1]:
            total = float32(0)
            for p in range(a.shape[1]):
                total += a[i, p] * b[p, j]
            out[i, j] = finish(total, i, j, bias, residual)

    return multiply


@cache
def coalesced(activation: str | None):
    """kernel(a, b, out, bias, residual). The threads of a warp run along a row: they read one element of a and
    adjacent elements of b, which one memory transaction delivers.

    It is slower than `register` only where out is narrower than a warp.
    """
    finish = finish_for(activation)

    @kernel
    def multiply(a, b, out, bias, residual):
        i = cuda.blockIdx.x * cuda.blockDim.y + cuda.threadIdx.y
        j = cuda.blockIdx.y * cuda.blockDim.x + cuda.threadIdx.x
        if i < out.shape[0] and j < out.shape[1]:
            total = float32(0)
            for p in range(a.shape[1]):
                total += a[i, p] * b[p, j]
            out[i, j] = finish(total, i, j, bias, residual)

    return multiply
