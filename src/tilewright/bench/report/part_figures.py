"""Bar figures of parts: the share of a job's time that each layer takes, and the rate of each rung at each layer."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.bench.report.figures import GAIN, MARGIN, STEP, WIDTH, axis_for, bar, heading, scale
from tilewright.bench.report.layers import LAYERED
from tilewright.bench.report.svg import figure, text, wrapped
from tilewright.bench.report.tables import default_row, device_of, groups, origin, rate, three
from tilewright.bench.results import Row
from tilewright.ops.core.ladder import Ladder

PROFILE = "_profile"  # the end of the name of a file with the time by layer
LINE = 15  # pixels of a line of a name
MOST_PARTS = 10  # of a job in a figure, the longest ones; the table has all


def of_parts(by_op: dict[str, list[Row]], ladders: dict[str, Ladder]) -> dict[str, str]:
    """File name -> SVG, for every machine and dtype, with the largest number of threads that was measured.

    Names are "<machine>/<job>-time-<dtype>.svg" and "<machine>/<op>-layers-<dtype>.svg".
    """
    drawn = {}
    for op in [op for op in by_op if op.endswith(PROFILE)]:
        for (machine, dtype), rows in _most_threads(by_op[op]).items():
            drawn[f"{machine}/{op.removesuffix(PROFILE)}-time-{dtype}.svg"] = time_figure(rows)
    for op in LAYERED:
        for (machine, dtype), rows in _most_threads(by_op.get(op, [])).items():
            layers = groups(rows, lambda row: row.label or row.size)
            if len(layers) > 1:
                drawn[f"{machine}/{op}-layers-{dtype}.svg"] = layers_figure(layers, ladders[op])
    return drawn


def _most_threads(rows: list[Row]) -> dict[tuple[str, str], list[Row]]:
    """(machine, dtype) -> its rows with the most threads."""
    found = groups(rows, lambda row: (row.machine, row.dtype))
    return {
        key: [row for row in some if row.threads == max(one.threads for one in some)] for key, some in found.items()
    }


def time_figure(rows: list[Row]) -> str:
    """The parts of each workload with their time and their share of it, on a linear axis from zero to all of it.

    rows: of one job, dtype and number of threads.
    """
    first = rows[0]
    title = f"{first.op.removesuffix(PROFILE)}, {first.dtype}: where the time goes"
    parts, y = heading(title, f"{device_of(rows[0].threads)}; {origin(rows)}")
    for size, some in groups(rows, lambda row: row.size).items():
        y += 22
        parts.append(text(MARGIN, y, size, "axis", colour="faint"))
        whole = sum(row.median_s for row in some)
        for row in sorted(some, key=lambda row: -row.median_s)[:MOST_PARTS]:
            names = wrapped(row.rung, WIDTH - 2 * MARGIN - 2 * GAIN, 12)
            parts += _share(y + 2, names, row.median_s, row.median_s / whole)
            y += STEP + LINE * (len(names) - 1)
    return figure(WIDTH, y + 16, title, parts)


def _share(y: float, names: list[str], seconds: float, share: float) -> Iterator[str]:
    """The name in lines, time and share of a part, and below them a bar of its share."""
    yield text(WIDTH - MARGIN - GAIN, y + 15, f"{three(1e3 * seconds)} ms", "label", anchor="end")
    yield text(WIDTH - MARGIN, y + 15, f"{share:.0%}", "label", colour="faint", anchor="end")
    for i, words in enumerate(names):
        yield text(MARGIN, y + 15 + LINE * i, words, "label")
    track, y = WIDTH - 2 * MARGIN, y + LINE * (len(names) - 1)
    yield f'<rect class="fill-grid" x="{MARGIN}" y="{y + 21:.0f}" width="{track}" height="9" rx="2"/>'
    length = max(track * share, 1.0)
    yield f'<rect class="fill-ours" x="{MARGIN}" y="{y + 21:.0f}" width="{length:.1f}" height="9" rx="2"/>'


def layers_figure(layers: dict[str, list[Row]], ladder: Ladder) -> str:
    """The rate of each rung and peer at each layer, on one logarithmic axis. The default rung is marked.

    layers: name -> rows of one dtype and number of threads.
    """
    rows = [row for some in layers.values() for row in some]
    rates = [value for value in (rate(row)[0] for row in rows) if value]
    x, title = axis_for(rates), f"{ladder.op}, {rows[0].dtype}: every rung at every layer"
    parts, y = heading(title, f"{device_of(rows[0].threads)}; {origin(rows)}")
    for name, some in layers.items():
        y += 22
        parts.append(text(MARGIN, y, name, "axis", colour="faint"))
        default = default_row(some, ladder)
        for row in some:
            value = rate(row)[0]
            told = f"{row.rung} (by default)" if row is default else row.rung
            parts += bar(y + 2, row, three(value), None, x(value) if value else x.start, name=told)
            y += STEP
    parts += scale(x, y + 4, f"{rate(rows[0])[1]}, logarithmic")
    return figure(WIDTH, y + 48, title, parts)
