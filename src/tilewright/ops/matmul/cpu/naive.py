"""out (M, N) = activation(a (M, K) @ b (K, N) + residual + bias) in scalar loops: the effect of their order.

All are slower than `cpu.vectors` except on a few rows of a few dozen elements. The parameters of every kernel: a, b,
out; bias (N,) and residual (M, N), which may be empty, all float32; activation: a code of
`gemm.cpu.epilogue.ACTIVATIONS`.
"""

import numpy as np
from numba import types

from tilewright import simd
from tilewright.ops.gemm.cpu.epilogue import ACTIVATIONS, finish
from tilewright.ops.gemm.operands import Epilogue, Packed, Rows

SIGNATURE = types.void(simd.INPUT_2D, simd.INPUT_2D, simd.OUTPUT_2D, simd.INPUT, simd.INPUT_2D, types.int64)


@simd.kernel(SIGNATURE, name="matmul.memory")
def memory(a, b, out, bias, residual, activation):
    """out[i, j] is read, added to and written K times: three loads and one store per addition. It is slower than
    `reordered`, which has as many, but of vectors."""
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            out[i, j] = 0
            for p in range(a.shape[1]):
                out[i, j] += a[i, p] * b[p, j]
            out[i, j] = finish(out[i, j], i, j, bias, residual, activation)


@simd.kernel(SIGNATURE, name="matmul.register")
def register(a, b, out, bias, residual, activation):
    """The sum of one element stays in a register until it is complete. b is still read down a column, with stride N.

    That is the limit: it is little faster than `memory`, or slower (see the table of measurements).
    """
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            total = np.float32(0)
            for p in range(a.shape[1]):
                total += a[i, p] * b[p, j]
            out[i, j] = finish(total, i, j, bias, residual, activation)


@simd.inline
def add_rows(a, b, out):
    """out += a @ b; the inner loop runs along a row of b and of out, so the compiler vectorises it."""
    for i in range(out.shape[0]):
        for p in range(a.shape[1]):
            scale = a[i, p]
            for j in range(out.shape[1]):
                out[i, j] += scale * b[p, j]


@simd.inline
def finish_all(out, bias, residual, activation):
    """`finish` on every element of out."""
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            out[i, j] = finish(out[i, j], i, j, bias, residual, activation)


ROWS_SIGNATURE = types.void(simd.MATRIX, simd.MATRIX, simd.CONTIGUOUS, simd.INPUT, simd.INPUT_2D, types.int64)


@simd.kernel(ROWS_SIGNATURE, name="matmul.reordered")
def reordered(a, b, out, bias, residual, activation):
    """Loops i, p, j: both b and out are read along their rows, so whole cache lines are used and the compiler
    vectorises. It is slow where b is larger than a cache: each row of a reads all of it."""
    out[:] = 0
    add_rows(a, b, out)
    finish_all(out, bias, residual, activation)


DEPTH = 64  # rows of b in a block: 64 x 256 float32 are 64 KiB, which stay in L2 for all rows of a
COLUMNS = 256  # of a block: 1 KiB of a row of out stays in L1 for 64 steps


@simd.kernel(ROWS_SIGNATURE, name="matmul.blocked")
def blocked(a, b, out, bias, residual, activation):
    """The loops of `reordered` over blocks of b, which stay in cache for all rows of a. It is slow where a has few
    rows, where rows of b are short, and on Zen 5 (see the table of measurements)."""
    N, K = out.shape[1], a.shape[1]
    out[:] = 0
    for j in range(0, N, COLUMNS):
        width = min(COLUMNS, N - j)
        for p in range(0, K, DEPTH):
            depth = min(DEPTH, K - p)
            for i in range(out.shape[0]):
                target = out[i, j : j + width]
                for q in range(depth):
                    scale, row = a[i, p + q], b[p + q, j : j + width]
                    for c in range(width):
                        target[c] += scale * row[c]
    finish_all(out, bias, residual, activation)


LOOPS = {"memory": memory, "register": register, "reordered": reordered, "blocked": blocked}


def multiply(rows: Rows, weights: Packed, out: np.ndarray, epilogue: Epilogue, *, loops: str) -> None:
    """out (M, N) = activation(rows @ weights + residual + bias) by the kernel `LOOPS[loops]`.

    `reordered` and `blocked` take contiguous arrays, which the compiler can vectorise; other arrays are copied. All but
    `register` keep their sums in out, which then must not be the residual.
    """
    a, b, target = rows.plain(), weights.data, out
    if loops in ("reordered", "blocked"):
        a, b = np.ascontiguousarray(a), np.ascontiguousarray(b)
        target = out if out.flags.c_contiguous else np.empty(out.shape, np.float32)
    if loops != "register" and np.may_share_memory(target, epilogue.residual):
        target = np.empty(out.shape, np.float32)
    LOOPS[loops](a, b, target, epilogue.bias, epilogue.residual, ACTIVATIONS[epilogue.activation])
    if target is not out:
        out[...] = target
