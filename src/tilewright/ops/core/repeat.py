"""One launch that runs again on two other arrays, in one call of compiled code.

An operation on a small array takes microseconds, and Python prepares its launch for longer: it checks arguments,
chooses a rung and a tiling, and flattens the arguments. So an operation may record the launch of one call. Later calls
with arrays of the same shapes and strides write two addresses to the recording, and run it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numba import types
from numpy.lib.array_utils import byte_bounds

from tilewright import simd
from tilewright.ops.core.launch import recorded_by, spin_ns, team
from tilewright.ops.core.replay import ARGUMENTS, HELPERS, NO_TEAM, Recording, run_recorded
from tilewright.ops.core.team import SPIN_NS
from tilewright.simd.atomics import INTEGER

VOLUME = types.Array(types.float32, 3, "A", readonly=True)
RESULT = types.Array(types.float32, 3, "A")
# Words of `RepeatedLaunch.ends`. X_WORD, OUT_WORD: index of each address in the recording. *_LOW, *_HIGH: byte offsets
# from that address to the first byte, and past the last.
X_WORD, OUT_WORD, X_LOW, X_HIGH, OUT_LOW, OUT_HIGH = 0, 1, 2, 3, 4, 5


@simd.kernel(
    INTEGER(simd.COUNTERS, simd.COUNTERS, simd.COUNTERS, simd.TASKS, VOLUME, RESULT), name="threads.repeat_on_volumes"
)
def run_on(control, launch, ends, tasks, x, out):
    """Run the launch on other arrays. Returns 0, and runs nothing, if they overlap; otherwise 1."""
    read, written = np.int64(x.ctypes.data), np.int64(out.ctypes.data)
    if read + ends[X_LOW] < written + ends[OUT_HIGH] and written + ends[OUT_LOW] < read + ends[X_HIGH]:
        return 0
    launch[ends[X_WORD]], launch[ends[OUT_WORD]] = read, written
    run_recorded(control, launch, 0, tasks)
    return 1


class RepeatedLaunch:
    """A launch with two float32 volumes (D, H, W) among its arguments: x, which it reads, and out, which it writes.

    It belongs to the thread that recorded it, because it names the thread's scratch.
    """

    def __init__(self, launch: np.ndarray, ends: np.ndarray, kept: tuple, words: int):
        self.launch, self.ends, self.kept, self.words = launch, ends, kept, words
        self.tasks, self.helpers = kept[-2], int(launch[HELPERS])

    def run(self, x: np.ndarray, out: np.ndarray) -> bool:
        """Run the launch on aligned arrays of the recorded shapes and strides. Returns False, and runs nothing, if they
        overlap or the system refuses a thread. Raises what the kernel raises."""
        if not self.helpers:
            return run_on(NO_TEAM, self.launch, self.ends, self.tasks, x, out) == 1
        threads = team()
        with threads.lock:
            if not threads.make_ready(self.helpers, self.words):
                return False
            threads.control[SPIN_NS] = spin_ns()
            return run_on(threads.control, self.launch, self.ends, self.tasks, x, out) == 1


def record(run: Callable[[], object], x: np.ndarray, out: np.ndarray) -> RepeatedLaunch | None:
    """Call `run`, which computes out of x, and record its launch.

    Returns None if it made more launches than one, or unless each address occurs exactly once among the arguments;
    otherwise the rung copied an array.
    """
    recording = Recording()
    with recorded_by(recording):
        run()
    if len(recording.launches) != 1 or not recording.is_complete:
        return None
    (launch,), (arguments,) = recording.launches, recording.kept
    words, ends = [], []
    for array in (x, out):
        start = array.__array_interface__["data"][0]
        at = np.flatnonzero(launch[ARGUMENTS:] == start)
        if len(at) != 1:
            return None
        words.append(ARGUMENTS + int(at[0]))
        ends += [end - start for end in byte_bounds(array)]
    kept = tuple(None if _is_view(argument, (x, out)) else argument for argument in arguments)
    return RepeatedLaunch(launch, np.array([*words, *ends], np.int64), kept, recording.words)


def _is_view(argument, arrays) -> bool:
    """True for a view of one of the arrays, whose memory a later call does not need."""
    return isinstance(argument, np.ndarray) and any(np.may_share_memory(argument, array) for array in arrays)
