"""Handles SIGINT, SIGTERM and SIGHUP: the first stops a command cleanly, without unfinished output, with exit code 75.
A second signal kills it at once."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

from tilewright.errors import Interrupted
from tilewright.formats import atomic
from tilewright.runtime.process.startup import heard

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SHOW_CURSOR = "\x1b[?25h\n"  # shows the cursor that a bar hides, and ends the bar's line


class _Stopped(KeyboardInterrupt):
    """Raised in the main thread by the first signal. No `except` of a library catches it as its own error."""


def end_at_once(words: str) -> NoReturn:
    """Exit from a signal handler: remove the unfinished output, restore the cursor, and print the reason on stderr."""
    atomic.remove_unfinished()
    with suppress(OSError, ValueError, AttributeError):  # AttributeError: there is no stderr
        os.write(sys.stderr.fileno(), f"{SHOW_CURSOR if sys.stderr.isatty() else ''}{words}\n".encode())
    os._exit(130)


class Stop:
    """The object that `stoppable` yields. `check()` raises if a signal's exception was lost in foreign code."""

    def __init__(self) -> None:
        self.name: str | None = None

    def check(self) -> None:
        if self.name:
            raise _Stopped(self.name)

    def handle(self, number: int, frame: FrameType | None) -> None:
        if atomic.swapping():  # only two renames are left
            return
        if self.name:
            end_at_once("Ended at once: no output was written")
        self.name = signal.Signals(number).name
        heard(self.name)
        raise _Stopped(self.name)


@contextmanager
def stoppable() -> Iterator[Stop]:
    """Within the block, the first of SIGNALS raises Interrupted. A SIGHUP that `nohup` ignores stays ignored.

    Outside the main thread it changes nothing.
    """
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    heard = [n for n in SIGNALS if n != signal.SIGHUP or signal.getsignal(n) != signal.SIG_IGN]
    earlier = {number: signal.signal(number, stop.handle) for number in heard}
    told = sys.unraisablehook
    sys.unraisablehook = lambda event: None if isinstance(event.exc_value, _Stopped) else told(event)
    try:  # an exception in a callback from LLVM is lost, with a traceback; `check` raises it again
        yield stop
    except _Stopped:
        raise Interrupted(
            f"stopped by {stop.name}: the work was not finished and no output was written",
            value=stop.name,
            remedy="run the same command again",
        ) from None
    finally:
        sys.unraisablehook = told
        for number, handler in earlier.items():
            signal.signal(number, handler)
