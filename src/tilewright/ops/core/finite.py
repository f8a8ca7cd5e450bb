"""A test of an array for infinities and NaNs, on all threads: one pass over memory, without a temporary array."""

import functools

import numpy as np
from numba import types

from tilewright import simd
from tilewright.hardware import cpu
from tilewright.ops.core.launch import launch

TASK = 1 << 16  # elements: 256 KiB, about 10 us


@functools.cache
def finite_kernel(lanes: int):
    """The kernel for a vector width."""

    @simd.kernel(types.void(simd.INPUT, simd.TASKS, simd.TASKS, simd.OUTPUT), name=f"finite.{lanes}")
    def search(array, found, tasks, scratch):
        """found (1,): number of tasks with an element that is not finite. The search stops at the first one."""
        task = simd.draw(tasks)
        while task >= 0 and not simd.load_acquire(found, 0):
            end, total = min((task + 1) * TASK, array.size), simd.zeros(lanes)
            for i in range(task * TASK, end, lanes):  # 0 * x is 0 for finite x, else NaN
                total = simd.fma(simd.load_first(array, i, end - i, lanes), simd.zeros(lanes), total)
            if simd.reduce_add(total) != 0:
                simd.fetch_add(found, 0, 1)
            task = simd.draw(tasks)

    return search


def all_finite(array: np.ndarray) -> bool:
    """True if no element of a float32 array is infinite or NaN."""
    array = array.T if array.flags.f_contiguous else array
    if not array.flags.c_contiguous:
        return bool(np.isfinite(array).all())
    found = np.zeros(1, np.int64)
    launch(finite_kernel(cpu().lanes), array.reshape(-1), found, tasks=-(-array.size // TASK), words=1)
    return not found[0]
