"""Identifies a kernel whose source is not part of the hash in `cache`: a user's own, or one of the bench or of a test.

Its machine code depends on its code, on the values that it takes from its factory and module, and on all functions that
are compiled into it. Their description is hashed into the name of its file, so an edited kernel is compiled again.
"""

import hashlib
import sys
from collections.abc import Iterator
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

PLAIN = (int, float, complex, bool, str, bytes, type(None), type(Ellipsis), np.generic, np.dtype, np.ufunc)
SIMD = __name__.rpartition(".")[0]
HASHED = SIMD, f"{SIMD.rpartition('.')[0]}.ops"  # see `cache.sources`
KNOWN = frozenset({*sys.stdlib_module_names, "numpy", "numba", "llvmlite"})  # libraries that a kernel may use


def digest_of(function: FunctionType) -> str | None:
    """64 hex digits of all that decides the machine code of a kernel; none of them for a kernel of `simd` or `ops`.

    None: the kernel takes a value of an unknown type, so it cannot be told from others.
    """
    if _is_within(function.__module__ or "", HASHED):
        return ""
    try:
        return hashlib.sha256(repr(_function(function, ())).encode()).hexdigest()
    except (TypeError, ValueError):  # ValueError: a variable of its factory has no value yet
        return None


def _is_within(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def _is_known(module: str) -> bool:
    """True if the module's code need not be described: it is hashed, or that of a library."""
    return module.partition(".")[0] in KNOWN or _is_within(module, HASHED)


def _function(function: FunctionType, inside: tuple[FunctionType, ...]) -> Any:
    """A description. inside: the functions that are being described; one of these is only named."""
    name = function.__module__ or "", function.__qualname__
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    captured = [(each, cell.cell_contents) for each, cell in cells]
    if function in inside:
        return "itself", *name
    parts: list[Any] = []
    names = _names(function.__code__)
    if not _is_known(name[0]):
        parts = [_code(function.__code__), _value(function.__defaults__, names, inside)]
        captured += [(each, function.__globals__[each]) for each in names if each in function.__globals__]
    values = [(each, _value(value, names, (*inside, function))) for each, value in captured]
    return "function", *(() if parts else name), *parts, values


def _value(value: Any, names: list[str], inside: tuple[FunctionType, ...]) -> Any:
    """A description of a value. names: those in the code that takes it, which may be names in a module."""
    if isinstance(value, PLAIN):
        return type(value).__name__, repr(value)
    if isinstance(value, (tuple, list)):
        return type(value).__qualname__, [_value(each, names, inside) for each in value]
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return "array", value.dtype.str, value.shape, hashlib.sha256(value.tobytes()).hexdigest()
    if isinstance(value, ModuleType):
        known = _is_known(value.__name__)
        found = [] if known else [(each, getattr(value, each)) for each in names if hasattr(value, each)]
        return "module", value.__name__, [(each, _value(one, names, inside)) for each, one in found]
    if isinstance(value, type):
        return "type", value.__module__, value.__qualname__, getattr(value, "_fields", ())
    if isinstance(value, BuiltinFunctionType):
        return "builtin", value.__module__, value.__qualname__
    inner = value if isinstance(value, FunctionType) else getattr(value, "py_func", getattr(value, "__wrapped__", None))
    if isinstance(inner, FunctionType):  # also of Numba's functions and intrinsics
        return _function(inner, inside)
    if _is_known(type(value).__module__):
        text = str(value)
        if " at 0x" not in text:  # an address
            return "of a library", type(value).__qualname__, text
    raise TypeError(f"a kernel that uses a {type(value).__qualname__} cannot be told from others")


def _code(code: CodeType) -> Any:
    """The instructions of a function and its constants, those of inner functions included."""
    constants = [_code(each) if isinstance(each, CodeType) else _constant(each) for each in code.co_consts]
    return code.co_code, code.co_names, code.co_varnames, code.co_argcount, constants


def _constant(value: Any) -> str:
    """A constant as text. The order of a set differs from process to process."""
    return repr(sorted(map(repr, value))) if isinstance(value, frozenset) else f"{type(value).__name__} {value!r}"


def _names(code: CodeType) -> list[str]:
    """The names that code reads outside its own variables, those of inner functions included, sorted."""
    return sorted(set(_all_names(code)))


def _all_names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _all_names(each)
