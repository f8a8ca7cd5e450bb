"""Lists of values on the command line: "8,16", "1..5", "64..1024x2"."""

from __future__ import annotations

import re

from tilewright.errors import UsageError

MOST_VALUES = 64
RANGE = re.compile(r"(\d{1,9})\.\.(\d{1,9})(?:x(\d{1,4}))?")


def parse_counts(option: str, text: str, most: int) -> tuple[int, ...]:
    """`parse_values` of integers from 1 to `most`. Raises UsageError that begins with `option`."""
    values = parse_values(option, text)
    for value in values:
        if not isinstance(value, int) or not 1 <= value <= most:
            raise UsageError(f"{option} {value}: integers from 1 to {most:,} are wanted")
    return values


def parse_values(option: str, text: str) -> tuple:
    """Values of a text such as "8,16", "1..5" or "64..1024x2": integers, numbers or words, each once.

    Raises UsageError that begins with `option` for a part that is empty, a range that has no values, or too many.
    """
    found: list[int | float | str] = []
    for part in text.split(","):
        part = part.strip()
        if not part:
            raise UsageError(f"{option} {text!r} has an empty value", remedy="write a list such as 8,16 or 1..5")
        found += _range(option, part) if ".." in part else [_value(part)]
        if len(found) > MOST_VALUES:
            remedy = "name some of them, as in 8,16, or write 64..1024x2 to double"
            raise UsageError(f"{option} {text}: at most {MOST_VALUES} values are allowed", remedy=remedy)
    return tuple(dict.fromkeys(found))


def _range(option: str, part: str) -> list[int]:
    """The integers of "1..5", or of "64..1024x2" where each is 2 times the one before; at most MOST_VALUES + 1."""
    match = RANGE.fullmatch(part)
    if not match:
        raise UsageError(f"{option} {part!r} is no range", remedy="write 1..5, or 64..1024x2 to double")
    first, last, factor = int(match[1]), int(match[2]), int(match[3] or 0)
    if first > last:
        raise UsageError(f"{option} {part}: {first} is more than {last}", remedy=f"write {last}..{first}")
    if not match[3]:
        return list(range(first, min(last, first + MOST_VALUES) + 1))
    if factor < 2 or first < 1:
        raise UsageError(f"{option} {part}: a factor of at least 2 and a first value of at least 1 are wanted")
    values = [first]
    while values[-1] * factor <= last:
        values.append(values[-1] * factor)
    return values


def _value(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
