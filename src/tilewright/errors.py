"""The errors that a user can meet. Each is one paragraph (what, where, what to do) and has its exit code.

Each is also one of Python's own errors, so that a caller who knows only Python can catch it. A wrong call or input is a
ValueError, and also a TypeError if an argument has a wrong type. If the system refuses something, it is an OSError, and
also a MemoryError if memory is short. So code that wants only Python's own OSErrors needs `except TilewrightError:
raise` before `except OSError`.
"""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Iterable

HALF = 500  # characters at each end of a path that is too long for a message


class TilewrightError(Exception):
    """Base class of every error that is raised on purpose.

    message: what is wrong, with the values; None: it is made of parameter, value and rule. parameter: the option,
    argument or field that is wrong. value: what was given for it, as text. rule: what is allowed. path: the file or
    directory. where: the line, field or byte in it ("line 7, field tokens[3]", "byte 128"). remedy: what to do about
    it.

    `str()` gives all of it as one paragraph with control characters escaped, and of a path of more than 2 * HALF
    characters its two ends. The fields can be read as attributes, also after pickling. Code reads them and never parses
    a message.
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
        path = self.path
        if path and len(path) > 2 * HALF:
            path = f"{path[:HALF]}...{path[-HALF:]}"
        place = ", ".join(part.replace("\n", "\\n") for part in (path, self.where) if part)
        text = f"{place}: {self.message}" if place else self.message
        if self.remedy:
            text = f"{text}{'' if text.endswith(('.', '!', '?')) else '.'} {self.remedy[:1].upper()}{self.remedy[1:]}"
        return printable(text)


def _unpickled(kind: type[TilewrightError], args: tuple[str, ...]) -> TilewrightError:
    """An error of another process, still without its fields, which pickle sets. `kind`'s own __init__ does not run."""
    error = kind.__new__(kind, *args)
    error.args = args
    return error


class UsageError(TilewrightError, ValueError):
    """The command or the call is wrong: an unknown name, options that exclude each other."""

    exit_code = 2


class WrongType(UsageError, TypeError):
    """An argument of a call has a type that the function does not take, such as a text instead of an array."""


class Refused(UsageError):
    """No rung accepts the problem, or the requested rung refuses it. The message lists each rung's reasons."""


class InputError(TilewrightError, ValueError):
    """The content of an input, a configuration or a weights file is wrong."""

    exit_code = 3


class ResourceError(TilewrightError, OSError):
    """The machine refuses: a full disk, no permission, not enough memory, a missing device."""

    exit_code = 4


class NotEnoughMemory(ResourceError, MemoryError):
    """The machine, or the limit of the job, has too little memory."""


class InternalError(TilewrightError):
    """A defect of tilewright, or more errors than the job allows."""

    exit_code = 5


class Interrupted(TilewrightError):
    """The job was told to stop (SIGINT, SIGTERM, SIGHUP) and can be run again. value: the signal's name."""

    exit_code = 75


class Cancelled(TilewrightError):
    """Stopped by Ctrl-C in a command that has nothing to resume."""

    exit_code = 130


def error_json(error: TilewrightError) -> str:
    """The line of JSON that a verb with --json writes to stdout if it ends with `error`."""
    from json import dumps

    always, where_known = ("message", "path", "where", "remedy"), ("parameter", "value", "rule")
    names = (*always, *(name for name in where_known if getattr(error, name) is not None))
    told = {name: (text := getattr(error, name)) and printable(text) for name in names}
    return dumps({"error": {"code": error.exit_code, **told}, "exit_code": error.exit_code})


def counted(count: int, noun: str) -> str:
    """A number of things: "1 prompt", "1,000 prompts"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def suggestion(name: str, names: Iterable[str]) -> str:
    """The text after a misspelt name in a message: " (did you mean matmul?)"; "" if none of `names` is similar."""
    from difflib import get_close_matches

    near = get_close_matches(name, list(names), n=1, cutoff=0.75)  # "cpu.none" is not similar to "cpu.widened"
    return f" (did you mean {near[0]}?)" if near else ""


def brief(error: BaseException) -> str:
    """The message of another library's exception: one line of at most 300 characters. It may quote a whole file."""
    return " ".join(str(error)[:1200].split())[:300] or type(error).__name__


def printable(text: str) -> str:
    """`text` with control, format and surrogate characters as escapes, but with its line ends, so it cannot control a
    terminal."""
    return "".join(c if c == "\n" or unicodedata.category(c)[0] != "C" else ascii(c)[1:-1] for c in text)
