"""OUT.job/metrics.prom: the progress of a job in Prometheus' text format, for the textfile collector of node_exporter.

The file is replaced by a rename, so that a reader never sees an incomplete file. It is not flushed to the disk, and
disk errors are ignored: it only informs people, and the job itself never reads it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from tilewright.formats.atomic import temporary_name
from tilewright.formats.files import spelled
from tilewright.runtime.jobs.cut import Cut
from tilewright.runtime.jobs.directory import JobDirectory, Record
from tilewright.runtime.jobs.durable import Folder
from tilewright.runtime.jobs.settings import Settings
from tilewright.runtime.jobs.task import Watch

METRICS = "metrics.prom"
EVERY = 5.0  # seconds between two writes of the file; Prometheus usually reads every 15 s or less often


class Metric(NamedTuple):
    """A metric: its name without the prefix, its help text, and its value."""

    name: str
    text: str
    value: float


@contextmanager
def metrics_of(directory: JobDirectory, settings: Settings, watch: Watch) -> Iterator[Watch]:
    """An observer that calls `watch` and writes the metrics. A part writes none: it knows only its own shards."""
    if settings.part is not None:
        yield watch
        return
    metrics = Metrics(directory, watch)
    with metrics.running():
        yield metrics


class Metrics(Watch):
    """Counts what a job commits, and writes the counts every few seconds.

    other: another observer of the same job, which gets all calls. clock: returns seconds; tests replace it.
    """

    def __init__(self, directory: JobDirectory, other: Watch, clock: Callable[[], float] = time.monotonic) -> None:
        self._directory, self._other, self._clock = directory, other, clock
        self._shards = 0
        self._begun = self._due = clock()
        self._at: dict[int, int] = {}  # by worker: finished records of its current shard
        self._done: set[int] = set()  # the numbers of committed shards
        self._records = self._errors = self._new = 0  # new: records of shards of this run

    def begin(self, cut: Cut) -> None:
        self._shards = cut.shards
        self._other.begin(cut)

    def committed(self, record: Record, worker: int | None) -> None:
        if record.shard not in self._done:
            self._done.add(record.shard)
            self._records += record.records
            self._errors += record.errors
        if worker is not None:
            self._at[worker] = 0
            self._new += record.records
            self._write_if_due()
        self._other.committed(record, worker)

    def at_work(self, worker: int, done: int, share: float | None = None) -> None:
        self._at[worker] = done
        self._write_if_due()
        self._other.at_work(worker, done, share)

    def waiting(self, why: str) -> None:
        self._write(running=True)
        self._other.waiting(why)

    @contextmanager
    def running(self) -> Iterator[None]:
        """A block within which the file says that the job runs. At its end the file says that it has stopped."""
        finished = False
        try:
            yield
            finished = True
        finally:
            if self._at or self._done:
                self._write(running=False, finished=finished)

    def _write_if_due(self) -> None:
        now = self._clock()
        if now >= self._due:
            self._due = now + EVERY
            self._write(running=True)

    def _write(self, *, running: bool, finished: bool = False) -> None:
        with suppress(OSError):
            _replace(self._directory.root, METRICS, self.text(running=running, finished=finished).encode())

    def text(self, *, running: bool, finished: bool) -> str:
        """The content of the file."""
        seconds = self._clock() - self._begun
        new = self._new + sum(self._at.values())
        metrics = (
            Metric("shards", "Shards of the job.", self._shards),
            Metric("shards_done", "Committed shards, also those of earlier runs.", len(self._done)),
            Metric("records", "Records in committed shards.", self._records),
            Metric("errors", "Records in committed shards that failed.", self._errors),
            Metric(
                "records_per_second", "Mean rate of this run, with records of running shards.", new / max(seconds, 1e-9)
            ),
            Metric("workers", "Workers that got a shard in this run.", len(self._at)),
            Metric("seconds", "Time since this run began.", seconds),
            Metric("running", "1 while a run works on the job, else 0.", running),
            Metric("finished", "1 if the output is complete, else 0.", finished),
        )
        label = _escaped(spelled(self._directory.output).replace("\0", "\\x"))
        lines = [line for metric in metrics for line in _lines(metric, label)]
        return "\n".join(lines) + "\n"


def _lines(metric: Metric, output: str) -> tuple[str, str, str]:
    name = f"tilewright_job_{metric.name}"
    return f"# HELP {name} {metric.text}", f"# TYPE {name} gauge", f'{name}{{output="{output}"}} {metric.value:.10g}'


def _escaped(text: str) -> str:
    """Escape the value of a label."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _replace(folder: Folder, name: str, data: bytes) -> None:
    """Write a temporary file and rename it. Raises OSError."""
    temporary = os.path.basename(temporary_name(name))
    fd = folder.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        with open(fd, "wb") as file:
            file.write(data)
        os.replace(temporary, name, src_dir_fd=folder.fd, dst_dir_fd=folder.fd)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=folder.fd)
        raise
