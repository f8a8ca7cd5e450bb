"""Sweeps as tables and line figures: one curve per kernel and case, with its best point marked."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tilewright.bench.report.svg import LogAxis, figure, line, short, standalone, text, wrapped
from tilewright.bench.report.tables import Table, case_of, device_of, groups, origin, row_notes, three
from tilewright.bench.results import WORKERS, Row, read, save_here, write_text
from tilewright.bench.sweep import OTHER_BITS, PREFIX, THREADS
from tilewright.bench.sweep_kinds import JOBS
from tilewright.errors import counted

WIDTH, HEIGHT, MARGIN, LEFT = 480, 250, 16, 58  # pixels; HEIGHT: of the plot; LEFT: position of its axis
COLOURS = ("cpu", "simt", "tile", "vendor", "roof", "float64")  # of the curves, in this order
DASHES = ("", ' stroke-dasharray="6 4"', ' stroke-dasharray="2 3"')  # of further curves, after all colours are used
CROSS = "\N{MULTIPLICATION SIGN}"  # a refused point
PLATEAU = 1.02  # times the fastest median: smaller medians count as equal, because rounds differ by as much
PUBLISHED = {  # (operation or job, parameters) -> what a report of the course says
    ("conv3d", "threads"): "the best number of threads is near the number of cores",
    ("matmul", "tile"): "unrolling makes no difference",
    ("matmul", "tile-wpt"): "a work per thread of 8 is best",
    ("gpt2", "batch"): "a batch of 800 prompts is best",
    ("sentiment", "batch"): "a batch of 64 sentences is best",
    ("dcgan", "images-workers"): "a second GPU pays from 200 images on, four pay from 1,000",
} | {(op, "block"): "128 threads per block are best" for op in ("batchnorm", "elementwise", "layernorm", "softmax")}
GROWS = 1.6  # if every value is so many times the one before, the parameter's axis is logarithmic


@dataclass(frozen=True)
class Curve:
    """The rows of one kernel and case, in the order of x. rest: the value of the second parameter, if there is one."""

    rows: list[Row]
    rest: str

    @property
    def measured(self) -> list[Row]:
        """The rows that are not refused."""
        return [row for row in self.rows if row.runs]

    @property
    def best(self) -> Row | None:
        """The smallest value of the first parameter that is as fast as the fastest one. None if all are refused."""
        most = max(map(speed, self.measured), default=0.0)
        fast = [row for row in self.measured if speed(row) * PLATEAU >= most]
        return min(fast, key=lambda row: _number(next(iter(row.setting.values()))) or 0.0, default=None)

    @property
    def name(self) -> str:
        """The kernel, the case, and the second parameter: "cpu.taps, 64x64x64-3x3x3, tile=8"."""
        return ", ".join(filter(None, [self.rows[0].rung, case_of(self.rows[0]), self.rest]))


def speed(row: Row) -> float:
    """Rows or records per second of a measured point."""
    return row.rows / row.median_s


def _number(value: str) -> float | None:
    """The value of a parameter as a number; None for a word."""
    try:
        return float(value)
    except ValueError:
        return None


def is_sweep(row: Row) -> bool:
    """True for a row of a sweep."""
    return row.op.startswith(PREFIX)


def curves(rows: list[Row]) -> list[Curve]:
    """The curves of one sweep, in the order of its rows."""
    found = groups(rows, lambda row: (row.rung, row.size, row.point.partition(", ")[2]))
    return [Curve(some, rest) for (_, _, rest), some in found.items()]


def sweeps(rows: list[Row]) -> dict[tuple[str, str, str, str], list[Row]]:
    """(machine, result file's name, parameters, dtype) -> the rows of one figure."""
    return groups(rows, lambda row: (row.machine, row.op, "-".join(row.setting), row.dtype))


def sweep_table(rows: list[Row]) -> Table:
    """One line per point. rows: of one operation, dtype and machine, swept over the same parameters."""
    names, unit = tuple(rows[0].setting), unit_of(rows)
    best = [curve.best for curve in curves(rows)]
    threads = () if THREADS in names else ("device",)
    rates = (unit,) if unit else ("GFLOP/s", "GB/s")
    header = ("run by" if unit else "kernel", "size", *names, *threads, "time, ms", "spread", *rates, "best", "check")
    lines = []
    for row in rows:
        cells = (
            three(row.median_s * 1e3),
            f"{row.low_s / row.median_s - 1:+.0%} {row.high_s / row.median_s - 1:+.0%}",
            *((three(speed(row)),) if unit else (three(row.gflops), three(row.gbytes_s))),
        ) if row.runs else ("",) * (2 + len(rates))  # fmt: skip
        where = () if THREADS in names else (device_of(row.threads),)
        mark = "best" if any(row is one for one in best) else ""
        lines.append((row.rung, case_of(row), *row.setting.values(), *where, *cells, mark, row.check))
    caption = f"{title(rows)}; {origin(rows)}."
    return Table(caption, header, tuple(lines), 2, (*remarks(rows), *row_notes(rows)))


def matrix_table(rows: list[Row]) -> Table | None:
    """Seconds by number of records (lines) and of workers (columns); None for a sweep over other parameters.

    rows: as for `sweep_table`.
    """
    names = list(rows[0].setting)
    if len(names) != 2 or names[1] != WORKERS:
        return None
    cells = {tuple(row.setting.values()): three(row.median_s) if row.runs else "" for row in rows}
    counts, workers = (list(dict.fromkeys(key[i] for key in cells)) for i in range(2))
    lines = tuple((f"{int(n):,}", *(cells.get((n, w), "") for w in workers)) for n in counts)
    what = "GPU" if not rows[0].threads else "worker"
    header = (names[0], *(counted(int(w), what) for w in workers))
    caption = f"{rows[0].op.removeprefix(PREFIX)}, {rows[0].dtype}: seconds of all shards; {origin(rows)}."
    return Table(caption, header, lines, 0)


def unit_of(rows: list[Row]) -> str | None:
    """The unit of a job's rate, such as "tokens/s". None for kernels: their time is shown."""
    job = rows[0].op.removeprefix(PREFIX)
    return {"gpt2": "tokens/s"}.get(job, f"{JOBS[job]}/s") if job in JOBS else None


def remarks(rows: list[Row]) -> list[str]:
    """Sentences about one sweep: what was published, where a speed-up ends, whether all bits are the same."""
    return [*published(rows), *speed_ups(rows), *pays(rows), bits(rows)]


def published(rows: list[Row]) -> Iterator[str]:
    """What a report of the course says about the same sweep."""
    if found := PUBLISHED.get((rows[0].op.removeprefix(PREFIX), "-".join(rows[0].setting))):
        yield f"Published by a report of the course, on its own machine: {found}."


def pays(rows: list[Row]) -> Iterator[str]:
    """From how many records on each number of workers is faster than the next smaller number."""
    names = list(rows[0].setting)
    if len(names) != 2 or names[1] != WORKERS:
        return
    speeds = {(int(row.setting[names[0]]), int(row.setting[WORKERS])): speed(row) for row in rows if row.runs}
    counts, workers = sorted({count for count, _ in speeds}), sorted({many for _, many in speeds})
    for fewer, more in itertools.pairwise(workers):
        faster = [speeds[count, more] > PLATEAU * speeds[count, fewer] for count in counts]
        first = len(faster) - faster[::-1].index(False) if False in faster else 0
        if first < len(counts):
            yield f"{more} workers are faster than {fewer} from {counts[first]:,} {names[0]} on."
        else:
            yield f"{more} workers are not faster than {fewer} at {counts[-1]:,} {names[0]}."


def speed_ups(rows: list[Row]) -> Iterator[str]:
    """One sentence for a sweep over threads: the number of threads at which the speed-up ends."""
    if list(rows[0].setting) != [THREADS]:
        return
    ends = groups((row for curve in curves(rows) if (row := curve.best)), lambda row: int(row.setting[THREADS]))
    most = max(int(row.setting[THREADS]) for row in rows)
    for count, some in sorted(ends.items()):
        whose = "" if len(ends) == 1 else f" of {'; '.join(f'{row.rung} on {case_of(row)}' for row in some)}"
        end = "ends at" if count < most else "does not end before"
        yield f"The speed-up{whose} {end} {device_of(count)}."


def title(rows: list[Row]) -> str:
    """The operation or the job, the dtype, and the parameters."""
    what = f"{rows[0].op.removeprefix(PREFIX)}, {rows[0].dtype}: {unit_of(rows) or 'time'}"
    return f"{what} against {' and '.join(rows[0].setting)}"


def bits(rows: list[Row]) -> str:
    """One sentence that says whether all points of a kernel and a case gave the same bits."""
    measured = [row for row in rows if row.runs]
    if not measured:
        return "No point could run."
    other = [f"{row.rung} at {row.point} on {case_of(row)}" for row in measured if OTHER_BITS in row.check]
    of = "the job" if unit_of(rows) else "the same kernel and case"
    if other:
        return f"Other bits than the first point of {of}: {'; '.join(other)}."
    return f"All points of {of} gave the same bits."


def of_sweeps(rows: list[Row]) -> dict[str, str]:
    """File name -> SVG: "<machine>/sweep_<op>-<parameters>-<dtype>.svg". A sweep without a measured point has none."""
    return {
        f"{machine}/{op}-{names}-{dtype}.svg": sweep_figure(some)
        for (machine, op, names, dtype), some in sweeps(rows).items()
        if any(row.runs for row in some)
    }


def save_sweeps(rows: list[Row]) -> list[Path]:
    """Save rows and draw the figures of their result files under results/. Returns the files.

    Raises InputError if an existing file is no result file, ResourceError if one cannot be written.
    """
    written = save_here(rows)
    for path in list(written):
        for name, drawing in of_sweeps(read(Path("results"), path.parent.name, path.stem)).items():
            write_text(Path("results") / name, standalone(drawing))
            written.append(Path("results") / name)
    return written


@dataclass(frozen=True)
class Steps:
    """An axis for the values of a parameter: linear or logarithmic for numbers, evenly spaced for words."""

    values: tuple[str, ...]
    start: float
    end: float

    @property
    def numbers(self) -> list[float] | None:
        """The values as numbers; None if one is a word."""
        found = [_number(value) for value in self.values]
        return None if None in found else [value for value in found if value is not None]

    @property
    def logarithmic(self) -> bool:
        """Whether each value is much larger than the one before."""
        found = sorted(self.numbers or [])
        return len(found) > 2 and found[0] > 0 and all(b >= GROWS * a for a, b in itertools.pairwise(found))

    def __call__(self, value: str) -> float:
        at = [float(i) for i in range(len(self.values))] if self.numbers is None else self.numbers
        if self.logarithmic:
            at = [math.log(one) for one in at]
        share = (at[self.values.index(value)] - min(at)) / ((max(at) - min(at)) or 1)
        return self.start + share * (self.end - self.start)


def sweep_figure(rows: list[Row]) -> str:
    """Milliseconds, or a job's rate, against the first parameter. A ring marks a best point, a cross a refused one.

    rows: as in `sweep_table`; at least one is measured.
    """
    drawn, x_name = curves(rows), next(iter(rows[0].setting))
    parts, y = [], 8.0
    for words in wrapped(title(rows), WIDTH - 2 * MARGIN, 15):
        y += 18
        parts.append(text(MARGIN, y, words, "title"))
    for words in wrapped(origin(rows), WIDTH - 2 * MARGIN, 11):
        y += 15
        parts.append(text(MARGIN, y, words, "axis", colour="faint"))
    y += 8
    for i, curve in enumerate(drawn):
        parts.append(line(MARGIN, y + 13, MARGIN + 24, y + 13, _colour(i), f' stroke-width="2"{_dash(i)}'))
        most = max(row.rows for row in rows if row.size == curve.rows[0].size)
        for words in wrapped(_told(curve, x_name, most), WIDTH - 2 * MARGIN - 32, 12):
            y += 17
            parts.append(text(MARGIN + 32, y, words, "label"))
    top = y + 34
    bottom = top + HEIGHT
    x = Steps(tuple(dict.fromkeys(row.setting[x_name] for row in rows)), LEFT + 14, WIDTH - MARGIN - 14)
    times = [value for row in rows if row.runs for value in _heights(row)]
    up = LogAxis.around(times, bottom, top)
    parts += _axes(x, up, x_name, unit_of(rows) or "time, ms")
    parts += [part for i, curve in enumerate(drawn) for part in _drawn(curve, x, up, i)]
    return figure(WIDTH, bottom + 48, title(rows), parts)


def _heights(row: Row) -> tuple[float, float, float]:
    """(median, low, high) of what a figure shows of a measured row: the milliseconds of a kernel, or the rate of a
    job."""
    times = row.median_s, row.low_s, row.high_s
    if unit_of([row]):
        median, low, high = (row.rows / seconds for seconds in times)
        return median, high, low
    median, low, high = (1e3 * seconds for seconds in times)
    return median, low, high


def _colour(i: int) -> str:
    return COLOURS[i % len(COLOURS)]


def _dash(i: int) -> str:
    return DASHES[i // len(COLOURS) % len(DASHES)]


def _told(curve: Curve, x_name: str, most: int) -> str:
    """A line of the key: the curve's name, its best point, and its number of rows if another curve has more, `most`."""
    if curve.best is None:
        return f"{curve.name}: refused"
    fewer = f" for {curve.best.rows} rows" if curve.best.rows < most else ""
    unit = unit_of([curve.best])
    value = f"{three(_heights(curve.best)[0])} {unit or 'ms'}{'' if unit else fewer}"
    return f"{curve.name}: best {curve.best.setting[x_name]}, {value}"


def _axes(x: Steps, up: LogAxis, x_name: str, y_name: str) -> Iterator[str]:
    for tick in up.few():
        yield line(LEFT, up(tick), WIDTH - MARGIN, up(tick), "grid")
        yield text(LEFT - 6, up(tick) + 4, short(tick), "axis", colour="faint", anchor="end")
    yield text(MARGIN, up.end - 10, f"{y_name} (logarithmic)", "axis name", colour="faint")
    last = -math.inf
    for value in x.values:
        yield line(x(value), up.start, x(value), up.start + 4, "ghost")
        if x(value) - last > 8 * len(value) + 6:  # otherwise the labels would touch
            yield text(x(value), up.start + 17, value, "axis", colour="faint", anchor="middle")
            last = x(value)
    scale = " (logarithmic)" if x.logarithmic else ""
    name = f"{x_name}{scale}; ring: best; cross: refused"
    yield text((LEFT + WIDTH - MARGIN) / 2, up.start + 36, name, "axis name", colour="faint", anchor="middle")


def _drawn(curve: Curve, x: Steps, up: LogAxis, i: int) -> Iterator[str]:
    """The curve's points, their spreads, and the lines between neighbouring points."""
    colour = _colour(i)
    (x_name, *_) = curve.rows[0].setting
    points = [(x(row.setting[x_name]), row) for row in curve.rows]
    for (x1, a), (x2, b) in itertools.pairwise(points):
        if a.runs and b.runs:
            y1, y2 = up(_heights(a)[0]), up(_heights(b)[0])
            yield line(x1, y1, x2, y2, colour, f' stroke-width="2"{_dash(i)}')
    for at, row in points:
        if not row.runs:
            yield text(at, up.start - 6 - 10 * i, CROSS, "label", colour=colour, anchor="middle")
            continue
        median, low, high = map(up, _heights(row))
        yield line(at, low, at, high, colour)
        yield f'<circle class="fill-{colour}" cx="{at:.1f}" cy="{median:.1f}" r="3"/>'
        if row is curve.best:
            ring = f'cx="{at:.1f}" cy="{median:.1f}" r="7" fill="none" stroke-width="2"'
            yield f'<circle class="line-{colour}" {ring}/>'
