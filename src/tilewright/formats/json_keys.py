"""Find keys that occur twice in a JSON object. msgspec uses the last one without an error."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

import msgspec

COUNTED_BYTES = 1 << 20  # longest text that is decoded to count keys: its objects take up to 50 times its bytes
_KEYS_AND_BRACES = re.compile(rb'"([^"]*)"(\s*:)?|[{}]')  # in JSON without escaped quotes


def check_keys(text: bytes | bytearray, found: int = 0) -> None:
    """Raises msgspec.ValidationError if an object in `text` has the same key twice. msgspec uses the last one without
    an error.

    text: JSON that msgspec has accepted. found: number of different keys that the caller has read from it. Every key
    needs a colon, so for most texts it is enough to count the colons. The others are scanned.
    """
    if text.count(b":") == found or _most_keys(text) in (found, _keys_in(text)):
        return
    objects: list[dict[str, None]] = []  # the keys of each open object up to now
    for token in _KEYS_AND_BRACES.finditer(text.replace(b"\\\\", b"\1").replace(b'\\"', b"\2")):
        if token[2]:
            key = _unescaped(token[1])
            if key in objects[-1]:
                where = ".".join([*(next(reversed(keys)) for keys in objects[:-1]), key])
                shown = repr(key) if len(key) <= 64 else f"{key[:61]!r}..."
                raise msgspec.ValidationError(f"the key {shown} occurs twice - at `$.{where[:128]}`")
            objects[-1][key] = None
        elif token[0] == b"{":
            objects.append({})
        elif token[0] == b"}":
            objects.pop()


def _most_keys(text: bytes | bytearray) -> int:
    """An upper bound of the number of keys: colons that follow a quote or white space."""
    return sum([text.count(before) for before in (b'":', b" :", b"\t:", b"\r:", b"\n:")])


def _keys_in(text: bytes | bytearray) -> int | None:
    """Different keys of all objects. None if the text is too long or too deep to be decoded into Python objects."""
    if len(text) <= COUNTED_BYTES:
        with suppress(RecursionError):
            return _count_keys(msgspec.json.decode(text))
    return None


def _count_keys(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value
    keys = len(value) if isinstance(value, dict) else 0
    for each in inner:
        if isinstance(each, dict | list):
            keys += _count_keys(each)
    return keys


def _unescaped(key: bytes) -> str:
    if b"\\" not in key and b"\1" not in key and b"\2" not in key:
        return key.decode(errors="replace")
    return msgspec.json.decode(b'"' + key.replace(b"\1", b"\\\\").replace(b"\2", b'\\"') + b'"', type=str)
