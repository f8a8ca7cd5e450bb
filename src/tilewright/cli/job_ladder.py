"""`tilewright ladder --job JOB`: the steps of a whole job, from a naive program to today's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

from tilewright.cli._options import parse_threads
from tilewright.cli._output import say, show
from tilewright.errors import UsageError

if TYPE_CHECKING:
    from tilewright.bench.job_ladders import Job
    from tilewright.bench.results import Row

LEGEND = """\
factor: the rate divided by that of the step before; spread: 10th and 90th percentile of the rounds' times
check: largest error as a share of the allowed one; a step whose check fails is not timed"""


@dataclass
class JobOptions:
    """The options of `ladder` that --job takes."""

    device: Literal["cpu", "cuda"]
    count: int | None
    threads: str | None
    list_: bool
    quick: bool
    save: bool


def job_ladder(name: str, given: Mapping[str, Any]) -> None:
    """Run, show and save a job's ladder. given: the options of `ladder`.

    Raises UsageError for options that exclude each other, ResourceError without the GPU that --device names.
    """
    from tilewright.bench.job_ladders import job_of

    options = _own(name, given)
    job, counts = job_of(name), parse_threads(options.threads) if options.threads else ()
    if len(counts) > 1 or (counts and options.device != "cpu"):
        rule = "one number is wanted" if len(counts) > 1 else f"it is for the CPU; --device {options.device} has none"
        raise UsageError(f"ladder --job {name}: --threads {options.threads}: {rule}")
    if options.list_:
        for option in [each for each in ("count", "quick", "save", "threads") if getattr(options, each)]:
            raise UsageError(f"ladder --job {name}: --{option} has no effect with --list, which times nothing")
        _list(job, options.device)
        return
    rows = _measured(job, options, counts[0] if counts else None)
    show(f"{_table(rows)}\n{LEGEND}")


def _own(job: str, given: Mapping[str, Any]) -> JobOptions:
    """The options of a job. Raises UsageError for one that a whole job does not take."""
    own = {field.name for field in fields(JobOptions)}
    used = [option for option, value in given.items() if value not in ("", None, False)]
    if others := [option for option in used if option not in {*own, "job"}]:
        what = f"the operation {given['op']}" if others[0] == "op" else f"--{others[0].rstrip('_')}"
        takes = ", ".join(f"--{option.rstrip('_')}" for option in sorted(own))
        raise UsageError(f"--job {job}: {what} is for the ladder of an operation; a job takes {takes}")
    return JobOptions(**{option: given[option] for option in own})


def _list(job: Job, device: str) -> None:
    """The steps with their ideas and what each forces."""
    show(f"{job.name}: {job.about}")
    for step in job.steps(device):
        forced = [f"{target}={rung}" for target, rung in step.rungs.items()]
        forced += [f"{step.threads} thread"] if step.threads else []
        forced += [f"{step.batch} of the {job.unit} per call"] if step.batch else []
        show(f"{step.name}\n    {step.idea}\n    {', '.join(forced) or 'nothing is forced'}")


def _measured(job: Job, options: JobOptions, count: int | None) -> list[Row]:
    """The rows in the order of the ladder. Each step is shown as soon as it is measured, the last one first."""
    from tilewright.bench.job_ladders.run import run, with_factors
    from tilewright.bench.noise import Watch, warning
    from tilewright.bench.report.job_ladders import save_job
    from tilewright.bench.report.tables import three
    from tilewright.ops.core.launch import threads
    from tilewright.runtime.devices import place_for

    place_for(options.device)
    watch, rows, compared = Watch(), [], job.compared(options.device).name
    order = f"The last step runs first. The outputs of other steps are compared with those of the step {compared!r}."
    if not show(f"{job.about}\n{order}") and not options.save:
        raise typer.Exit
    files: list[Path] = []
    with threads(count):
        for row in run(job, device=options.device, count=options.count, quick=options.quick):
            rows.append(row)
            say(f"  {row.rung}: {three(row.rows / row.median_s)} {job.unit}/s, {row.check}")
            if options.save:  # step by step: an interrupted ladder has its last steps
                files = save_job(watch.noted(with_factors(rows)))
    rows = watch.noted(with_factors(rows))
    for path in files:
        say(f"written to {path}")
    if text := warning(rows):
        say(text, err=True)
    return rows


def _table(rows: list[Row]) -> str:
    from tilewright.bench.report.job_ladders import job_table

    return job_table(rows).text()
