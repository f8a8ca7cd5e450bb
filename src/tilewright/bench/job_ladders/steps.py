"""What a job's file declares: its steps, its workload, and published figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from tilewright.switches import Without

Results = Any  # an array with a row per record, NumPy's or a tensor
Program = Callable[[int], Results]  # computes the first n records of the input, and returns when they are computed


@dataclass(frozen=True)
class Step:
    """One step of a job's ladder.

    idea: one sentence, what changes from the step before. rungs: the kernels that are forced, by operation or by layer
    ("matmul@2"); for others today's run. without: optimisations that are switched off, see `switches`. threads: of the
    CPU; None: those that the user gives. batch: records per call of the model; None: all.
    """

    name: str
    idea: str
    rungs: Mapping[str, str] = field(default_factory=dict)
    without: Without = frozenset()
    threads: int | None = None
    batch: int | None = None


@dataclass(frozen=True)
class Published:
    """A figure of another program, which is quoted and never compared with ours. rate: in the job's units per second,
    or a speed-up where the machine says so."""

    program: str
    rate: float
    machine: str


class Workload(Protocol):
    """The input of a job, and what its results must be."""

    @property
    def total(self) -> int:
        """Records of the input."""

    def program(self, step: Step) -> Program:
        """The job as this step runs it. The caller has forced the step's rungs and threads."""

    def error(self, results: Results) -> float:
        """The largest error of the results of the first records, as a share of the allowed one, against float64."""

    def difference(self, results: Results, today: Results) -> float:
        """The largest difference of two results, as a share of what both errors together allow."""


@dataclass(frozen=True)
class Job:
    """The ladder of a job.

    unit: what is counted, `each` of them per record. about: the job in one or two sentences. cpu, gpu: the steps, from
    the naive one to today's. records: of the input, by device. workload: makes (count, device) ready. published: of
    others, see `Published`.
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

    def ideas(self, device: str) -> dict[str, str]:
        """Name of a step -> its idea."""
        return {step.name: step.idea for step in self.steps(device)}


def in_batches(run: Callable[[np.ndarray], np.ndarray], records: np.ndarray, batch: int | None) -> np.ndarray:
    """run(records), called for `batch` records at a time; None: for all of them."""
    if batch is None:
        return run(records)
    return np.concatenate([run(records[first : first + batch]) for first in range(0, len(records), batch)])
