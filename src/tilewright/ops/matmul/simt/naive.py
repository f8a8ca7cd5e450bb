"""A thread an element of out: the sum in memory, then in a register, then with neighbours side by side."""

from functools import cache

from numba import cuda, float32

from tilewright.ops.core.gpu.simt import kernel
from tilewright.ops.gemm.simt.epilogue import finish_for

THREADS = 16  # each way: 256 threads a block


@cache
def memory(activation: str | None):
    """kernel(a, b, out, bias, residual). The sum lives in out, so each of K steps reads and writes device memory.

    The lowest rung. A warp's threads lie along a column: at each step they read 16 rows of a and write 16 of out.
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
    """kernel(a, b, out, bias, residual). The sum stays in a register, and is written once.

    Loses where the compiler does that to the rung below by itself, which it may not: out could share memory with a.
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
    """kernel(a, b, out, bias, residual). A warp's threads lie along a row: they read one number of a and adjacent
    numbers of b, which memory delivers together.

    Loses only where out is narrower than a warp.
    """
    finish = finish_for(activation)

    @kernel
    def multiply(a, b, out, bias, residual):
        i = cuda.blockIdx.x * THREADS + cuda.threadIdx.y
        j = cuda.blockIdx.y * THREADS + cuda.threadIdx.x
        if i < out.shape[0] and j < out.shape[1]:
            total = float32(0)
            for p in range(a.shape[1]):
                total += a[i, p] * b[p, j]
            out[i, j] = finish(total, i, j, bias, residual)

    return multiply
