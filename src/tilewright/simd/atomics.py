"""Integers that several threads read and write: elements of int64 arrays, one at a time.

Source: the orders of the C++ memory model, as LLVM has them (LLVM Language Reference, "Atomic Memory Ordering
Constraints").
"""

import platform

from llvmlite import ir
from numba import types

from tilewright.simd.instruction import instruction
from tilewright.simd.kernel import inline
from tilewright.simd.types import I32, call

INTEGER = types.int64
NEXT, COUNT = 0, 1  # elements of `TASKS`: the next task, and the number of tasks
BYTES = 8  # of an element, the alignment that LLVM needs to know
YIELD = 1  # the operand of AArch64's HINT that means YIELD


@instruction(lambda array, index, value: INTEGER(array, types.intp, INTEGER))
def fetch_add(builder, array, index, value):
    """Atomically `array.flat[index] += value`; returns the old value. Threads draw their next task with it."""
    return builder.atomic_rmw("add", array.at(index), value, "monotonic")


@inline
def draw(tasks):
    """The next task of a kernel's `tasks` (`TASKS`), or -1 if none is left. Every thread draws until then."""
    task = fetch_add(tasks, NEXT, 1)
    return task if task < tasks[COUNT] else -1


@instruction(lambda array, index, value: INTEGER(array, types.intp, INTEGER))
def exchange(builder, array, index, value):
    """Atomically `array.flat[index] = value`; returns the old value. Acquires and releases."""
    return builder.atomic_rmw("xchg", array.at(index), value, "acq_rel")


@instruction(lambda array, index, old, new: types.boolean(array, types.intp, INTEGER, INTEGER))
def compare_exchange(builder, array, index, old, new):
    """Atomically `array.flat[index] = new` if it is `old`; returns whether it was. Acquires and releases."""
    return builder.extract_value(builder.cmpxchg(array.at(index), old, new, "acq_rel", "acquire"), 1)


@instruction(lambda array, index: INTEGER(array, types.intp))
def load_acquire(builder, array, index):
    """`array.flat[index]`. A thread that reads a value of `store_release` also sees everything written before it."""
    return builder.load_atomic(array.at(index), "acquire", BYTES)


@instruction(lambda array, index, value: types.void(array, types.intp, INTEGER))
def store_release(builder, array, index, value):
    """`array.flat[index] = value`, after everything that this thread wrote before."""
    builder.store_atomic(value, array.at(index), "release", BYTES)


@instruction(lambda: types.void())
def relax(builder):
    """Wait some nanoseconds in a loop that polls, while the core's other thread works; nothing on other CPUs."""
    machine = platform.machine().lower()
    if machine in ("x86_64", "amd64"):
        call(builder, "llvm.x86.sse2.pause", ir.VoidType())
    elif machine in ("aarch64", "arm64"):
        call(builder, "llvm.aarch64.hint", ir.VoidType(), I32(YIELD))
