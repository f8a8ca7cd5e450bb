"""What a job's file declares: its steps, its workload, and published figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from tilewright.switches import Without

Results = Any  # an array of NumPy or a tensor, with one row per record
Program = Callable[[int], Results]  # computes the first n records of the input, and returns when they are computed


@dataclass(frozen=True)
class Step:
    """One step of a job's ladder.

    idea: one sentence that says what changes from the step before. rungs: the forced kernels, by operation or by layer
    ("matmul@2"); other operations run today's kernel. without: optimisations that are switched off, see `switches`.
    threads: number of CPU threads; None: as many as the user gives. batch: records per call of the model; None: all.
    pixels: the results are 8-bit pixels, not float32 images. Only steps of images after all other steps have it.
    """

    name: str
    idea: str
    rungs: Mapping[str, str] = field(default_factory=dict)
    without: Without = frozenset()
    threads: int | None = None
    batch: int | None = None
    pixels: bool = False


@dataclass(frozen=True)
class Published:
    """A figure of another program. It is quoted, and never compared with tilewright's figures. rate: in the job's units
    per second, or a speed-up if the field `machine` says so."""

    program: str
    rate: float
    machine: str


class Workload(Protocol):
    """The input of a job, and the checks of its results."""

    @property
    def total(self) -> int:
        """The number of records of the input."""

    def program(self, step: Step) -> Program:
        """The job as this step runs it. The caller has already forced the step's rungs and threads."""

    def error(self, results: Results) -> float:
        """The largest error of the first records' results against float64, as a share of the allowed error."""

    def difference(self, results: Results, today: Results) -> float:
        """The largest difference between two results, as a share of the sum of their allowed errors."""


@dataclass(frozen=True)
class Job:
    """The ladder of a job.

    unit: what is counted; each record has `each` of them. about: the job in one or two sentences. cpu, gpu: the steps,
    from the naive one to today's. records: number of records, by device. workload: makes the workload of (count,
    device). published: figures of others, see `Published`.
    """

    name: str
    unit: str
    about: str
    cpu: tuple[Step, ...]
    gpu: tuple[Step, ...]
    records: Mapping[str, int]
    workload: Callable[[int, str], Workload]
    published: tuple[Published, ...] = ()
    each: int = 1

    def steps(self, device: str) -> tuple[Step, ...]:
        """The steps on "cpu" or "cuda"."""
        return self.cpu if device == "cpu" else self.gpu

    def compared(self, device: str) -> Step:
        """The last step whose results are not 8-bit pixels. Those of the steps before it are compared with its own."""
        return [step for step in self.steps(device) if not step.pixels][-1]

    def ideas(self, device: str) -> dict[str, str]:
        """Name of a step -> its idea."""
        return {step.name: step.idea for step in self.steps(device)}


def in_batches(run: Callable[[np.ndarray], np.ndarray], records: np.ndarray, batch: int | None) -> np.ndarray:
    """run(records), called with `batch` records at a time; None: with all of them."""
    if batch is None:
        return run(records)
    return np.concatenate([run(records[first : first + batch]) for first in range(0, len(records), batch)])
