"""conv3d on one thread, on several threads and on a GPU: saved rows of two machines in one table."""

from collections.abc import Sequence

from tilewright.bench.report.figures import MARGIN, STEP, WIDTH, axis_for, bar, heading, scale
from tilewright.bench.report.svg import figure, text
from tilewright.bench.report.sweeps import curves, speed
from tilewright.bench.report.tables import Table, case_of, device_of, groups, origin, three, times
from tilewright.bench.results import PEER, Row
from tilewright.bench.sweep import PREFIX, THREADS

OP, DTYPE = "conv3d", "float32"
TITLE = f"{OP}, {DTYPE}: CPU and GPU side by side"
ABOUT = (
    "Of each size: the swept kernel on one thread and on the best number of threads, the fastest kernel of the ladder "
    "on that CPU, and the fastest on a GPU. Speed-ups are over one thread of the swept kernel."
)
PUBLISHED = "Published by a report of the course, on its own machine: 2.78 x by threads, 837 x by the GPU."


def cases(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Size -> up to four rows: one thread, the best number of threads, the fastest kernels on that CPU and on a GPU.

    rows: of all operations, ladders and sweeps, of any machines. The CPU is the one whose threads were swept last. The
    GPU is the one that has most of its sizes. Empty unless both exist.
    """
    own = [row for row in rows if row.op.removeprefix(PREFIX) == OP and row.dtype == DTYPE and row.runs]
    own = [row for row in own if row.check != PEER]
    swept = [row for row in own if list(row.setting) == [THREADS]]
    machine = max(swept, key=lambda row: (row.date, row.machine)).machine if swept else ""
    of_size = {curve.rows[0].size: curve for curve in curves([row for row in swept if row.machine == machine])}
    on_gpus = groups((row for row in own if not row.threads and row.size in of_size), lambda row: row.machine)
    if not on_gpus:
        return {}
    on_gpu = max(on_gpus.values(), key=lambda some: (len({row.size for row in some}), some[0].date))
    found = {}
    for size, curve in of_size.items():
        one = [row for row in curve.measured if row.setting[THREADS] == "1"]
        there = [row for row in on_gpu if row.size == size]
        if one and there and curve.best:
            of_ladder = [row for row in own if (row.machine, row.size, row.point) == (machine, size, "")]
            picked = [one[0], curve.best, *sorted(of_ladder, key=speed)[-1:], max(there, key=speed)]
            found[size] = list(dict.fromkeys(picked))
    return found


def side_table(rows: Sequence[Row]) -> Table | None:
    """One line per row of `cases`, with both machines. None if there are none."""
    found = cases(rows)
    if not found:
        return None
    lines = []
    for some in found.values():
        whole, one = max(row.rows for row in some), speed(some[0])  # a slow kernel is timed on fewer rows
        for row in some:
            figures = three(1e3 * whole / speed(row)), times(speed(row) / one)
            lines.append((case_of(row), row.rung, device_of(row.threads), row.machine, *figures))
    header = ("size", "kernel", "device", "machine", "time, ms", "speed-up over one thread")
    return Table(f"{TITLE}; {_origins(found)}.", header, tuple(lines), 4, (ABOUT, PUBLISHED))


def _origins(found: dict[str, list[Row]]) -> str:
    """Both machines, each with its commits and days."""
    every = groups((row for some in found.values() for row in some), lambda row: row.machine)
    return "; ".join(origin(some) for some in every.values())


def of_sides(rows: Sequence[Row]) -> dict[str, str]:
    """File name -> SVG: "<CPU's machine>/sides_conv3d-float32.svg"; empty unless both machines have rows."""
    found = cases(rows)
    return {f"{some[0].machine}/sides_{OP}-{DTYPE}.svg": side_figure(found) for some in list(found.values())[:1]}


def side_figure(found: dict[str, list[Row]]) -> str:
    """Bars of rates on a logarithmic axis, each with its speed-up over one thread. found: from `cases`."""
    parts, y = heading(TITLE, _origins(found))
    rates = [(row.gflops or 0.0) for some in found.values() for row in some]
    x = axis_for([rate for rate in rates if rate])
    y += 6
    for some in found.values():
        y += 22
        parts.append(text(MARGIN, y, case_of(some[0]), "axis", colour="faint"))
        for row in some:
            rate, gain = row.gflops or 0.0, speed(row) / speed(some[0])
            name = f"{row.rung}, {device_of(row.threads)}"
            parts += bar(y + 2, row, three(rate), gain, x(rate) if rate else x.start, name=name)
            y += STEP
    parts += scale(x, y + 4, "GFLOP/s, logarithmic; x: speed-up over one thread")
    return figure(WIDTH, y + 48, TITLE, parts)
