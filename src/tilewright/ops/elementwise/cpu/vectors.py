"""An elementwise function in vectors: out[i, c] = function(x[i, c]), by the polynomials of `simd.functions`.

The limit is the polynomial's instructions, 30 to 45 per vector; for relu it is memory bandwidth. Changes from `naive`:
one polynomial for all lanes replaces a call of the C library for each element; threads take pieces of rows. It is slow
where there are fewer elements than lanes.
"""

import functools

import numpy as np
from numba import types

from tilewright import simd
from tilewright.hardware import cpu
from tilewright.ops.core.launch import launch
from tilewright.ops.core.rows import ALONE, TASK


@simd.inline
def relu(x):
    """max(x, 0) in each lane; NaN stays NaN."""
    return simd.maximum(x, simd.fill(x, 0.0))


FUNCTIONS = {"relu": relu, "gelu": simd.gelu_exact, "gelu_tanh": simd.gelu_tanh, "tanh": simd.tanh}


@functools.cache
def vector_kernel(function: str, lanes: int):
    """The kernel of a function for a vector width."""
    value_of = FUNCTIONS[function]
    signature = types.void(simd.INPUT_2D, simd.OUTPUT_2D, simd.TASKS, simd.OUTPUT)

    @simd.kernel(signature, name=f"elementwise.vectors.{function}.{lanes}")
    def apply_pieces(x, out, tasks, scratch):
        """x, out: float32 (rows, C) with contiguous rows. A task is a piece of a row, of TASK elements."""
        C, pieces = x.shape[1], (x.shape[1] + TASK - 1) // TASK
        x_stride, out_stride = x.strides[0] // 4, out.strides[0] // 4
        task = simd.draw(tasks)
        while task >= 0:
            i, c = task // pieces, task % pieces * TASK
            start, to, left = i * x_stride + c, i * out_stride + c, min(TASK, C - c)
            while left >= lanes:
                simd.store(out, to, value_of(simd.load(x, start, lanes)))
                start, to, left = start + lanes, to + lanes, left - lanes
            if left:
                simd.store_first(out, to, value_of(simd.load_first(x, start, left, lanes)), left)
            task = simd.draw(tasks)

    return apply_pieces


def apply(function: str, x: np.ndarray, out: np.ndarray) -> None:
    """out = function(x): float32 (rows, C) with contiguous rows; out may be x."""
    tasks = len(x) * -(-x.shape[1] // TASK)
    launch(vector_kernel(function, cpu().lanes), x, out, tasks=tasks, words=1, alone=x.size <= ALONE)
