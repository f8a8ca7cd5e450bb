"""Triton's interpreter without its repetitions, and numba-cuda's simulator without its waiting: the threads of a block
run in turns, each up to its next barrier.

numba-cuda starts all threads of a block at once and polls them. They and the poll wait for Python's lock, so a block
of 256 threads takes a second. Here one thread runs at a time, and those that meet no barrier share a thread of this
process. They begin in a shuffled order, and run in another one after each barrier, so a kernel that lacks a barrier
fails in every run.
"""

import random
import sys
import threading
from _thread import allocate_lock, start_new_thread
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest


@contextmanager
def in_turns() -> Iterator[None]:
    """A block in which the simulator runs like this. Does nothing without numba-cuda."""
    with pytest.MonkeyPatch.context() as patch:
        with suppress(ImportError):
            from numba.cuda.simulator import kernel, kernelapi

            patch.setattr(kernel, "BlockManager", _block_of(kernel.BlockThread))
            patch.setattr(kernel, "swapped_cuda_module", _Swapped)
            patch.setattr(kernel, "FakeWithinKernelCUDAArray", lambda array: array._ary)  # NumPy's, without wrappers
            patch.setattr(kernelapi.FakeCUDAShared, "array", _shared_array(kernelapi))
        try:
            yield
        finally:
            while _Carrier.idle:
                _Carrier.take(None)


