"""--trace: a Chrome trace of all workers (for chrome://tracing and ui.perfetto.dev).

In the viewer a worker is a process, and each of ROWS is a row of it. Each worker writes its own file in the job's
logs/, one line per event. The run joins these files at its end, also after an error. Without --trace, a span only
checks one variable.
"""

from __future__ import annotations

import datetime
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from tilewright.errors import UsageError
from tilewright.formats.atomic import AtomicFile
from tilewright.formats.files import InputFile, naming
from tilewright.hardware import gpu_name, machine_name
from tilewright.hardware.checkout import commit

if TYPE_CHECKING:
    from tilewright.runtime.jobs.directory import JobDirectory

SHARD, READ, COPY_IN, COMPUTE, COPY_OUT, WRITE, COMMIT = ROWS = (
    "shard", "read", "copy in", "compute", "copy out", "write", "commit",
)  # fmt: skip
GPU = ", GPU"  # suffix of a row whose times are from the GPU's clock
KEPT = 4096  # events in memory before they are written
MOST = 200_000  # events of one process, about 20 MB; later ones are dropped, because viewers get slow
BEGINNING = b'{"displayTimeUnit": "ms", "traceEvents": [\n'  # the first bytes of a trace
PIECE = "trace-"  # prefix of the files that each process writes
OFF: AbstractContextManager[None] = nullcontext()

_recorder: Recorder | None = None  # the trace of this process, while it traces


class Event(msgspec.Struct, array_like=True):
    """One event in a row.

    lane: an index, if several threads share the row. begin: ns since 1970. took: ns. records: of a committed shard.
    """

    row: str
    lane: int
    name: str
    begin: int
    took: int
    records: int = 0


class Who(msgspec.Struct):
    """The first line of a process's file. worker: None for the process that leads. device: see `Place.device`. machine:
    the folder of its results; "" for the process that leads."""

    worker: int | None
    host: str
    pid: int
    device: str = ""
    machine: str = ""


def span(row: str, name: str = "") -> AbstractContextManager[None]:
    """Record the block as a span with this name in `row`, one of ROWS."""
    return OFF if _recorder is None else _recorder.span(row, name or row)


def device_span(row: str, name: str = "") -> AbstractContextManager[None]:
    """As `span`, for the block's work on torch's current CUDA stream. The GPU measures the times, because it may run
    the work later. Use it around the replay of a CUDA graph, not around its capture.
    """
    return OFF if _recorder is None else _recorder.device_span(row, name or row)


def note(row: str, begin: float, end: float, name: str = "") -> None:
    """Record work from `begin` to `end`, times of time.perf_counter(), as a span."""
    if _recorder:
        _recorder.add(row, name or row, round(begin * 1e9), round((end - begin) * 1e9))


def counted(records: int) -> None:
    """Note the number of records of the shard whose span is open, when it is committed."""
    if _recorder:
        _recorder.records = records


@contextmanager
def recording(directory: JobDirectory, worker: int | None, on: bool = True, *, device: str = "") -> Iterator[None]:
    """Within the block this process records its spans, as those of this worker on this device.

    Raises ResourceError if its file cannot be written.
    """
    global _recorder
    if not on:
        yield
        return
    earlier, ours = _recorder, Recorder(directory, worker, device)
    _recorder = ours
    try:
        yield
    finally:
        _recorder = earlier
        ours.close()


@contextmanager
def tracing(directory: JobDirectory, path: str | None) -> Iterator[None]:
    """Trace the block, a run, and write the trace to `path`; None: no trace. It is written after errors, too.

    Before the run it raises as `check_path`, and ResourceError if the trace cannot be written.
    """
    if path is None:
        yield
        return
    check_path(path, directory.output)
    AtomicFile(path).__enter__().discard()
    for name in _pieces(directory):
        directory.logs.remove(name)
    begin = time.time_ns()
    try:
        with recording(directory, None):
            yield
    finally:
        merge(directory, path, begin)


def check_path(path: str, output: str) -> None:
    """Raises UsageError if `path` is the job's output or a file that is no trace."""
    if os.path.realpath(path) == os.path.realpath(output):
        raise UsageError("the trace would be written over the output", path=path, remedy="give --trace another file")
    if os.path.isfile(path) and os.path.getsize(path):
        with InputFile(path, "trace") as file:
            there = bytearray(min(file.size, len(BEGINNING)))
            file.read_into(there, 0)
        if there != BEGINNING:
            raise UsageError(
                "the file exists and is no trace", path=path, remedy="give --trace another file, or remove this one"
            )


class GpuEvent(Protocol):
    """A `torch.cuda.Event` with timing."""

    def record(self) -> None: ...

    def synchronize(self) -> None: ...

    def elapsed_time(self, end_event: Any, /) -> float:
        """Milliseconds from this event to `end_event`."""


