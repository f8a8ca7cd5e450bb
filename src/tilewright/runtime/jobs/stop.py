"""Handles signals to a job. The first signal asks the job to stop cleanly; a second SIGINT stops it at once."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from tilewright.errors import Interrupted
from tilewright.runtime.process.signals import end_at_once
from tilewright.runtime.process.startup import heard

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
AGAIN_SECONDS = 1.0  # between two attempts to interrupt work that does not call `check`


_outer: Stop | None = None  # of the outermost `stopping` block of the main thread


class _Late(KeyboardInterrupt):
    """Raised in the main thread at the end of the grace time. No `except` of a library catches it as its own error."""


class Stop:
    """The request to stop a job.

    name: the reason, such as "SIGTERM"; "" without a request. asked: called once with the reason, in a signal handler,
    so it must take no lock. at_once: called before a second SIGINT kills the process.
    """

    def __init__(self) -> None:
        self.name = ""
        self.since = 0.0
        self._grace: float | None = None  # seconds, within `in_time`
        self.asked: Callable[[str], object] = lambda name: None
        self.at_once: Callable[[], object] = lambda: None

    def ask(self, name: str) -> None:
        """Request the stop, for the reason `name`."""
        if not self.name:
            self.since, self.name = time.monotonic(), name
            heard(name)
            self.asked(name)

    def left(self, grace: float) -> float:
        """Seconds until the job must have stopped; infinite without a request."""
        return self.since + 0.8 * grace - time.monotonic() if self.name else float("inf")  # 20 % are for exits

    def check(self) -> None:
        """Raises Interrupted if a stop was requested."""
        if self.name:
            raise Interrupted(
                f"stopped by {self.name}: complete shards were kept, and the output is not written yet",
                value=self.name,
                remedy="run the same command again",
            )

    def late(self, grace: float) -> Stop:
        """A `Stop` whose `check` raises only at the end of the grace time, for work such as the merge."""
        return _AtLast(self, grace)

    @contextmanager
    def in_time(self, grace: float) -> Iterator[None]:
        """For work in the main thread that rarely calls `check`: within the block, a timer raises Interrupted at the
        end of the grace time. If foreign code such as LLVM's loses the exception, the timer raises it again a second
        later.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        earlier, told, self._grace = signal.signal(signal.SIGALRM, self._ring), sys.unraisablehook, grace
        sys.unraisablehook = lambda event: None if isinstance(event.exc_value, _Late) else told(event)
        if self.name:
            self._wind(grace)
        try:
            yield
        except _Late:
            self.check()
        finally:
            self._grace = None
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, earlier)
            sys.unraisablehook = told

    def _wind(self, grace: float) -> None:
        signal.setitimer(signal.ITIMER_REAL, max(self.left(grace), 0.001), AGAIN_SECONDS)

    def _ring(self, number: int, frame: FrameType | None) -> None:
        raise _Late(self.name)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.name and number == signal.SIGINT:
            self.at_once()
            end_at_once("Ended at once: the shards that are whole are kept")
        self.ask(signal.Signals(number).name)
        if self._grace is not None:
            self._wind(self._grace)


class _AtLast(Stop):
    def __init__(self, stop: Stop, grace: float) -> None:
        super().__init__()
        self._stop, self._seconds = stop, grace

    def check(self) -> None:
        if self._stop.left(self._seconds) <= 0:
            self._stop.check()


@contextmanager
def stopping() -> Iterator[Stop]:
    """Within the block SIGNALS request the stop, except a SIGHUP that `nohup` had ignored. A nested block joins the
    outer one. Outside the main thread there are no signals and no requests.
    """
    global _outer
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    if _outer:
        yield _outer
        return
    heard = [n for n in SIGNALS if n != signal.SIGHUP or signal.getsignal(n) != signal.SIG_IGN]
    earlier = {number: signal.signal(number, stop._handle) for number in heard}
    _outer = stop
    try:
        yield stop
    finally:
        _outer = None
        for number, handler in earlier.items():
            signal.signal(number, handler)
