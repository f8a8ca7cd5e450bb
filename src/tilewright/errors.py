"""The errors a user can meet. Each is one paragraph - what, where, what to do - and carries its exit code."""

from __future__ import annotations

import os
import unicodedata


class TilewrightError(Exception):
    """Base of every error raised on purpose.

    message: what is wrong, with the values in it.
    path: the file or directory concerned; where: the place inside it ("line 7, field tokens[3]", "byte 128").
    hint: what to do about it.
    `str()` gives all of it as one paragraph with control characters escaped; the parts stay readable as attributes.
    """

    exit_code = 5

    def __init__(
        self,
        message: str,
        *,
        path: str | os.PathLike[str] | None = None,
        where: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.path = None if path is None else os.fspath(path)
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        place = ", ".join(part.replace("\n", "\\n") for part in (self.path, self.where) if part)
        text = f"{place}: {self.message}" if place else self.message
        if self.hint:
            text = f"{text}{'' if text.endswith(('.', '!', '?')) else '.'} {self.hint[:1].upper()}{self.hint[1:]}"
        return printable(text)


class UsageError(TilewrightError):
    """The command or the call is wrong: an unknown name, options that exclude each other."""

    exit_code = 2


class Refused(UsageError):
    """No rung, or not the one that was asked for, accepts the problem; the message lists each rung's reasons."""


class InputError(TilewrightError):
    """An input, a configuration or a weights file is not what it should be."""

    exit_code = 3


class ResourceError(TilewrightError):
    """The machine refuses: a full disk, no permission, not enough memory, a missing device."""

    exit_code = 4


class InternalError(TilewrightError):
    """A defect of tilewright, or an error budget that was exceeded."""

    exit_code = 5


class Interrupted(TilewrightError):
    """The job was told to stop (SIGINT, SIGTERM, SIGHUP) and can be run again."""

    exit_code = 75


class Cancelled(TilewrightError):
    """Ctrl-C where there is nothing to resume."""

    exit_code = 130


def error_json(error: TilewrightError) -> str:
    """The line of JSON that a verb with --json writes to stdout where it ends by `error`."""
    from json import dumps

    parts = ((name, getattr(error, name)) for name in ("message", "path", "where", "hint"))
    told = {name: text and printable(text) for name, text in parts}
    return dumps({"error": {"code": error.exit_code, **told}, "exit_code": error.exit_code})


def brief(error: BaseException) -> str:
    """What another library's exception says: one line of at most 300 characters. It may quote a whole file."""
    return " ".join(str(error)[:1200].split())[:300] or type(error).__name__


def printable(text: str) -> str:
    """`text` with control, format and surrogate characters as escapes, line ends kept: nothing can drive a terminal."""
    return "".join(c if c == "\n" or unicodedata.category(c)[0] != "C" else ascii(c)[1:-1] for c in text)
