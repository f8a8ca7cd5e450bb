"""A user's own kernel as a rung. It is loaded from a file, and checked at every size before it is timed.

The file is Python code and is executed. It defines `kernel`, a function with the arguments of the operation's kernels.
It may define `prepare` (rearranges the weights), `idea` (one sentence) and `needs` (as in `Rung`). Without `needs` the
kernel is not used for 16-bit classes. The kernel is only called, so NumPy, Numba, numba-cuda and Triton all work.
"""

from __future__ import annotations

import ast
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import fields, replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from tilewright.bench.climb import GpuSubject, Subject, parts
from tilewright.bench.clocks.cuda import torch_on_a_gpu
from tilewright.bench.results import Row
from tilewright.errors import InputError, TilewrightError, brief
from tilewright.formats.files import naming
from tilewright.ops.core.ladder import Ladder, Rung

NAME = "mine.kernel"
FEW = (1, 7)  # numbers of rows in the checks: one row, and a number that is not a multiple of a block or vector
EPILOGUE = {"bias": True, "residual": True, "activation": "relu"}  # fields of a case, and their values
ENGINES = {"cpu": ("cpu",), "cuda": ("simt", "tile")}


class Own:
    """A function of the user's file. If a call of it fails, it raises InputError with the file and the line of the
    error."""

    def __init__(self, function: Callable[..., Any], path: str):
        self.function, self.path = function, path

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        try:
            return self.function(*arguments, **options)
        except (TilewrightError, MemoryError, KeyboardInterrupt):
            raise
        except BaseException as error:
            line = _line_of(error, self.path) or _first_line(self.function)
            raise InputError(f"{type(error).__name__}: {brief(error)}", path=self.path, where=line) from error


def load(op: str, path: str, device: str) -> Rung:
    """Execute the user's file, and make a rung from what it defines.

    Raises InputError with the file and the line if the file fails, or if it lacks what `op` needs. Raises ResourceError
    for "cuda" if there is no GPU.
    """
    if device == "cuda":
        torch_on_a_gpu()
    path = os.path.abspath(path)  # tracebacks have absolute paths
    ladder, module = parts(op)[0], _executed(path)
    kernel, prepare = getattr(module, "kernel", None), getattr(module, "prepare", None)
    rungs = [rung for rung in ladder.rungs.values() if rung.name.split(".")[0] in ENGINES[device]]
    if not callable(kernel):
        raise InputError("the file defines no function named kernel", path=path, remedy=contract(op))
    _check_arguments(ladder, path, kernel, rungs[0].run)
    preparing = [rung.lay_out for rung in rungs if rung.lay_out]
    if prepare is None and len(preparing) == len(rungs):
        raise InputError(f"the file defines no function named prepare; {op} needs one", path=path, remedy=contract(op))
    if prepare is not None and preparing:
        _check_arguments(ladder, path, prepare, preparing[0])
    elif prepare is not None:
        raise InputError(f"the file defines prepare; {op} has no weights to prepare", path=path)
    needs = getattr(module, "needs", (full_precision,))
    if not isinstance(needs, list | tuple) or not all(map(callable, needs)):
        raise InputError(f"needs is {needs!r}; a tuple of functions of a problem is wanted", path=path)
    return Rung(
        NAME, idea=str(getattr(module, "idea", f"from {Path(path).name}")), kernel=Own(kernel, path),
        needs=tuple(needs), prepare=Own(prepare, path) if prepare else None,
    )  # fmt: skip


def full_precision(problem: Any) -> str | None:
    """a precision that is not bfloat16, float16 or tf32"""
    dtype = getattr(problem, "dtype", "float32")
    shorter = dtype in ("bfloat16", "float16", "tf32")
    return f"dtype is {dtype}; a file that defines needs = () takes every dtype" if shorter else None


def contract(op: str) -> str:
    """How the operation calls a kernel: the second paragraph of its `ladder.py`."""
    ladder = sys.modules[f"tilewright.ops.{op}.ladder"]
    return inspect.cleandoc(ladder.__doc__ or "").split("\n\n")[1].replace("\n", " ")


def check(op: str, rung: Rung, cases: Iterable[Any]) -> int:
    """Run the kernel on a few rows of every case that it accepts, and compare with the exact results.

    Before one of the runs `out` is filled with NaN, so an element that the kernel does not write is found. The first
    case is also checked with a bias, a residual and an activation, if the operation has them. Returns the number of
    cases. Raises InputError, which names the case and the worst element, or the argument that the kernel changed.
    """
    taken = [case for case in cases if not rung.refuses(case.problem)]
    for case in taken:
        for count in FEW:
            _check_case(op, rung, case, count)
    for case in taken[:1]:
        if whole := _with_epilogue(case):
            _check_case(op, rung, whole, FEW[-1])
    return len(taken)


