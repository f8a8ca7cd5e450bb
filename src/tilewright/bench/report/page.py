"""results/report.html: every figure and table on one page. The page needs no other file and no network."""

import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tilewright.bench.report.job_ladders import MEASURED, job_ladders, job_name, job_table, published_table
from tilewright.bench.report.layers import layer_tables
from tilewright.bench.report.pages import METHOD, READING, SWEPT, jobs, without
from tilewright.bench.report.roofline import measured_roofs
from tilewright.bench.report.shown import by_machine
from tilewright.bench.report.side_by_side import side_table
from tilewright.bench.report.svg import page_rules
from tilewright.bench.report.sweeps import PREFIX, matrix_table, sweep_table, sweeps
from tilewright.bench.report.tables import (
    UNITS,
    WHY_ABOVE,
    Table,
    bench_tables,
    groups,
    ladder_tables,
    machine_title,
    size_of,
    sizes_tables,
    three,
    times,
)
from tilewright.bench.report.timelines import ABOUT, Timeline
from tilewright.bench.results import PEER, Row
from tilewright.ops.core.ladder import Ladder

KEY = {"cpu": "CPU rung", "simt": "GPU rung, SIMT", "tile": "GPU rung, tiles", "vendor": "vendor's library as a rung"}
KEY |= {"peer": "peer", "roof": "measured roof"}
ROOFLINES = (
    "Each panel is one operation; grey dots are the machine's other operations. A dot is one size and the rung that "
    "runs there by default. The slope is the copy bandwidth, a horizontal line the arithmetic rate of one dtype. "
    f"A ring is above its roof. {WHY_ABOVE} A triangle is so far above that it is drawn at the edge."
)


@dataclass(frozen=True)
class Section:
    """A part of the page: its group in the navigation, its anchor, its heading, its HTML."""

    group: str
    anchor: str
    title: str
    content: str


def page(
    by_op: dict[str, list[Row]],
    ladders: dict[str, Ladder],
    drawings: dict[str, str],
    swept: Sequence[Row] = (),
    stepwise: Sequence[Row] = (),
    timelines: Sequence[Timeline] = (),
) -> str:
    """The page as HTML text; the same rows give the same bytes. drawings: from `figures.of_results`, `sweeps.of_sweeps`
    and `job_ladders.of_jobs`. swept: the rows of sweeps. stepwise: the rows of ladders of jobs. timelines: the
    saved ones."""
    sections = [*_sections(by_op, ladders, drawings), *_steps(stepwise, drawings), *_sweeps(swept, by_op, drawings)]
    sections += _timelines(timelines)
    return html_page("tilewright, measured", METHOD, _headline(by_op), sections)


def html_page(title: str, about: str, head: str, sections: Sequence[Section]) -> str:
    """A page of sections with its navigation, which needs no other file. about: text. head: HTML that stands below
    it."""
    body = "\n".join(
        f'<section id="{_text(part.anchor)}"><h2>{_text(part.title)}</h2>\n{part.content}</section>'
        for part in sections
    )
    here = Path(__file__)
    style, script = here.with_suffix(".css").read_text(), here.with_suffix(".js").read_text()
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{_text(title)}</title>
<style>
{page_rules()}
{style}</style>
</head>
<body>
<header>
<h1>{_text(title)}</h1>
<button id="theme" type="button">Theme</button>
<p>{_text(about)}</p>
{head}</header>
<div class="layout">
<nav aria-label="Contents">
{_navigation(sections)}</nav>
<main>
{body}
</main>
</div>
<script>
{script}</script>
</body>
</html>
"""


def _text(words: str) -> str:
    return html.escape(words, quote=True)


def _headline(by_op: dict[str, list[Row]]) -> str:
    """Large figures: each job's largest workload that has a peer, on the machine that was measured last."""
    parts = []
    for job, unit in UNITS.items():
        if rows := [row for row in by_op.get(job, []) if row.check != PEER and row.peer and row.peer_ratio]:
            row = max((row for row in rows if row.machine == rows[0].machine), key=lambda row: row.rows)
            where = _text(f"{size_of(row)}, {row.dtype}; {machine_title(row.machine)}")
            gain = f"{times(row.peer_ratio)} x as fast as {_text(row.peer or '')}"
            speed = f"<b>{three(row.rows / row.median_s)}</b> <span>{unit}</span>"
            parts.append(f"<div>{speed}<em>{gain}</em><small>{where}</small></div>\n")
    return f'<div class="headline">\n{"".join(parts)}</div>\n' if parts else ""


def _navigation(sections: Sequence[Section]) -> str:
    """The groups with a link for each section."""
    parts = []
    for group, some in groups(sections, lambda section: section.group).items():
        links = "".join(f'<a href="#{_text(part.anchor)}">{_text(part.title)}</a>' for part in some)
        parts.append(f"<h2>{_text(group)}</h2><div>{links}</div>\n")
    return "".join(parts)


