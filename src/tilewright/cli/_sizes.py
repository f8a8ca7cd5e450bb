"""`--size` of `tilewright ladder` and `sweep`: a problem of an operation, made of one of its bench sizes."""

from __future__ import annotations

import dataclasses
from typing import Any

from tilewright.errors import UsageError

NOT_SIZES = ("dtype", "device", "label")  # options of their own


def sized(op: str, every: list[Any], text: str, dtype: str | None) -> Any:
    """The first of the operation's cases in a class with the sizes of `text`, "B=1,C=8,K=3". dtype: None for float32.

    Raises UsageError naming a size that the operation does not have, a value that does not fit, and sizes that make no
    problem.
    """
    base = next((case for case in every if case.dtype == (dtype or "float32")), every[0])
    base = dataclasses.replace(base, label="", dtype=dtype or base.dtype)
    known = {field.name: getattr(base, field.name) for field in dataclasses.fields(base) if field.name not in NOT_SIZES}
    given = {}
    for word in text.split(","):
        name, equals, value = word.strip().partition("=")
        if not equals or name not in known:
            raise UsageError(f"{op}: --size {word.strip()!r} names no size of {op}; it has {', '.join(known)}")
        given[name] = _parsed(op, name, value, known[name])
        words = {getattr(case, name) for case in every}
        if isinstance(known[name], str | None) and given[name] not in words:
            has = ", ".join(sorted(str(word).lower() for word in words))
            raise UsageError(f"{op}: --size {name}={value}: it is one of {has}")
    case = dataclasses.replace(base, **given)
    try:
        hash((case.problem, case.name))
    except UsageError:
        raise
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise UsageError(f"{op}: --size {text} makes no problem of {op}: {error}") from error
    if getattr(case, "positions", 1) < 1 and op == "conv1d":
        raise UsageError(f"{op}: --size {text} leaves no output: K is {case.K} and L is {case.L}")
    return case


def _parsed(op: str, name: str, value: str, now: Any) -> Any:
    """The value as what the case has now: an integer, integers joined by x, a number, true or false, or a word."""
    wrong = f"{op}: --size {name}={value}:"
    found: Any
    if isinstance(now, bool):
        if value not in ("true", "false"):
            raise UsageError(f"{wrong} true or false is wanted")
        return value == "true"
    try:
        if isinstance(now, tuple) and all(isinstance(one, int) for one in now):
            found = tuple(map(int, value.split("x")))
            if name not in ("shape", "kernels", "window", "batch") and len(found) != len(now):
                raise UsageError(f"{wrong} {len(now)} integers are wanted, as in {'x'.join(map(str, now))}")
        elif isinstance(now, tuple):
            raise UsageError(f"{wrong} it cannot be given here; it is {now}")
        elif isinstance(now, int | float):
            found = type(now)(value)
        else:
            return None if value in ("", "none") else value
    except UsageError:  # a ValueError, too
        raise
    except ValueError as error:
        example = "x".join(map(str, now)) if isinstance(now, tuple) else now
        raise UsageError(f"{wrong} a value such as {example} is wanted") from error
    least = 0 if now == 0 else 1
    if isinstance(now, int | tuple) and min(found if isinstance(found, tuple) else (found,)) < least:
        raise UsageError(f"{wrong} at least {least} is wanted")
    return found
