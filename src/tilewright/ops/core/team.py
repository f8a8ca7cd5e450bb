"""Threads that begin a kernel within microseconds, without Python.

To wake a thread that sleeps takes 80 to 400 us on a virtual machine; a product of one row takes 100. So a helper that
has finished looks for its next kernel for as long before it sleeps, and from a launch's first to its last
instruction neither it nor the thread that launches holds Python's lock. A launch writes the kernel's address and its
arguments, flattened to words as Numba's calling convention has them, to a board; a helper copies them, puts its own
scratch in the last argument's place, and calls.

The board is int64: the job's KERNEL, how many INTEGERS its arguments are, its frame, then a seat a helper. A helper's
STATE goes from WAITING to POSTED by the launch and back by the helper, or to ASLEEP by a helper that has looked long
enough; then the launch writes a byte to the pipe that the helper reads. Source: the waiting policies of OpenMP run
times (OMP_WAIT_POLICY, libomp's KMP_BLOCKTIME).
"""

import hashlib
import os
import threading
import time

import numpy as np
from numba import types

from tilewright import simd
from tilewright.ops.core.memory import LINE, zeros
from tilewright.simd.frames import (
    ADDRESS,
    ARRAY,
    FLOATS,
    FRAME,
    LENGTH,
    OWNER,
    PARENT,
    SIZE,
    call_frame,
    propagate,
    write_frame,
)

KERNEL, INTEGERS, SPIN, RAISED_HERE, JOB = 0, 1, 2, 3, 16  # on the board; SPIN: nanoseconds to look for work
SEATS = JOB + FRAME
MOST_HELPERS = 1024
# on a seat: STATE has two lines to itself
STATE, CODE, RAISED, SCRATCH, ROOM, READ, WRITE, TAKEN, CLOCK, OWN = 0, 16, 17, 18, 19, 20, 21, 22, 23, 32
SEAT = OWN + FRAME
WAITING, POSTED, ASLEEP = 0, 1, 2
ROUNDS = 64  # looks, some 40 ns each, between two at the clock, when a thread that wants this core gets it
CROWDED = 50_000  # nanoseconds between two looks at the clock by which somebody had this core
PATIENCE = 1 << 14  # looks of a launch for a helper to finish before it sleeps between them

_read = types.ExternalFunction("read", types.intp(types.int32, types.intp, types.intp))
_write = types.ExternalFunction("write", types.intp(types.int32, types.intp, types.intp))
_sleep = types.ExternalFunction("usleep", types.int32(types.uint32))
_yield = types.ExternalFunction("sched_yield", types.int32())
_clock = types.ExternalFunction("clock_gettime", types.int32(types.int32, types.intp))
_MONOTONIC = int(time.CLOCK_MONOTONIC)


@simd.inline
def _now(board, seat):
    """Nanoseconds."""
    _clock(np.int32(_MONOTONIC), board.ctypes.data + 8 * (seat + CLOCK))
    return board[seat + CLOCK] * 1_000_000_000 + board[seat + CLOCK + 1]


@simd.inline
def _await_post(board, seat):
    """Look for work for a while, then sleep until there is some; at once where others want this core."""
    looks, began, before = 0, 0, 0
    while simd.load_acquire(board, seat + STATE) != POSTED:
        simd.relax()
        looks += 1
        if looks % ROUNDS:
            continue
        _yield()
        now = _now(board, seat)
        if began == 0:
            began = before = now
        enough, before = now - began > board[SPIN] or now - before > CROWDED, now
        if enough and simd.compare_exchange(board, seat + STATE, WAITING, ASLEEP):
            while simd.load_acquire(board, seat + STATE) == ASLEEP:
                if _read(np.int32(board[seat + READ]), board.ctypes.data + 8 * (seat + CLOCK), 1) < 1:
                    _sleep(np.uint32(1000))  # a signal; or somebody has closed the pipe


@simd.inline
def _await_helpers(board, helpers):
    """Until all have finished: a kernel writes to memory that is the caller's."""
    for helper in range(helpers):
        looks = 0
        while simd.load_acquire(board, SEATS + helper * SEAT + STATE) == POSTED:
            simd.relax()
            looks += 1
            if looks > PATIENCE:
                _sleep(np.uint32(50))
            elif looks % ROUNDS == 0:
                _yield()


