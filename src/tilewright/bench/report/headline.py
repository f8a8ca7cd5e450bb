"""The results that README.md shows: the jobs, one ladder and five claims. The tables are small, however many rows
exist.

Fixed rules choose the rows, so that nobody selects them by hand. The CPU and the GPU are each represented by one
machine: the one that measured most of the jobs beside a peer, or the newest of several. A job has one row per accuracy
class, at its first size. If a job was measured in several variants, such as with and without building the token table,
the slowest counts.
"""

import math
import re
import textwrap
from collections.abc import Callable, Iterator

from tilewright.bench.report.figures import ladder_figure
from tilewright.bench.report.tables import Table, device_of, groups, machine_title, origin, percent, rate, three, times
from tilewright.bench.results import PEER, Row
from tilewright.ops.core.ladder import Ladder

COLUMNS, JOB_ROWS, LADDER_ROWS = 120, 8, 12  # the maximum of README.md and its tables
ROW = 3 * 5 + 1  # characters of a table row with five cells, without their contents: bars and spaces
CLASSES = {"float32": ("float32",), "16 bit": ("bfloat16", "float16")}
LADDER, PICTURE = "matmul", "ladder.svg"  # the operation whose ladder is shown, and the name of its figure in results/
KILLS = 400  # number of kills in tests/runtime/jobs/test_kill_attack.py; a test checks that both are equal
CHECKED = re.compile(r"passed \d")  # a result that was compared with a reference; the largest error follows
UNMEASURED = "Not measured yet: `make bench` does."
JOBS = {  # workload of the bench -> the command and what is counted per second
    "sentiment": "`classify`: sentences/s",
    "gpt2": "`generate`: tokens/s",
    "dcgan": "`draw`: images/s",
    "volumes": "`convolve`: voxels/s",
}

Rows = dict[str, list[Row]]  # by operation or workload
Ladders = dict[str, Ladder]


def jobs(by_op: Rows, _: Ladders) -> str:
    """One row per job and accuracy class: the rates on one CPU and one GPU, each with its strongest peer."""
    found = {"CPU": _machine(by_op, on_gpu=False), "GPU": _machine(by_op, on_gpu=True)}
    machines = [machine for machine in found.values() if machine]
    if not machines:
        return UNMEASURED
    lines = []
    for op, words in JOBS.items():
        for name in CLASSES:
            rows = [chosen(by_op, machine, op, name) for machine in machines]
            if any(rows):
                dtypes = {row.dtype for row in rows if row}
                cells = [text for row in rows for text in _cells(row)]
                lines.append((words, dtypes.pop() if len(dtypes) == 1 else name, *cells))
    header = ["job", "dtype"]
    for kind in filter(found.get, found):
        header += [kind, "x strongest peer"]
    days = sorted({row.date for op in JOBS for row in by_op.get(op, []) if row.machine in machines})
    where = " and ".join(machine_title(machine) for machine in machines)
    caption = _short(f"Measured {' to '.join(dict.fromkeys((days[0], days[-1])))} on {where}", COLUMNS - 1) + ":"
    return Table(caption, tuple(header), tuple(lines[:JOB_ROWS]), 2).markdown()


def chosen(by_op: Rows, machine: str, op: str, name: str) -> Row | None:
    """The row that represents a job and an accuracy class of CLASSES on a machine. None if there is none."""
    rows = [row for row in by_op.get(op, []) if row.machine == machine and row.check != PEER]
    rows = [row for row in rows if row.dtype in CLASSES[name]]
    rows = [row for row in rows if row.size == rows[0].size]
    newest = max((row.origin for row in rows), default=None)
    return min((row for row in rows if row.origin == newest), key=_rate, default=None)


def _ratios(by_op: Rows, machine: str) -> Iterator[float]:
    """The factor over the strongest peer in every case of the jobs on a machine, shown or not. A case is a size in a
    dtype; of several variants the slowest counts."""
    for op in JOBS:
        rows = [row for row in by_op.get(op, []) if row.machine == machine and row.check != PEER]
        for same in groups(rows, lambda row: (row.size, row.dtype)).values():
            newest = max(row.origin for row in same)
            if ratio := min((row for row in same if row.origin == newest), key=_rate).peer_ratio:
                yield ratio


def _machine(by_op: Rows, on_gpu: bool) -> str | None:
    """The machine that measured the most jobs and classes beside a peer, or the newest of several. None if there is
    none."""
    rows = [row for op in JOBS for row in by_op.get(op, []) if (row.threads == 0) == on_gpu and row.check != PEER]
    by_machine = groups(rows, lambda row: row.machine)

    def rank(machine: str) -> tuple[int, tuple[str, ...]]:
        shown = [chosen(by_op, machine, op, name) for op in JOBS for name in CLASSES]
        return sum(row is not None and bool(row.peer) for row in shown), max(row.origin for row in by_machine[machine])

    return max(by_machine, key=rank, default=None)


def _rate(row: Row) -> float:
    """Records per second. For a volume, voxels per second; the row's size begins with the volume's:
    "128x128x128-3x3x3-..."."""
    sizes = re.match(r"\d+(x\d+)+(?=-)", row.size) if row.op == "volumes" else None
    return (math.prod(map(int, sizes[0].split("x"))) if sizes else row.rows) / row.median_s


def _cells(row: Row | None) -> tuple[str, str]:
    if row is None:
        return "", ""
    if row.peer and row.peer_ratio:
        return _amount(_rate(row)), f"{times(row.peer_ratio)} x {_short(row.peer.partition(',')[0], 18)}"
    return _amount(_rate(row)), "no peer measured"


