"""Operations on the rows of an array: the last axis is a row, and no row knows of another."""

import numpy as np

from tilewright.ops.core.arrays import put_back, rows_for
from tilewright.ops.core.launch import launch

TASK = 8192  # numbers a thread draws at once, or one row: 32 KiB, some microseconds, so that threads end together
ALONE = 1 << 16  # numbers up to which one thread does all: 10 to 30 us on a Zen 5, as long as it takes to wake another


def as_rows(array: np.ndarray) -> np.ndarray:
    """float32 (..., C), not empty, as (rows, C) with contiguous rows; copied only where strides leave no choice."""
    rows = array if array.ndim == 2 else array.reshape(-1, array.shape[-1])
    return rows if rows.strides[1] == 4 else np.ascontiguousarray(rows)


def over_rows(run, x: np.ndarray, out: np.ndarray) -> None:
    """run(rows of x, rows of out); an out whose rows are not contiguous is computed beside and copied."""
    target = rows_for(out)
    run(as_rows(x), target)
    put_back(out, target)


def draw_rows(kernel, *args, out: np.ndarray, words: int) -> None:
    """kernel(*args, out, step, tasks, scratch) on threads that draw rows of `out`, `step` rows in a task.

    words: float32 of scratch for each thread.
    """
    rows, C = out.shape
    step = max(1, TASK // C)
    launch(kernel, *args, out, step, tasks=-(-rows // step), words=words, alone=out.size <= ALONE)
