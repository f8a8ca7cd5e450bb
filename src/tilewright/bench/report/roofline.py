"""Rooflines: one panel per operation, one colour per dtype."""

import html
import math
from collections.abc import Iterator
from dataclasses import dataclass

from tilewright.bench.report.svg import GLYPH, PALETTE, LogAxis, figure, line, short, text
from tilewright.bench.report.tables import ABOVE, default_row, device_of, groups, machine_title, percent, three, times
from tilewright.bench.results import Row
from tilewright.ops.core.ladder import Ladder

WIDTH, HEIGHT = 340, 310  # pixels
LEFT, RIGHT, TOP, BOTTOM = 44, 326, 76, 264  # of the plot
FAR = 8  # points higher than this times the limit are drawn at the upper edge, so that the axes suit the other points


@dataclass(frozen=True)
class Point:
    """One size: x in operations per byte, y in GFLOP/s."""

    row: Row
    x: float
    y: float


def points(rows: list[Row], ladders: dict[str, Ladder]) -> list[Point]:
    """At each size with arithmetic, the rung that runs by default.

    rows: of one machine and thread count.
    """
    found = []
    for (op, _, _), same in groups(rows, lambda row: (row.op, row.size, row.dtype)).items():
        row = default_row(same, ladders[op])
        if row and row.gflops and row.gbytes_s:
            found.append(Point(row, row.gflops / row.gbytes_s, row.gflops))
    return found


def measured_roofs(rows: list[Row]) -> tuple[dict[str, float], float]:
    """(dtype -> GFLOP/s, GB/s): the highest limits measured with any of the rows. rows: of one machine and thread
    count."""
    gflops: dict[str, float] = {}
    for row in rows:
        if row.roof_gflops:
            gflops[row.dtype] = max(row.roof_gflops, gflops.get(row.dtype, 0.0))
    return gflops, max((row.roof_gbytes_s for row in rows if row.roof_gbytes_s), default=0.0)


def roofline(rows: list[Row], ladders: dict[str, Ladder], op: str) -> str | None:
    """The sizes of `op` in colour, those of the other operations in grey. None if `op` has no arithmetic.

    rows: of one machine, all operations. Only rows with the largest number of threads of `op` are used.
    """
    most = max(row.threads for row in rows if row.op == op)
    rows = [row for row in rows if row.threads == most]
    every, (roofs, copy) = points(rows, ladders), measured_roofs(rows)
    own = [point for point in every if point.row.op == op]
    if not own or not roofs or not copy:
        return None
    ceiling = max(roofs.values())
    seen = [point for point in every if point.y <= FAR * ceiling]
    far = [point for point in own if point.y > FAR * ceiling]
    ridges = [peak / copy for peak in roofs.values()]
    x = LogAxis.around([point.x for point in seen] + [min(ridges) / 4, max(ridges) * 4], LEFT, RIGHT)
    y = LogAxis.around([point.y for point in seen] + [ceiling * (4 ** len(far) + 1)], BOTTOM, TOP)
    title = f"{op}: roofline of {machine_title(rows[0].machine)}"
    parts = [
        text(14, 26, op, "title"),
        text(14, 44, f"{_summary(own)}; {device_of(most)}", "axis", colour="faint"),
        *_scales(x, y),
        *(f'<circle class="fill-ghost" cx="{x(p.x):.1f}" cy="{y(p.y):.1f}" r="2"/>' for p in seen if p not in own),
        *_roofs(x, y, roofs, copy),
    ]
    for point in own:
        mark = _far_mark(point, x, TOP + 12 + 13 * far.index(point)) if point in far else _mark(point, x, y)
        parts.append(mark)
    return figure(WIDTH, HEIGHT, title, parts)


def _summary(own: list[Point]) -> str:
    """The number of sizes, and their shares of the limit."""
    shares = sorted(point.row.roof_share for point in own if point.row.roof_share)
    count = f"{len(own)} size{'s' * (len(own) > 1)}"
    if not shares:
        return count
    low, high = percent(shares[0]), percent(shares[-1])
    return f"{count}, {low} % of the roof" if low == high else f"{count}, {low} to {high} % of the roof"


