"""The errors a user can meet. Each is one paragraph - what, where, what to do - and carries its exit code.

Each is also one of Python's own errors, so that a caller who knows only Python can catch it: a wrong call or input is a
ValueError, and a TypeError as well where an argument has a wrong type; what the system refuses is an OSError, and too
little memory a MemoryError as well. So `except OSError` around a call that may raise one of these needs
`except TilewrightError: raise` before it.
"""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Iterable


class TilewrightError(Exception):
    """Base of every error raised on purpose.

    message: what is wrong, with the values in it; None: made of parameter, value and rule.
    parameter: the option, argument or field that is wrong; value: what was given for it, as text; rule: what holds.
    path: the file or directory concerned; where: the line, field or byte in it ("line 7, field tokens[3]", "byte 128").
    remedy: what to do about it.
    `str()` gives all of it as one paragraph with control characters escaped. The fields stay readable as attributes,
    also after pickling: code reads them and never takes a message apart.
    """

    exit_code = 5

    def __init__(
        self,
        message: str | None = None,
        *,
        parameter: str | None = None,
        value: str | None = None,
        rule: str | None = None,
        path: str | os.PathLike[str] | None = None,
        where: str | None = None,
        remedy: str | None = None,
    ) -> None:
        if message is None:
            message = f"{parameter} is {value}; {rule}"
        super().__init__(message)
        self.message = message
        self.parameter, self.value, self.rule = parameter, value, rule
        self.path = None if path is None else os.fspath(path)
        self.where = where
        self.remedy = remedy

    def __reduce__(self) -> tuple[object, ...]:
        return _unpickled, (type(self), self.args), self.__dict__

    def __str__(self) -> str:
        place = ", ".join(part.replace("\n", "\\n") for part in (self.path, self.where) if part)
        text = f"{place}: {self.message}" if place else self.message
        if self.remedy:
            text = f"{text}{'' if text.endswith(('.', '!', '?')) else '.'} {self.remedy[:1].upper()}{self.remedy[1:]}"
        return printable(text)


def _unpickled(kind: type[TilewrightError], args: tuple[str, ...]) -> TilewrightError:
    """An error of another process, yet without its fields, which pickle sets. `kind`'s own __init__ does not run."""
    error = kind.__new__(kind, *args)
    error.args = args
    return error


class UsageError(TilewrightError, ValueError):
    """The command or the call is wrong: an unknown name, options that exclude each other."""

    exit_code = 2


class WrongType(UsageError, TypeError):
    """An argument of a call has a type that the function does not take, such as a text in place of an array."""


class Refused(UsageError):
    """No rung, or not the one that was asked for, accepts the problem; the message lists each rung's reasons."""


class InputError(TilewrightError, ValueError):
    """An input, a configuration or a weights file is not what it should be."""

    exit_code = 3


class ResourceError(TilewrightError, OSError):
    """The machine refuses: a full disk, no permission, not enough memory, a missing device."""

    exit_code = 4


class NotEnoughMemory(ResourceError, MemoryError):
    """The machine has too little memory, or the job may take too little."""


class InternalError(TilewrightError):
    """A defect of tilewright, or an error budget that was exceeded."""

    exit_code = 5


class Interrupted(TilewrightError):
    """The job was told to stop (SIGINT, SIGTERM, SIGHUP) and can be run again. value: the signal's name."""

    exit_code = 75


class Cancelled(TilewrightError):
    """Ctrl-C where there is nothing to resume."""

    exit_code = 130


def error_json(error: TilewrightError) -> str:
    """The line of JSON that a verb with --json writes to stdout where it ends by `error`."""
    from json import dumps

    always, where_known = ("message", "path", "where", "remedy"), ("parameter", "value", "rule")
    names = (*always, *(name for name in where_known if getattr(error, name) is not None))
    told = {name: (text := getattr(error, name)) and printable(text) for name in names}
    return dumps({"error": {"code": error.exit_code, **told}, "exit_code": error.exit_code})


def counted(count: int, noun: str) -> str:
    """A number of things: "1 prompt", "1,000 prompts"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def suggestion(name: str, names: Iterable[str]) -> str:
    """What follows a misspelt name in a message: " (did you mean matmul?)"; "" if none of `names` is similar."""
    from difflib import get_close_matches

    near = get_close_matches(name, list(names), n=1, cutoff=0.75)  # "cpu.none" is not like "cpu.widened"
    return f" (did you mean {near[0]}?)" if near else ""


def brief(error: BaseException) -> str:
    """What another library's exception says: one line of at most 300 characters. It may quote a whole file."""
    return " ".join(str(error)[:1200].split())[:300] or type(error).__name__


def printable(text: str) -> str:
    """`text` with control, format and surrogate characters as escapes, line ends kept: nothing can drive a terminal."""
    return "".join(c if c == "\n" or unicodedata.category(c)[0] != "C" else ascii(c)[1:-1] for c in text)
