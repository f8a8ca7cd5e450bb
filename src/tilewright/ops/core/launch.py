"""Threads for CPU kernels: a kernel is one thread's work, and each thread draws its next task from a shared counter.

Nothing here divides work in advance, so a core that is slow or shared takes fewer tasks; and because a task computes
the same numbers whoever takes it, results do not depend on the number of threads.
"""

from __future__ import annotations

import operator
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

import numpy as np

from tilewright.errors import UsageError
from tilewright.hardware import cpu
from tilewright.ops.core.memory import LINE, zeros

if TYPE_CHECKING:
    from tilewright.ops.core.team import Team
    from tilewright.simd import Kernel

_count: ContextVar[int | None] = ContextVar("threads", default=None)
_local = threading.local()
SPIN = 200_000  # nanoseconds for which a thread that has finished a kernel looks for its next: as long as waking takes


@contextmanager
def threads(count: int | None) -> Iterator[None]:
    """`with threads(2):` kernels inside run on that many threads; None: one a core this process may use.

    Raises UsageError unless count is an integer, at least 1.
    """
    try:
        number = None if count is None else operator.index(count)
    except TypeError as error:
        raise UsageError(f"threads is {count!r}; an integer is wanted") from error
    if number is not None and number < 1:
        raise UsageError(f"threads is {number}; it must be at least 1")
    token = _count.set(number)
    try:
        yield
    finally:
        _count.reset(token)


def asked_threads() -> int | None:
    """What `threads` says here."""
    return _count.get()


def thread_count() -> int:
    """The number of threads a kernel launched here uses."""
    return _count.get() or cpu().cores


def scratch(words: int) -> np.ndarray:
    """float32 (at least `words`,): this thread's own workspace, reused by its next kernel; contents are left over.

    Zeros at first: blocks that pass the end of an array compute with what lies there and drop it, and where that was
    another's memory it was full of subnormal numbers, with which a multiply-add takes a hundred cycles.
    """
    buffer = getattr(_local, "buffer", None)
    if buffer is None or buffer.size < words:
        buffer = _local.buffer = zeros(words)
    return buffer


def run_on_threads(kernel: Kernel, *args, tasks: int, words: int) -> None:
    """Run `kernel(*args, scratch)` on min(tasks, threads) threads at once; see `launch`, which draws tasks as well."""
    count = thread_count()
    helpers = min(count, tasks) - 1
    if helpers < 1:
        kernel(*args, scratch(words))
    else:
        _team().run(kernel, (*args, scratch(words)), helpers, words, SPIN if count <= cpu().cores else 0)


def launch(kernel: Kernel, *args, tasks: int, words: int, alone: bool = False) -> None:
    """Run `kernel(*args, tasks, scratch)` on min(tasks, threads) threads, each of which draws tasks until none is left.

    The kernel's last two arguments are `simd.TASKS`, for `simd.draw`, and float32 scratch, `words` for each thread.
    alone: only on the calling thread, for small work: waking another thread takes longer.
    Returns when all threads have finished; raises what the first failing one raised. An interrupt is raised only then,
    because threads write to the caller's memory. Launches from several Python threads run one after the other.
    """
    drawn = getattr(_local, "tasks", None)
    if drawn is None:
        drawn = _local.tasks = zeros(LINE // 8, np.int64)[:2]
    drawn[0], drawn[1] = 0, tasks
    run_on_threads(kernel, *args, drawn, tasks=1 if alone else tasks, words=words)


def _team() -> Team:
    """This process's helpers."""
    if _teams:
        return _teams[0]
    from tilewright.ops.core.team import Team  # Numba with it

    with _making:
        if not _teams:
            _teams.append(Team())
    return _teams[0]


def _forget() -> None:
    """Threads do not survive a fork; the child starts its own."""
    global _making
    _teams.clear()
    _making = threading.Lock()


_teams: list[Team] = []  # none or one
_making = threading.Lock()
os.register_at_fork(after_in_child=_forget)