def _scales(x: LogAxis, y: LogAxis) -> Iterator[str]:
    """The grid with its values, and the names of both axes."""
    for tick in x.few():
        yield line(x(tick), y.start, x(tick), y.end, "grid")
        yield text(x(tick), y.start + 15, short(tick), "axis", colour="faint", anchor="middle")
    for tick in y.few():
        yield line(x.start, y(tick), x.end, y(tick), "grid")
        yield text(x.start - 6, y(tick) + 4, short(tick), "axis", colour="faint", anchor="end")
    yield text((x.start + x.end) / 2, y.start + 33, "operations per byte", "axis name", colour="faint", anchor="middle")
    yield text(14, y.end - 8, "GFLOP/s", "axis name", colour="faint")


def _roofs(x: LogAxis, y: LogAxis, roofs: dict[str, float], copy: float) -> Iterator[str]:
    """The memory limit once, then the arithmetic limit of each dtype in its colour, with its label at the right end."""
    reach = max(roofs.values())
    left = max(x.low, y.low / copy)
    yield line(x(left), y(copy * left), x(reach / copy), y(reach), "roof", ' stroke-width="1.5"')
    middle = math.sqrt(left * min(roofs.values()) / copy)
    yield text(x(middle) + 8, y(copy * middle) + 10, f"{three(copy)} GB/s", "axis", colour="roof")
    for peak, dtypes in _close_together(roofs):
        spans = "; ".join(
            f'<tspan class="fill-{colour(dtype)}">{html.escape(dtype)} {short(roofs[dtype])}</tspan>'
            for dtype in dtypes
        )
        where = f'x="{x.end:.1f}" y="{y(peak) + (-5 if peak == reach else 14):.1f}" text-anchor="end"'
        yield f'<text class="axis fill-faint" {where}>{spans}</text>'
    for dtype, peak in roofs.items():
        yield line(x(peak / copy), y(peak), x.end, y(peak), colour(dtype), ' stroke-width="1.5"')


def colour(dtype: str) -> str:
    """The colour of a dtype; the text's colour for a dtype without its own."""
    return dtype if dtype in PALETTE else "ink"


def _close_together(roofs: dict[str, float]) -> Iterator[tuple[float, list[str]]]:
    """(highest limit, its dtypes), for groups of limits whose labels would overlap if each had its own line."""
    group: list[str] = []
    for dtype in sorted(roofs, key=lambda name: roofs[name]):
        if group and roofs[dtype] > 2.5 * roofs[group[-1]]:
            yield roofs[group[-1]], group
            group = []
        group.append(dtype)
    if group:
        yield roofs[group[-1]], group


def _mark(point: Point, x: LogAxis, y: LogAxis) -> str:
    """A dot, or a ring if the point is above the limit."""
    hue, above = colour(point.row.dtype), (point.row.roof_share or 0.0) > ABOVE
    look = f'class="fill-paper line-{hue}" stroke-width="2"' if above else f'class="fill-{hue}"'
    where = f'cx="{x(point.x):.1f}" cy="{y(point.y):.1f}" r="{3.5 if above else 4}"'
    return f"<circle {look} {where}>{_pointed_at(point)}</circle>"


def _far_mark(point: Point, x: LogAxis, y: float) -> str:
    """A triangle whose lower side is at y, with the factor by which the point exceeds the limit."""
    at = min(max(x(point.x), LEFT + 6), RIGHT - 6)
    hue, label = colour(point.row.dtype), f"{times(point.row.roof_share)} x the roof"
    inside = at - 8 - GLYPH * 11 * len(label) > LEFT
    side, start = ("end", at - 8) if inside else ("start", at + 8)
    shape = f'<path class="fill-{hue}" d="M{at - 5:.1f} {y:.1f} l5 -9 l5 9 z">{_pointed_at(point)}</path>'
    words = text(start, y, label, "axis", colour=hue, anchor=side)
    return f"{shape}\n{words}"


def _pointed_at(point: Point) -> str:
    """The text that appears when a reader points at it."""
    row = point.row
    of_roof = f", {percent(row.roof_share)} % of the roof" if row.roof_share else ""
    words = f"{row.op} {row.label} {row.size}: {row.rung}, {three(point.y)} GFLOP/s{of_roof}"
    return f"<title>{html.escape(words)}</title>"
