"""Sets up the standard streams and signal handlers of a command, before it imports large modules.

Before that, during the 20 ms of Python's own start, a signal kills the process as usual.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from contextlib import suppress
from types import FrameType

from tilewright import garbage

SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)  # Python itself has a handler for SIGINT
prepared = False  # True in the process of a command; False where a program or a test calls the command line
_asked: set[str] = set()  # signals that a job has received


def prepare() -> None:
    """Open closed standard streams, set the exit code for signals that arrive before or after a job, and collect
    garbage less often until a job begins: large libraries are imported next."""
    global prepared
    prepared = True
    garbage.collect_rarely()
    hold_streams()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (*SIGNALS, signal.SIGINT))  # the parent process may have blocked them
    for number in SIGNALS:
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # `nohup` ignores SIGHUP
            signal.signal(number, _end)


def hold_streams() -> None:
    """Open /dev/null for closed descriptors among 0, 1 and 2.

    Otherwise a job's files would get these descriptors, and a library's messages on stderr would be written to a shard.
    """
    for fd, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free descriptor, which is fd
        if getattr(sys, name) is None:
            setattr(sys, name, open(fd, mode, encoding="utf-8", errors="backslashreplace", closefd=False))  # noqa: SIM115 - as Python itself keeps them


def heard(name: str) -> None:
    """Ignore this signal from now on: a job has received it and stops in order."""
    _asked.add(name)


def finish() -> None:
    """Ignore further signals, because the exit code is decided, and exempt all objects from the garbage collections at
    Python's end, which would take 0.2 seconds and more if PyTorch is loaded. Not with Triton: its bindings, by
    nanobind, would print each of their objects as a leak."""
    if "triton" not in sys.modules:
        garbage.exempt_all()
    for number in SIGNALS if _asked else ():
        signal.signal(number, signal.SIG_IGN)


def leave(code: object) -> None:
    """Exit now if PyTorch is loaded: Python would take 0.15 seconds to free its objects. code: of SystemExit.

    Exit handlers run, and output is flushed. Returns if Python itself must end the process: if a thread is at work, MPI
    is to be finalised, a debugger or profiler watches, or the output cannot be written.
    """
    finish()
    at_work = any(not thread.daemon for thread in threading.enumerate() if thread is not threading.main_thread())
    if "torch" not in sys.modules or "mpi4py.MPI" in sys.modules or at_work or _watched():
        return
    if not isinstance(code, int | None):
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):
        return
    os._exit(code or 0)


def _watched() -> bool:
    """A debugger or profiler may have more to do at Python's end, or a prompt follows."""
    monitoring = getattr(sys, "monitoring", None)  # cProfile uses it since Python 3.12
    tools = [monitoring.get_tool(i) for i in range(6)] if monitoring else []
    return bool(
        any(tools) or sys.gettrace() or sys.getprofile() or sys.flags.inspect or hasattr(sys, "ps1")
        or "CUDA_INJECTION64_PATH" in os.environ  # a profiler of CUDA
    )  # fmt: skip


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
