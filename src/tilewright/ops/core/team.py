"""Helper threads that start a kernel within microseconds, without Python.

Waking a sleeping thread takes 80 to 400 us on a virtual machine; a matrix product of one row takes 100 us. So a helper
that has finished a kernel polls for the next one for about that time before it sleeps. Polling, starting and waiting
are compiled code. No thread of a launch holds the GIL, so other Python threads run meanwhile.

All threads share one int64 array, the control array. It holds a header with the job, the job's frame (the kernel's
arguments, flattened to 64-bit words by `simd/frames.py`), and one slot per helper. A launch takes these steps:

1. The launching thread writes the kernel's address and the frame, and sets the state of each helper to POSTED.
2. Each helper sets its state to RUNNING. It copies the frame to its slot, puts its own scratch in the last argument,
   and calls the kernel.
3. The launching thread calls the same kernel. The threads share the work by drawing tasks from the kernel's counter.
4. Each helper sets its state back to WAITING. The launch returns when all have done so.

A helper that has polled long enough sets its state from WAITING to ASLEEP and reads from its pipe, which blocks. A
launch that finds it ASLEEP writes one byte to that pipe. When the launching thread finds no more tasks, it withdraws
the job from each helper that is still POSTED, by setting its state to WAITING. So a short launch does not wait for a
helper that wakes late. That helper then polls, and takes the next job. Source: the waiting policies of OpenMP
runtimes (OMP_WAIT_POLICY, libomp's KMP_BLOCKTIME).
"""

import hashlib
import os
import threading
import time

import numpy as np
from numba import types

from tilewright import simd
from tilewright.ops.core.memory import LINE, zeros
from tilewright.simd.frames import ARRAY, FLOATS, FRAME, call_frame, propagate, write_frame

# the header: the kernel's address; the words of its frame that are no floats; how long helpers poll, in nanoseconds;
# the exception of the launching thread; 1 if the threads draw tasks, so that fewer threads do the same work; the frame
KERNEL, INTEGERS, SPIN_NS, LAUNCHER_RAISED, DRAWN, JOB_FRAME = 0, 1, 2, 3, 4, 16
SLOTS = JOB_FRAME + FRAME
# a slot: the state, which has two cache lines to itself; the kernel's return code and exception; address and size of
# the helper's scratch; both ends of its pipe; 1 once a thread serves the slot; two words for the clock; the frame
STATE, CODE, RAISED, SCRATCH, SCRATCH_SIZE, READ_END, WRITE_END, CLAIMED, CLOCK = 0, 16, 17, 18, 19, 20, 21, 22, 23
OWN_FRAME = 32
SLOT = OWN_FRAME + FRAME  # words
MOST_HELPERS = 1024
WAITING, POSTED, ASLEEP, RUNNING = 0, 1, 2, 3  # states
POLLS = 64  # polls, about 40 ns each, between two reads of the clock, where the thread also yields its core
PREEMPTED_NS = 50_000  # more than this between two reads of the clock: another thread had this core meanwhile
PATIENCE = 1 << 14  # polls of a launch for one helper to finish, before it sleeps between polls

_read = types.ExternalFunction("read", types.intp(types.int32, types.intp, types.intp))
_write = types.ExternalFunction("write", types.intp(types.int32, types.intp, types.intp))
_sleep = types.ExternalFunction("usleep", types.int32(types.uint32))
_yield = types.ExternalFunction("sched_yield", types.int32())
_clock = types.ExternalFunction("clock_gettime", types.int32(types.int32, types.intp))
_MONOTONIC = int(time.CLOCK_MONOTONIC)


@simd.inline
def _now_ns(control, slot):
    """The time in nanoseconds."""
    _clock(np.int32(_MONOTONIC), control.ctypes.data + 8 * (slot + CLOCK))
    return control[slot + CLOCK] * 1_000_000_000 + control[slot + CLOCK + 1]


