"""Figures as SVG text: a ladder's rungs as bars, and a roofline. The same rows give the same bytes."""

import html
import math
from dataclasses import dataclass

from tilewright.bench.report.tables import default_row, groups, headline, origin, rate, three, times
from tilewright.bench.results import PEER, Row
from tilewright.ops.core.ladder import Ladder

INK, FAINT, GRID, OURS, OTHERS, ROOF = "#1f2933", "#616e7c", "#e4e7eb", "#2166ac", "#9aa5b1", "#b2182b"
COLOURS = ("#2166ac", "#e08214", "#1b7837", "#762a83", "#c51b7d")  # an operation each; told apart by the legend too
FONT = "system-ui, sans-serif"


def of_results(by_op: dict[str, list[Row]], ladders: dict[str, Ladder]) -> dict[str, str]:
    """File name -> SVG text, for every machine and dtype, on the most threads that were measured.

    Names are "<machine>/<op>-<dtype>.svg" and "<machine>/roofline-<dtype>.svg".
    """
    drawn = {}
    for op, ladder in ladders.items():
        for (machine, dtype), rows in groups(by_op.get(op, []), lambda row: (row.machine, row.dtype)).items():
            shown = headline(rows, ladder)
            if shown:
                drawn[f"{machine}/{op}-{dtype}.svg"] = ladder_figure(shown, ladder)
    ours = [row for op in ladders for row in by_op.get(op, [])]
    for (machine, dtype), rows in groups(ours, lambda row: (row.machine, row.dtype)).items():
        figure = roofline(rows, ladders)
        if figure:
            drawn[f"{machine}/roofline-{dtype}.svg"] = figure
    return drawn


@dataclass(frozen=True)
class LogAxis:
    """From `low` to `high` onto pixels `start` to `end`, logarithmic."""

    low: float
    high: float
    start: float
    end: float

    @classmethod
    def around(cls, values: list[float], start: float, end: float) -> "LogAxis":
        """A little more than the range of the values."""
        return cls(min(values) / 1.5, max(values) * 1.5, start, end)

    def __call__(self, value: float) -> float:
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self) -> list[float]:
        """The powers of ten in the range, and 2 and 5 times them where the range is short."""
        decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        steps = (1, 2, 5) if self.high / self.low < 200 else (1,)
        return [step * 10.0**i for i in decades for step in steps if self.low <= step * 10.0**i <= self.high]


def _text(x: float, y: float, words: str, *, anchor: str = "start", size: int = 12, colour: str = INK) -> str:
    halo = 'stroke="#ffffff" stroke-width="3" paint-order="stroke"'  # keeps words readable on a line that they cross
    place = f'x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{colour}"'
    return f"<text {place} {halo}>{html.escape(words)}</text>"


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, extra: str = "") -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"{extra}/>'


def _svg(width: float, height: float, title: str, parts: list[str]) -> str:
    size = f'width="{width:.0f}" height="{height:.0f}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" {size}'
    frame = f'<rect {size} rx="6" fill="#ffffff"/>'
    label = html.escape(title, quote=True)
    return "\n".join([f'{head} role="img" aria-label="{label}" font-family="{FONT}">', frame, *parts, "</svg>", ""])


def ladder_figure(rows: list[Row], ladder: Ladder) -> str:
    """The rungs and peers of one size on the most threads, the lowest rung first; the axis is logarithmic."""
    most = max(row.threads for row in rows)
    cell = {row.rung: row for row in rows if row.threads == most}
    names = [name for name in ladder.rungs if name in cell] + [name for name in cell if name not in ladder.rungs]
    first = cell[names[0]]
    rates, unit = {name: rate(cell[name])[0] or 0.0 for name in names}, rate(first)[1]
    roof = max(rates[name] / (cell[name].roof_share or math.inf) for name in names)
    bar, top, left, width = 24, 76, 130, 760
    bottom = top + bar * len(names)
    x = LogAxis.around([*filter(None, rates.values()), roof or 1.0], left, width - 110)
    title = f"{ladder.op}: {first.label + ', ' if first.label else ''}{first.size}, {_threads(most)}"
    parts = [
        _text(16, 24, title, size=15),
        _text(16, 42, f"{unit}, logarithmic; {origin(list(cell.values()))}", colour=FAINT),
    ]
    for tick in x.ticks():
        parts += [
            _line(x(tick), top, x(tick), bottom, GRID),
            _text(x(tick), bottom + 18, three(tick), anchor="middle", colour=FAINT),
        ]
    if roof:
        parts.append(_line(x(roof), top - 6, x(roof), bottom, ROOF, ' stroke-dasharray="4 3"'))
        parts.append(_text(x(roof), top - 10, f"measured roof {three(roof)}", anchor="middle", colour=ROOF))
    for i, name in enumerate(names):
        y, row = top + i * bar, cell[name]
        end = max(x(rates[name]), left + 1) if rates[name] else left + 1
        colour = OTHERS if row.check == PEER else OURS
        step = f"  x{times(row.versus_below)}" if row.versus_below else ""
        parts.append(
            f'<rect x="{left}" y="{y + 4}" width="{end - left:.1f}" height="{bar - 8}" rx="2" fill="{colour}"/>'
        )
        parts.append(_text(left - 8, y + bar / 2 + 4, name, anchor="end"))
        parts.append(_text(end + 6, y + bar / 2 + 4, f"{three(rates[name])}{step}", colour=FAINT))
    return _svg(width, bottom + 32, title, parts)