@simd.kernel(types.void(simd.COUNTERS, types.int64), name="threads.serve")
def serve(board, seat):
    """What a helper does for ever: the job's kernel, with its own scratch for the last argument."""
    if simd.exchange(board, seat + TAKEN, 1):
        return  # an interrupt came when a first thread had this seat and nobody had noted it
    while True:
        _await_post(board, seat)
        integers = board[INTEGERS]
        for word in range(FLOATS + integers):
            board[seat + OWN + word] = board[JOB + word]
        scratch = seat + OWN + FLOATS + integers - ARRAY
        board[scratch + OWNER], board[scratch + PARENT] = 0, 0
        board[scratch + ADDRESS] = board[seat + SCRATCH]
        board[scratch + SIZE] = board[scratch + LENGTH] = board[seat + ROOM]
        board[seat + CODE] = call_frame(board[KERNEL], board, seat + OWN, seat + RAISED)
        simd.store_release(board, seat + STATE, WAITING)


def _start(board, helpers, address, args):
    """A job from first to last: the kernel at that address with these arguments, here and on helpers."""
    board[KERNEL], board[INTEGERS] = address, write_frame(board, JOB, args)
    for helper in range(helpers):
        seat = SEATS + helper * SEAT
        if simd.exchange(board, seat + STATE, POSTED) == ASLEEP:
            pipe, byte = np.int32(board[seat + WRITE]), board.ctypes.data + 8 * (seat + CLOCK)
            while _write(pipe, byte, 1) < 1 and simd.load_acquire(board, seat + STATE) == POSTED:
                _sleep(np.uint32(1))  # a signal; or somebody has closed the pipe, and the helper looks by itself
    code = call_frame(address, board, JOB, RAISED_HERE)
    _await_helpers(board, helpers)
    propagate(code, board[RAISED_HERE])
    for helper in range(helpers):
        seat = SEATS + helper * SEAT
        propagate(board[seat + CODE], board[seat + RAISED])


_starters: dict[simd.Kernel | str, simd.Kernel] = {}  # by kernel, and by name: those of equal arguments share one


def _make_starter(kernel: simd.Kernel) -> simd.Kernel:
    """`_start` for the types of a kernel's arguments."""
    kinds = kernel.signature.args
    classes = [
        getattr(kind, "instance_class", None) for kind in kinds
    ]  # of records: names alone do not tell them apart
    name = f"threads.start.{hashlib.sha256(str((kinds, classes)).encode()).hexdigest()[:12]}"
    if name not in _starters:
        arguments = types.BaseTuple.from_types(kinds)
        signature = types.void(simd.COUNTERS, types.int64, types.int64, arguments)
        _starters[name] = simd.kernel(signature, name=name)(_start)
    _starters[kernel] = _starters[name]
    return _starters[kernel]


class Team:
    """The helpers of this process, and the board."""

    def __init__(self) -> None:
        words = SEATS + MOST_HELPERS * SEAT  # 1.3 MB, of which the seats taken are touched
        board = np.zeros(words + LINE // 8, np.int64)
        start = -board.ctypes.data % LINE // 8
        self.board = board[start : start + words]
        self.scratches: list[np.ndarray] = []  # the helpers'
        self.most = MOST_HELPERS  # fewer where the system has given no more threads
        self.lock = threading.RLock()  # a board has room for one job

    def run(self, kernel: simd.Kernel, args: tuple, helpers: int, words: int, spin: int) -> None:
        """kernel(*args) here and on helpers, each with `words` float32 of its own in the last argument's place.

        spin: nanoseconds for which a helper then looks for the next kernel. Raises what the kernel raised here, else
        what it raised on the first helper where it did; MemoryError and OSError where helpers cannot be had. Where the
        system gives no more threads, there are fewer helpers: who computes a task changes no bits.
        """
        helpers, address = min(helpers, self.most), kernel.address
        with self.lock:
            start = _starters.get(kernel) or _make_starter(kernel)
            serve.compiled()  # not in a helper, of which nobody would hear that it failed
            try:
                self._make_ready(helpers, words)
            except RuntimeError:  # no more threads
                helpers = self.most = min(len(self.scratches), helpers)
                self._make_ready(helpers, words)
            self.board[SPIN] = spin
            start(self.board, helpers, address, args)

    def _make_ready(self, helpers: int, words: int) -> None:
        """At least that many helpers, with as many float32 of scratch."""
        for helper in range(helpers):
            seat = SEATS + helper * SEAT
            if helper == len(self.scratches):
                if not self.board[seat + WRITE]:  # else an interrupt came: a helper reads from that pipe already
                    self.board[seat + READ], self.board[seat + WRITE] = os.pipe()
                name, args = f"tilewright-{helper + 1}", (self.board, seat)
                threading.Thread(target=serve, args=args, name=name, daemon=True).start()
                self.scratches.append(zeros(0))
            if self.board[seat + ROOM] < words:  # ROOM is written last: an interrupt may come between any two lines
                self.board[seat + ROOM] = 0
                self.scratches[helper] = zeros(words)
                self.board[seat + SCRATCH] = self.scratches[helper].ctypes.data
                self.board[seat + ROOM] = words