def _sections(by_op: dict[str, list[Row]], ladders: dict[str, Ladder], drawings: dict[str, str]) -> Iterator[Section]:
    machines = by_machine(by_op)
    yield Section("Overview", "machines", "Machines", _cards(machines))
    if any("/roofline-" in name for name in drawings):
        yield Section("Overview", "rooflines", "Rooflines", _rooflines(list(machines), drawings))
    for name, job in jobs(by_op, ladders).items():
        rows = [row for file in job.files for row in by_op.get(file, [])]
        content = _note(job.about) + _note(without(rows, list(machines)))
        for machine, own in groups(rows, lambda row: row.machine).items():
            tables = {job.files[op]: bench_tables(some) for op, some in groups(own, lambda row: row.op).items()}
            bars = [svg for file, svg in drawings.items() if file.startswith(f"{machine}/{name}-")]
            content += _heading(machine) + _figures(bars) + "".join(_details(*pair) for pair in tables.items())
        yield Section("Jobs", name, job.title, content)
    for op, ladder in ladders.items():
        rows = by_op.get(op, [])
        content = _note(without(rows, list(machines)))
        for machine, own in groups(rows, lambda row: row.machine).items():
            bars = [svg for name, svg in drawings.items() if name.startswith(f"{machine}/{op}-")]
            content += _heading(machine) + _figures(bars)
            content += _details("Every rung at one size, with its idea", ladder_tables(own, ladder))
            if layers := layer_tables(own, ladder):
                content += _details("Every rung at every layer", layers)
            content += _details("The default rung at every size", sizes_tables(own, ladder))
        yield Section("Operations", op, op, content)


def _steps(stepwise: Sequence[Row], drawings: dict[str, str]) -> Iterator[Section]:
    for name, rows in groups(stepwise, job_name).items():
        content = _note(MEASURED)
        for (machine, op), own in job_ladders(rows).items():
            bars = [svg for file, svg in drawings.items() if file == f"{machine}/{op}.svg"]
            content += _heading(machine) + _figures(bars) + _details("Every step, with its idea", [job_table(own)])
        content += _details("Published", list(filter(None, [published_table(name)])))
        yield Section("From naive to today's", f"steps-{name}", name, content)


def _sweeps(swept: Sequence[Row], by_op: dict[str, list[Row]], drawings: dict[str, str]) -> Iterator[Section]:
    for op, rows in groups(swept, lambda row: row.op).items():
        content = _note(SWEPT)
        for machine, own in groups(rows, lambda row: row.machine).items():
            lines = [svg for name, svg in drawings.items() if name.startswith(f"{machine}/{op}-")]
            every = [(matrix_table(some), sweep_table(some)) for some in sweeps(own).values()]
            tables = [table for both in every for table in both if table]
            content += _heading(machine) + _figures(lines) + _details("Every point", tables)
        yield Section("Sweeps", op, op.removeprefix(PREFIX), content)
    if sides := side_table([*by_op.get("conv3d", []), *swept]):
        bars = [svg for name, svg in drawings.items() if "/sides_" in name]
        yield Section("Sweeps", "sides", "conv3d on CPU and GPU", _figures(bars) + _details("Every bar", [sides]))


def _timelines(timelines: Sequence[Timeline]) -> Iterator[Section]:
    for name, some in groups(timelines, lambda one: one.name).items():
        content = _note(ABOUT)
        for one in some:
            content += _heading(one.machine) + _figures([one.drawing]) + _note(f"{one.origin}.")
        yield Section("Timelines", f"timeline-{name}", name, content)


def _cards(machines: dict[str, list[Row]]) -> str:
    """A card for each machine: its measured limits, and the days of the measurements."""
    parts = []
    for machine, rows in machines.items():
        most = max(row.threads for row in rows)
        roofs, copy = measured_roofs([row for row in rows if row.threads == most])
        days = sorted({row.date for row in rows})
        facts = {"copy": f"{three(copy)} GB/s"} if copy else {}
        facts |= {dtype: f"{three(peak)} GFLOP/s" for dtype, peak in sorted(roofs.items(), key=lambda item: item[1])}
        facts |= {"measured": days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"}
        facts |= {"commits": ", ".join(sorted({row.commit for row in rows}))}
        listed = "".join(f"<dt>{_text(name)}</dt><dd>{_text(value)}</dd>" for name, value in facts.items())
        parts.append(f'<div class="card"><h3>{_text(machine_title(machine))}</h3><dl>{listed}</dl></div>\n')
    swatch = '<svg viewBox="0 0 10 10" aria-hidden="true"><rect class="fill-{}" width="10" height="10"/></svg>'
    key = "".join(f"<li>{swatch.format(colour)}{words}</li>" for colour, words in KEY.items())
    terms = "".join(f"<dt>{_text(word)}</dt><dd>{_text(meaning)}</dd>" for word, meaning in READING.items())
    reading = f'<details><summary>How to read the tables</summary><dl class="terms">{terms}</dl></details>'
    return f'<div class="cards">\n{"".join(parts)}</div>\n<ul class="key">{key}</ul>\n{reading}\n'


def _rooflines(machines: list[str], drawings: dict[str, str]) -> str:
    parts = [_note(ROOFLINES)]
    for machine in machines:
        panels = [svg for name, svg in drawings.items() if name.startswith(f"{machine}/roofline-")]
        parts += [_heading(machine), _figures(panels)] if panels else []
    return "".join(parts)


def _heading(machine: str) -> str:
    return f"<h3>{_text(machine_title(machine))}</h3>\n"


def _note(words: str) -> str:
    return f'<p class="note">{_text(words)}</p>\n' if words else ""


def _figures(drawings: list[str]) -> str:
    return '<div class="figures">\n' + "".join(drawings) + "</div>\n" if drawings else ""


def _details(title: str, tables: list[Table]) -> str:
    """Tables that a click opens."""
    body = "\n".join(table.html() for table in tables)
    return f"<details><summary>{_text(title)}</summary>\n{body}\n</details>\n" if tables else ""
