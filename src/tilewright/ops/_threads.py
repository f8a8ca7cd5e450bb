"""Threads for CPU kernels: a kernel is one thread's work, and each thread draws its next task from a shared counter.

Nothing here divides work in advance, so a core that is slow or shared takes fewer tasks; and because a task computes
the same numbers whoever takes it, results do not depend on the number of threads.
"""

import os
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np

from tilewright.errors import UsageError
from tilewright.hardware import cpu

_count: ContextVar[int | None] = ContextVar("threads", default=None)
_local = threading.local()
_workers: list[queue.SimpleQueue] = []
_growing = threading.Lock()


@contextmanager
def threads(count: int | None) -> Iterator[None]:
    """`with threads(2):` kernels inside run on that many threads; None: one a core this process may use.

    Raises UsageError unless count is at least 1.
    """
    if count is not None and count < 1:
        raise UsageError(f"threads is {count}; it must be at least 1")
    token = _count.set(count)
    try:
        yield
    finally:
        _count.reset(token)


def thread_count() -> int:
    """The number of threads a kernel launched here uses."""
    return _count.get() or cpu().cores


def scratch(words: int) -> np.ndarray:
    """float32 (at least `words`,): this thread's own workspace, reused by its next kernel; contents are left over."""
    buffer = getattr(_local, "buffer", None)
    if buffer is None or buffer.size < words:
        buffer = _local.buffer = np.empty(words, np.float32)
    return buffer


def launch(kernel, *args, tasks: int, words: int) -> None:
    """Run `kernel(*args, scratch)` on min(tasks, threads) threads; the kernel draws tasks until none is left.

    words: float32 of scratch for each thread. Returns when all have finished; raises what the first failing one raised.
    """
    helpers = min(thread_count(), tasks) - 1
    if helpers < 1:
        kernel(*args, scratch(words))
        return
    while len(_workers) < helpers:
        _grow()
    finished: queue.SimpleQueue = queue.SimpleQueue()
    for worker in _workers[:helpers]:
        worker.put((kernel, args, words, finished))
    failure = _attempt(kernel, args, words)
    for _ in range(helpers):
        failure = finished.get() or failure
    if failure is not None:
        raise failure


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
        kernel, args, words, finished = inbox.get()
        failure = _attempt(kernel, args, words)
        del kernel, args
        finished.put(failure)


os.register_at_fork(after_in_child=_workers.clear)  # threads do not survive a fork; the child starts its own
