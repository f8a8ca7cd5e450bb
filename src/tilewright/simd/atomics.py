"""Numbers that several threads read and write: int64 arrays, one element at a time.

Source: the orders of the C++ memory model, as LLVM has them (LLVM Language Reference, "Atomic Memory Ordering
Constraints").
"""

import platform

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from tilewright.simd.kernel import inline
from tilewright.simd.types import I32, call, pointer

_YIELD = 1  # AArch64's number of this hint


@intrinsic
def fetch_add(typingctx, array, index, value):
    """Atomically `array.flat[index] += value`; gives the old value. Threads draw their next task with it."""

    def codegen(context, builder, sig, args):
        at = pointer(context, builder, sig.args[0], args[0], args[1])
        return builder.atomic_rmw("add", at, args[2], "monotonic")

    return types.int64(array, types.intp, types.int64), codegen


@inline
def draw(tasks):
    """The next task of a kernel's `tasks` (`TASKS`), or -1 if none is left. Every thread draws until then."""
    task = fetch_add(tasks, 0, 1)
    return task if task < tasks[1] else -1


@intrinsic
def exchange(typingctx, array, index, value):
    """Atomically `array.flat[index] = value`; gives the old value. Acquires and releases."""

    def codegen(context, builder, sig, args):
        at = pointer(context, builder, sig.args[0], args[0], args[1])
        return builder.atomic_rmw("xchg", at, args[2], "acq_rel")

    return types.int64(array, types.intp, types.int64), codegen


@intrinsic
def compare_exchange(typingctx, array, index, old, new):
    """Atomically `array.flat[index] = new` if it is `old`; gives whether it was. Acquires and releases."""

    def codegen(context, builder, sig, args):
        at = pointer(context, builder, sig.args[0], args[0], args[1])
        return builder.extract_value(builder.cmpxchg(at, args[2], args[3], "acq_rel", "acquire"), 1)

    return types.boolean(array, types.intp, types.int64, types.int64), codegen


@intrinsic
def load_acquire(typingctx, array, index):
    """`array.flat[index]`; who sees what `store_release` wrote there sees all that was written before it, too."""

    def codegen(context, builder, sig, args):
        at = pointer(context, builder, sig.args[0], args[0], args[1])
        return builder.load_atomic(at, "acquire", 8)

    return types.int64(array, types.intp), codegen


@intrinsic
def store_release(typingctx, array, index, value):
    """`array.flat[index] = value`, behind all that this thread wrote before."""

    def codegen(context, builder, sig, args):
        at = pointer(context, builder, sig.args[0], args[0], args[1])
        builder.store_atomic(args[2], at, "release", 8)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.int64), codegen


@intrinsic
def relax(typingctx):
    """Some nanoseconds of waiting, in which the core's other thread works; nothing on a CPU that has no word for it."""

    def codegen(context, builder, sig, args):
        machine = platform.machine().lower()
        if machine in ("x86_64", "amd64"):
            call(builder, "llvm.x86.sse2.pause", ir.VoidType())
        elif machine in ("aarch64", "arm64"):
            call(builder, "llvm.aarch64.hint", ir.VoidType(), I32(_YIELD))
        return context.get_dummy_value()

    return types.void(), codegen
