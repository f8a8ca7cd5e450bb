"""Whether an array has an infinity or a NaN, on all threads: a pass over memory, no array of answers."""

import functools

import numpy as np
from numba import types

from tilewright import simd
from tilewright.hardware import cpu
from tilewright.ops.core.launch import launch

TASK = 1 << 16  # numbers: 256 KiB, some 10 us


@functools.cache
def finite_kernel(lanes: int):
    """The kernel for a vector width."""

    @simd.kernel(types.void(simd.INPUT, simd.PLAN, simd.OUTPUT), name=f"finite.{lanes}")
    def look(array, plan, scratch):
        """plan: next task, tasks with a number that is not finite; the first of those ends it."""
        task = simd.fetch_add(plan, 0, 1)
        while task * TASK < array.size and not simd.load_acquire(plan, 1):
            end, total = min((task + 1) * TASK, array.size), simd.zeros(lanes)
            for i in range(task * TASK, end, lanes):  # 0 times a number is 0, or NaN
                total = simd.fma(simd.load_first(array, i, end - i, lanes), simd.zeros(lanes), total)
            if simd.reduce_add(total) != 0:
                simd.fetch_add(plan, 1, 1)
            task = simd.fetch_add(plan, 0, 1)

    return look


def all_finite(array: np.ndarray) -> bool:
    """No number of a float32 array is infinite or NaN."""
    array = array.T if array.flags.f_contiguous else array
    if not array.flags.c_contiguous:
        return bool(np.isfinite(array).all())
    plan = np.zeros(2, np.int64)
    launch(finite_kernel(cpu().lanes), array.reshape(-1), plan, tasks=-(-array.size // TASK), words=1)
    return not plan[1]
