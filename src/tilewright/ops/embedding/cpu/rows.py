"""Whole rows as vectors, drawn by threads; the row after the next is prefetched while one is copied."""

import functools

import numpy as np
from numba import types

from tilewright import simd
from tilewright.hardware import cpu
from tilewright.ops.core.launch import launch

ROWS = 64  # rows in a task: enough to hide the drawing of it, few enough to share out


@functools.cache
def row_kernel(lanes: int):
    """The kernel for a vector width."""

    @simd.kernel(
        types.void(simd.INDICES, simd.MATRIX, simd.OUTPUT_2D, simd.TASKS, simd.OUTPUT), name=f"embedding.rows.{lanes}"
    )
    def gather(ids, table, out, tasks, scratch):
        """A task is ROWS rows."""
        C, stride = table.shape[1], out.strides[0] // 4
        task = simd.draw(tasks)
        while task >= 0:
            for i in range(task * ROWS, min((task + 1) * ROWS, ids.size)):
                simd.prefetch(table, ids[min(i + 2, ids.size - 1)] * C)
                for c in range(0, C, lanes):
                    simd.store_first(out, i * stride + c, simd.load_first(table, ids[i] * C + c, C - c, lanes), C - c)
            task = simd.draw(tasks)

    return gather


def copy_rows(ids: np.ndarray, table: np.ndarray, out: np.ndarray) -> None:
    """The run function of `cpu.rows`."""
    table = np.ascontiguousarray(table)
    launch(row_kernel(cpu().lanes), ids, table, out, tasks=-(-ids.size // ROWS), words=1)
