"""A timeline of one run, or of several below each other on one time axis: when each worker read, computed and wrote."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from tilewright.bench.report.svg import figure, line, text, wrapped
from tilewright.errors import UsageError, counted, printable
from tilewright.formats.traces import Lane, Process

WIDTH, MARGIN, LEFT, RIGHT = 860, 16, 150, 800  # pixels; the time axis goes from LEFT to RIGHT, then comes a column
LANE, GAP, LINE = 13, 4, 18  # pixels: the height of a lane, what lies between two, and a line of the key
NEAR = 0.4  # pixels between two spans that are drawn as one, and the least width of a span
LONGEST_NAME = 60  # characters of a name from a trace
TICKS = 8  # labels of the time axis at most
MOST_LANES = 300  # of a figure: more do not fit on any screen
GPU = ", GPU"  # how the name of a row ends whose times the GPU measured
KINDS = {  # row of a trace -> (colour, what it means)
    "plan": ("faint", "plan, merge: before and after all shards"),
    "shard": ("ghost", "shard: from the first byte read to its commit"),
    "read": ("peer", "read the input"),
    "copy in": ("cpu", "copy in: host to GPU"),
    "compute": ("simt", "compute"),
    "copy out": ("vendor", "copy out: GPU to host"),
    "write": ("tile", "write the output"),
    "commit": ("roof", "commit: flush to disk, rename"),
}
WHOLE = "run"  # row of the leading process that covers all shards, which are drawn by themselves


class Run(NamedTuple):
    """A trace to draw. name: its heading, such as its file's name. end: end of the trace's last span in ms; set only
    in a saved timeline."""

    name: str
    processes: list[Process]
    end: float | None = None

    def shifted(self) -> Run:
        """The same run, time 0 at the start of its first shard. Raises UsageError if it has none."""
        begins = [lane.spans[0][0] for one in self.processes for lane in one.rows if lane.name == "shard"]
        if not begins:
            raise UsageError(f"--zero shard: {self.name} has no shard", remedy="leave out --zero")
        zero = min(begins)
        return Run(self.name, [_shifted(one, zero) for one in self.processes])

    @property
    def last(self) -> float:
        """The end of the last span, in ms; 0 without spans."""
        if self.end is not None:
            return self.end
        return max((end for one in self.processes for lane in one.rows for _, end in lane.spans), default=0.0)


class Window(NamedTuple):
    """The part of the time axis that is drawn, in ms."""

    begin: float
    end: float

    def x(self, ms: float) -> float:
        """The pixel of a time within the window."""
        return LEFT + (RIGHT - LEFT) * (ms - self.begin) / (self.end - self.begin)


def _shifted(process: Process, zero: float) -> Process:
    lanes = {
        number: Lane(lane.name, lane.order, [(begin - zero, end - zero) for begin, end in lane.spans])
        for number, lane in process.lanes.items()
    }
    return replace(process, lanes=lanes)


@dataclass
class Sheet:
    """What is drawn so far, down to `y`."""

    window: Window
    y: float
    parts: list[str] = field(default_factory=list)

    def words(self, words: str, size: float, kind: str) -> None:
        """Lines of text from the left margin, the first one below y."""
        for part in wrapped(words, RIGHT - MARGIN, size):
            self.y += size + 4
            self.parts.append(text(MARGIN, self.y, part, kind))

    def lane(self, lane: Lane) -> None:
        """A lane with its name on the left and its share of the window on the right."""
        top, bottom = self.y + GAP, self.y + GAP + LANE
        spans = [(self.window.x(a), self.window.x(b)) for a, b in merged(lane, self.window)]
        boxes = "".join(f"M{a:.1f} {top:.1f}h{b - a:.1f}v{LANE}h-{b - a:.1f}z" for a, b in spans)
        self.parts += [
            text(LEFT - 8, bottom - 3, _plain(lane.name), "axis", colour="faint", anchor="end"),
            f'<path class="fill-{KINDS[_kind(lane.name)][0]}" d="{boxes}"/>',
            text(WIDTH - MARGIN, bottom - 3, f"{busy(lane, self.window):.0%}", "axis", colour="faint", anchor="end"),
        ]
        self.y = bottom


def timeline(runs: list[Run], window: Window) -> str:
    """The SVG, without rules for its classes: a group per process, a lane per row, a share of the window per lane.

    Spans of a lane that are nearer than NEAR pixels are drawn as one. Raises UsageError if no span lies in the window,
    or if there are more than MOST_LANES lanes.
    """
    lanes = [lane for run in runs for one in run.processes for lane in drawn_lanes(one, window)]
    if not lanes:
        raise UsageError(f"nothing happened from {window.begin:g} to {window.end:g} ms", remedy="choose other times")
    if len(lanes) > MOST_LANES:
        raise UsageError(
            f"there are {len(lanes):,} lanes; at most {MOST_LANES} are drawn", remedy="choose some with --worker 0,1"
        )
    title = "When each worker did what"
    parts = [text(MARGIN, 26, title, "title"), *_key({_kind(lane.name) for lane in lanes})]
    top = 26 + LINE * (len(parts) // 2) + 22
    parts.append(text(WIDTH - MARGIN, top, "busy", "axis", colour="faint", anchor="end"))
    sheet = Sheet(window, top)
    for run in runs:
        sheet.words(_heading(run), 15, "title")
        for process in run.processes:
            if some := drawn_lanes(process, window):
                sheet.words(_about(process), 12, "label")
                for lane in some:
                    sheet.lane(lane)
                sheet.y += GAP
        sheet.y += 2 * GAP
    return figure(WIDTH, sheet.y + 46, title, [*parts, *_axis(window, top + 6, sheet.y), *sheet.parts])


def _key(kinds: set[str]) -> Iterator[str]:
    """A square and a line of words for each kind of work, above the lanes."""
    y = 26.0
    for kind in [kind for kind in KINDS if kind in kinds]:
        colour, meaning = KINDS[kind]
        y += LINE
        yield f'<rect class="fill-{colour}" x="{MARGIN}" y="{y - 9:.1f}" width="24" height="10"/>'
        yield text(MARGIN + 34, y, meaning, "label")


def _kind(row: str) -> str:
    """The row of KINDS that a lane belongs to: "compute, GPU" and "compute 2" are "compute"; others are "plan"."""
    name = row.removesuffix(GPU).rstrip("0123456789 ")
    return name if name in KINDS else "plan"


def drawn_lanes(process: Process, window: Window) -> list[Lane]:
    """The lanes with a span in the window; those of the leading process in the order of time."""
    rows = process.rows if process.worker is not None else sorted(process.rows, key=lambda lane: lane.spans[0])
    return [
        lane
        for lane in rows
        if (process.worker is not None or lane.name != WHOLE)
        and any(begin < window.end and end > window.begin for begin, end in lane.spans)
    ]


def _heading(run: Run) -> str:
    workers = sum(one.worker is not None for one in run.processes)
    records = sum(one.records for one in run.processes)
    done = f", {counted(records, 'record')}" if records else ""
    return f"{_plain(run.name)}: {counted(workers, 'worker')}{done}, {_ms(run.last)} ms to the end"


def _about(process: Process) -> str:
    """The line over the lanes of a process."""
    name = "leading process" if process.worker is None else f"worker {process.worker}"
    records = counted(process.records, "record") if process.records else ""
    return ", ".join(filter(None, (name, _plain(process.device), records)))


def _plain(words: str) -> str:
    """A name from a trace as one line of plain text."""
    return printable(words[:LONGEST_NAME]).replace("\n", " ")


def merged(lane: Lane, window: Window) -> Iterator[tuple[float, float]]:
    """The spans in the window in ms. Neighbours with a gap of less than NEAR pixels are merged, and a span that is
    narrower than NEAR pixels is drawn that wide."""
    near, last = NEAR * (window.end - window.begin) / (RIGHT - LEFT), None
    for begin, end in lane.spans:
        if begin >= window.end or end <= window.begin:
            continue
        a = max(begin, window.begin)
        b = max(min(end, window.end), a + near)
        if last is not None and a - last[1] < near:
            last = last[0], max(last[1], b)
            continue
        if last is not None:
            yield last
        last = a, b
    if last is not None:
        yield last


def busy(lane: Lane, window: Window) -> float:
    """The share of the window that the lane's spans cover."""
    if lane.busy is not None:
        return lane.busy
    covered, until = 0.0, window.begin
    for begin, end in lane.spans:
        first, last = max(begin, until), min(end, window.end)
        if last > first:
            covered, until = covered + last - first, last
    return covered / (window.end - window.begin)


def _axis(window: Window, top: float, bottom: float) -> Iterator[str]:
    """Grid lines over all lanes, and the times below them."""
    step = _step((window.end - window.begin) / TICKS)
    first = math.ceil(window.begin / step)
    for tick in (step * i for i in range(first, first + TICKS + 1)):
        if tick <= window.end + step * 1e-9:
            x = window.x(tick)
            yield line(x, top, x, bottom, "grid")
            yield text(x, bottom + 16, _ms(tick), "axis", colour="faint", anchor="middle")
    middle = (LEFT + RIGHT) / 2
    yield text(middle, bottom + 35, "time, ms", "axis name", colour="faint", anchor="middle")


def _step(least: float) -> float:
    """The smallest of 1, 2 and 5 times a power of ten that is not below `least`."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= least * (1 - 1e-9))


def _ms(value: float) -> str:
    """A time of the axis: "1,250", "0.25"."""
    value = round(value, 6) + 0.0  # no -0
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"
