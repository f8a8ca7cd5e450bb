"""Fields of a record that the user names: the one with its text, and the ones that are copied to its output."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec

from tilewright.errors import UsageError
from tilewright.formats.records import BadLine

_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


@dataclass(frozen=True, slots=True)
class RecordFields:
    """content: the field with a record's text or token ids; None: one of the names that the verb knows. keep: (name in
    the input, name in the output) of the copied fields."""

    content: str | None = None
    keep: tuple[tuple[str, str], ...] = ()

    @property
    def data(self) -> frozenset[str]:
        """The names of all these fields in the input."""
        return frozenset(name for name, _ in self.keep) | ({self.content} if self.content is not None else set())

    def columns(self, known: frozenset[str]) -> frozenset[str]:
        """The columns of a table to read, besides sampling fields. known: those of a record without named fields."""
        return (known if self.content is None else frozenset({"id", "text_pair"})) | self.data

    def kept(self, line: bytes | dict[str, Any] | None) -> tuple[dict[str, Any], BadLine | None]:
        """The copied fields of a line or row by their names in the output, and what is wrong with one of them.

        The value of a field of a JSON line is its text (msgspec.Raw), which keeps its type and its digits. It is None
        if the record lacks the field, or cannot be read.
        """
        if not self.keep:
            return {}, None
        fields = line if isinstance(line, dict) else self._of_json(line or b"")
        found: dict[str, Any] = {}
        wrong = None
        for name, shown in self.keep:
            value = fields.get(name)
            try:
                found[shown] = _checked(value) if isinstance(value, msgspec.Raw) else _text(value)
            except _UNREADABLE as error:
                found[shown], wrong = None, BadLine(f"cannot be kept: {str(error)[:200].lower()}", name)
        return found, wrong

    def _of_json(self, line: bytes) -> dict[str, Any]:
        """The fields of a JSON line; for an OpenAI batch line also those of its body."""
        with suppress(*_UNREADABLE):
            outer: dict[str, Any] = _decode_fields(line)
            if self.content is None and "custom_id" in outer and "body" in outer:
                with suppress(*_UNREADABLE):
                    return _decode_fields(outer["body"]) | outer
            return outer
        return {}


PLAIN = RecordFields()
NOTHING_KEPT: dict[str, Any] = {}  # it is never changed


def check_columns(names: list[str], fields: RecordFields, path: str) -> None:
    """Raises UsageError for a named field if no column of a table has its name."""
    for name in sorted(fields.data - {*names}):
        option = "--keep" if any(name == kept for kept, _ in fields.keep) else "the field of the text"
        there = ", ".join(names[:8]) + (f" and {len(names) - 8:,} more" if len(names) > 8 else "")
        raise UsageError(
            f"{option} names {name!r}; the columns are {there}", path=path, remedy="name one of the columns"
        )


def _checked(raw: msgspec.Raw) -> msgspec.Raw:
    """The value without carriage returns between its parts, because some readers take them for the end of a line."""
    msgspec.json.decode(raw)
    text = bytes(raw)
    return msgspec.Raw(text.replace(b"\r", b" ")) if b"\r" in text else msgspec.Raw(text)


def _text(value: Any) -> Any:
    """The value of a row. Raises msgspec.ValidationError for an infinite number, for which JSON has no value."""
    if _is_infinite(value):
        raise msgspec.ValidationError("JSON has no infinite numbers")
    return value.decode() if isinstance(value, bytes) else value


def _is_infinite(value: Any) -> bool:
    """True for an infinite number, or if there is one in a list or an object."""
    if isinstance(value, float):
        return math.isinf(value)
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(map(_is_infinite, inner))


def kept_in(said: dict[str, Any], answers: frozenset[str]) -> dict[str, Any]:
    """The copied fields of a record's output line. answers: the fields that the verb writes itself."""
    return {name: value for name, value in said.items() if name not in answers}


def kept_bytes(kept: dict[str, Any]) -> int:
    """Bytes of these fields in a line of output."""
    return len(msgspec.json.encode(kept)) - 1 if kept else 0
