"""Signs that figures are noise: other work on the machine while they are measured, or rounds that differ too much."""

import os
import time
from dataclasses import replace

import psutil

from tilewright.bench.results import Row

LOAD = 1.5  # runnable processes per core; a bench that ended a minute ago leaves 1
OTHERS = 0.1  # of the cores: on an idle machine 0.02 was measured
SPREAD = 1.5  # 90th over 10th percentile of the rounds; on an idle machine calls of a millisecond stay below 1.2


def _cores() -> list[int]:
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def _busy_s(cores: list[int]) -> float:
    """Seconds that these cores have worked for anybody, other guests of the host included."""
    every = psutil.cpu_times(percpu=True)
    return sum(sum(every[i]) - every[i].idle - getattr(every[i], "iowait", 0.0) for i in cores if i < len(every))


def _own_s() -> float:
    """CPU seconds of this process and of its children that ended."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def _load() -> float:
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0


class Watch:
    """What the machine does besides this process, from now on."""

    def __init__(self) -> None:
        self.cores, self.load = _cores(), _load()
        self.begun_s, self.busy_s, self.own_s = time.monotonic(), _busy_s(self.cores), _own_s()

    def noise(self) -> str:
        """What else was running, in words; empty if it was little."""
        count, spent = len(self.cores), max(time.monotonic() - self.begun_s, 1e-3)
        others = (_busy_s(self.cores) - self.busy_s - _own_s() + self.own_s) / spent
        reasons = []
        if self.load > LOAD * count:
            reasons.append(f"load average {self.load:.1f}")
        if others > OTHERS * count:
            reasons.append(f"other processes used {others:.1f} of {count} cores")
        return ", ".join(reasons)

    def noted(self, rows: list[Row]) -> list[Row]:
        """The rows, each with its signs of noise."""
        busy = self.noise()
        return [replace(row, noise=", ".join(filter(None, [busy, spread(row)]))) for row in rows]


def spread(row: Row) -> str:
    """How far the rounds of a row differ, in words; empty if they do not."""
    ratio = row.high_s / row.low_s if row.low_s else 1.0
    return f"rounds differ {ratio:.1f} x" if ratio > SPREAD else ""


def warning(rows: list[Row]) -> str:
    """One line for a terminal; empty if no row is noisy."""
    noisy = {row.rung: row.noise for row in rows if row.noise}
    if not noisy:
        return ""
    told = "; ".join(f"{name}: {noise}" for name, noise in noisy.items())
    return f"warning: figures are noisy, measure again on an idle machine ({told})"
