"""Scaling as line figures: the speed-up against the number of workers, and the curves of the fitted laws."""

import itertools
import re
from collections.abc import Iterator
from pathlib import Path

from tilewright.bench.report.laws import Curve, curves, shares, workers
from tilewright.bench.report.svg import LogAxis, figure, line, standalone, text, wrapped
from tilewright.bench.report.sweeps import COLOURS, HEIGHT, LEFT, MARGIN, WIDTH
from tilewright.bench.report.tables import groups, origin, times
from tilewright.bench.results import Row, read, save_here, write_text

STEPS = 24  # straight lines that make up a fitted curve
FITTED = ' stroke-width="1.5" stroke-dasharray="5 4"'


def of_scaling(rows: list[Row]) -> dict[str, str]:
    """File name -> SVG: "<machine>/scaling-<job>-<engine>-<dtype>.svg", with the latest session of each size. A job
    that ran only with one worker has no figure."""
    drawn = {}
    by_figure = groups(rows, lambda row: (row.machine, row.size.partition(",")[0], row.engine, row.dtype))
    for (machine, job, engine, dtype), some in by_figure.items():
        found = [curve for curve in _latest(curves(some)) if len(curve.rows) > 1]
        if found:
            slug = re.sub(r"[^a-z0-9]+", "-", job.lower()).strip("-")
            drawn[f"{machine}/scaling-{slug}-{engine}-{dtype}.svg"] = scaling_figure(found)
    return drawn


def _latest(found: list[Curve]) -> list[Curve]:
    by_size = groups(found, lambda curve: curve.rows[0].size)
    return [max(some, key=lambda curve: curve.rows[0].origin) for some in by_size.values()]


def save_scaling(rows: list[Row]) -> list[Path]:
    """Save rows and draw the figures of their result files under results/. Returns the files.

    Raises InputError if an existing file is no result file, ResourceError if one cannot be written.
    """
    written = save_here(rows)
    for path in list(written):
        for name, drawing in of_scaling(read(Path("results"), path.parent.name, path.stem)).items():
            write_text(Path("results") / name, standalone(drawing))
            written.append(Path("results") / name)
    return written


def scaling_figure(drawn: list[Curve]) -> str:
    """Speed-up over one worker against the number of workers, both logarithmic. Linear scaling is grey, the fitted law
    is dashed, workers that share a device are rings. drawn: curves of one job, engine and dtype, each with several
    numbers of workers."""
    first = drawn[0].rows[0]
    title = f"{first.size.partition(',')[0]}, {first.dtype}, {first.engine}: speed-up over one worker"
    rows = [row for curve in drawn for row in curve.rows]
    parts, y = [], 8.0
    for words in wrapped(title, WIDTH - 2 * MARGIN, 15):
        y += 18
        parts.append(text(MARGIN, y, words, "title"))
    for words in wrapped(origin(rows), WIDTH - 2 * MARGIN, 11):
        y += 15
        parts.append(text(MARGIN, y, words, "axis", colour="faint"))
    y += 8
    for colour, curve in zip(itertools.cycle(COLOURS), drawn, strict=False):
        parts.append(line(MARGIN, y + 13, MARGIN + 24, y + 13, colour, ' stroke-width="2"'))
        for words in wrapped(_told(curve), WIDTH - 2 * MARGIN - 32, 12):
            y += 17
            parts.append(text(MARGIN + 32, y, words, "label"))
    top = y + 34
    counts = sorted({workers(row) for row in rows})
    speedups = [row.versus_below for row in rows if row.versus_below]
    x = LogAxis(counts[0] / 1.1, counts[-1] * 1.1, LEFT, WIDTH - MARGIN)
    up = LogAxis(min(speedups) / 1.2, max(counts[-1], *speedups) * 1.1, top + HEIGHT, top)
    parts += _axes(x, up, counts)
    for colour, curve in zip(itertools.cycle(COLOURS), drawn, strict=False):
        parts += _drawn(curve, x, up, colour)
    return figure(WIDTH, top + HEIGHT + 48, title, parts)


def _told(curve: Curve) -> str:
    """A line of the key: records, the highest speed-up, Amdahl's serial share."""
    best = max(curve.rows, key=lambda row: row.versus_below or 0.0)
    share = f"; Amdahl's serial share {100 * curve.amdahl.serial:.2g} %" if curve.amdahl else ""
    return f"{best.size.partition(', ')[2]}: {times(best.versus_below)} x with {best.label} workers{share}"


def _axes(x: LogAxis, up: LogAxis, counts: list[int]) -> Iterator[str]:
    for count in counts:
        if up.low <= count <= up.high:
            yield line(LEFT, up(count), WIDTH - MARGIN, up(count), "grid")
            yield text(LEFT - 6, up(count) + 4, str(count), "axis", colour="faint", anchor="end")
        yield line(x(count), up.start, x(count), up.start + 4, "ghost")
        yield text(x(count), up.start + 17, str(count), "axis", colour="faint", anchor="middle")
    yield text(MARGIN, up.end - 10, "speed-up (logarithmic)", "axis name", colour="faint")
    name = "workers (logarithmic); grey: linear; dashed: fitted law; ring: shared device"
    yield text((LEFT + WIDTH - MARGIN) / 2, up.start + 36, name, "axis name", colour="faint", anchor="middle")
    yield line(x(counts[0]), up(counts[0]), x(counts[-1]), up(counts[-1]), "ghost", ' stroke-width="1.5"')


def _drawn(curve: Curve, x: LogAxis, up: LogAxis, colour: str) -> Iterator[str]:
    """The measured points, connected by lines, and the curve of the USL, or of Amdahl's law if only that was fitted."""
    law = curve.usl or curve.amdahl
    first, last = workers(curve.rows[0]), workers(curve.rows[-1])
    if law:
        at = [first * (last / first) ** (i / STEPS) for i in range(STEPS + 1)]
        for a, b in itertools.pairwise(at):
            yield line(x(a), up(law.speedup(a)), x(b), up(law.speedup(b)), colour, FITTED)
    points = [(x(workers(row)), up(row.versus_below), shares(row)) for row in curve.rows if row.versus_below]
    for (x1, y1, _), (x2, y2, _) in itertools.pairwise(points):
        yield line(x1, y1, x2, y2, colour, ' stroke-width="2"')
    for across, height, shared in points:
        look = f'class="fill-paper line-{colour}" stroke-width="2"' if shared else f'class="fill-{colour}"'
        yield f'<circle {look} cx="{across:.1f}" cy="{height:.1f}" r="4"/>'
