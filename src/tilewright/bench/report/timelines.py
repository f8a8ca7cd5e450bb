"""Timelines beside the rows: results/<machine>/timeline_<name>.json, which `tilewright timeline --save NAME` writes.

Such a file holds what its figure shows of the traces: spans that the figure draws as one are stored as one. So it has a
few kilobytes, and the report draws it without the traces.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from tilewright.bench.report.timeline import Run, Window, busy, drawn_lanes, merged, timeline
from tilewright.bench.results import write_text
from tilewright.errors import InputError, UsageError, brief, counted
from tilewright.formats.files import InputFile
from tilewright.formats.traces import LONGEST_US, Lane, Process

PREFIX, ENDING = "timeline_", ".json"
NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")
MACHINE = re.compile(r"[a-z0-9][a-z0-9_.-]{0,99}")
MOST_BYTES = 16 << 20  # of a file: 300 lanes of 1,600 spans
DECIMALS = 4  # of a time in ms: a tenth of a microsecond
ABOUT = (
    "When each worker read, computed and wrote, in one run or in several below each other. `tilewright timeline "
    "TRACES --save NAME` saves such a figure."
)


class _Lane(msgspec.Struct, frozen=True):
    name: str
    order: int
    busy: float
    spans: list[tuple[float, float]]


class _Process(msgspec.Struct, frozen=True):
    worker: int | None
    device: str
    records: int
    lanes: list[_Lane]


class _Run(msgspec.Struct, frozen=True):
    name: str
    end: float
    processes: list[_Process]


class _Saved(msgspec.Struct, frozen=True):
    begin: float
    end: float
    commit: str
    date: str
    runs: list[_Run]


class Timeline(NamedTuple):
    """A saved timeline. machine: the folder that it is in. commit, date: as in a row. runs: how many. drawing: SVG, see
    `timeline.timeline`."""

    name: str
    machine: str
    commit: str
    date: str
    runs: int
    drawing: str

    @property
    def figure(self) -> str:
        """The path of its figure below results/."""
        return f"{self.machine}/{PREFIX}{self.name}.svg"

    @property
    def origin(self) -> str:
        """Its runs, machine, commit and day, in one line."""
        return f"{counted(self.runs, 'run')}; {self.machine}, commit {self.commit}, {self.date}"


def save_timeline(folder: Path, name: str, runs: Sequence[Run], window: Window) -> Path:
    """Write folder/<machine>/timeline_<name>.json, for the machine on which the runs were recorded.

    Raises UsageError if a trace does not name its machine, or if there are several; ResourceError if writing fails.
    """
    machine, commit, day = _origin(runs)
    shown = [
        _Run(run.name, round(run.last, DECIMALS), [_process(one, window) for one in run.processes]) for run in runs
    ]
    saved = _Saved(round(window.begin, DECIMALS), round(window.end, DECIMALS), commit, day, shown)
    path = folder / machine / f"{PREFIX}{name}{ENDING}"
    write_text(path, msgspec.json.encode(saved).decode() + "\n")
    return path


def _origin(runs: Sequence[Run]) -> tuple[str, str, str]:
    """(machine, commits, last day) of the runs."""
    for run in runs:
        workers = [one for one in run.processes if one.worker is not None]
        if not workers or not all(one.machine and one.commit and one.date for one in workers):
            raise UsageError(f"{run.name} does not say on which machine it was recorded, as traces of earlier versions",
                             remedy="run the job again with --trace, or leave out --save")  # fmt: skip
    workers = [one for run in runs for one in run.processes if one.worker is not None]
    machines = sorted({one.machine for one in workers})
    if len(machines) > 1 or not MACHINE.fullmatch(machines[0]):
        raise UsageError(f"the runs are of {' and '.join(machines)}; a saved timeline is of one machine",
                         remedy="save one for each machine")  # fmt: skip
    return machines[0], " and ".join(sorted({one.commit for one in workers})), max(one.date for one in workers)


def _process(process: Process, window: Window) -> _Process:
    lanes = [
        _Lane(lane.name, lane.order, round(busy(lane, window), DECIMALS),
              [(round(a, DECIMALS), round(b, DECIMALS)) for a, b in merged(lane, window)])
        for lane in drawn_lanes(process, window)
    ]  # fmt: skip
    return _Process(process.worker, process.device, process.records, lanes)


def read_timelines(folder: Path, machine: str = "*") -> list[Timeline]:
    """The saved timelines of all machines or of one, by machine and name. Raises InputError for a broken file."""
    return [read_timeline(path) for path in sorted(folder.glob(f"{machine}/{PREFIX}*{ENDING}"))]


def read_timeline(path: Path) -> Timeline:
    """One saved timeline, drawn. Raises InputError for a file that `save_timeline` has not written."""
    name = os.path.basename(path).removeprefix(PREFIX).removesuffix(ENDING)
    remedy = "remove it and save the timeline again"
    if not NAME.fullmatch(name):
        raise InputError(
            f"the name {name!r} of this timeline may contain only a-z, 0-9 and -", path=path, remedy=remedy
        )
    with InputFile(path, "timeline") as file:
        if file.size > MOST_BYTES:
            raise InputError(f"the timeline has {file.size:,} bytes; at most {MOST_BYTES:,} are read", path=path)
        text = bytearray(file.size)
        file.read_into(text, 0)
    try:
        saved = msgspec.json.decode(text, type=_Saved)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"this is no saved timeline: {brief(error)}", path=path, remedy=remedy) from error
    if why := _wrong(saved):
        raise InputError(f"this is no saved timeline: {why}", path=path, remedy=remedy)
    try:
        drawing = timeline([_run(run) for run in saved.runs], Window(saved.begin, saved.end))
    except UsageError as error:
        raise InputError(f"this is no saved timeline: {error.message}", path=path, remedy=remedy) from error
    return Timeline(name, path.parent.name, saved.commit, saved.date, len(saved.runs), drawing)


def _wrong(saved: _Saved) -> str:
    """What `save_timeline` never writes; "" if all is well."""
    lanes = [lane for run in saved.runs for process in run.processes for lane in process.lanes]
    times = [time for lane in lanes for span in lane.spans for time in span]
    times += [saved.begin, saved.end, *(run.end for run in saved.runs)]
    if not all(math.isfinite(time) and abs(time) <= LONGEST_US / 1e3 for time in times):
        return "a time is beyond 30 years"
    if not saved.begin < saved.end:
        return f"it goes from {saved.begin:g} to {saved.end:g} ms"
    if not re.fullmatch(r"[\w.-]+( and [\w.-]+)*", saved.commit[:400]) or not re.fullmatch(
        r"\d{4}-\d\d-\d\d", saved.date
    ):
        return "its commit or date is malformed"
    if any(b < a for lane in lanes for a, b in lane.spans) or any(lane.spans != sorted(lane.spans) for lane in lanes):
        return "the times of a lane are not in order"
    return "" if all(0 <= lane.busy <= 1 for lane in lanes) else "a share is not from 0 to 1"


def _run(run: _Run) -> Run:
    processes = [
        Process(one.worker, one.device, one.records, {
            number: Lane(lane.name, lane.order, lane.spans, lane.busy) for number, lane in enumerate(one.lanes)
        })
        for one in run.processes
    ]  # fmt: skip
    return Run(run.name, processes, run.end)
