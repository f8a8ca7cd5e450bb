"""The first thing a process of the command line does, before it imports anything large: streams and signals.

What comes earlier is Python's own start, some 20 ms, in which a signal ends the process as it ends any other.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)  # Python itself has a handler for SIGINT
_asked: set[str] = set()  # signals that a job has heard


def prepare() -> None:
    """Gives closed standard streams a descriptor, and signals that come before or after a job an exit code."""
    hold_streams()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (*SIGNALS, signal.SIGINT))  # whoever starts a process may block them
    for number in SIGNALS:
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # which `nohup` ignores
            signal.signal(number, _end)


def hold_streams() -> None:
    """Opens /dev/null for those of descriptors 0, 1 and 2 that are closed: else files of a job would get them, and what
    a library says on stderr would land in a shard."""
    for fd, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest one that is free, which is fd
        if getattr(sys, name) is None:
            setattr(sys, name, open(fd, mode, encoding="utf-8", errors="backslashreplace", closefd=False))  # noqa: SIM115 - as Python itself keeps them


def heard(name: str) -> None:
    """A job has heard this signal and stops in order: the same signal, sent again, changes nothing any more."""
    _asked.add(name)


def finish() -> None:
    """The exit code is decided: a signal that is sent again does not change it."""
    for number in SIGNALS if _asked else ():
        signal.signal(number, signal.SIG_IGN)


def _end(number: int, frame: FrameType | None) -> None:
    if _asked:
        return
    atomic = sys.modules.get("tilewright.formats.atomic")
    if atomic:
        atomic.remove_unfinished()
    with suppress(OSError):
        name = signal.Signals(number).name
        os.write(2, f"Error: stopped by {name}: no job was at work. Run the same command again\n".encode())
    os._exit(75)
