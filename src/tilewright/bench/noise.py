"""Signs that measured times are unreliable: other programs on the machine, or rounds that differ too much."""

import os
import time
from dataclasses import replace

import psutil

from tilewright.bench.results import Row

LOAD = 1.5  # runnable processes per core. Above 1 they wait for each other; a bench that has just ended leaves 1
OTHERS = 0.1  # share of the cores: services in the background use less
SPREAD = 1.5  # 90th over 10th percentile of the rounds; of the rows in results/ 81 % (CPU), 97 % (GPU) are below
SEPARATOR = "; "  # between the reasons in a row


def _cores() -> list[int]:
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def _busy_s(cores: list[int]) -> float:
    """Seconds in which these cores worked for anybody, including other guests of the host."""
    every = psutil.cpu_times(percpu=True)
    aside = ("idle", "iowait", "guest", "guest_nice")  # the kernel counts the time of guests as user time, too
    return sum(
        seconds
        for core in cores
        if core < len(every)
        for name, seconds in every[core]._asdict().items()
        if name not in aside
    )


def _own_s() -> float:
    """CPU seconds of this process and of its children that have ended."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def _load() -> float:
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0


class Watch:
    """Watches what other programs do on the machine, from its creation on."""

    def __init__(self) -> None:
        self.cores, self.load = _cores(), _load()
        self.begun_s, self.busy_s, self.own_s = time.monotonic(), _busy_s(self.cores), _own_s()

    def noise(self) -> str:
        """What other programs did, in words; empty if it was little."""
        count, spent = len(self.cores), max(time.monotonic() - self.begun_s, 1e-3)
        others = (_busy_s(self.cores) - self.busy_s - _own_s() + self.own_s) / spent
        found = []
        if self.load > LOAD * count:
            found.append(f"load average {self.load:.1f}")
        if others > OTHERS * count:
            found.append(f"other processes used {others:.1f} of {count} cores")
        return SEPARATOR.join(found)

    def noted(self, rows: list[Row]) -> list[Row]:
        """The rows, each with its signs of unreliable times."""
        busy = self.noise()
        return [replace(row, noise=SEPARATOR.join(filter(None, [busy, spread(row)]))) for row in rows]


def spread(row: Row) -> str:
    """How much the rounds of a row differ, in words; empty if it is little."""
    ratio = row.high_s / row.low_s if row.low_s else 1.0
    return f"rounds differ {ratio:.1f} x" if ratio > SPREAD else ""


def reasons(rows: list[Row]) -> str:
    """The signs of several rows, as text. A sign that only some rungs have names them. Empty if there are none."""
    found: dict[str, list[str]] = {}
    for row in rows:
        for reason in filter(None, row.noise.split(SEPARATOR)):
            found.setdefault(reason, []).append(row.rung)
    return SEPARATOR.join(
        reason if len(names) == len(rows) else f"{reason} ({', '.join(dict.fromkeys(names))})"
        for reason, names in found.items()
    )


def warning(rows: list[Row]) -> str:
    """One line for a terminal; empty if no row has a sign."""
    told = reasons(rows)
    return f"warning: figures are noisy, measure again on an idle machine: {told}" if told else ""
