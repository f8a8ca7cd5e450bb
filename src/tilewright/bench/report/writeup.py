"""A report of one machine, in Markdown and HTML: steps, jobs, sweeps, scaling, timelines, and sentences about the rows.

It reads only saved rows: no clock, no random numbers, no commit of this checkout. The same rows give the same bytes.
"""

import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tilewright.bench.job_ladders import JOBS as job_ladder_names
from tilewright.bench.report import figures
from tilewright.bench.report.job_ladders import (
    is_job_ladder,
    job_ladders,
    job_name,
    job_table,
    of_jobs,
    published_table,
)
from tilewright.bench.report.laws import curves
from tilewright.bench.report.layers import layer_tables
from tilewright.bench.report.page import Section, html_page
from tilewright.bench.report.pages import METHOD, jobs
from tilewright.bench.report.part_figures import of_parts
from tilewright.bench.report.roofline import measured_roofs
from tilewright.bench.report.scaling import of_scaling
from tilewright.bench.report.sentences import (
    cores_of,
    job_sentences,
    ladder_sentences,
    profile_sentences,
    published,
    scaling_sentences,
    steps_sentences,
    sweep_sentences,
    thread_sentences,
)
from tilewright.bench.report.shown import shown
from tilewright.bench.report.svg import standalone
from tilewright.bench.report.sweeps import PREFIX, is_sweep, matrix_table, of_sweeps, sweep_table, sweeps
from tilewright.bench.report.sweeps import curves as sweep_curves
from tilewright.bench.report.tables import (
    Table,
    bench_tables,
    groups,
    headline,
    ladder_tables,
    machine_title,
    origin,
    plain,
    three,
)
from tilewright.bench.report.timelines import Timeline, read_timelines
from tilewright.bench.results import SCALING, Row, read, write_text
from tilewright.errors import InputError
from tilewright.ops.core.ladder import Ladder

LADDERS, JOBS, WHOLE, SWEEPS, WORKERS = "Kernels", "Jobs", "Job ladders", "Sweeps", "Scaling"
TIMELINES = "Timelines"


@dataclass(frozen=True)
class Part:
    """A section: first sentences, then figures (file name -> SVG), then tables."""

    group: str
    anchor: str
    title: str
    sentences: tuple[str, ...]
    drawings: dict[str, str]
    tables: tuple[Table, ...]

    def markdown(self) -> str:
        """The section below a heading of the third level."""
        lines = "\n".join(f"* {plain(sentence)}" for sentence in self.sentences)
        images = "\n".join(f"![{Path(name).stem}](figures/{name})" for name in self.drawings)
        tables = [table.markdown() for table in self.tables]
        return "\n\n".join(filter(None, [f"### {plain(self.title)}", lines, images, *tables]))

    def section(self) -> Section:
        """The section of an HTML page."""
        items = "".join(f"<li>{html.escape(sentence)}</li>" for sentence in self.sentences)
        drawn = "".join(self.drawings.values())
        content = f"<ul>{items}</ul>\n" if items else ""
        content += f'<div class="figures">\n{drawn}</div>\n' if drawn else ""
        return Section(self.group, self.anchor, self.title, content + "\n".join(map(Table.html, self.tables)) + "\n")


def write_writeup(results: Path, machines: Sequence[str], folder: Path, ladders: dict[str, Ladder]) -> list[Path]:
    """Write writeup.md, writeup.html and figures/*.svg from these machines' rows and timelines into `folder`.

    Returns the files that changed. Raises InputError for a broken result file, and if a machine has no rows.
    """
    rows = [row for machine in machines for row in read(results, machine)]
    if not rows:
        there = ", ".join(sorted({path.parent.name for path in results.glob("*/*.csv")})) or "none"
        remedy = "measure first, as in `tilewright ladder matmul --save`, or name a machine: --machine NAME"
        raise InputError(
            f"there are no rows of {' or '.join(machines)}; machines with rows: {there}", path=results, remedy=remedy
        )
    timelines = [one for machine in machines for one in read_timelines(results, machine)]
    parts = [*parts_of(rows, ladders), *map(_timeline_part, timelines)]
    title = (
        f"Measurements of {' and '.join(machine_title(name) for name in dict.fromkeys(row.machine for row in rows))}"
    )
    made = {folder / "writeup.md": _markdown(title, rows, parts), folder / "writeup.html": _html(title, rows, parts)}
    for part in parts:
        made |= {folder / "figures" / name: standalone(svg) for name, svg in part.drawings.items()}
    return [path for path, text in made.items() if write_text(path, text)]


def parts_of(rows: list[Row], ladders: dict[str, Ladder]) -> Iterator[Part]:
    """The sections for which rows exist, machine by machine."""
    for own in groups(rows, lambda row: row.machine).values():
        swept = [row for row in own if is_sweep(row)]
        steps = [row for row in own if is_job_ladder(row)]
        by_op = shown([row for row in own if not is_sweep(row) and not is_job_ladder(row)], ladders)
        drawings = figures.of_results(by_op, ladders) | of_parts(by_op, ladders)
        yield from _ladder_parts(by_op, ladders, drawings)
        yield from _job_parts(by_op, ladders, drawings)
        yield from _step_parts(steps)
        yield from _sweep_parts(swept)
        yield from _scaling_parts(by_op.get(SCALING, []))


