"""How times are measured: in one process, with calls in alternation, a warm-up, checked results, medians and spreads.

Machines are shared, so their speed changes: a single time says little, but the ratio of two alternating calls says
much. Each round runs every call once, in a random order. A ratio to a peer is computed for each round, and the median
over the rounds is reported. A factor over the rung below is the ratio of the two medians, as a reader of the table
computes it. Not measured like this are whole commands (`workloads/scaling.py`), which run once, and the steps of a job
(`job_ladders/run.py`), one step after the other. The clocks are in `clocks/`.
"""

import gc
import random
import statistics
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from tilewright.errors import InternalError
from tilewright.garbage import loaded_exempt

RUNS = 11  # odd, so that the median is one of them
SEED = 20261121  # the seed of the inputs
Call = Callable[[], Any]
Check = Callable[[str, Any], None]


@dataclass(frozen=True)
class Timing:
    """Seconds of one call: one value per round, in their order."""

    rounds: tuple[float, ...]

    @property
    def median_s(self) -> float:
        """The median."""
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
        """The timing of a call that does `factor` of the work."""
        return Timing(tuple(factor * seconds for seconds in self.rounds))

    def times_faster_than(self, other: "Timing") -> float:
        """The median over rounds of other / self. Above 1, self is faster."""
        return statistics.median(b / a for a, b in zip(self.rounds, other.rounds, strict=True))

    def columns(self) -> dict[str, Any]:
        """The columns of a result row that hold the times."""
        return {"median_s": self.median_s, "low_s": self.low_s, "high_s": self.high_s, "runs": len(self.rounds)}


class Clock(Protocol):
    """Measures single calls on a device."""

    def time(self, call: Call, check: Callable[[Any], None] | None) -> Callable[[], float]:
        """Prepare the device, run the call once, and pass its result to `check` outside the measured time.

        Returns a function that gives the seconds. On a GPU they are known only when its work is done.
        """


def interleave(
    calls: Mapping[str, Call],
    clock: Clock,
    *,
    runs: int = RUNS,
    warm_up: int = 1,
    before: Mapping[str, Call] | None = None,
    check: Check | None = None,
) -> dict[str, Timing]:
    """Time every call `runs` times, in a new random order in each round, after `warm_up` rounds that are not timed.

    before: name -> a call that runs before each call of this name, not timed. check: gets the name and the result of
    every call, also in the warm-up. Returns name -> Timing, each with `runs` rounds.
    """
    prepare = before or {}
    order = random.Random(0)
    rounds: dict[str, list[float]] = {name: [] for name in calls}

    def run_all(kept: bool) -> None:
        names, seconds = list(calls), {}
        order.shuffle(names)
        for name in names:
            if name in prepare:
                prepare[name]()
            checked = None if check is None else lambda result, name=name: check(name, result)
            seconds[name] = clock.time(calls[name], checked)
        for name in names if kept else ():
            rounds[name].append(seconds[name]())

    for _ in range(warm_up):
        run_all(kept=False)
    gc.collect()
    with loaded_exempt():  # a full collection visits the objects of all libraries, within whichever call triggers it
        for _ in range(runs):
            run_all(kept=True)
    return {name: Timing(tuple(spent)) for name, spent in rounds.items()}


class SameResults:
    """A check that every call returns the same array in all rounds.

    first: name -> the expected array; for other names the first result is expected. may_differ: names of libraries that
    do not promise equal results. `changed` has those of them whose results differed.
    """

    def __init__(self, first: dict[str, np.ndarray] | None = None, may_differ: Collection[str] = ()):
        self.first, self.may_differ = dict(first or {}), may_differ
        self.changed: set[str] = set()

    def __call__(self, name: str, result: np.ndarray) -> None:
        """Raises InternalError if the result's bits differ from those of the first one."""
        if result.tobytes() == self.first.setdefault(name, result).tobytes():
            return
        if name not in self.may_differ:
            raise InternalError(f"two runs of {name} gave different bits; nothing is reported")
        self.changed.add(name)
