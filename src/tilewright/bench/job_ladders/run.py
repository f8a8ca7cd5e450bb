"""Run the ladder of a job: check every step, then time it on as many records as fit in a time limit."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

from tilewright.bench.clocks.cpu import CpuClock
from tilewright.bench.job_ladders.steps import Job, Program, Results, Step, Workload
from tilewright.bench.measure import interleave
from tilewright.bench.results import JOB_LADDER, Row
from tilewright.errors import InternalError
from tilewright.ops.core.ladder import forcing
from tilewright.ops.core.launch import thread_count, threads

ROUNDS, LONG_ROUNDS = 5, 3  # odd, so that the median is one of them
LONG_S = 0.3  # a round that takes longer is long
ROUND_S, QUICK_ROUND_S = 1.0, 0.1  # a step that takes longer runs on fewer records
BATCH, QUICK_BATCH = 16, 4  # the fewest records of a step, unless it takes fewer per call
PATIENCE = 2  # if the fewest records take longer than this times the limit, they are timed only once
GROWTH = 4  # each probe has so many times the records of the one before


def run(job: Job, *, device: str, count: int | None = None, quick: bool = False) -> Iterator[Row]:
    """A Row per step, the last step first. `versus_below` is empty until `with_factors` has all rows.

    count: number of records; None: the job's own. device: "cpu" or "cuda". Raises InternalError if a result exceeds its
    bound, or if a step forces rungs that the job does not run. Raises Refused for a rung that cannot run on this
    machine.
    """
    total = count or (job.records[device] // (8 if quick else 1))
    workload, today = job.workload(total, device), None
    for step in reversed(job.steps(device)):
        row, results = _measured(job, step, workload, device, today, quick)
        today = results if step is job.compared(device) else today
        yield row


def with_factors(rows: list[Row]) -> list[Row]:
    """The rows of a ladder in its order, each with its factor over the step before."""
    found: list[Row] = []
    for row in reversed(rows):
        below = found[-1] if found else None
        factor = _rate(row) / _rate(below) if below else None
        found.append(replace(row, versus_below=factor))
    return found


def _rate(row: Row) -> float:
    return row.rows / row.median_s


def _measured(
    job: Job, step: Step, workload: Workload, device: str, today: Results | None, quick: bool
) -> tuple[Row, Results]:
    """(the step's row, its results). today: results of `job.compared`, which the results of every step before it must
    equal within the bound; None until they are computed."""
    begin = time.perf_counter()
    with forcing(**step.rungs) as ran, threads(step.threads):
        program = workload.program(step)
        limit_s, many = (QUICK_ROUND_S, QUICK_BATCH) if quick else (ROUND_S, BATCH)
        least = min(many if step.batch is None else step.batch, workload.total)
        program(least)  # compiles the kernels or loads them
        once_s = time.perf_counter() - begin
        n, seconds = _records(program, least, workload.total, limit_s)
        results = program(n)
        share = _checked(job, step, workload, results, today)
        rounds = ROUNDS if seconds < LONG_S else LONG_ROUNDS
        (timing,) = interleave(
            {"": lambda: program(n)},
            CpuClock(cold=False),
            runs=rounds if seconds < PATIENCE * limit_s else 1,
            warm_up=0,
        ).values()
        on = thread_count() if device == "cpu" else 0
    if idle := step.rungs.keys() - ran:
        raise InternalError(f"{job.name}, step {step.name!r}: the job never ran {', '.join(sorted(idle))}")
    units, every = job.each * n, job.each * workload.total
    fewer = f"; {units} of {every} {job.unit}" if n < workload.total else ""
    row = Row(
        op=JOB_LADDER + job.name, rung=step.name, size=f"{every} {job.unit}", dtype="float32", threads=on, rows=units,
        **timing.columns(), one_off_s=once_s, check=f"passed {share:.2f}{fewer}",
    )  # fmt: skip
    return row, results


def _records(program: Program, least: int, total: int, limit_s: float) -> tuple[int, float]:
    """(number of records that the program computes in about limit_s, at least `least`; their expected seconds).

    A few records are no measure for many, because they leave most of a GPU idle. So the number of records grows until
    they take as long as the limit.
    """
    n = least
    while True:
        begin = time.perf_counter()
        program(n)
        seconds = time.perf_counter() - begin
        if n == total or seconds >= limit_s:
            few = max(least, min(n, int(n * limit_s / seconds)))
            return few, seconds * few / n
        n = min(total, GROWTH * n)
        if seconds < limit_s / (2 * GROWTH):
            program(n)  # allocates memory, and computes the rows of a token table


def _checked(job: Job, step: Step, workload: Workload, results: Results, today: Results | None) -> float:
    """The largest error as a share of the allowed error. Raises InternalError if it is above 1."""
    share = workload.error(results)
    if today is not None:
        both = min(len(results), len(today))
        share = max(share, workload.difference(results[:both], today[:both]))
    if not share <= 1:
        raise InternalError(
            f"{job.name}, step {step.name!r}: the result is off by {share:.3g} times the bound; nothing is reported"
        )
    return share
