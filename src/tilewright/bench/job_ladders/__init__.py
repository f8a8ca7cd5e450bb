"""Ladders of whole jobs: the steps from a naive program to today's. Each step runs on the same input, is checked and
timed.

A job's file declares its steps as data: `CPU` and `GPU` in the order of the ladder, and figures that others published.
`run` reads them. All steps run in one process through the public model API. The last step runs first, because the
outputs of the other steps are compared with its output.
"""

from __future__ import annotations

import importlib

from tilewright.bench.job_ladders.steps import Job, Published, Step
from tilewright.errors import UsageError

__all__ = ["JOBS", "Job", "Published", "Step", "job_of"]

JOBS = ("sentiment", "dcgan", "gpt2", "convolve")


def job_of(name: str) -> Job:
    """The ladder of a job. Raises UsageError for an unknown name."""
    if name not in JOBS:
        raise UsageError(f"there is no job {name!r}; the jobs with a ladder are {', '.join(JOBS)}")
    return importlib.import_module(f"tilewright.bench.job_ladders.{name}").JOB
