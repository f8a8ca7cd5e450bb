"""The CPU's clock: wall time. On request it empties the caches and lets other threads come to rest before a call."""

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import types

from tilewright import simd
from tilewright.bench.measure import Call
from tilewright.hardware import cpu
from tilewright.ops.core.launch import run_on_threads, thread_count

SPIN_S = 0.25  # longer than the 0.2 s for which the OpenMP threads of GNU and Intel spin by default


@dataclass(frozen=True)
class CpuClock:
    """cold: empty the caches before each call.

    settle: the threads of a peer spin for up to SPIN_S after it returns, on cores that the next call needs. So wait
    until they sleep. Then keep every core busy for 20 ms, because a core that was idle is slow for some milliseconds.
    """

    cold: bool = True
    settle: bool = False

    def time(self, call: Call, check: Callable[[Any], None] | None = None) -> Callable[[], float]:
        """See `measure.Clock`."""
        if self.settle:
            time.sleep(SPIN_S)
        if self.cold:
            empty_caches()
        if self.settle:
            rouse()
        start = time.perf_counter()
        result = call()
        if check is None:
            del result  # the time to free the result counts
        elapsed = time.perf_counter() - start
        if check is not None:
            check(result)
        return lambda: elapsed


def empty_caches(buffer: list[np.ndarray] = []) -> None:  # noqa: B006 - reused between calls on purpose
    """Read and write a buffer twice as large as the last cache, which evicts the data of the next call."""
    size = max(2 * (cpu().l3 or 32 << 20), 64 << 20) // 4
    if not buffer or buffer[0].size != size:
        buffer[:] = [np.zeros(size, np.float32)]
    buffer[0] += 1


@functools.cache
def _busy():
    """A kernel that runs a random generator in registers, for as many steps as its first counter says."""

    @simd.kernel(types.void(simd.COUNTERS, simd.OUTPUT), name="bench.busy")
    def count(counters, scratch):
        x = np.uint64(counters[0])
        for _ in range(counters[0]):
            x = x * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)
        scratch[0] = np.float32(x)

    return count


def rouse(steps: int = 20_000_000) -> None:
    """Keep every core busy for about 20 ms, without accessing memory."""
    run_on_threads(_busy(), np.array([steps]), tasks=thread_count(), words=1, drawn=False)
