"""Explicit vectors, nothing packed: a strip of one row of out, four vectors wide, stays in registers along all of K.

Each a[i, p] is broadcast and multiplied with a strip of b's row p. It loses to `packed` because every strip of b is loaded again for
every row (a load an FMA, where the machine does two FMAs and two loads a cycle) and with stride N, which the TLB feels.
"""

import functools

import numpy as np
from numba import types

from tilewright import simd
from tilewright.hardware import cpu
from tilewright.ops.matmul.cpu.finish import ACTIVATIONS, finish
from tilewright.ops.matmul.operands import Epilogue, Packed, Rows


@functools.cache
def vector_kernel(lanes: int):
    """The kernel for a vector width."""

    @simd.inline
    def strip(a, b, out, i, j):
        """out[i, j : j + 4 * lanes], columns beyond N left alone."""
        K, N = b.shape
        left = N - j
        sum0, sum1, sum2, sum3 = simd.zeros(lanes), simd.zeros(lanes), simd.zeros(lanes), simd.zeros(lanes)
        for p in range(K):
            scale, at = simd.broadcast(a, i * K + p, lanes), p * N + j
            sum0 = simd.fma(scale, simd.load_first(b, at, left, lanes), sum0)
            sum1 = simd.fma(scale, simd.load_first(b, at + lanes, left - lanes, lanes), sum1)
            sum2 = simd.fma(scale, simd.load_first(b, at + 2 * lanes, left - 2 * lanes, lanes), sum2)
            sum3 = simd.fma(scale, simd.load_first(b, at + 3 * lanes, left - 3 * lanes, lanes), sum3)
        at = i * (out.strides[0] // 4) + j
        simd.store_first(out, at, sum0, left)
        simd.store_first(out, at + lanes, sum1, left - lanes)
        simd.store_first(out, at + 2 * lanes, sum2, left - 2 * lanes)
        simd.store_first(out, at + 3 * lanes, sum3, left - 3 * lanes)

    signature = types.void(simd.MATRIX, simd.MATRIX, simd.OUTPUT_2D, simd.INPUT, simd.INPUT_2D, types.int64)

    @simd.kernel(signature, name=f"matmul.vectors.{lanes}")
    def product(a, b, out, bias, residual, activation):
        M, N = out.shape
        for i in range(M):
            for j in range(0, N, 4 * lanes):
                strip(a, b, out, i, j)
            for j in range(N):
                out[i, j] = finish(out[i, j], i, j, bias, residual, activation)

    return product


def multiply(rows: Rows, weights: Packed, out: np.ndarray, epilogue: Epilogue) -> None:
    """The rung's run function; operands that are not row-major are copied."""
    a, b = np.ascontiguousarray(rows.plain()), np.ascontiguousarray(weights.data)
    kernel = vector_kernel(cpu().lanes)
    kernel(a, b, out, epilogue.bias, epilogue.residual, ACTIVATIONS[epilogue.activation])
