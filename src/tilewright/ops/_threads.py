"""Threads for CPU kernels: a kernel is one thread's work, and each thread draws its next task from a shared counter.

Nothing here divides work in advance, so a core that is slow or shared takes fewer tasks; and because a task computes
the same numbers whoever takes it, results do not depend on the number of threads.
"""

import operator
import os
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import repeat

import numpy as np

from tilewright.errors import UsageError
from tilewright.hardware import cpu
from tilewright.ops._memory import zeros

_count: ContextVar[int | None] = ContextVar("threads", default=None)
_local = threading.local()
_workers: list[queue.SimpleQueue] = []
_growing = threading.Lock()


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


def launch(kernel, *args, tasks: int, words: int) -> None:
    """Run `kernel(*args, scratch)` on min(tasks, threads) threads; the kernel draws tasks until none is left.

    words: float32 of scratch for each thread. Returns when all have finished; raises what the first failing one raised.
    An interrupt, too, is raised only when all have finished: they write to memory that is the caller's.
    """
    helpers = min(thread_count(), tasks) - 1
    if helpers < 1:
        kernel(*args, scratch(words))
        return
    while len(_workers) < helpers:
        _grow()
    outcomes: list[BaseException | None] = []
    finished: queue.SimpleQueue = queue.SimpleQueue()
    # each step starts a helper, exactly once: the iterator knows how far it is when an interrupt comes between two
    starts = map(queue.SimpleQueue.put, _workers[:helpers], repeat((kernel, args, words, outcomes, finished)))
    failures: list[BaseException | None] = []
    try:
        for _ in starts:
            pass
        failures = [_attempt(kernel, args, words)]
    finally:
        failures += _wait(starts, outcomes, finished, helpers)
    for failure in failures:
        if failure is not None:
            raise failure


def _wait(starts: Iterator, outcomes: list, finished: queue.SimpleQueue, helpers: int) -> list[BaseException | None]:
    """The outcomes of all helpers, behind the interrupts that came while they were awaited."""
    interrupts: list[BaseException | None] = []
    while len(outcomes) < helpers:  # it is the outcomes that count: an interrupt may lose what `get` took
        try:
            for _ in starts:
                pass
            finished.get()
        except BaseException as interrupt:
            interrupts.append(interrupt)
    return interrupts + outcomes


def _attempt(kernel, args, words) -> BaseException | None:
    try:
        kernel(*args, scratch(words))
    except BaseException as error:
        return error
    return None


def _grow() -> None:
    with _growing:
        inbox: queue.SimpleQueue = queue.SimpleQueue()
        threading.Thread(target=_serve, args=(inbox,), name=f"tilewright-{len(_workers) + 1}", daemon=True).start()
        _workers.append(inbox)


def _serve(inbox: queue.SimpleQueue) -> None:
    while True:
        kernel, args, words, outcomes, finished = inbox.get()
        outcomes.append(_attempt(kernel, args, words))
        finished.put(None)
        del kernel, args, outcomes, finished


os.register_at_fork(after_in_child=_workers.clear)  # threads do not survive a fork; the child starts its own
