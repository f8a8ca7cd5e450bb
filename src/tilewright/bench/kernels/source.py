"""The source code of a rung: the function that runs it, and the kernels that this function names."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from textwrap import dedent
from typing import Any, NamedTuple

from tilewright.ops.core.ladder import Rung

PACKAGE = Path(__file__).resolve().parents[2]
CORE = "tilewright.ops.core."
MAKES_KERNEL = re.compile(r"@(?:\w+\.)?kernel")  # in the source of a function that makes kernels


class Source(NamedTuple):
    """Lines `first` to `last` of a file. path: below the folder of the package, as in "tilewright/ops/..."."""

    name: str
    path: str
    first: int
    last: int
    text: str


def sources(rung: Rung) -> list[Source]:
    """The function that runs the rung, then its kernels. Imports the function's module.

    Raises ImportError if a package that the module needs is missing.
    """
    run = _run_of(rung)
    if run is None:
        return []
    called: list[Callable] = [
        value for value in _named(run, rung) if inspect.isfunction(value) and _of_operation(value)
    ]
    kernels = [kernel for function in (run, *called) for kernel in _kernels(function, rung)]
    return [_source(function) for function in dict.fromkeys((run, *kernels))]


def _run_of(rung: Rung) -> Callable | None:
    """The function that runs the rung, without the options that are bound to it."""
    return _function(rung.run.func if isinstance(rung.run, partial) else rung.run)


def _source(function: Callable) -> Source:
    lines, first = inspect.getsourcelines(function)
    path = Path(inspect.getsourcefile(function) or "").resolve()
    shown = path.relative_to(PACKAGE.parent) if path.is_relative_to(PACKAGE) else path
    return Source(
        function.__qualname__, shown.as_posix(), first, first + len(lines) - 1, dedent("".join(lines)).rstrip()
    )


def _kernels(run: Callable, rung: Rung) -> Iterator[Callable]:
    """The functions that `run` names and that are kernels or make kernels. From a table of kernels it takes the one
    that an option of the rung selects."""
    options = [value for value in rung.options.values() if isinstance(value, str)]
    for value in _named(run, rung):
        if isinstance(value, dict):
            chosen = [value[option] for option in options if option in value]
            found = [one for entry in chosen for one in (entry if isinstance(entry, tuple) else (entry,))]
            yield from (function for one in found if (function := _function(one)))
        elif (function := _function(value)) and _is_kernel(value, function):
            yield function


def _named(run: Callable, rung: Rung) -> Iterator[Any]:
    """The module's objects that a function names, as `name` or `module.name`, in the order of its lines. After them,
    the values that it takes from the function around it."""
    tree = _Branches(run, rung).visit(ast.parse(dedent(inspect.getsource(run))))
    known = {**inspect.getmodule(run).__dict__, **_imported(tree)}
    for node in sorted((node for node in ast.walk(tree) if hasattr(node, "lineno")), key=lambda node: node.lineno):
        if isinstance(node, ast.Name) and node.id in known:
            yield known[node.id]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = known.get(node.value.id)
            if inspect.ismodule(module) and module.__name__.startswith("tilewright.ops."):
                yield getattr(module, node.attr, None)
    yield from (cell.cell_contents for cell in run.__closure__ or ())


class _Branches(ast.NodeTransformer):
    """Leaves out the branches that a function does not take with the options of a rung, as in `if specialized:`."""

    def __init__(self, run: Callable, rung: Rung) -> None:
        parameters = inspect.signature(run).parameters
        defaults = {name: parameter.default for name, parameter in parameters.items()} if run is _run_of(rung) else {}
        self.options = defaults | {name: value for name, value in rung.options.items() if name in parameters}

    def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
        """The statement, or those of the branch that is taken."""
        self.generic_visit(node)
        test = node.test
        conditions = test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]
        values = [self.options.get(one.id) if isinstance(one, ast.Name) else None for one in conditions]
        return node.orelse if False in values else node.body if values == [True] else node


def _imported(tree: ast.AST) -> dict[str, Any]:
    """The objects that import statements inside a function take from `tilewright.ops`, by name."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("tilewright.ops."):
            package = importlib.import_module(node.module)
            for alias in node.names:
                if not hasattr(package, alias.name):
                    importlib.import_module(f"{node.module}.{alias.name}")
                found[alias.asname or alias.name] = getattr(package, alias.name)
    return found


def _function(value: Any) -> Callable | None:
    """The Python function inside a kernel of Numba, Triton or this project, or inside a cached function."""
    for name in ("function", "py_func", "fn"):
        value = getattr(value, name, value)
    value = inspect.unwrap(value) if callable(value) else value
    return value if inspect.isfunction(value) else None


def _is_kernel(value: Any, function: Callable) -> bool:
    """True for a kernel, and for a cached function that makes one."""
    options = getattr(value, "targetoptions", {})
    if value is function or not _of_operation(function) or options.get("device") or options.get("forceinline"):
        return False
    return not hasattr(value, "cache_clear") or bool(MAKES_KERNEL.search(inspect.getsource(function)))


def _of_operation(function: Callable) -> bool:
    """True for a function of an operation's package."""
    return function.__module__.startswith("tilewright.ops.") and not function.__module__.startswith(CORE)
