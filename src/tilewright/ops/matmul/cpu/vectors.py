"""out = activation(a @ b + residual + bias) with explicit vectors and nothing packed.

Four rows of out, two vectors wide, stay in registers along all of K. Each loaded vector of b serves four rows, and each
broadcast element a[i, p] serves two vectors. It is slower than `cpu.packed`: every four rows of a read b with stride N,
a new page every few steps. Eight accumulators are also too few to hide the latency of an FMA.
"""

import functools

import numpy as np
from numba import types

from tilewright import simd
from tilewright.hardware import cpu
from tilewright.ops.gemm.cpu.epilogue import ACTIVATIONS, finish
from tilewright.ops.gemm.operands import Epilogue, Packed, Rows


@functools.cache
def vector_kernel(lanes: int):
    """The kernel for a vector width."""

    @simd.inline
    def strip(a, b, out, i, j):
        """out[i : i + 4, j : j + 2 * lanes]; rows beyond M repeat the last one, columns beyond N are not written."""
        (K, N), last = b.shape, out.shape[0] - 1
        left, zero = N - j, simd.zeros(lanes)
        row0, row1, row2, row3 = i * K, min(i + 1, last) * K, min(i + 2, last) * K, min(i + 3, last) * K
        a0, a1, b0, b1, c0, c1, d0, d1 = zero, zero, zero, zero, zero, zero, zero, zero
        for p in range(K):
            low = simd.load_first(b, p * N + j, left, lanes)
            high = simd.load_first(b, p * N + j + lanes, left - lanes, lanes)
            scale = simd.broadcast(a, row0 + p, lanes)
            a0, a1 = simd.fma(scale, low, a0), simd.fma(scale, high, a1)
            scale = simd.broadcast(a, row1 + p, lanes)
            b0, b1 = simd.fma(scale, low, b0), simd.fma(scale, high, b1)
            scale = simd.broadcast(a, row2 + p, lanes)
            c0, c1 = simd.fma(scale, low, c0), simd.fma(scale, high, c1)
            scale = simd.broadcast(a, row3 + p, lanes)
            d0, d1 = simd.fma(scale, low, d0), simd.fma(scale, high, d1)
        put(out, i, j, a0, a1)
        put(out, min(i + 1, last), j, b0, b1)
        put(out, min(i + 2, last), j, c0, c1)
        put(out, min(i + 3, last), j, d0, d1)

    @simd.inline
    def put(out, i, j, low, high):
        """Store two vectors in row i from column j."""
        at, left = i * (out.strides[0] // 4) + j, out.shape[1] - j
        simd.store_first(out, at, low, left)
        simd.store_first(out, at + lanes, high, left - lanes)

    signature = types.void(simd.MATRIX, simd.MATRIX, simd.OUTPUT_2D, simd.INPUT, simd.INPUT_2D, types.int64)

    @simd.kernel(signature, name=f"matmul.vectors.{lanes}")
    def product(a, b, out, bias, residual, activation):
        """Parameters as for the kernels of `naive`."""
        M, N = out.shape
        for j in range(0, N, 2 * lanes):
            for i in range(0, M, 4):
                strip(a, b, out, i, j)
        for i in range(M):
            for j in range(N):
                out[i, j] = finish(out[i, j], i, j, bias, residual, activation)

    return product


def multiply(rows: Rows, weights: Packed, out: np.ndarray, epilogue: Epilogue) -> None:
    """out (M, N) = activation(rows @ weights + residual + bias); operands are copied unless they are row-major.

    The products are in out before the residual is added, which then must not be out.
    """
    a, b = np.ascontiguousarray(rows.plain()), np.ascontiguousarray(weights.data)
    target = np.empty_like(out) if np.may_share_memory(out, epilogue.residual) else out
    kernel = vector_kernel(cpu().lanes)
    kernel(a, b, target, epilogue.bias, epilogue.residual, ACTIVATIONS[epilogue.activation])
    if target is not out:
        out[...] = target
