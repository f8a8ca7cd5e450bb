"""The protocol of every timing: same process, interleaved, cold cache, medians and spread.

Machines are shared and noisy, so a figure of its own says little; a ratio of two calls that took turns says much.
Each round runs every call once in a random order, each after the caches were emptied; a ratio is the median over rounds
of the round's own ratio.
"""

import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tilewright.hardware import cpu

RUNS = 11  # odd, so that the median is one of them


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

    def times_faster_than(self, other: "Timing") -> float:
        """Median over rounds of other / self: above 1, self is faster."""
        return statistics.median(b / a for a, b in zip(self.rounds, other.rounds, strict=True))


def empty_caches(buffer: list[np.ndarray] = []) -> None:  # noqa: B006 - kept between calls on purpose
    """Read and write a buffer twice as large as the last cache: the next call finds nothing of its data there."""
    size = max(2 * (cpu().l3 or 32 << 20), 64 << 20) // 4
    if not buffer or buffer[0].size != size:
        buffer[:] = [np.zeros(size, np.float32)]
    buffer[0] += 1


def interleave(
    calls: dict[str, Callable[[], object]], *, runs: int = RUNS, warm_up: int = 1, cold: bool = True
) -> dict[str, Timing]:
    """Time every call `runs` times, taking turns in random order, after `warm_up` untimed rounds.

    cold: empty the caches before each call. Returns name -> Timing with the same number of rounds.
    """
    order = random.Random(0)
    rounds: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(warm_up + runs):
        names = list(calls)
        order.shuffle(names)
        for name in names:
            if cold:
                empty_caches()
            start = time.perf_counter()
            calls[name]()
            elapsed = time.perf_counter() - start
            if turn >= warm_up:
                rounds[name].append(elapsed)
    return {name: Timing(tuple(seconds)) for name, seconds in rounds.items()}
