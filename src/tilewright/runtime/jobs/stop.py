"""Signals that a job outlives: the first asks it to stop in order, a second SIGINT ends it at once."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from tilewright.errors import Interrupted
from tilewright.formats import atomic

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)


class Stop:
    """Whether the job is to stop, and since when. at_once: called before a second SIGINT ends the process."""

    def __init__(self) -> None:
        self.name = ""
        self.since = 0.0
        self.at_once: Callable[[], object] = lambda: None

    def ask(self, name: str) -> None:
        """Asks for the stop, for the reason `name`."""
        if not self.name:
            self.since, self.name = time.monotonic(), name

    def left(self, grace: float) -> float:
        """Seconds until the job must have ended; infinite while nobody asked."""
        return self.since + 0.8 * grace - time.monotonic() if self.name else float("inf")  # 0.8: then processes end

    def check(self) -> None:
        """Raises Interrupted if the job is to stop."""
        if self.name:
            raise Interrupted(
                f"stopped by {self.name}: what is whole was kept, and the output not written",
                hint="run the same command again",
            )

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.name and number == signal.SIGINT:
            self.at_once()
            atomic.remove_unfinished()
            os._exit(130)
        self.ask(signal.Signals(number).name)


@contextmanager
def stopping() -> Iterator[Stop]:
    """Within the block SIGNALS ask for the stop, but for a SIGHUP that `nohup` had ignored.

    Outside the main thread there are no signals, and nobody asks.
    """
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    heard = [n for n in SIGNALS if n != signal.SIGHUP or signal.getsignal(n) != signal.SIG_IGN]
    earlier = {number: signal.signal(number, stop._handle) for number in heard}
    try:
        yield stop
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)
