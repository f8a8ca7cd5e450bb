"""Sweep a whole job: its rate at each batch size, number of threads or of records, checked, in alternation.

A loaded model in this process reads arrays in the host's memory and writes its results there. `sweep_workers` sweeps
the number of worker processes.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tilewright.bench.clocks.cpu import CpuClock
from tilewright.bench.measure import Timing, interleave
from tilewright.bench.results import Row
from tilewright.bench.sweep import OTHER_BITS, PREFIX, REFUSED, THREADS
from tilewright.bench.sweep_kinds import KINDS, Job, Setting
from tilewright.errors import InternalError, Refused, ResourceError
from tilewright.ops.core.launch import thread_count, threads

BATCH = "batch"  # a parameter besides threads and the number of records
COUNT = {  # records, unless the user gives a number
    "cpu": {"sentiment": 1024, "gpt2": 64, "dcgan": 96, "convolve": 128},
    "cuda": {"sentiment": 16384, "gpt2": 1024, "dcgan": 8192, "convolve": 512},
}
ENOUGH_S = {"cpu": 1.0, "cuda": 0.25}  # seconds of a point with equal batches: more of them would not change its rate
ROUNDS, SLOW_ROUNDS, SLOW_S = 5, 3, 10.0  # fewer rounds if one round of all points takes longer than SLOW_S
ONE = "one process"  # how a point runs: the `rung` of its row
Say = Callable[[str], None]
Axes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Point:
    """A job at one value of each parameter. timed: how many of the `count` records are timed. refused: why it cannot
    run."""

    job: Job
    setting: Mapping[str, int]
    count: int
    timed: int = 0
    other_bits: bool = False
    refused: str = ""

    def run(self) -> np.ndarray:
        """The results of the timed records."""
        with threads(self.setting[THREADS]) if THREADS in self.setting else nullcontext():
            return self.job.run(self.timed, self.setting.get(BATCH, 0))


def sweep(setting: Setting, axes: Axes, count: int, say: Say) -> list[Row]:
    """A Row per combination of values, in this order, measured in one process. A refused one has `runs` 0 and the
    reason.

    axes: BATCH, THREADS, or `setting.records`. count: the number of records if it is no axis. Raises InternalError if
    the results are wrong, ResourceError if the GPU is missing.
    """
    if setting.device != "cpu":
        from tilewright.bench.clocks.cuda import torch_on_a_gpu

        torch_on_a_gpu()
    start = time.perf_counter()
    job = KINDS[setting.job](setting, max(axes.get(setting.records, (count,))))
    error, allowed = job.error()
    if not error <= allowed:
        raise InternalError(f"{setting.job}: the results are off by {error:.3g}; {allowed:.3g} is allowed")
    say(f"{setting.job}, {job.size}: prepared and checked in {time.perf_counter() - start:.1f} s")
    points = list(_points(job, setting, axes, count))
    calls = {str(i): point.run for i, point in enumerate(points) if not point.refused}
    begin = time.perf_counter()
    for call in calls.values():
        call()
    rounds = ROUNDS if time.perf_counter() - begin < SLOW_S else SLOW_ROUNDS
    timings = interleave(calls, CpuClock(cold=False), runs=rounds, warm_up=0)
    known = ", ".join(filter(None, (setting.model, job.size)))  # rows of two models are never compared
    size = known if setting.records in axes else f"{known}, {count:,} {setting.records}"
    return [_row(setting, point, size, timings.get(str(i)), f"passed {error:.1e}") for i, point in enumerate(points)]


def _points(job: Job, setting: Setting, axes: Axes, count: int) -> Iterator[Point]:
    """Every point, after its results were compared with those of the points before."""
    most = np.empty((0,))
    for values in itertools.product(*axes.values()):
        now = dict(zip(axes, values, strict=True))
        point = Point(job, now, now.get(setting.records, count))
        batch = now.get(BATCH, 0)
        if batch > point.count:
            yield _refused(point, f"there are {point.count:,} {setting.records}")
            continue
        try:
            timed = (
                point.count if setting.records in axes or not batch else _enough(point, batch, ENOUGH_S[setting.device])
            )
            point = replace(point, timed=timed)
            found = point.run()
        except (Refused, ResourceError) as error:
            yield _refused(point, str(error))
            continue
        same = max(0, min(len(found), len(most)) - job.edge)
        yield replace(point, other_bits=found[:same].tobytes() != most[:same].tobytes())
        most = found.copy() if len(found) > len(most) else most


def _refused(point: Point, why: str) -> Point:
    return replace(point, refused=" ".join(why.split()))


def _enough(point: Point, batch: int, seconds: float) -> int:
    """The records of as many whole batches as take this many seconds, at least one batch."""
    one = replace(point, timed=batch)
    one.run()
    start = time.perf_counter()
    one.run()
    return batch * max(1, min(point.count // batch, int(seconds / (time.perf_counter() - start))))


def _row(setting: Setting, point: Point, size: str, timing: Timing | None, passed: str) -> Row:
    name = ", ".join(f"{axis}={value}" for axis, value in point.setting.items())
    count = point.setting.get(THREADS, thread_count()) if setting.device == "cpu" else 0
    same: dict[str, Any] = {
        "op": PREFIX + setting.job,
        "rung": ONE,
        "size": size,
        "dtype": setting.dtype,
        "threads": count,
    }
    if timing is None:
        no: dict[str, Any] = {"rows": 0, "median_s": 0.0, "low_s": 0.0, "high_s": 0.0, "runs": 0}
        return Row(**same, **no, check=REFUSED + point.refused, point=name)
    fewer = f"; {point.timed:,} of {point.count:,} {setting.records}" if point.timed < point.count else ""
    check = passed + fewer + OTHER_BITS * point.other_bits
    return Row(**same, rows=point.timed * point.job.each, **timing.columns(), check=check, point=name)