def _amount(value: float) -> str:
    """Three digits, with "M" or "G" from a million on."""
    for size, letter in ((1e9, " G"), (1e6, " M")):
        if value >= size:
            return three(value / size) + letter
    return three(value)


def _short(text: str, width: int) -> str:
    """At most `width` characters, cut between words if possible."""
    cut = textwrap.shorten(text, width, placeholder=" ...") if len(text) > width else text
    return cut if cut != " ..." and cut != "..." else text[: width - 3] + "..."


def ladder_rows(by_op: Rows, ladders: Ladders) -> list[Row]:
    """The rows of LADDER that are shown: float32, one machine, the most threads, the size with the highest rate.

    The machine is the one that measured the most rungs at that size, or the newest of several.
    """
    rungs, found = ladders[LADDER].rungs, []
    rows = [row for row in by_op.get(LADDER, []) if row.dtype == "float32" and (row.rung in rungs or row.check == PEER)]
    for same in groups(rows, lambda row: row.machine).values():
        most = max(row.threads for row in same)
        same = [row for row in same if row.threads == most]
        fastest = max(same, key=lambda row: (row.check != PEER, rate(row)[0] or 0.0))
        found.append([row for row in same if row.size == fastest.size])
    return max(found, key=lambda some: (len(some), [row.origin for row in some]), default=[])


def picture(by_op: Rows, ladders: Ladders) -> str | None:
    """The figure of the ladder that is shown, as SVG. None without rows."""
    rows = ladder_rows(by_op, ladders)
    return ladder_figure(rows, ladders[LADDER]) if rows else None


def ladder(by_op: Rows, ladders: Ladders) -> str:
    """The figure and the table of the ladder.

    A long table leaves out the rungs that change least, and all peers but the fastest.
    """
    shown, by_rung = ladders[LADDER], {row.rung: row for row in ladder_rows(by_op, ladders)}
    if not by_rung:
        return UNMEASURED
    names = [name for name in shown.rungs if name in by_rung]
    peers = sorted(
        (name for name in by_rung if name not in shown.rungs), key=lambda name: rate(by_rung[name])[0] or 0.0
    )
    first = by_rung[(names + peers)[0]]
    between = sorted(names[1:-1], key=lambda name: abs(math.log(by_rung[name].versus_below or 1.0)))
    least = between[: max(0, len(names) + len(peers[-1:]) - LADDER_ROWS)]
    names = [name for name in names if name not in least] + peers[-1:]
    lines = []
    for name in names:
        row, idea = by_rung[name], shown.rungs[name].idea if name in shown.rungs else "the vendor's library"
        figures = three(rate(row)[0]), percent(row.roof_share), _gain(row, shown, names)
        name = _short(name, 30)
        lines.append((name, _short(idea, COLUMNS - ROW - sum(map(len, (name, *figures)))), *figures))
    header = ("rung", "idea", rate(first)[1], "of the roof, %", "x the rung below")
    size = first.size.removesuffix("-float32")
    title = f"{LADDER}, {size}, float32, {device_of(first.threads)}; {origin([first])}"
    link = f"![{LADDER}: the rate of each rung](results/{PICTURE})"
    return f"{link}\n\n{Table(_short(title, COLUMNS), header, tuple(lines), 2).markdown()}"


def _gain(row: Row, ladder: Ladder, shown: list[str]) -> str:
    """The factor over the rung below. The rung below is named if the table leaves it out."""
    gain, rung = times(row.versus_below), ladder.rungs.get(row.rung)
    below = rung.after if rung else None
    return f"{gain} ({_short(below, 24)})" if gain and below and below not in shown else gain


def claims(by_op: Rows, ladders: Ladders) -> str:
    """What makes the project different: one line per claim, with a figure in each."""
    workers = max((int(row.label) for row in by_op.get("scaling", []) if row.label.isdigit()), default=0)
    several = str(workers) if workers > 1 else "several"
    rungs = sum(len(one.rungs) for one in ladders.values())
    machines = [found for on_gpu in (False, True) if (found := _machine(by_op, on_gpu))]
    rows = [chosen(by_op, machine, op, name) for machine in machines for op in JOBS for name in CLASSES]
    ratios = sorted(row.peer_ratio for row in rows if row and row.peer_ratio)
    every = [ratio for machine in machines for ratio in _ratios(by_op, machine)]
    speed = "are measured beside the strongest peer."
    if ratios:
        lost = f"A peer is faster in {sum(ratio < 1 for ratio in every)} of {len(every)} cases."
        speed = f"run {times(ratios[0])} to {times(ratios[-1])} times as fast as the strongest peer. {lost}"
    checked = sum(CHECKED.match(row.check) is not None for some in by_op.values() for row in some)
    told = (
        f"**Same bits.** A result never depends on batch, threads or shards: {several} workers write the bytes of one.",
        f"**Crash-safe.** The same command resumes a job. A test kills jobs {KILLS} times and compares every byte.",
        f"**Ladders.** {len(ladders)} operations have {rungs} kernels. `tilewright ladder matmul` times matmul's.",
        f"**Fast.** The jobs below {speed}",
        f"**Checked.** {checked:,} measurements are published. Each result was checked against a reference.",
    )
    return "\n".join(textwrap.fill(f"* {line}", COLUMNS, subsequent_indent="  ") for line in told)


SECTIONS: dict[str, Callable[[Rows, Ladders], str]] = {"jobs": jobs, "ladder": ladder, "claims": claims}
