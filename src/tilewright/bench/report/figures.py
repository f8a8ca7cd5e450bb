"""Bar figures of a ladder and of a job, and the list of all figures. The same rows give the same bytes."""

import math
import re
from collections.abc import Iterator

from tilewright.bench.report.roofline import roofline
from tilewright.bench.report.svg import LogAxis, figure, line, short, text, wrapped
from tilewright.bench.report.tables import (
    UNITS,
    device_of,
    groups,
    headline,
    origin,
    rate,
    size_of,
    three,
    times,
)
from tilewright.bench.results import PEER, Row
from tilewright.ops.core.ladder import Ladder

WIDTH, MARGIN, STEP, GAIN = 400, 16, 36, 60  # pixels; a phone shows the figure without scaling it
ENGINES = ("cpu", "simt", "tile", "vendor")  # rungs have these colours; everything else has the colour of peers


def of_results(by_op: dict[str, list[Row]], ladders: dict[str, Ladder]) -> dict[str, str]:
    """File name -> SVG, for every machine, with the largest number of threads that was measured.

    Names are "<machine>/<op>-<dtype>.svg", "<machine>/roofline-<op>.svg" and "<machine>/<job>-<workload>-<dtype>.svg".
    """
    drawn = {}
    for op, ladder in ladders.items():
        for (machine, dtype), rows in groups(by_op.get(op, []), lambda row: (row.machine, row.dtype)).items():
            shown = headline(rows, ladder)
            if shown:
                drawn[f"{machine}/{op}-{dtype}.svg"] = ladder_figure(shown, ladder)
    ours = [row for op in ladders for row in by_op.get(op, [])]
    for machine, rows in groups(ours, lambda row: row.machine).items():
        for op in dict.fromkeys(row.op for row in rows):
            panel = roofline(rows, ladders, op)
            if panel:
                drawn[f"{machine}/roofline-{op}.svg"] = panel
    for job in UNITS:
        workloads = groups(by_op.get(job, []), lambda row: (row.machine, row.size, row.dtype))
        for (machine, size, dtype), rows in workloads.items():
            name = f"{job}-{re.sub(r'[^a-z0-9]+', '-', size.lower())}-{dtype}"
            most = max(row.threads for row in rows)
            drawn[f"{machine}/{name}.svg"] = job_figure([row for row in rows if row.threads == most])
    return drawn


def ladder_figure(rows: list[Row], ladder: Ladder) -> str:
    """The rungs and peers of one size, with the largest number of threads. The lowest rung is first; the axis is
    logarithmic."""
    most = max(row.threads for row in rows)
    cell = {row.rung: row for row in rows if row.threads == most}
    names = [name for name in ladder.rungs if name in cell] + [name for name in cell if name not in ladder.rungs]
    first = cell[names[0]]
    rates, unit = {name: rate(cell[name])[0] or 0.0 for name in names}, rate(first)[1]
    roof = max(rates[name] / (cell[name].roof_share or math.inf) for name in names)
    x = axis_for([*filter(None, rates.values()), roof or 1.0])
    title = f"{ladder.op}, {first.dtype}: {first.label + ', ' if first.label else ''}{size_of(first)}"
    head, y = heading(title, f"{device_of(first.threads)}; {origin(list(cell.values()))}")
    top = y + 30
    bottom = top + STEP * len(names)
    parts = [*head, *scale(x, bottom, f"{unit}, logarithmic; x: gain over the rung below")]
    if roof:
        side = "end" if x(roof) > WIDTH / 2 else "start"
        parts.append(text(x(roof), top - 6, f"measured roof {three(roof)}", "axis", colour="roof", anchor=side))
    for i, name in enumerate(names):
        end = x(rates[name]) if rates[name] else x.start
        parts += bar(top + i * STEP, cell[name], three(rates[name]), cell[name].versus_below, end)
        if roof:
            y = top + i * STEP
            parts.append(line(x(roof), y + 18, x(roof), y + 33, "roof", ' stroke-width="2"'))
    return figure(WIDTH, bottom + 44, title, parts)


