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
        types.void(simd.INDICES, simd.MATRIX, simd.OUTPUT_2D, simd.PLAN, simd.OUTPUT), name=f"embedding.rows.{lanes}"
    )
    def gather(ids, table, out, plan, scratch):
        """plan: next task. A task is ROWS rows."""
        C, stride = table.shape[1], out.strides[0] // 4
        first = simd.fetch_add(plan, 0, ROWS)
        while first < ids.size:
            for i in range(first, min(first + ROWS, ids.size)):
                simd.prefetch(table, ids[min(i + 2, ids.size - 1)] * C)
                for c in range(0, C, lanes):
                    simd.store_first(out, i * stride + c, simd.load_first(table, ids[i] * C + c, C - c, lanes), C - c)
            first = simd.fetch_add(plan, 0, ROWS)

    return gather


def copy_rows(ids: np.ndarray, table: np.ndarray, out: np.ndarray) -> None:
    """The run function of `cpu.rows`."""
    plan = np.zeros(1, np.int64)
    launch(row_kernel(cpu().lanes), ids, np.ascontiguousarray(table), out, plan, tasks=-(-ids.size // ROWS), words=1)
