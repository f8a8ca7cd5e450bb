"""Sweep a whole job against its number of workers, and of records.

Each point is the command line in processes of its own, as `bench scaling` runs it. Points do not alternate, so each is
saved as soon as it is measured, and a later sweep at the same commit measures only the missing ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from tilewright.bench.results import WORKERS, Row, commit, is_exact, read
from tilewright.bench.sweep import PREFIX, REFUSED
from tilewright.bench.sweep_kinds import JOBS, TOKENS, Setting
from tilewright.bench.workloads import scaling
from tilewright.errors import InternalError, UsageError

MANY = "worker processes"  # how a point is run: a row's `rung`
Say = Callable[[str], None]
Axes = Mapping[str, tuple[int, ...]]


class Sweep(NamedTuple):
    """What is measured. axes: WORKERS, and the number of records if it is swept, else `records`. folder: for models,
    inputs and outputs. known: rows that are not measured again."""

    setting: Setting
    axes: Axes
    records: int
    folder: Path
    known: Iterable[Row] = ()


def saved_points(setting: Setting, folder: Path = Path("results")) -> list[Row]:
    """The points over workers that this commit has measured of the job, on this machine or its GPU, in its dtype.

    None if the code is no commit's: its rows could be of other code. Raises InputError if a file is no result file.
    """
    from tilewright.hardware import gpu_name, machine_name

    here = commit()
    if not is_exact(here):
        return []
    machine = machine_name() if setting.device == "cpu" else gpu_name()
    wanted = (MANY, setting.dtype, machine, here)
    rows = read(folder, machine, PREFIX + setting.job)
    return [row for row in rows if row.runs and (row.rung, row.dtype, row.machine, row.commit) == wanted]


def sweep_workers(sweep: Sweep, say: Say) -> Iterator[Row]:
    """A Row per number of records and of workers, as soon as it is measured; a time is that of all shards.

    A known row is yielded itself. Raises InternalError if a run fails, or writes other bytes than another number of
    workers.
    """
    from tilewright.hardware import cpu, gpus

    setting, axes = sweep.setting, sweep.axes
    if setting.job not in scaling.JOBS:
        jobs = ", ".join(job for job in JOBS if job in scaling.JOBS)
        raise UsageError(f"sweep --job {setting.job}: --workers is for {jobs}")
    units, there = ("cores", cpu().cores) if setting.device == "cpu" else ("GPUs", len(gpus()))
    workers = tuple(sorted(n for n in axes[WORKERS] if n <= there)) or (1,)
    plan = scaling.Setting(sweep.folder, workers, device=setting.device, dtype=setting.dtype, tokens=TOKENS)
    known = {(row.size, row.point): row for row in sweep.known if row.threads == plan.cores}
    for records in axes.get(setting.records, (sweep.records,)):
        check = ""
        for n in axes[WORKERS]:
            row = _blank(sweep, records, n)
            if (found := known.get((row.size, row.point))) is not None:
                row = found
            elif n > there:
                why = f"{n} workers need as many {units}; there are {there}"
                row = replace(row, threads=plan.cores, check=REFUSED + why)
            else:
                row = _measured(row, records, n, plan, say)
            if row.runs and row.check != (check := check or row.check):
                raise InternalError(
                    f"{setting.job}: {row.point} does not give the bytes of fewer workers", path=str(sweep.folder)
                )
            yield row


def _blank(sweep: Sweep, records: int, workers: int) -> Row:
    """The row of a point that is not measured yet."""
    setting, axes = sweep.setting, sweep.axes
    now = {setting.records: records, WORKERS: workers}
    return Row(
        op=PREFIX + setting.job, rung=MANY,
        size=setting.job if setting.records in axes else f"{records:,} {setting.records}",
        dtype=setting.dtype, threads=0, rows=0, median_s=0.0, low_s=0.0, high_s=0.0, runs=0,
        point=", ".join(f"{axis}={now[axis]}" for axis in axes),
    )  # fmt: skip


def _measured(row: Row, records: int, workers: int, plan: scaling.Setting, say: Say) -> Row:
    job = row.op.removeprefix(PREFIX)
    run = scaling.run_once(job, records, plan, workers)
    rest = run.whole - run.seconds
    say(f"{job}, {row.point}: {run.seconds:.3g} s, {rest:.2f} s besides, {run.shards} shards")
    return replace(
        row, threads=plan.cores, rows=records * (TOKENS if job == "gpt2" else 1), median_s=run.seconds,
        low_s=run.seconds, high_s=run.seconds, runs=1, one_off_s=rest, check=run.check,
    )  # fmt: skip
