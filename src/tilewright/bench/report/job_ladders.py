"""Ladders of whole jobs as tables and bar figures, with figures that others published."""

from __future__ import annotations

from pathlib import Path

from tilewright.bench.job_ladders import job_of
from tilewright.bench.report.figures import steps_figure
from tilewright.bench.report.svg import standalone
from tilewright.bench.report.tables import Table, device_of, groups, origin, row_notes, three, times
from tilewright.bench.results import JOB_LADDER, Row, read, save_here, write_text

MEASURED = (
    "`tilewright ladder --job JOB` runs a whole job step by step, from a naive program to today's: in one process, on "
    "the same input, through the same functions as every job. The steps run one after the other. Rates are medians of "
    "5 rounds, or of 3 if a round takes longer than 0.3 s; a very slow step is timed once. Every result is compared "
    "with float64 and with the output of the last step before it is timed. 8-bit pixels must be those of float32 "
    "images, byte by byte. A slow step runs on fewer records; the column check says so. The factor is the rate over "
    "that of the step before."
)


def is_job_ladder(row: Row) -> bool:
    """True for a row of a job's ladder."""
    return row.op.startswith(JOB_LADDER)


def job_name(row: Row) -> str:
    """The job of a ladder's row."""
    return row.op.removeprefix(JOB_LADDER)


def job_ladders(rows: list[Row]) -> dict[tuple[str, str], list[Row]]:
    """(machine, result file's name) -> the rows of the ladder that was measured last on that machine, in its order."""
    return {key: _latest(some) for key, some in groups(rows, lambda row: (row.machine, row.op)).items()}


def _latest(rows: list[Row]) -> list[Row]:
    return list(groups(rows, lambda row: row.size).values())[-1]


def job_table(rows: list[Row]) -> Table:
    """One line per step, with its idea. rows: of one ladder."""
    job = job_of(job_name(rows[0]))
    ideas = job.ideas("cpu" if rows[0].threads else "cuda")
    header = ("step", "idea", "device", f"{job.unit}/s", "factor", "time, s", "spread", "one-off, s", "check")
    lines = []
    for row in rows:
        spread = f"{row.low_s / row.median_s - 1:+.0%} {row.high_s / row.median_s - 1:+.0%}"
        lines.append((
            row.rung, ideas.get(row.rung, ""), device_of(row.threads), three(row.rows / row.median_s),
            times(row.versus_below), three(row.median_s), spread, three(row.one_off_s), row.check,
        ))  # fmt: skip
    whole = (rows[-1].rows / rows[-1].median_s) / (rows[0].rows / rows[0].median_s)
    note = f"From the first step to the last: {times(whole)} x."
    return Table(f"{rows[0].size}, {rows[0].dtype}; {origin(rows)}", header, tuple(lines), 2,
                 (note, *row_notes(rows)))  # fmt: skip


def published_table(name: str) -> Table | None:
    """What others published for a job. None if there is nothing."""
    job = job_of(name)
    if not job.published:
        return None
    lines, below = [], None
    for one in job.published:
        lines.append((one.program, one.machine, three(one.rate), times(one.rate / below) if below else ""))
        below = one.rate
    caption = "Published for another program, with its machine. These figures are quoted, not measured here"
    return Table(caption, ("step", "machine", f"{job.unit}/s", "factor"), tuple(lines), 2)


def of_jobs(rows: list[Row]) -> dict[str, str]:
    """File name -> SVG: "<machine>/job_<job>.svg"."""
    return {f"{machine}/{op}.svg": _figure(some) for (machine, op), some in job_ladders(rows).items()}


def _figure(rows: list[Row]) -> str:
    job = job_of(job_name(rows[0]))
    return steps_figure(rows, f"{job.name}, {rows[0].dtype}: from naive to today's", job.unit)


def save_job(rows: list[Row]) -> list[Path]:
    """Save a ladder's rows and draw its figure under results/. Returns the files. Raises as `save_here`."""
    written = save_here(rows)
    for path in list(written):
        for name, drawing in of_jobs(read(Path("results"), path.parent.name, path.stem)).items():
            write_text(Path("results") / name, standalone(drawing))
            written.append(Path("results") / name)
    return written
