"""Compiled numba-cuda kernels on disk, in the same private directory as those of the CPU.

numba-cuda's own cache unpickles what it reads, and does not notice that a function which a kernel calls has changed.
Here a file holds a kernel's cubin and its name, and parsing it runs no code. The file's name contains a hash of all
that changes the cubin: the sources (`simd.cache.key`), the values that the kernel takes from its factory, its argument
types, the GPU's compute capability and the versions of numba-cuda and of CUDA.
"""

import dataclasses
import hashlib
import os
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import msgspec
import numpy as np

from tilewright.simd.cache import read_record, sources, write_record

PLAIN = (int, float, complex, bool, str, bytes, type(None), np.generic)


class Stored(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """A compiled kernel. identity: the hash in the file's name. name, entry: of the code library and of the function
    in the cubin. registers: the limit that it was compiled with. cooperative: it synchronises its whole grid."""

    identity: str
    name: str
    entry: str
    registers: int | None
    cooperative: bool
    cubin: bytes


class GpuKernelCache:
    """Loads and saves one kernel's cubins; replaces the cache object of numba-cuda's dispatcher."""

    cache_path = None

    def __init__(self, function: FunctionType, options: dict[str, Any]) -> None:
        sources()  # read now, as for a kernel of the CPU
        self.function, self.options = function, options

    def load_overload(self, signature: Any, target_context: Any) -> Any:
        """The kernel, ready to be started. None if there is no complete file of it."""
        if (identity := self._identity(signature)) is None:
            return None
        stored = read_record(_file(self.function, identity), Stored)
        return _rebuilt(stored, signature, self.function) if stored and stored.identity == identity else None

    def save_overload(self, signature: Any, kernel: Any) -> None:
        """Write the kernel's cubin. Does nothing if it could not be rebuilt from it, or the disk is full."""
        if (identity := self._identity(signature)) is None:
            return
        library = kernel._codelibrary
        alone = not library._linking_files and not library.referenced_objects and not kernel.launch_config_sensitive
        if not alone or kernel.debug or kernel.lineinfo or kernel.extensions or library.needs_cudadevrt:
            return
        limit, cubin = library._max_registers, bytes(library.get_cubin().code)
        stored = Stored(identity, library.name, kernel.entry_name, limit, kernel.cooperative, cubin)
        write_record(_file(self.function, identity), stored)

    def flush(self) -> None:
        """For numba-cuda, which calls it when a kernel is compiled again. A file is never stale, so nothing is done."""

    def _identity(self, signature: Any) -> str | None:
        """64 hex digits. None if the cache is off, or the kernel depends on something that `described` cannot name."""
        if os.environ.get("TILEWRIGHT_CACHE") == "off":
            return None
        import numba_cuda
        from numba import cuda
        from numba.cuda.cudadrv.runtime import runtime

        try:
            what = described(self.function)
        except TypeError:
            return None
        device = cuda.get_current_device().compute_capability
        options = sorted((name, repr(value)) for name, value in self.options.items())
        parts = (what, str(signature), options, tuple(device), numba_cuda.__version__, runtime.get_version())
        return hashlib.sha256(repr(parts).encode()).hexdigest()


def described(value: Any, inside: tuple[FunctionType, ...] = ()) -> Any:
    """A description of a function, with all values that it takes from its factory and module, or of such a value.

    Two functions of equal descriptions have the same machine code. An intrinsic is described by the function that
    generates its code. inside: the functions that are being described; one that takes itself is only named. Raises
    TypeError for a value of an unknown type.
    """
    if isinstance(value, PLAIN):
        return type(value).__name__, repr(value)
    if isinstance(value, (tuple, list)):
        return ("sequence", type(value).__qualname__, *[described(each, inside) for each in value])
    if isinstance(value, (ModuleType, BuiltinFunctionType)):
        return "named", value.__name__
    if isinstance(value, type):
        return "type", value.__module__, value.__qualname__
    if dataclasses.is_dataclass(value):
        parts = [(each.name, described(getattr(value, each.name), inside)) for each in dataclasses.fields(value)]
        return "record", type(value).__qualname__, parts
    of_compiler = type(value).__module__.startswith(("numba.", "numba_cuda.", "llvmlite."))
    function = value if isinstance(value, FunctionType) else getattr(value, "py_func", None)
    if function is None and of_compiler:
        function = getattr(value, "__wrapped__", None)  # an intrinsic's, which generates its code
    if isinstance(function, FunctionType):
        name = function.__module__, function.__qualname__
        if function in inside or not function.__module__.startswith("tilewright."):
            return "function", *name  # of a library, whose version is known
        options = sorted((name, repr(given)) for name, given in getattr(value, "targetoptions", {}).items())
        captured = [(name, described(taken, (*inside, function))) for name, taken in _taken(function)]
        return "function", *name, options, captured
    if of_compiler:
        return "compiler", type(value).__qualname__, str(value)
    raise TypeError(f"a kernel cannot be saved that uses a {type(value).__qualname__}")


def _taken(function: FunctionType) -> list[tuple[str, Any]]:
    """(name, value) of all variables of its factory and of its module that a function reads."""
    cells = function.__closure__ or ()
    closed = [(name, cell.cell_contents) for name, cell in zip(function.__code__.co_freevars, cells, strict=True)]
    names = sorted(_names(function.__code__))
    return closed + [(name, function.__globals__[name]) for name in names if name in function.__globals__]


def _names(code: CodeType) -> set[str]:
    """The names that code reads outside its own variables, those of inner functions included."""
    inner: list[set[str]] = [_names(each) for each in code.co_consts if isinstance(each, CodeType)]
    return set(code.co_names).union(*inner)


def _file(function: FunctionType, identity: str) -> str:
    safe = "".join(c if c.isalnum() else "_" for c in function.__qualname__.replace(".<locals>", ""))
    return f"gpu-{safe[:60]}-{identity[:24]}.kernel"


def _rebuilt(stored: Stored, signature: Any, function: FunctionType) -> Any:
    """numba-cuda's compiled kernel of a file."""
    from cuda.core import ObjectCode
    from numba.core.types import none
    from numba.core.typing import signature as typed
    from numba.cuda.codegen import CUDACodeLibrary
    from numba.cuda.dispatcher import _Kernel

    rebuild: Any = CUDACodeLibrary._rebuild  # a type checker sees Numba's own, older one
    library = rebuild(
        None, stored.name, stored.entry, [], {}, {}, {}, stored.registers, {}, False, False, stored.cooperative, False
    )  # fmt: skip
    library._cubin_cache[library._ensure_cc(None)] = ObjectCode.from_cubin(stored.cubin)
    kernel = _Kernel._rebuild(
        stored.cooperative, stored.entry, typed(none, *signature), library, False, False, None, []
    )
    kernel.py_func = function
    kernel.bind()
    return kernel
