"""batchnorm in vectors of channels: out[i, c] = activation(x[i, c] * scale[c] + shift[c]).

Memory bandwidth is the limit: one multiply-add per 8 bytes. So a model folds the operation into the weights of the
layer before (`fold`). Changes from `naive`: whole vectors; threads take rows. It is slow where there are fewer channels
than lanes.
"""

import functools

import numpy as np
from numba import types

from tilewright import simd
from tilewright.hardware import cpu
from tilewright.ops.core.rows import draw_rows
from tilewright.ops.gemm.cpu.epilogue import ACTIVATIONS, activate


@functools.cache
def row_kernel(lanes: int):
    """The kernel for a vector width."""
    arrays = simd.INPUT_2D, simd.INPUT, simd.INPUT, types.int64, simd.OUTPUT_2D, types.int64, simd.TASKS, simd.OUTPUT

    @simd.kernel(types.void(*arrays), name=f"batchnorm.vectors.{lanes}")
    def scale_shift_rows(x, scale, shift, activation, out, step, tasks, scratch):
        """As `naive.scale_shift`, with contiguous rows. A task is `step` rows."""
        rows, C = x.shape
        x_stride, out_stride = x.strides[0] // 4, out.strides[0] // 4
        task = simd.draw(tasks)
        while task >= 0:
            for i in range(task * step, min((task + 1) * step, rows)):
                start, to, c = i * x_stride, i * out_stride, 0
                while c + lanes <= C:
                    y = simd.fma(simd.load(x, start + c, lanes), simd.load(scale, c, lanes), simd.load(shift, c, lanes))
                    simd.store(out, to + c, activate(y, activation))
                    c += lanes
                if c < C:
                    left = C - c
                    factor, term = simd.load_first(scale, c, left, lanes), simd.load_first(shift, c, left, lanes)
                    y = simd.fma(simd.load_first(x, start + c, left, lanes), factor, term)
                    simd.store_first(out, to + c, activate(y, activation), left)
            task = simd.draw(tasks)

    return scale_shift_rows


def normalise(x: np.ndarray, scale: np.ndarray, shift: np.ndarray, activation: str | None, out: np.ndarray) -> None:
    """out = activation(x * scale + shift): x, out float32 (rows, C) with contiguous rows; scale, shift (C,)."""
    draw_rows(row_kernel(cpu().lanes), x, scale, shift, ACTIVATIONS[activation], out=out, words=1)