def job_figure(rows: list[Row]) -> str:
    """Records per second of one workload, of tilewright and its peers, on a linear axis from zero. rows: of one
    climb."""
    first = rows[0]
    rates = [row.rows / row.median_s for row in rows]
    title = f"{first.op}, {first.dtype}: {size_of(first)}"
    head, y = heading(title, f"{device_of(first.threads)}; {origin(rows)}")
    top = y + 10
    bottom = top + STEP * len(rows)
    axis = f"{UNITS[first.op]}; x: gain over the peer"
    parts = [*head, text(WIDTH / 2, bottom + 18, axis, "axis name", colour="faint", anchor="middle")]
    for i, (row, speed) in enumerate(zip(rows, rates, strict=True)):
        end = MARGIN + (WIDTH - 2 * MARGIN) * speed / max(rates)
        parts += bar(top + i * STEP, row, three(speed), None if row.check == PEER else row.peer_ratio, end)
    return figure(WIDTH, bottom + 30, title, parts)


def steps_figure(rows: list[Row], title: str, unit: str) -> str:
    """Records per second of a job's steps, the first step at the top, on a logarithmic axis. x is the factor over the
    step before."""
    rates = [row.rows / row.median_s for row in rows]
    where = device_of(max(row.threads for row in rows))
    head, y = heading(title, f"{where}; {origin(rows)}")
    top = y + 10
    bottom, x = top + STEP * len(rows), axis_for(rates)
    parts = [*head, *scale(x, bottom, f"{unit}/s, logarithmic; x: factor over the step before")]
    for i, (row, speed) in enumerate(zip(rows, rates, strict=True)):
        parts += bar(top + i * STEP, row, three(speed), row.versus_below, x(speed))
    return figure(WIDTH, bottom + 44, title, parts)


def axis_for(values: list[float]) -> LogAxis:
    """An axis from a power of ten below the values, so that similar values have bars of similar length, to a little
    above them."""
    low = 10.0 ** math.floor(math.log10(min(values) / 1.1))
    return LogAxis(low, 1.15 * max(values), MARGIN, WIDTH - MARGIN)


def heading(title: str, below: str) -> tuple[list[str], float]:
    """(the title and the line with machine and day, the base line of the last line)."""
    parts, y = [], 8.0
    for words in wrapped(title, WIDTH - 2 * MARGIN, 15):
        y += 18
        parts.append(text(MARGIN, y, words, "title"))
    y += 3
    for words in wrapped(below, WIDTH - 2 * MARGIN, 11):
        y += 15
        parts.append(text(MARGIN, y, words, "axis", colour="faint"))
    return parts, y + 2


def scale(x: LogAxis, y: float, name: str) -> Iterator[str]:
    """The values of the axis below the bars, which end at y, and the name of the axis."""
    for tick in x.few():
        at = x(tick)
        anchor = "start" if at < MARGIN + 12 else "end" if at > WIDTH - MARGIN - 12 else "middle"
        yield line(at, y, at, y + 4, "ghost")
        yield text(at, y + 16, short(tick), "axis", colour="faint", anchor=anchor)
    yield text((x.start + x.end) / 2, y + 34, name, "axis name", colour="faint", anchor="middle")


def bar(y: float, row: Row, value: str, gain: float | None, end: float, *, name: str = "") -> Iterator[str]:
    """The name, the value and the gain, and below them the bar, which ends at `end`. name: if it is not the rung's
    name."""
    engine = row.rung.partition(".")[0]
    colour = "peer" if row.check == PEER else engine if engine in ENGINES else "ours"
    yield text(MARGIN, y + 15, name or row.rung, "label")
    yield text(WIDTH - MARGIN - GAIN, y + 15, value, "label", anchor="end")
    if gain:
        yield text(WIDTH - MARGIN, y + 15, f"{times(gain)} x", "label", colour="faint", anchor="end")
    track, length = WIDTH - 2 * MARGIN, max(end - MARGIN, 1.0)
    yield f'<rect class="fill-grid" x="{MARGIN}" y="{y + 21:.0f}" width="{track}" height="9" rx="2"/>'
    yield f'<rect class="fill-{colour}" x="{MARGIN}" y="{y + 21:.0f}" width="{length:.1f}" height="9" rx="2"/>'
