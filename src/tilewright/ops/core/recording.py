"""A pass of a model whose launches are recorded once, and then run again without Python between them.

A decode step of one sequence has 85 launches of 1 to 300 us each. Python takes 30 to 130 us to prepare one: the
weights that pass through the caches between two launches evict the interpreter. The next step makes the same launches
with the same arrays. Only what the arrays hold is different: the token, its position, keys and values. So a pass is
computed twice while its launches are recorded. If both passes made the same launches, the later passes run them in one
call of compiled code (`replay.py`), and no operation is called. The kernels and the bits are the same.

What an operation does without `launch` is not recorded. If it computes something in NumPy, it makes a new array, and
passes it to a kernel. Then the two passes differ in its address, and every pass is computed as before. Therefore the
arrays of the first pass are kept until the second one ends. Operations must not change an array of their caller's in
NumPy; those of `models.decoder` do not. Source of the idea: CUDA graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

import numpy as np

from tilewright.ops.core.ladder import any_forced
from tilewright.ops.core.launch import recorded_by, thread_count

if TYPE_CHECKING:
    from tilewright.ops.core.replay import Recording

REPLAYS = 64  # passes of one recording: what depends on a sequence's length is chosen again, such as the threads of
# attention, which change no bits
TRIES = 4  # recordings of a pass in a row that differ, before it is computed for good
_allowed: ContextVar[bool] = ContextVar("replays", default=True)


@contextmanager
def no_replays() -> Iterator[None]:
    """Within the block, every pass is computed, so that a profile sees the calls of operations."""
    token = _allowed.set(False)
    try:
        yield
    finally:
        _allowed.reset(token)


class RepeatedPass:
    """One computation that is repeated with the same arrays, and the recording of its launches."""

    def __init__(self) -> None:
        self.recording: Recording | None = None
        self.key: tuple = ()
        self.result = np.empty(0)
        self.replays = self.differing = 0
        self.is_sure = False  # the last two recordings are the same

    def run(self, start: np.ndarray, compute: Callable[[], np.ndarray]) -> np.ndarray:
        """compute(), or its launches again. start: the array that it begins with; another one begins a new recording.

        The result may be the memory of the last one. Raises what a kernel raises.
        """
        if self.differing == TRIES or any_forced() or not _allowed.get():
            return compute()
        key = _memory_of(start), thread_count()
        if key != self.key or self.replays == REPLAYS:
            self.recording, self.key, self.replays, self.is_sure = None, key, 0, False
        if self.is_sure and self.recording and self.recording.replay():
            self.replays += 1
            return self.result
        return self._recorded(compute)

    def _recorded(self, compute: Callable[[], np.ndarray]) -> np.ndarray:
        from tilewright.ops.core.replay import Recording  # imports Numba

        recording, before, previous = Recording(), self.recording, self.result
        self.recording = None  # an exception leaves none
        with recorded_by(recording):
            self.result = compute()
        self.is_sure = before is not None and recording == before and _memory_of(previous) == _memory_of(self.result)
        self.differing = 0 if self.is_sure or before is None else self.differing + 1
        self.recording = recording
        return self.result


def _memory_of(array: np.ndarray) -> tuple:
    """Where an array is in memory."""
    return array.__array_interface__["data"][0], array.shape, array.dtype
