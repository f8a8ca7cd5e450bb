"""Batched transpose (B, R, S) -> (B, S, R): channels last before matmul, channels first after it.

NumPy copies one element at a time. Here squares of lanes x lanes elements are transposed in registers, and threads take
strips of squares. The limit is memory bandwidth.
"""

import functools

import numpy as np
from numba import types

from tilewright import simd
from tilewright.hardware import cpu
from tilewright.ops.conv1d.cpu.finish import INPUT_3D, OUTPUT_3D
from tilewright.ops.core.launch import launch


@functools.cache
def transpose_kernel(lanes: int):
    """The kernel for vectors of `lanes` float32."""

    @simd.kernel(
        types.void(INPUT_3D, OUTPUT_3D, simd.INDICES, simd.TASKS, simd.OUTPUT), name=f"conv1d.transpose.{lanes}"
    )
    def transpose_rows(source, target, starts, tasks, scratch):
        """starts: element offset of each row of source[b]; rows are contiguous. A task is `lanes` rows."""
        _, R, S = source.shape
        stride, strips = target.strides[1] // 4, (R + lanes - 1) // lanes
        task = simd.draw(tasks)
        while task >= 0:
            b, r = task // strips, task % strips * lanes
            at, to = b * (source.strides[0] // 4), b * (target.strides[0] // 4) + r
            for s in range(0, S, lanes):
                first = min(s, S - lanes)  # the last square overlaps the one before
                square = simd.block_gather(simd.block_zeros(lanes, 1, lanes), source, starts, r, R - 1, at + first)
                simd.block_store(simd.block_transpose(square), target, to + first * stride, stride, R - r)
            task = simd.draw(tasks)

    return transpose_rows


def transpose(source: np.ndarray, target: np.ndarray) -> None:
    """target = source.swapaxes(1, 2). source: (B, R, S), any strides. target: (B, S, R), rows contiguous."""
    lanes = cpu().lanes
    B, R, S = source.shape
    if lanes > S or source.strides[2] != 4:
        target[...] = source.swapaxes(1, 2)
        return
    starts = np.arange(R, dtype=np.int64) * (source.strides[1] // 4)
    launch(transpose_kernel(lanes), source, target, starts, tasks=B * -(-R // lanes), words=1)