@simd.inline
def _await_job(control, slot):
    """Wait for a job and take it: change the slot's state from POSTED to RUNNING. Poll for SPIN_NS, then sleep. Sleep
    at once if other threads want this core."""
    polls, first, previous = 0, 0, 0
    while True:
        posted = simd.load_acquire(control, slot + STATE) == POSTED
        if posted and simd.compare_exchange(control, slot + STATE, POSTED, RUNNING):
            return
        simd.relax()
        polls += 1
        if polls % POLLS:
            continue
        _yield()
        now = _now_ns(control, slot)
        if first == 0:
            first = previous = now
        enough, previous = now - first > control[SPIN_NS] or now - previous > PREEMPTED_NS, now
        if enough and simd.compare_exchange(control, slot + STATE, WAITING, ASLEEP):
            while simd.load_acquire(control, slot + STATE) == ASLEEP:
                if _read(np.int32(control[slot + READ_END]), control.ctypes.data + 8 * (slot + CLOCK), 1) < 1:
                    _sleep(np.uint32(1000))  # a signal interrupted the read, or the process has closed the pipe
            polls, first = 0, 0


@simd.inline
def post(control, helpers):
    """Let helpers run the job of the header. A helper that sleeps is woken."""
    for helper in range(helpers):
        slot = SLOTS + helper * SLOT
        if simd.exchange(control, slot + STATE, POSTED) == ASLEEP:
            pipe, byte = np.int32(control[slot + WRITE_END]), control.ctypes.data + 8 * (slot + CLOCK)
            while _write(pipe, byte, 1) < 1 and simd.load_acquire(control, slot + STATE) == POSTED:
                _sleep(np.uint32(1))  # a signal; or the pipe is closed, and the helper polls every millisecond


@simd.inline
def collect(control, helpers):
    """Return when all helpers have finished: until then the kernel writes to the caller's memory. If threads draw
    tasks, all are drawn now, so the job is withdrawn from helpers that have not taken it."""
    for helper in range(helpers):
        polls, slot = 0, SLOTS + helper * SLOT
        if control[DRAWN] and simd.compare_exchange(control, slot + STATE, POSTED, WAITING):
            control[slot + CODE] = 0
            continue
        while simd.load_acquire(control, slot + STATE) % 2:  # POSTED or RUNNING
            simd.relax()
            polls += 1
            if polls > PATIENCE:
                _sleep(np.uint32(50))
            elif polls % POLLS == 0:
                _yield()


@simd.kernel(types.void(simd.COUNTERS, types.int64), name="threads.serve")
def serve(control, slot):
    """The loop of a helper thread: wait for a job, run its kernel, repeat. The kernel gets this helper's scratch."""
    if simd.exchange(control, slot + CLAIMED, 1):
        return  # the slot has a helper: an interrupt came after it started and before `make_ready` recorded it
    while True:
        _await_job(control, slot)
        integers = control[INTEGERS]
        for word in range(FLOATS + integers):
            control[slot + OWN_FRAME + word] = control[JOB_FRAME + word]
        scratch = slot + OWN_FRAME + FLOATS + integers - len(ARRAY)
        control[scratch + ARRAY.owner], control[scratch + ARRAY.parent] = 0, 0
        control[scratch + ARRAY.address] = control[slot + SCRATCH]
        control[scratch + ARRAY.size] = control[scratch + ARRAY.length] = control[slot + SCRATCH_SIZE]
        control[slot + CODE] = call_frame(control[KERNEL], control, slot + OWN_FRAME, slot + RAISED)
        simd.store_release(control, slot + STATE, WAITING)


def _run_job(control, helpers, address, args):
    """Launch the kernel at `address` with the tuple of arguments `args`, in this thread and on the helpers."""
    control[KERNEL], control[INTEGERS] = address, write_frame(control, JOB_FRAME, args)
    post(control, helpers)
    code = call_frame(address, control, JOB_FRAME, LAUNCHER_RAISED)
    collect(control, helpers)
    propagate(code, control[LAUNCHER_RAISED])
    for helper in range(helpers):
        slot = SLOTS + helper * SLOT
        propagate(control[slot + CODE], control[slot + RAISED])