@contextmanager
def patched_once() -> Iterator[None]:
    """Triton's interpreter without its repetitions, which take three quarters of the time. Once is enough to search
    `triton.language` for what is replaced, not at each call of a function; and to compute what belongs to a type."""
    try:
        from triton.language import core
        from triton.runtime import interpreter
    except ImportError:
        yield
        return
    scope = interpreter._patch_lang(SimpleNamespace(__globals__={"tl": interpreter.tl, "core": core}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter, "_patch_lang", lambda function: interpreter._LangPatchScope())
        patch.setattr(interpreter, "_get_np_dtype", _once_a_type(interpreter._get_np_dtype))
        patch.setattr(core.tensor, "__init__", _tensor_of(core.tensor.__init__))
        patch.setattr(core.block_type, "__init__", _block_type_of(core.block_type.__init__))
        try:
            yield
        finally:
            scope.restore()


def _once_a_type(function):
    known = {}

    def remembered(of):
        if of.name not in known:
            known[of.name] = function(of)
        return known[of.name]

    return remembered


def _tensor_of(init):
    known = {}

    def __init__(self, handle, type):
        if type.name not in known:
            init(self, handle, type)
            known[type.name] = {name: value for name, value in vars(self).items() if name != "handle"}
        vars(self).update(known[type.name], handle=handle)

    return __init__


def _block_type_of(init):
    known = {}

    def __init__(self, element_ty, shape):
        key = element_ty.name, *[getattr(n, "value", n) for n in shape]
        if key not in known:
            init(self, element_ty, shape)
            known[key] = dict(vars(self))
        vars(self).update(known[key])

    return __init__


class _Block:
    """A block of threads. turns: the threads that run before the next barrier. waiting: the threads at that barrier.
    failed: the first thread that raised an exception."""

    thread_class: type

    def __init__(self, f, grid_dim, block_dim, debug):
        self._f, self._block_dim, self._debug = f, block_dim, debug
        self.block_state = np.zeros(block_dim, dtype=np.bool_)  # of numba-cuda's syncthreads_count and the like
        self.failed, self.over, self.shuffled = None, allocate_lock(), random.Random(7)

    def run(self, grid_point, *arguments):
        given = lambda: self._f(*arguments), self, grid_point
        self.threads = [self.thread_class(*given, point, self._debug) for point in np.ndindex(*self._block_dim)]
        order = [*self.threads]
        self.shuffled.shuffle(order)
        self.waiting, self.turns = [], iter(order)
        self.over.acquire()
        self.resume(self.next())
        self.over.acquire()
        if self.failed is not None:
            kind, traceback = self.failed.exception
            raise kind.with_traceback(traceback)

    def next(self):
        """The next thread; after the last one, one that waits at the barrier; None if all have ended."""
        thread = next(self.turns, None)
        if thread is None:
            self.shuffled.shuffle(self.waiting)
            self.turns, self.waiting = iter(self.waiting), []
            thread = next(self.turns, None)
        return thread

    def resume(self, thread):
        """Let a thread run that waits at a barrier or has not begun; without one, let `run` return."""
        if thread is not None and not thread.begun:
            _Carrier.take(thread)
        else:
            (self.over if thread is None else thread.turn).release()

    def arrived(self, thread):
        self.waiting.append(thread)
        self.resume(self.next())

    def ended(self, thread):
        """The thread whose turn is next."""
        if thread.exception and self.failed is None:
            self.failed = thread
            for other in self.threads:
                other.abort = True
        return self.next()


class _Carrier:
    """A thread of this process. It runs a block's threads one after another, until one that waits at a barrier is next.
    idle: carriers that run none."""

    idle: ClassVar[list["_Carrier"]] = []

    def __init__(self):
        self.called = allocate_lock()
        self.called.acquire()
        start_new_thread(self._serve, ())

    @classmethod
    def take(cls, thread):
        """Let an idle carrier or a new one run the thread. None: end an idle one."""
        carrier = cls.idle.pop() if cls.idle else cls()
        carrier.thread = thread
        carrier.called.release()

    def _serve(self):
        while self.called.acquire() and (thread := self.thread):
            block = thread._manager
            while thread and not thread.begun:
                threading._active[threading.get_ident()] = thread  # what `threading.current_thread` returns
                thread.begun = True
                if not thread.abort:
                    thread.run()  # keeps an exception of the kernel as `thread.exception`
                thread = block.ended(thread)
            del threading._active[threading.get_ident()]
            self.idle.append(self)
            block.resume(thread)


def _block_of(block_thread: type) -> type:
    """The class of a block whose threads are of numba-cuda's class of a thread in a kernel."""

    class Thread(block_thread):
        def __init__(self, *given):
            super().__init__(*given)
            self.begun, self.turn = False, allocate_lock()
            self.turn.acquire()

        def syncthreads(self):
            if not self.abort:
                self._manager.arrived(self)
                self.turn.acquire()
            if self.abort:
                raise RuntimeError("another thread of the block raised an exception")

    return type("Block", (_Block,), {"thread_class": Thread})


class _Swapped:
    """As numba-cuda's `swapped_cuda_module`, a block in which the name `cuda` of a function's module means the
    simulator. That searches a module at each call of an inline function, this once per launch."""

    depth = 0
    modules: ClassVar[list[tuple[dict, dict]]] = []  # (the globals of a module, what they were)
    known: ClassVar[set[int]] = set()  # ids of these globals

    def __init__(self, function, simulated):
        self.names, self.simulated = function.__globals__, simulated

    def __enter__(self):
        _Swapped.depth += 1
        if id(self.names) not in self.known:
            from numba import cuda

            before = {name: value for name, value in self.names.items() if value is cuda}
            self.names.update(dict.fromkeys(before, self.simulated))
            self.known.add(id(self.names))
            self.modules.append((self.names, before))

    def __exit__(self, *error):
        _Swapped.depth -= 1
        if not self.depth:
            for names, before in self.modules:
                names.update(before)
            self.modules.clear()
            self.known.clear()


def _shared_array(kernelapi):
    """`cuda.shared.array`: one array per line of source. The simulator formats the whole stack to find the line."""
    original = kernelapi.FakeCUDAShared.array

    def array(self, shape, dtype, alignment=None):
        if shape == 0:  # dynamic shared memory
            return original(self, shape, dtype, alignment)
        caller = sys._getframe(1)
        line = caller.f_code.co_filename, caller.f_lineno
        if line not in self._allocations:
            numpy_dtype = kernelapi.numpy_support.as_dtype(dtype) if isinstance(dtype, kernelapi.types.Type) else dtype
            self._allocations[line] = np.empty(shape, numpy_dtype)
        return self._allocations[line]

    return array
