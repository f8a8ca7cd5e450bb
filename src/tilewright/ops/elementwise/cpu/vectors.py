"""Whole vectors through `simd`'s functions.

Against `naive`: a polynomial for all lanes at once stands for a call of the C library for each number. It loses where
there are fewer numbers than lanes.
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
    """max(x, 0) in each lane, NaN kept."""
    return simd.maximum(x, simd.fill(x, 0.0))


FUNCTIONS = {"relu": relu, "gelu": simd.gelu_exact, "gelu_tanh": simd.gelu_tanh, "tanh": simd.tanh}


@functools.cache
def vector_kernel(function: str, lanes: int):
    """The kernel of a function for a vector width."""
    value_of = FUNCTIONS[function]

    @simd.inline
    def piece(x, at, count, out, to):
        c = 0
        while c + lanes <= count:
            simd.store(out, to + c, value_of(simd.load(x, at + c, lanes)))
            c += lanes
        if c < count:
            left = count - c
            simd.store_first(out, to + c, value_of(simd.load_first(x, at + c, left, lanes)), left)

    signature = types.void(simd.INPUT_2D, simd.OUTPUT_2D, simd.PLAN, simd.OUTPUT)

    @simd.kernel(signature, name=f"elementwise.vectors.{function}.{lanes}")
    def apply_pieces(x, out, plan, scratch):
        """plan: next task, tasks in a row, numbers in a task."""
        rows, C, pieces, step = x.shape[0], x.shape[1], plan[1], plan[2]
        x_stride, out_stride = x.strides[0] // 4, out.strides[0] // 4
        task = simd.fetch_add(plan, 0, 1)
        while task < rows * pieces:
            i, c = task // pieces, task % pieces * step
            piece(x, i * x_stride + c, min(step, C - c), out, i * out_stride + c)
            task = simd.fetch_add(plan, 0, 1)

    return apply_pieces


def apply(function: str, x: np.ndarray, out: np.ndarray, alone: bool = False) -> None:
    """The run function of `cpu.vectors` (alone) and `cpu.threads`."""
    rows, C = x.shape
    pieces = -(-C // TASK)
    tasks = 1 if alone or x.size <= ALONE else rows * pieces
    launch(vector_kernel(function, cpu().lanes), x, out, np.array([0, pieces, TASK]), tasks=tasks, words=1)
