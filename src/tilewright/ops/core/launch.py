"""Threads for CPU kernels. All threads run the same kernel, and each takes its next task from a shared counter.

Work is not divided in advance, so a core that is slow or shared takes fewer tasks. A task's result does not depend on
the thread that computes it, so results have the same bits for any number of threads. `team.py` starts the threads.
"""

from __future__ import annotations

import functools
import operator
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Protocol

import numpy as np

from tilewright.errors import UsageError, WrongType
from tilewright.hardware import cpu
from tilewright.ops.core.memory import LINE, zeros

if TYPE_CHECKING:
    from tilewright.ops.core.team import Team
    from tilewright.simd import Kernel

_count: ContextVar[int | None] = ContextVar("threads", default=None)
_local = threading.local()  # buffer: this thread's scratch; tasks: this thread's counter; recorder: of its launches
SCRATCH_BYTES = 2 << 20  # most scratch that a kernel may take per thread: it shares L2 with the operands
WARM = "TILEWRIGHT_WARM"  # set by `tilewright warm`: small jobs also compile what starts kernels on several threads
SPIN_NS = 200_000  # how long a thread polls for its next kernel: as long as waking it would take


@contextmanager
def threads(count: int | None) -> Iterator[None]:
    """`with threads(2):` kernels inside run on that many threads; None: one thread per core of this process.

    Raises UsageError unless count is an integer, at least 1.
    """
    try:
        number = None if count is None else operator.index(count)
    except TypeError as error:
        raise WrongType(f"threads is {count!r}; an integer is wanted") from error
    if number is not None and number < 1:
        raise UsageError(f"threads is {number}; it must be at least 1")
    token = _count.set(number)
    try:
        yield
    finally:
        _count.reset(token)


def asked_threads() -> int | None:
    """The count of the enclosing `threads`; None if it gives none."""
    return _count.get()


def thread_count() -> int:
    """The number of threads that a kernel launched here uses."""
    return _count.get() or cpu().cores


def scratch(words: int) -> np.ndarray:
    """float32 (at least `words`,): this thread's workspace. The thread's next kernel gets it with its contents.

    A new workspace is zero. Kernels compute with unused elements and discard the results. Arbitrary bytes could be
    subnormal numbers, and a multiply-add with one takes a hundred cycles.
    """
    buffer = getattr(_local, "buffer", None)
    if buffer is None or buffer.size < words:
        buffer = _local.buffer = zeros(words)
    return buffer


@functools.cache
def _is_warming() -> bool:
    return WARM in os.environ


def run_on_threads(kernel: Kernel, *args, tasks: int, words: int, drawn: bool) -> None:
    """Run `kernel(*args, scratch)` on min(tasks, threads) threads at once. `launch` adds the counter of tasks.

    drawn: the kernel draws tasks from a counter, so threads that start after the last task was drawn need not run it.
    An error of the kernel's arithmetic, such as a division by zero, gets a note that names the kernel.
    """
    helpers, recorder = min(thread_count(), tasks) - 1, getattr(_local, "recorder", None)
    try:
        if recorder is not None:
            recorder.run(kernel, (*args, scratch(words)), max(helpers, 0), words, spin_ns(), drawn=drawn)
        elif helpers < 1:
            if _is_warming():
                team().prepare(kernel).compiled()
            kernel(*args, scratch(words))
        else:
            team().run(kernel, (*args, scratch(words)), helpers, words, spin_ns(), drawn=drawn)
    except ArithmeticError as error:
        error.add_note(f"raised inside the kernel {kernel.name}")
        raise


class Recorder(Protocol):
    """Runs a thread's launches, and records them; see `replay.Recording`."""

    def run(self, kernel: Kernel, args: tuple, helpers: int, words: int, spin_ns: int, *, drawn: bool) -> None:
        """As `Team.run`; 0 helpers: on the calling thread alone."""


@contextmanager
def recorded_by(recorder: Recorder) -> Iterator[None]:
    """Within the block, the recorder runs what this thread launches."""
    _local.recorder = recorder
    try:
        yield
    finally:
        _local.recorder = None


def is_recorded() -> bool:
    """True inside `recorded_by` on this thread."""
    return getattr(_local, "recorder", None) is not None


def spin_ns() -> int:
    """How long helpers poll: not at all with more threads than cores, because polling takes another's time."""
    return SPIN_NS if thread_count() <= cpu().cores else 0


def launch(kernel: Kernel, *args, tasks: int, words: int, alone: bool = False) -> None:
    """Run `kernel(*args, tasks, scratch)` on min(tasks, threads) threads. Each takes tasks until none is left.

    The kernel's last two arguments are `simd.TASKS`, for `simd.draw`, and float32 scratch, `words` per thread.
    alone: use the calling thread only, for work that takes less time than waking another thread.
    Returns when all threads have finished; raises what the first failing thread raised. An interrupt is raised only
    then, because threads write to the caller's memory. Launches of several Python threads run one after another.
    """
    counter = getattr(_local, "tasks", None)
    if counter is None:
        counter = _local.tasks = zeros(LINE // 8, np.int64)[:2]
    counter[0], counter[1] = 0, tasks
    run_on_threads(kernel, *args, counter, tasks=1 if alone else tasks, words=words, drawn=True)


def team() -> Team:
    """This process's helpers."""
    if _teams:
        return _teams[0]
    from tilewright.ops.core.team import Team  # imports Numba

    with _team_lock:
        if not _teams:
            _teams.append(Team())
    return _teams[0]


def _forget() -> None:
    """Threads do not survive a fork: the child starts helpers of its own."""
    global _team_lock
    _teams.clear()
    _team_lock = threading.Lock()


_teams: list[Team] = []  # none or one
_team_lock = threading.Lock()
os.register_at_fork(after_in_child=_forget)
