"""`--size` of `tilewright ladder` and `sweep`: a problem of an operation, made of one of its bench sizes."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from tilewright.errors import UsageError

SHORT = {  # operation -> the names of its short form, in groups: "DxHxW-KDxKHxKW"
    "attention": (("B", "H", "Q", "T", "D"),),
    "batchnorm": (("shape",),),
    "conv1d": (("B", "C", "L"), ("O", "K")),
    "conv3d": (("D", "H", "W"), ("KD", "KH", "KW")),
    "conv_transpose2d": (("B", "H", "W", "C"), ("O",), ("K",)),
    "correlate": (("shape",), ("window",)),
    "elementwise": (("shape",),),
    "embedding": (("shape",), ("V", "C")),
    "embedding_conv1d": (("B", "L"), ("V", "C"), ("O",)),
    "layernorm": (("shape",),),
    "logprob": (("M", "N", "K"),),
    "matmul": (("M", "N", "K"),),
    "matmul_argmax": (("M", "N", "K"),),
    "pool": (("texts", "longest", "C"), ("gap",)),
    "rope": (("rows", "heads", "pairs"), ("rest",)),
    "sample": (("M", "V"),),
    "softmax": (("shape",),),
}
BATCH = "B"  # the name that a short form may leave out: the number of records
ONE_FOR_ALL = ("KD", "KH", "KW"), ("K",), ("window",)  # groups in which one number stands for every axis
NUMBERS = re.compile(r"\d{1,9}(x\d{1,9})*(-\d{1,9}(x\d{1,9})*)*")
NOT_SIZES = ("dtype", "device", "label")  # options of their own


HELP = (
    "A size to time, as in D=64,H=64,W=64 for conv3d or shape=4x1000 for softmax. Short forms work too, as in "
    "64x64x64-3 for conv3d and 16x16x128-64 for conv_transpose2d. Missing values are those of the first size that the "
    "ladder times. If a name is wrong, the error lists the names and the short form."
)


def short_form(op: str) -> str:
    """How the short form of an operation's sizes reads: "DxHxW-KDxKHxKW"; a shape is integers joined by x."""
    return "-".join("x".join(names) for names in SHORT[op])


def _named(op: str, word: str, axes: dict[str, int]) -> list[str]:
    """The words NAME=VALUE of a short form such as "64x64x64-3". axes: of the sizes with several, how many.

    Raises UsageError for another number of groups or of values.
    """
    groups, wanted = [part.split("x") for part in word.split("-")], SHORT[op]
    wrong = UsageError(f"{op}: --size {word}: {short_form(op)} is wanted", remedy="write it so, or as NAME=VALUE, ...")
    if len(groups) > len(wanted):
        raise wrong
    words = []
    for names, values in zip(wanted, groups, strict=False):
        if names in ONE_FOR_ALL and len(values) == 1:
            values = values * axes.get(names[0], len(names))
        if names[0] in axes:
            words.append(f"{names[0]}={'x'.join(values)}")
            axes |= {"window": len(values)} if names[0] == "shape" else {}
            continue
        if names[0] == BATCH and len(values) == len(names) - 1:
            names = names[1:]
        if len(names) != len(values):
            raise wrong
        words += [f"{name}={value}" for name, value in zip(names, values, strict=True)]
    return words


def sized(op: str, every: list[Any], text: str, dtype: str | None) -> Any:
    """The first of the operation's cases in a class with the sizes of `text`, "B=1,C=8,K=3" or a short form, which
    more names may follow: "64x64x64-3,mode=wrap". dtype: None for float32.

    Raises UsageError naming a size that the operation does not have, a value that does not fit, and sizes that make no
    problem.
    """
    base = next((case for case in every if case.dtype == (dtype or "float32")), every[0])
    base = dataclasses.replace(base, label="", dtype=dtype or base.dtype)
    known = {field.name: getattr(base, field.name) for field in dataclasses.fields(base) if field.name not in NOT_SIZES}
    given = {}
    first, *words = text.split(",")
    if NUMBERS.fullmatch(first.strip()):
        axes = {name: len(value) for name, value in known.items() if isinstance(value, tuple)}
        words = _named(op, first.strip(), axes) + words
    else:
        words = [first, *words]
    for word in words:
        name, equals, value = word.strip().partition("=")
        if not equals or name not in known:
            raise UsageError(f"{op}: --size {word.strip()!r} names no size of {op}; it has {', '.join(known)}",
                             remedy=f"write NAME=VALUE, or {short_form(op)}")  # fmt: skip
        given[name] = _parsed(op, name, value, known[name])
        values = {getattr(case, name) for case in every}
        if isinstance(known[name], str | None) and given[name] not in values:
            has = ", ".join(sorted(str(value).lower() for value in values))
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
