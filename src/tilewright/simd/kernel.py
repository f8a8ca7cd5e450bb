"""`@kernel`: one Numba function with one signature, compiled at its first call and cached on disk.

A kernel states its types, so a wrong dtype is an error and not a second, slower compilation. It releases the GIL, so
threads run it side by side. It never reassociates floating-point sums and never checks bounds.

References are not counted (`_nrt=False`), so a kernel allocates nothing and no inline function returns an array. The
counts would be shared: two threads that pass the same array to functions would wait for each other's cache line.
"""

import functools
import os
import threading
import types

from numba import njit
from numba.core.registry import CPUDispatcher

from tilewright.errors import UsageError
from tilewright.simd import cache
from tilewright.simd.inlined import InlineCompiler, connect_environments

_names: set[str] = set()


class Kernel:
    """A compiled function of one signature. Call it with NumPy arrays and scalars of the declared types.

    The constructor raises UsageError if another kernel has that name: both would use the same file of compiled code. A
    call raises TypeError if an argument has another type.
    """

    def __init__(self, function, signature, name: str):
        if name in _names:
            raise UsageError(f"two kernels are called {name!r}", remedy="give one of them another name=")
        self.name, self.signature, self.function = name, signature, function
        cache.sources()  # read now: this function is in memory, and its file may be edited before the first call
        self._lock = threading.Lock()
        self._call = self._first_call
        functools.update_wrapper(self, function)
        _names.add(name)

    def __call__(self, *args):
        return self._call(*args)

    @functools.cached_property
    def address(self) -> int:
        """The address of the machine code: int32 f(result *, excinfo **, the arguments as Numba flattens them)."""
        (compiled,) = self.compiled().overloads.values()
        address = compiled.library.get_pointer_to_function(compiled.fndesc.llvm_func_name)
        if not address:
            raise RuntimeError(f"the machine code of kernel {self.name!r} cannot be found")
        return address

    def _first_call(self, *args):
        return self.compiled()(*args)

    def compiled(self):
        """Numba's dispatcher, compiled or read from the cache: for `inspect_asm()` and the like."""
        with self._lock:
            if self._call == self._first_call:
                named = self._named()
                dispatcher = njit(nogil=True, fastmath=False, boundscheck=False, _nrt=False)(named)
                if os.environ.get("TILEWRIGHT_CACHE") != "off":
                    dispatcher._cache = cache.KernelCache(self.name, named)
                dispatcher.compile(self.signature)
                dispatcher.disable_compile()
                connect_environments(*dispatcher.overloads.values())
                self._call = dispatcher
            return self._call

    def _named(self):
        """The function under this kernel's name, from which Numba makes the symbol of the code.

        Two kernels from one factory, compiled by two processes, would otherwise have equal symbols, and a third process
        would run one in place of the other.
        """
        source = self.function
        named = types.FunctionType(
            source.__code__, source.__globals__, source.__name__, source.__defaults__, source.__closure__
        )
        named.__module__, named.__qualname__ = source.__module__, f"{source.__qualname__}.{self.name}"
        return named


def kernel(signature, *, name: str):
    """Declare a kernel: `signature` as Numba writes it ("void(float32[::1], intp)") or as a Numba signature; `name` is
    unique.

    Source: numba.njit, with `fastmath`, `boundscheck` and reference counts off and `nogil` on.
    """
    return lambda function: Kernel(function, signature, name)


def inline(function):
    """A function that kernels call: compiled into each of them, never on its own. Python calls its `py_func`.

    Inlining is forced. A function left in the object code has a name with a number that Numba counts in each process,
    so kernels that two processes compiled and a third loads could call each other's functions. There is no machine code
    of the function itself (`inlined.py`), nor Numba's wrappers for calls from Python and C.
    """
    compiled = njit(
        nogil=True, fastmath=False, boundscheck=False, _nrt=False, forceinline=True,
        no_cpython_wrapper=True, no_cfunc_wrapper=True, pipeline_class=InlineCompiler,
    )(function)  # fmt: skip
    compiled.__class__ = _Inlined
    return compiled


class _Inlined(CPUDispatcher):
    """Without its wrappers a call from Python would crash the process."""

    def __call__(self, *args, **named):
        raise TypeError(f"{self.__name__} is compiled into kernels alone: call {self.__name__}.py_func")