class Recorder:
    """Buffers the spans of one process and appends them to its file."""

    def __init__(self, directory: JobDirectory, worker: int | None, device: str = "") -> None:
        name = f"{PIECE}{'lead' if worker is None else worker}-{os.getpid()}.jsonl"
        self._path = directory.logs.where(name)
        with naming(self._path, "open"):
            self._fd = directory.logs.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._epoch = time.time_ns() - time.perf_counter_ns()
        self._events: list[Event] = []
        self._on_gpu: list[tuple[str, str, GpuEvent, GpuEvent]] = []
        self._gpu: tuple[GpuEvent, int] | None = None  # and when it was, in ns of perf_counter
        self._lanes: dict[int, int] = {}
        self._left = MOST
        self.records = 0  # of the shard whose span is open, once it is committed
        machine = "" if worker is None else gpu_name() if device.startswith("GPU") else machine_name()
        self._write([Who(worker, os.uname().nodename, os.getpid(), device, machine)])

    @contextmanager
    def span(self, row: str, name: str) -> Iterator[None]:
        """See the function."""
        begin = time.perf_counter_ns()
        try:
            yield
        finally:
            self.add(row, name, begin, time.perf_counter_ns() - begin)
            if row == SHARD or len(self._events) >= KEPT:
                self.flush()

    def add(self, row: str, name: str, begin: int, took: int) -> None:
        """Add an event. begin, took: ns of time.perf_counter()."""
        lane = self._lanes.setdefault(threading.get_ident(), len(self._lanes))
        records = 0
        if row == SHARD:
            records, self.records = self.records, 0
        self._events.append(Event(row, lane, name, self._epoch + begin, took, records))

    @contextmanager
    def device_span(self, row: str, name: str) -> Iterator[None]:
        """See the function."""
        import torch

        if self._gpu is None:
            self._gpu = self._tick()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        try:
            yield
        finally:
            end.record()
            self._on_gpu.append((row, name, begin, end))

    def _tick(self) -> tuple[GpuEvent, int]:
        import torch

        event = torch.cuda.Event(enable_timing=True)
        event.record()
        event.synchronize()
        return event, time.perf_counter_ns()

    def flush(self) -> None:
        """Write the buffered events; wait for the GPU if it measures any of them."""
        on_gpu, self._on_gpu = self._on_gpu, []
        if self._gpu and on_gpu:
            tick, when = self._gpu
            for row, name, begin, end in on_gpu:
                end.synchronize()
                since = round(tick.elapsed_time(begin) * 1e6)  # elapsed_time returns ms
                took = round(begin.elapsed_time(end) * 1e6)
                self._events.append(Event(row + GPU, 0, name, self._epoch + when + since, took))
            self._gpu = self._tick()  # a new reference event, because elapsed times are float32
        events, self._events = self._events, []
        self._write(events[: self._left])
        self._left = max(self._left - len(events), 0)

    def _write(self, lines: Sequence[msgspec.Struct]) -> None:
        with naming(self._path, "write"):
            os.write(self._fd, b"".join(msgspec.json.encode(line) + b"\n" for line in lines))

    def close(self) -> None:
        try:
            self.flush()
        finally:
            os.close(self._fd)


def merge(directory: JobDirectory, path: str, begin: int) -> None:
    """Make a Chrome trace of the files that the processes of a job wrote. begin: start of the job, ns since 1970."""
    with AtomicFile(path) as file:
        file.write(BEGINNING)
        first = True
        for number, name in enumerate(_pieces(directory)):
            for event in _events(directory, name, number, begin):
                file.write((b"" if first else b",\n") + msgspec.json.encode(event))
                first = False
        day = datetime.date.fromtimestamp(begin / 1e9).isoformat()
        origin = msgspec.json.encode({"commit": commit(), "date": day})
        file.write(b'\n], "otherData": ' + origin + b"}\n")


def _pieces(directory: JobDirectory) -> list[str]:
    return sorted(name for name in directory.logs.names() if name.startswith(PIECE))


def _events(directory: JobDirectory, name: str, number: int, begin: int) -> Iterator[dict[str, Any]]:
    """One process's events in the viewers' format: names of the process and its rows, then events with times in µs."""
    fd = directory.logs.open_or_none(name)
    if fd is None:
        return
    rows: dict[str, int] = {}
    records = 0

    def named(what: str, tid: int, **values: object) -> dict[str, Any]:
        return {"ph": "M", "name": what, "pid": number, "tid": tid, "args": values}

    with os.fdopen(fd, "rb") as lines:
        who = _decoded(next(lines, b""), Who)
        if who is None:
            return
        what = "lead" if who.worker is None else f"worker {who.worker}"
        told = ", ".join(filter(None, (who.host, who.device, f"process {who.pid}")))
        about = {"worker": who.worker, "host": who.host, "device": who.device, "machine": who.machine}
        yield named("process_name", 0, name=f"{what} ({told})", **about)
        yield named("process_sort_index", 0, sort_index=-1 if who.worker is None else who.worker)
        for line in lines:
            event = _decoded(line, Event)
            if event is None:  # the process died while it wrote
                continue
            row = event.row + (f" {event.lane + 1}" if event.lane else "")
            if row not in rows:
                rows[row] = len(rows)
                yield named("thread_name", rows[row], name=row)
                yield named("thread_sort_index", rows[row], sort_index=_place(event.row))
            times = {"ts": (event.begin - begin) / 1e3, "dur": event.took / 1e3}
            count = {"args": {"records": event.records}} if event.records else {}
            yield {"ph": "X", "name": event.name, "pid": number, "tid": rows[row], **times, **count}
            records += event.records
    if records:
        yield named("process_labels", 0, labels=f"{records:,} records")


def _place(row: str) -> int:
    """The index of a row in ROWS; unknown rows come last."""
    return len(list(takewhile(lambda name: name != row.removesuffix(GPU), ROWS)))


def _decoded(line: bytes, kind: Callable[..., Any]) -> Any:
    try:
        return msgspec.json.decode(line, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
