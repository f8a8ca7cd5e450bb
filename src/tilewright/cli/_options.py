"""Options of a verb as a dataclass, and the values that options take."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, get_type_hints

import typer

from tilewright.cli import fail

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def verb(options: type) -> Callable[[Callable[[Any], None]], Callable[..., None]]:
    """Makes `f(options)` a function with a keyword argument for each field of the dataclass, as typer wants it."""

    def wrap(function: Callable[[Any], None]) -> Callable[..., None]:
        def called(**values: Any) -> None:
            function(options(**values))

        called.__doc__ = function.__doc__
        hints = get_type_hints(options, include_extras=True)  # the signature's own are text, and mean nothing elsewhere
        fields = inspect.signature(options).parameters.values()
        called.__annotations__ = hints
        typed = [field.replace(annotation=hints[field.name]) for field in fields]
        vars(called)["__signature__"] = inspect.Signature(typed)
        return called

    return wrap


def parse_bytes(text: str) -> int:
    """Bytes of a text such as "256M"; K, M, G and T are powers of 1024."""
    found = re.fullmatch(r"(\d{1,15}(?:\.\d{1,6})?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if not found:
        raise typer.BadParameter(f"{text!r} is no size; write 256M or 4G")
    return int(float(found[1]) * _UNITS[found[2].upper()])


def parse_sizes(text: str) -> tuple[int, ...]:
    """Numbers of a text such as "3,5,7,9"; the empty text is the empty tuple."""
    try:
        return tuple(int(part) for part in text.split(",")) if text.strip() else ()
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is no list of sizes; write 3,5,7") from error


def parse_rungs(texts: list[str]) -> dict[str, str]:
    """["matmul=cpu.packed"] as {"matmul": "cpu.packed"}."""
    pairs = [text.partition("=") for text in texts]
    if any(not (op.isidentifier() and name) for op, _, name in pairs):
        raise typer.BadParameter(f"{', '.join(texts)}: write OP=RUNG, as in matmul=cpu.packed", param_hint="--rung")
    return {op: name for op, _, name in pairs}


@contextmanager
def failing(as_json: bool) -> Iterator[None]:
    """Errors of the block end the process as `fail` does; with `as_json` stdout still gets exactly one object."""
    try:
        yield
    except (typer.Exit, SystemExit):
        raise
    except BaseException as error:
        fail(error, as_json)