def _with_epilogue(case: Any) -> Any:
    """The case with every part of EPILOGUE that its operation has; None if it has none."""
    parts = {field.name: EPILOGUE[field.name] for field in fields(case) if field.name in EPILOGUE}
    return replace(case, **parts) if parts else None


def rank(name: str, rows: Sequence[Row], rungs: Collection[str]) -> str:
    """One sentence: the rung's position among the timed rungs, and its speed relative to the fastest and the lowest
    one."""
    rates = {row.rung: row.rows / row.median_s for row in rows if row.rung in (*rungs, name)}
    own, others = rates[name], {rung: rate for rung, rate in rates.items() if rung != name}
    if not others:
        return f"{name}: no rung of the ladder takes this size, so there is none to compare it with."
    best, lowest = max(others, key=others.__getitem__), next(iter(others))
    position = 1 + sum(rate > own for rate in others.values())
    to_best, to_lowest = (f"{own / others[rung]:.3g} times as fast as {rung}" for rung in (best, lowest))
    return f"{name} is number {position} of {len(rates)}: {to_best}, the best rung, and {to_lowest}, the lowest."


def limit_threads(count: int) -> None:
    """Limit a Numba kernel with parallel=True to `count` threads. 0, on a GPU, changes nothing."""
    import numba

    if count:
        numba.set_num_threads(min(count, numba.config.NUMBA_NUM_THREADS))  # type: ignore[attr-defined]


def _check_case(op: str, rung: Rung, case: Any, count: int) -> None:
    ladder, spec = parts(op)
    few = spec.with_rows(case, count) if count < spec.rows(case) else case
    subject = (Subject if getattr(case, "device", "cpu") == "cpu" else GpuSubject)(ladder, spec, few)
    before = {name: value.copy() for name, value in subject.inputs.items() if isinstance(value, np.ndarray)}
    call = subject.forced(rung)
    result = call()
    filled = call(out=_not_a_number(result))
    for name, value in before.items():
        if value.tobytes() != subject.inputs[name].tobytes():
            raise InputError(f"{rung.name} changes its argument {name} on {op} {few.name}", remedy="copy it first")
    subject.check(rung, result)
    subject.check(rung, filled)


def _not_a_number(result: Any) -> Any:
    """An array of NaN with the shape of a result."""
    if isinstance(result, np.ndarray):
        return np.full_like(result, np.nan)
    import torch

    return torch.full_like(result, torch.nan)


def _executed(path: str) -> ModuleType:
    """The file as a module. Raises InputError with the failing line, ResourceError if the file cannot be read."""
    with naming(path, "read the kernel"):
        source = Path(path).read_bytes()
    try:
        ast.parse(source, path)
        spec = spec_from_file_location("tilewright_mine", path)
        if spec is None or spec.loader is None:
            raise InputError("a file of Python code, with a name that ends in .py, is wanted", path=path)
        module = sys.modules["tilewright_mine"] = module_from_spec(spec)  # dataclasses and pickle look there
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise InputError(f"SyntaxError: {error.msg}", path=path, where=f"line {error.lineno}") from error
    except (TilewrightError, MemoryError, KeyboardInterrupt):
        raise
    except BaseException as error:  # also sys.exit in the file, which would end the command without a message
        raise InputError(f"{type(error).__name__}: {brief(error)}", path=path, where=_line_of(error, path)) from error
    return module


def _check_arguments(ladder: Ladder, path: str, function: Callable, like: Callable) -> None:
    """Raises InputError unless `function` can be called as `like` is."""
    wanted = [one for one in inspect.signature(like).parameters.values() if one.default is one.empty]
    named = [one.name for one in wanted if one.kind is one.KEYWORD_ONLY]
    plain = [one.name for one in wanted if one.name not in named]
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # a launcher in C or of a library has no readable signature: the call will show it
    try:
        signature.bind(*plain, **dict.fromkeys(named, ""))
    except TypeError as error:
        name = getattr(function, "__name__", "kernel")
        call = ", ".join([*plain, *(f"{option}=..." for option in named)])
        what = f"{name}{signature} cannot be called as {ladder.op} calls it, with ({call}): {error}"
        raise InputError(what, path=path, where=_first_line(function), remedy=contract(ladder.op)) from error


def _first_line(function: Callable) -> str | None:
    """The file and line at which a function begins."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f"line {code.co_firstlineno}" if code else None


def _line_of(error: BaseException, path: str) -> str | None:
    """The last line of the file in the error's traceback, or the line that Numba's compiler names."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    location: Any = getattr(error, "loc", None)
    if getattr(location, "filename", None) == path:
        lines.append(location.line)
    return f"line {lines[-1]}" if lines else None
