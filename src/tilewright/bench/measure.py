"""The protocol of every timing: same process, interleaved, cold cache, medians and spread.

Machines are shared and noisy, so a figure of its own says little; a ratio of two calls that took turns says much.
Each round runs every call once in a random order, each after the caches were emptied; a ratio is the median over rounds
of the round's own ratio.
"""

import functools
import random
import statistics
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np
from numba import types

from tilewright import simd
from tilewright.hardware import cpu
from tilewright.ops.core.launch import run_on_threads, thread_count

RUNS = 11  # odd, so that the median is one of them
SPIN_S = 0.25  # longer than the 0.2 s for which GNU's and Intel's OpenMP threads spin unless told otherwise


@dataclass(frozen=True)
class Timing:
    """Seconds of one call over all rounds, in their order."""

    rounds: tuple[float, ...]

    @property
    def median_s(self) -> float:
        """The middle one."""
        return statistics.median(self.rounds)

    @property
    def low_s(self) -> float:
        """The tenth percentile."""
        return float(np.quantile(self.rounds, 0.1))

    @property
    def high_s(self) -> float:
        """The ninetieth percentile."""
        return float(np.quantile(self.rounds, 0.9))

    def scaled(self, factor: float) -> "Timing":
        """Of a call that does `factor` of the work."""
        return Timing(tuple(factor * seconds for seconds in self.rounds))

    def times_faster_than(self, other: "Timing") -> float:
        """Median over rounds of other / self: above 1, self is faster."""
        return statistics.median(b / a for a, b in zip(self.rounds, other.rounds, strict=True))


def empty_caches(buffer: list[np.ndarray] = []) -> None:  # noqa: B006 - kept between calls on purpose
    """Read and write a buffer twice as large as the last cache: the next call finds nothing of its data there."""
    size = max(2 * (cpu().l3 or 32 << 20), 64 << 20) // 4
    if not buffer or buffer[0].size != size:
        buffer[:] = [np.zeros(size, np.float32)]
    buffer[0] += 1


@functools.cache
def _busy():
    """A kernel that counts to its plan's first number, in registers."""

    @simd.kernel(types.void(simd.COUNTERS, simd.OUTPUT), name="bench.busy")
    def count(plan, scratch):
        x = np.uint64(plan[0])
        for _ in range(plan[0]):
            x = x * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)
        scratch[0] = np.float32(x)

    return count


def rouse(steps: int = 20_000_000) -> None:
    """Keep every core busy for some 20 ms, without touching memory."""
    run_on_threads(_busy(), np.array([steps]), tasks=thread_count(), words=1)


def interleave(
    calls: dict[str, Callable[[], object]],
    *,
    runs: int = RUNS,
    warm_up: int = 1,
    cold: bool = True,
    spinning: Collection[str] = (),
) -> dict[str, Timing]:
    """Time every call `runs` times, taking turns in random order, after `warm_up` untimed rounds.

    cold: empty the caches before each call. spinning: calls whose threads go on waiting at full speed when they have
    returned (OpenMP's do, for 0.2 s), on cores that the next call needs. Every call then waits until they sleep, and
    begins on cores that work: one that was idle is slow for some milliseconds. Returns name -> Timing with the same
    number of rounds.
    """
    order = random.Random(0)
    rounds: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(warm_up + runs):
        names = list(calls)
        order.shuffle(names)
        for name in names:
            if spinning:
                time.sleep(SPIN_S)
            if cold:
                empty_caches()
            if spinning:
                rouse()
            start = time.perf_counter()
            calls[name]()
            elapsed = time.perf_counter() - start
            if turn >= warm_up:
                rounds[name].append(elapsed)
    return {name: Timing(tuple(seconds)) for name, seconds in rounds.items()}