def _ladder_parts(by_op: dict[str, list[Row]], ladders: dict[str, Ladder], drawings: dict[str, str]) -> Iterator[Part]:
    for op in (op for op in ladders if op in by_op):
        sentences: list[str] = []
        for dtype, rows in groups(by_op[op], lambda row: row.dtype).items():
            best = headline(rows, ladders[op])
            most = max((row.threads for row in best), default=0)
            told = ladder_sentences([row for row in best if row.threads == most], ladders[op]) + thread_sentences(best)
            sentences += [f"{dtype}: {sentence}" for sentence in told]
        tables = [*ladder_tables(by_op[op], ladders[op]), *layer_tables(by_op[op], ladders[op])]
        yield _part(LADDERS, by_op[op], op, [*sentences, *published(op)], _named(drawings, f"{op}-"), tables)


def _job_parts(by_op: dict[str, list[Row]], ladders: dict[str, Ladder], drawings: dict[str, str]) -> Iterator[Part]:
    for name, job in jobs(by_op, ladders).items():
        rows = [row for file in job.files for row in by_op.get(file, [])]
        if not rows or name == SCALING:
            continue
        sentences = job_sentences(rows)
        profile = [row for row in rows if row.op.endswith("_profile")]
        for some in groups(profile, lambda row: (row.size, row.dtype, row.threads)).values():
            sentences += profile_sentences(some)
        tables = [table for file in job.files for table in bench_tables(by_op.get(file, []))] + _published(name)
        yield _part(JOBS, rows, name, [*sentences, *published(name)], _named(drawings, f"{name}-"), tables, job.title)


def _published(job: str) -> list[Table]:
    """What others published for a job that has a ladder, with their machine."""
    table = published_table(job) if job in job_ladder_names else None
    return [table] if table else []


def _step_parts(rows: list[Row]) -> Iterator[Part]:
    for (_, op), own in job_ladders(rows).items():
        name = job_name(own[0])
        drawn = {f"{op}.svg": next(iter(of_jobs(own).values()))}
        tables = [job_table(own), *_published(name)]
        yield _part(WHOLE, own, op, steps_sentences(own), drawn, tables, f"Steps of {name}")


def _sweep_parts(rows: list[Row]) -> Iterator[Part]:
    for (_, op, names, dtype), some in sweeps(rows).items():
        sentences = [sentence for curve in sweep_curves(some) for sentence in sweep_sentences(curve)]
        title = f"{op.removeprefix(PREFIX)}, {dtype}: {' and '.join(names.split('-'))}"
        drawn = {Path(name).name: svg for name, svg in of_sweeps(some).items()}
        tables = [table for table in (matrix_table(some), sweep_table(some)) if table]
        yield _part(SWEEPS, some, f"{op}-{names}-{dtype}", sentences, drawn, tables, title)


def _scaling_parts(rows: list[Row]) -> Iterator[Part]:
    if rows:
        sentences = [sentence for curve in curves(rows) for sentence in scaling_sentences(curve)]
        yield _part(
            WORKERS, rows, SCALING, sentences, _named(of_scaling(rows), "scaling-"), bench_tables(rows), "Workers"
        )


def _timeline_part(one: Timeline) -> Part:
    drawn = {one.figure.replace("/", "-"): one.drawing}
    return Part(TIMELINES, f"{one.machine}-timeline-{one.name}", one.name, (f"{one.origin}.",), drawn, ())


def _part(
    group: str, rows: list[Row], name: str, sentences: list[str], drawings: dict[str, str], tables: list[Table],
    title: str = "",
) -> Part:  # fmt: skip
    """A section of one machine. Its anchor and its figures' names begin with the machine."""
    machine = rows[0].machine
    drawn = {f"{machine}-{file}": svg for file, svg in drawings.items()}
    return Part(group, f"{machine}-{name}", title or name, tuple(sentences), drawn, tuple(tables))


def _named(drawings: dict[str, str], prefix: str) -> dict[str, str]:
    """The figures of one operation or job by their file names, without the machine."""
    names = {name: name.partition("/")[2] for name in drawings}
    wanted = (prefix, f"roofline-{prefix.removesuffix('-')}.")
    return {names[name]: svg for name, svg in drawings.items() if names[name].startswith(wanted)}


def machine_sentences(rows: list[Row]) -> list[str]:
    """What a machine is, its limits, and the days of the measurements. rows: of one machine."""
    machine = rows[0].machine
    cores = cores_of(machine)
    told = [f"{machine_title(machine)}: {origin(rows)}."]
    if cores:
        told.append(f"The machine has {cores} core{'s' * (cores != 1)}.")
    roofs, copy = measured_roofs([row for row in rows if row.threads == max(row.threads for row in rows)])
    peaks = [f"{three(peak)} GFLOP/s in {dtype}" for dtype, peak in sorted(roofs.items(), key=lambda item: item[1])]
    if copy:
        told.append(f"Its measured limits: {'; '.join([f'{three(copy)} GB/s of copies', *peaks])}.")
    return told


def _about(rows: list[Row]) -> list[str]:
    return [told for own in groups(rows, lambda row: row.machine).values() for told in machine_sentences(own)]


def _markdown(title: str, rows: list[Row], parts: list[Part]) -> str:
    text = [f"# {title}", METHOD, "\n".join(f"* {plain(told)}" for told in _about(rows))]
    for group, some in groups(parts, lambda part: part.group).items():
        text += [f"## {group}", *(part.markdown() for part in some)]
    return "\n\n".join(text) + "\n"


def _html(title: str, rows: list[Row], parts: list[Part]) -> str:
    items = "".join(f"<li>{html.escape(told)}</li>" for told in _about(rows))
    return html_page(title, METHOD, f"<ul>{items}</ul>\n", [part.section() for part in parts])
