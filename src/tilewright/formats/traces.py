"""The traces that --trace writes, read again: which worker did what, and when.

A trace is JSON in Chrome's format. Events with `ph` "X" are spans, with `ts` and `dur` in microseconds. Events with
`ph` "M" name the processes, which are the workers, and the rows of each.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

import msgspec

from tilewright.errors import InputError, brief
from tilewright.formats.files import InputFile

MOST_BYTES = 1 << 30  # of a trace: 50 processes with as many events as a process writes
LONGEST_US = 1e15  # 30 years: a time beyond is damage


class _Args(msgspec.Struct):
    name: str = ""
    worker: int | None = None
    device: str = ""
    machine: str = ""
    sort_index: int = 0
    records: int = 0


class _Event(msgspec.Struct):
    ph: str
    name: str
    pid: int
    tid: int = 0
    ts: float = 0.0
    dur: float = 0.0
    args: _Args = msgspec.field(default_factory=_Args)


class _Origin(msgspec.Struct):
    commit: str = ""
    date: str = ""


class _Trace(msgspec.Struct):
    events: list[_Event] = msgspec.field(name="traceEvents")
    origin: _Origin = msgspec.field(name="otherData", default_factory=_Origin)


@dataclass
class Lane:
    """A row of a process. spans: (begin, end) in ms since the start of the job, in the order of their begins. busy:
    share of the window covered by spans; set only in a saved timeline, whose near spans are merged."""

    name: str = ""
    order: int = 0
    spans: list[tuple[float, float]] = field(default_factory=list)
    busy: float | None = None


@dataclass
class Process:
    """A worker, or the process that leads: then `worker` is None. device: a GPU or cores, in words. records: done.

    machine: the folder of its results. commit, date: of the run, as in a row of results. A trace of an earlier version
    lacks these three.
    """

    worker: int | None = None
    device: str = ""
    records: int = 0
    lanes: dict[int, Lane] = field(default_factory=dict)
    machine: str = ""
    commit: str = ""
    date: str = ""

    @property
    def rows(self) -> list[Lane]:
        """The lanes that have spans, in the order of a trace viewer."""
        return sorted((lane for lane in self.lanes.values() if lane.spans), key=lambda lane: (lane.order, lane.name))


def read_trace(path: str | os.PathLike[str]) -> list[Process]:
    """The processes of a trace, the leading one first. Raises InputError for a file that is no trace of a job."""
    with InputFile(path, "trace") as file:
        if file.size > MOST_BYTES:
            raise InputError(f"the trace has {file.size:,} bytes; at most {MOST_BYTES:,} are read", path=path)
        text = bytearray(file.size)
        file.read_into(text, 0)
    try:
        trace = msgspec.json.decode(text, type=_Trace)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(
            f"this is no trace of a job: {brief(error)}", path=path, remedy="give a file that --trace has written"
        ) from error
    found: dict[int, Process] = {}
    for number, event in enumerate(trace.events):
        if not (abs(event.ts) <= LONGEST_US and 0 <= event.dur <= LONGEST_US):
            raise InputError(
                f"the event begins at {event.ts:g} us and takes {event.dur:g} us; both must be times of a job",
                path=path,
                where=f"event {number + 1}",
            )
        _add(found.setdefault(event.pid, Process()), event)
    for process in found.values():
        process.commit, process.date = trace.origin.commit, trace.origin.date
        for lane in process.lanes.values():
            lane.spans.sort()
    return sorted(found.values(), key=lambda one: -1 if one.worker is None else one.worker)


def _add(process: Process, event: _Event) -> None:
    args = event.args
    if event.ph == "X":
        begin = event.ts / 1e3
        process.lanes.setdefault(event.tid, Lane()).spans.append((begin, begin + event.dur / 1e3))
        process.records += args.records
    elif event.name == "process_name":
        process.worker, process.device, process.machine = args.worker, args.device, args.machine
    elif event.name == "thread_name":
        process.lanes.setdefault(event.tid, Lane()).name = args.name
    elif event.name == "thread_sort_index":
        process.lanes.setdefault(event.tid, Lane()).order = args.sort_index
