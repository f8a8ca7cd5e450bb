"""Launches of kernels, recorded and run again in one call of compiled code; `recording.py` says when that is right.

A recording is an array of int64. It holds for each launch what `Team.run` would write to the control array: the
address of the kernel, its number of tasks, its helpers, and the frame of its arguments.
"""

from collections.abc import Iterator

import numpy as np
from numba import types
from numba.core.errors import TypingError

from tilewright import simd
from tilewright.ops.core.launch import spin_ns, team
from tilewright.ops.core.memory import empty
from tilewright.ops.core.team import (
    CODE,
    DRAWN,
    INTEGERS,
    JOB_FRAME,
    KERNEL,
    RAISED,
    SLOT,
    SLOTS,
    SPIN_NS,
    collect,
    post,
)
from tilewright.simd.atomics import COUNT, NEXT
from tilewright.simd.frames import ARRAY, FLOATS, FRAME, call_frame, propagate

# words of a launch: the kernel's address; the words of its frame that are no floats; its helpers and tasks; the
# exception of the launching thread; the frame
ADDRESS, WORDS, HELPERS, TASKS, LAUNCH_RAISED, ARGUMENTS = 0, 1, 2, 3, 4, 8
LAUNCH = ARGUMENTS + FRAME
NO_TEAM = np.zeros(JOB_FRAME, np.int64)  # the control array of launches without helpers


@simd.inline
def run_recorded(control, launches, at, tasks):
    """Run the launch that is recorded from word `at` on. control: the team's. tasks: the counter of its tasks."""
    address, helpers = launches[at + ADDRESS], launches[at + HELPERS]
    tasks[NEXT], tasks[COUNT] = 0, launches[at + TASKS]
    if helpers:
        control[KERNEL], control[INTEGERS], control[DRAWN] = address, launches[at + WORDS], 1
        for word in range(FLOATS + launches[at + WORDS]):
            control[JOB_FRAME + word] = launches[at + ARGUMENTS + word]
        post(control, helpers)
    code = call_frame(address, launches, at + ARGUMENTS, at + LAUNCH_RAISED)
    collect(control, helpers)
    propagate(code, launches[at + LAUNCH_RAISED])
    for helper in range(helpers):
        slot = SLOTS + helper * SLOT
        propagate(control[slot + CODE], control[slot + RAISED])


@simd.kernel(types.void(simd.COUNTERS, simd.COUNTERS, simd.TASKS), name="threads.replay")
def run_again(control, launches, tasks):
    """Run launches in order. control: the team's. tasks: the counter of all these launches."""
    for at in range(0, launches.size, LAUNCH):
        run_recorded(control, launches, at, tasks)


class Recording:
    """The launches of a pass of this thread. It keeps their arrays alive."""

    def __init__(self) -> None:
        self.launches: list[np.ndarray] = []
        self.kept: list[tuple] = []
        self.helpers = self.words = 0  # the most of a launch
        self.is_complete = True
        self.array: np.ndarray | None = None

    def __eq__(self, other: object) -> bool:
        """True if both made the same launches with the same arrays, made any, and all were recorded."""
        return (
            isinstance(other, Recording)
            and self.is_complete
            and bool(self.launches)
            and np.array_equal(self.launches, other.launches)
        )

    __hash__ = None  # type: ignore[assignment]

    def run(self, kernel: simd.Kernel, args: tuple, helpers: int, words: int, spin: int, *, drawn: bool) -> None:
        """See `launch.Recorder`. drawn: the last but one of `args` is the counter of tasks; otherwise the launch is run
        and not recorded."""
        one, threads = np.zeros(LAUNCH, np.int64), team()
        with threads.lock:
            try:
                threads.run(kernel, args, helpers, words, spin, drawn=drawn)
            except TypingError:
                if helpers:
                    raise
                kernel(*args)  # the calling thread runs kernels of all types, but their arguments cannot be recorded
                self.is_complete = False
                return
            if not drawn:
                self.is_complete = False
                return
            control = threads.control
            count = one[WORDS] = control[INTEGERS]
            one[ADDRESS], one[HELPERS], one[TASKS] = control[KERNEL], min(helpers, threads.most), args[-2][COUNT]
            one[ARGUMENTS : ARGUMENTS + FLOATS + count] = control[JOB_FRAME : JOB_FRAME + FLOATS + count]
        for word in owners(kernel.signature.args):
            one[ARGUMENTS + FLOATS + word] = 0  # Python's objects are others in each pass, and no kernel uses them
        self.launches.append(one)
        self.kept.append(args)
        self.helpers, self.words = max(self.helpers, int(one[HELPERS])), max(self.words, words)

    def replay(self) -> bool:
        """Run the launches again. False, and nothing was run, if the system refuses a thread. Raises what a kernel
        raises."""
        if self.array is None:
            self.array = empty(len(self.launches) * LAUNCH, np.int64)
            self.array[...] = np.concatenate(self.launches)
        tasks = self.kept[0][-2]
        if not self.helpers:
            run_again(NO_TEAM, self.array, tasks)
            return True
        threads = team()
        with threads.lock:
            if not threads.make_ready(self.helpers, self.words):
                return False
            threads.control[SPIN_NS] = spin_ns()
            run_again(threads.control, self.array, tasks)
        return True


def owners(kinds) -> Iterator[int]:
    """Which words of a frame, after the floats, hold the addresses of Python's objects that own an array's memory."""
    at = 0
    for kind in flattened(kinds):
        if isinstance(kind, types.Array):
            yield from (at + ARRAY.owner, at + ARRAY.parent)
            at += ARRAY.length + 2 * kind.ndim
        elif not isinstance(kind, types.Float):
            at += 1


def flattened(kinds) -> Iterator[types.Type]:
    """The types of the elements of tuples and records, and all others."""
    for kind in kinds:
        if isinstance(kind, types.BaseTuple):
            yield from flattened(kind)
        else:
            yield kind