def _threads(count: int) -> str:
    return f"{count} thread{'s' * (count > 1)}" if count else "GPU"


def measured_roofs(rows: list[Row]) -> tuple[float, float]:
    """(GFLOP/s, GB/s): the highest that was measured with any of the rows, of one machine, dtype and thread count."""
    gflops = max((row.roof_gflops for row in rows if row.roof_gflops), default=0.0)
    return gflops, max((row.roof_gbytes_s for row in rows if row.roof_gbytes_s), default=0.0)


@dataclass(frozen=True)
class Point:
    """One size on the roofline: x in operations a byte, y in GFLOP/s."""

    op: str
    row: Row
    x: float
    y: float


def _points(rows: list[Row], ladders: dict[str, Ladder]) -> list[Point]:
    found = []
    for (op, _), same in groups(rows, lambda row: (row.op, row.size)).items():
        row = default_row(same, ladders[op])
        if row and row.gflops and row.gbytes_s:
            found.append(Point(op, row, row.gflops / row.gbytes_s, row.gflops))
    return found


def roofline(rows: list[Row], ladders: dict[str, Ladder]) -> str | None:
    """What runs by default at every size, under the measured roofs; None for rows without arithmetic.

    rows: of one machine and dtype.
    """
    most = max(row.threads for row in rows)
    rows = [row for row in rows if row.threads == most]
    points, (peak, copy) = _points(rows, ladders), measured_roofs(rows)
    if not points or not peak or not copy:
        return None
    width, height, ridge = 760, 440, peak / copy
    x = LogAxis.around([point.x for point in points] + [ridge / 4, ridge * 4], 70, width - 24)
    y = LogAxis.around([point.y for point in points] + [peak, copy * x.low], height - 92, 64)
    title = f"Roofline, {rows[0].dtype}, {_threads(most)}"
    parts = [
        _text(16, 24, title, size=15),
        _text(16, 42, f"GFLOP/s; a point is a size and its default rung; {origin(rows)}", colour=FAINT),
    ]
    for tick in x.ticks():
        parts += [
            _line(x(tick), y.start, x(tick), y.end, GRID),
            _text(x(tick), y.start + 18, three(tick), anchor="middle", colour=FAINT),
        ]
    for tick in y.ticks():
        parts += [
            _line(x.start, y(tick), x.end, y(tick), GRID),
            _text(x.start - 8, y(tick) + 4, three(tick), anchor="end", colour=FAINT),
        ]
    parts.append(_text((x.start + x.end) / 2, y.start + 36, "operations a byte", anchor="middle", colour=FAINT))
    roof = ' stroke-width="2"'
    parts += [
        _line(x(x.low), y(copy * x.low), x(ridge), y(peak), ROOF, roof),
        _line(x(ridge), y(peak), x(x.high), y(peak), ROOF, roof),
    ]
    parts.append(_text(x.end - 4, y(peak) - 8, f"{three(peak)} GFLOP/s", anchor="end", colour=ROOF))
    middle = math.sqrt(x.low * ridge)
    parts.append(_text(x(middle) + 10, y(copy * middle) + 14, f"{three(copy)} GB/s", colour=ROOF))
    return _svg(width, height, title, parts + _marks(points, x, y, height - 20))


def _marks(points: list[Point], x: LogAxis, y: LogAxis, legend_y: float) -> list[str]:
    """The points, a colour an operation, and the legend below."""
    parts, at = [], x.start
    for colour, (op, some) in zip(COLOURS * len(points), groups(points, lambda point: point.op).items(), strict=False):
        for point in some:
            share = f", {100 * point.row.roof_share:.0f} % of the roof" if point.row.roof_share else ""
            words = html.escape(
                f"{op} {point.row.label} {point.row.size}: {point.row.rung}, {three(point.y)} GFLOP/s{share}"
            )
            dot = (
                f'cx="{x(point.x):.1f}" cy="{y(point.y):.1f}" r="5" fill="{colour}" fill-opacity="0.8" stroke="#ffffff"'
            )
            parts.append(f"<circle {dot}><title>{words}</title></circle>")
        parts.append(f'<circle cx="{at + 5:.1f}" cy="{legend_y - 4:.1f}" r="5" fill="{colour}"/>')
        parts.append(_text(at + 16, legend_y, op))
        at += 40 + 7 * len(op)
    return parts
