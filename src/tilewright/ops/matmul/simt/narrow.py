"""out = activation(a @ b + residual + bias) for few columns: one warp per four rows of out, its threads share K."""

from functools import cache

from numba import cuda, float32

from tilewright.ops.core.gpu.simt import SIMULATED, kernel
from tilewright.ops.core.gpu.warp import WARP, warp_sum
from tilewright.ops.gemm.simt.epilogue import finish_for

THREADS = WARP if SIMULATED else 4 * WARP  # per block
ROWS = 4  # per warp: an element of b in a register is multiplied by four of a
TILE = THREADS // WARP * ROWS  # rows per block


@cache
def narrow(activation: str | None, N: int):
    """kernel(a, b, out, bias, residual) for out (M, N); b is transposed, (N, K).

    A thread takes every 32nd element along K, so a warp reads 128 adjacent bytes of each row. Its 4 x N sums stay in
    registers; the warp adds them by shuffles. The limit is reading a, once. It is slower than tiles where 4 x N sums
    exceed the registers.
    """
    finish = finish_for(activation)

    @kernel
    def multiply(a, b, out, bias, residual):
        M, K = a.shape
        lane, top = cuda.threadIdx.x % WARP, cuda.blockIdx.x * TILE + cuda.threadIdx.x // WARP * ROWS
        totals, column = cuda.local.array((ROWS, N), float32), cuda.local.array(ROWS, float32)
        for r in range(ROWS):
            for j in range(N):
                totals[r, j] = 0
        for p in range(lane, K, WARP):
            for r in range(ROWS):
                column[r] = a[min(top + r, M - 1), p]
            for j in range(N):
                for r in range(ROWS):
                    totals[r, j] += column[r] * b[j, p]
        for r in range(ROWS):
            for j in range(N):
                total = warp_sum(totals[r, j])
                if lane == j and top + r < M:
                    out[top + r, j] = finish(total, top + r, j, bias, residual)

    return multiply
