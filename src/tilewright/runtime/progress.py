"""How far a job is, on stderr: a bar on a terminal, a plain line every few seconds elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, TextIO

EVERY = 5.0  # seconds between plain lines
REFRESH = 0.1  # seconds between two states of the bar


class Progress:
    """`with Progress("sentences", total=..., size=...) as progress: progress.update(records, bytes)`.

    total: records to come, or None; then the share is that of `size`, the bytes of the input. stream: where to write.
    """

    def __init__(self, unit: str, *, total: int | None, size: int, stream: TextIO | None = None) -> None:
        self._unit, self._total, self._size = unit, total, size
        self._stream = stream or sys.stderr
        self._start = self._last = time.perf_counter()
        self._bar: Any = None
        self._lost = False  # the stream cannot be written any more

    def __enter__(self) -> Progress:
        if self._stream.isatty():
            self._bar = _bar(self._stream, self._unit)
            self._task = self._bar.add_task("", total=self._total or self._size, rate="")
            self._try(self._bar.start)
            self._last = 0.0
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar:
            self._try(self._bar.stop)

    def update(self, records: int, end: int) -> None:
        """records: how many are done; end: bytes of the input that are used."""
        if self._lost:
            return
        now = time.perf_counter()
        rate = f"{records / max(now - self._start, 1e-9):,.0f} {self._unit}/s"
        if self._bar:
            self._bar.update(self._task, completed=records if self._total else end, rate=rate)
            if now - self._last >= REFRESH:
                self._last = now
                self._try(self._bar.refresh)
        elif now - self._last >= EVERY:
            self._last = now
            of = f" of {self._total:,}" if self._total else ""
            share = records / self._total if self._total else end / self._size
            line = f"{records:,}{of} {self._unit} ({share:.0%}), {rate}, {now - self._start:.0f} s\n"
            self._try(lambda: (self._stream.write(line), self._stream.flush()))

    def _try(self, write: Callable[[], object]) -> None:
        """Where the stream is closed or full, the job goes on without progress."""
        try:
            if not self._lost:
                write()
        except OSError:
            self._lost = True


def _bar(stream: TextIO, unit: str) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    rate = TextColumn("{task.fields[rate]}")
    columns = (TextColumn(unit), BarColumn(), TaskProgressColumn(), rate, TimeRemainingColumn())
    return Progress(*columns, console=Console(file=stream), transient=True, auto_refresh=False)
