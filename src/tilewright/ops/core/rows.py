"""Operations on the rows of an array: the last axis is a row, and rows are independent of each other."""

import numpy as np

from tilewright.ops.core.launch import launch

TASK = 8192  # elements per task, at least one row: 32 KiB, some microseconds, so that threads finish together
ALONE = 1 << 16  # most elements for one thread alone: 10 to 30 us on a Zen 5, as long as waking another thread takes


def as_rows(array: np.ndarray) -> np.ndarray:
    """float32 (..., C), not empty, as (rows, C) with contiguous rows; copied only if the strides require it."""
    rows = array if array.ndim == 2 else array.reshape(-1, array.shape[-1])
    return rows if rows.strides[1] == 4 else np.ascontiguousarray(rows)


def draw_rows(kernel, *args, out: np.ndarray, words: int) -> None:
    """Run kernel(*args, out, step, tasks, scratch) on threads. A task is `step` rows of `out`.

    words: float32 of scratch per thread.
    """
    rows, C = out.shape
    step = max(1, TASK // C)
    launch(kernel, *args, out, step, tasks=-(-rows // step), words=words, alone=out.size <= ALONE)
