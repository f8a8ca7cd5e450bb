"""embedding in whole rows: out[i, :] = table[ids[i], :].

Memory bandwidth is the limit: 4 bytes read and 4 written per element. Changes from `naive`: a row is copied in vectors,
the second row after it is prefetched meanwhile, and threads take rows. It is slow where a row is shorter than a vector.
"""

import functools

import numpy as np
from numba import types

from tilewright import simd
from tilewright.hardware import cpu
from tilewright.ops.core.launch import launch

ROWS = 64  # rows per task: enough to hide the cost of drawing a task, few enough to occupy all threads


@functools.cache
def row_kernel(lanes: int):
    """The kernel for a vector width."""
    signature = types.void(simd.INDICES, simd.MATRIX, simd.OUTPUT_2D, simd.TASKS, simd.OUTPUT)

    @simd.kernel(signature, name=f"embedding.rows.{lanes}")
    def gather(ids, table, out, tasks, scratch):
        """ids: int64 (n,). table: float32 (V, C), contiguous. out: float32 (n, C), rows contiguous. A task is ROWS rows
        of out."""
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
    """out = table[ids]: int64 (n,), float32 (V, C), float32 (n, C)."""
    table = np.ascontiguousarray(table)
    launch(row_kernel(cpu().lanes), ids, table, out, tasks=-(-ids.size // ROWS), words=1)