_launchers: dict[simd.Kernel | str, simd.Kernel] = {}  # by kernel, and by name: equal argument types share one


def _launcher_for(kernel: simd.Kernel) -> simd.Kernel:
    """`_run_job` compiled for the types of a kernel's arguments."""
    kinds = kernel.signature.args
    records = [getattr(kind, "instance_class", None) for kind in kinds]  # two records may have the same name
    name = f"threads.start.{hashlib.sha256(str((kinds, records)).encode()).hexdigest()[:12]}"
    if name not in _launchers:
        signature = types.void(simd.COUNTERS, types.int64, types.int64, types.BaseTuple.from_types(kinds))
        _launchers[name] = simd.kernel(signature, name=name)(_run_job)
    _launchers[kernel] = _launchers[name]
    return _launchers[kernel]


class Team:
    """The helpers of this process and the control array."""

    def __init__(self) -> None:
        words = SLOTS + MOST_HELPERS * SLOT  # 1.3 MB; the system provides only the pages of slots that are used
        memory = np.zeros(words + LINE // 8, np.int64)
        start = -memory.ctypes.data % LINE // 8
        self.control = memory[start : start + words]
        self.scratches: list[np.ndarray] = []  # one per helper
        self.most = MOST_HELPERS  # fewer once the system has refused a thread
        self.lock = threading.RLock()  # the control array holds one job at a time

    def run(self, kernel: simd.Kernel, args: tuple, helpers: int, words: int, spin_ns: int, *, drawn: bool) -> None:
        """Run kernel(*args) here and on helpers, each with `words` float32 of its own as the last argument.

        spin_ns: how long a helper then polls for the next kernel. drawn: the threads draw tasks from a counter, so a
        helper need not run the kernel if it comes too late; otherwise every helper runs it. If the system refuses a
        thread, fewer helpers run: the bits of a task's result do not depend on who computes it. Raises what the kernel
        raised here, otherwise what it raised on the first helper that failed; MemoryError or OSError if a helper cannot
        get memory or a pipe.
        """
        helpers, address = min(helpers, self.most), kernel.address
        with self.lock:
            launcher = self.prepare(kernel)
            if not self.make_ready(helpers, words):
                helpers = self.most = min(len(self.scratches), helpers)
                self.make_ready(helpers, words)
            self.control[SPIN_NS], self.control[DRAWN] = spin_ns, drawn
            launcher(self.control, helpers, address, args)

    def prepare(self, kernel: simd.Kernel) -> simd.Kernel:
        """The function that runs this kernel on several threads. The helpers' loop is compiled here, because nobody
        would see a helper's failure to compile it."""
        serve.compiled()
        return _launchers.get(kernel) or _launcher_for(kernel)

    def make_ready(self, helpers: int, words: int) -> bool:
        """Start helpers until there are enough, and give each at least `words` float32 of scratch. False if the system
        refuses a thread.

        An interrupt may come between any two lines, so each line leaves a state from which the next call can continue.
        """
        for helper in range(helpers):
            slot = SLOTS + helper * SLOT
            if helper == len(self.scratches):
                if not self.control[slot + WRITE_END]:  # else an interrupted call has made the pipe
                    self.control[slot + READ_END], self.control[slot + WRITE_END] = os.pipe()
                name, args = f"tilewright-{helper + 1}", (self.control, slot)
                try:
                    threading.Thread(target=serve, args=args, name=name, daemon=True).start()
                except RuntimeError:
                    return False
                self.scratches.append(zeros(0))
            if self.control[slot + SCRATCH_SIZE] < words:
                self.control[slot + SCRATCH_SIZE] = 0
                self.scratches[helper] = zeros(words)
                self.control[slot + SCRATCH] = self.scratches[helper].ctypes.data
                self.control[slot + SCRATCH_SIZE] = words
        return True
