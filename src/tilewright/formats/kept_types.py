"""Types of Parquet columns for copied fields. A column of a Parquet input keeps its type; for JSON it is the narrowest
type that fits.

A field of JSON lines whose values have no common type becomes a column of strings. A text is copied, any other value is
written as JSON.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tilewright.errors import UsageError

JSON = "json"  # the type of a column for values without a common type
NULL = "null"
WIDE = "wide"  # integers that float64 cannot hold exactly, also beside others; the column is int64
MOST_FIELDS = 256  # of an object that becomes a struct; one with more fields is a table of its own
EXACT = 2**53  # integers up to it are exact in float64

Kind = (
    str | tuple[Any, ...]
)  # NULL, JSON, WIDE, Arrow's name of a plain type, ("list", kind), ("struct", ((name, kind), ...))


class KeptTypes:
    """The types of copied fields, found by reading all their values. `add` takes the lines of the job's shards."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._kinds: dict[str, Kind] = dict.fromkeys(names, NULL)

    def add(self, line: bytes) -> None:
        """Take the values of one line into account."""
        said = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
        for name, kind in self._kinds.items():
            if name in said and kind != JSON:
                self._kinds[name] = joined(kind, kind_of(msgspec.json.decode(said[name])))

    def columns(self) -> dict[str, Kind]:
        """The types by name."""
        return {name: "string" if kind == NULL else _plain(kind) for name, kind in self._kinds.items()}


def _plain(kind: Kind) -> Kind:
    """The type with int64 instead of WIDE."""
    if kind == WIDE:
        return "int64"
    if isinstance(kind, str):
        return kind
    return (kind[0], _plain(kind[1]) if kind[0] == "list" else tuple((name, _plain(each)) for name, each in kind[1]))


def kind_of(value: Any) -> Kind:
    """The type of one JSON value."""
    if value is None:
        return NULL
    if isinstance(value, bool):
        return "bool_"
    if isinstance(value, int):
        return ("int64" if abs(value) <= EXACT else WIDE) if -(2**63) <= value < 2**63 else JSON
    if isinstance(value, float):
        return "float64"
    if isinstance(value, str):
        return "string"
    if isinstance(value, list):
        inner: Kind = NULL
        for each in value:
            inner = joined(inner, kind_of(each))
        return JSON if inner == JSON else ("list", inner)
    if not 0 < len(value) <= MOST_FIELDS:
        return JSON
    fields = tuple((name, kind_of(each)) for name, each in value.items())
    return JSON if any(kind == JSON for _, kind in fields) else ("struct", fields)


def joined(a: Kind, b: Kind) -> Kind:
    """The type of a column with values of both types; JSON if there is no such type."""
    if a == b or b == NULL:
        return a
    if a == NULL:
        return b
    if {a, b} in ({"int64", "float64"}, {"int64", WIDE}):
        return WIDE if WIDE in (a, b) else "float64"
    if isinstance(a, str) or isinstance(b, str) or a[0] != b[0]:
        return JSON
    if a[0] == "list":
        inner = joined(a[1], b[1])
        return JSON if inner == JSON else ("list", inner)
    fields = dict(a[1])
    for name, kind in b[1]:
        fields[name] = joined(fields.get(name, NULL), kind)
    if JSON in fields.values() or len(fields) > MOST_FIELDS:
        return JSON
    return ("struct", tuple(fields.items()))


def arrow_type(arrow: Any, kind: Any) -> Any:
    """The type in Arrow. kind: a `Kind`, or a type of Arrow already."""
    if not isinstance(kind, str | tuple):
        return kind
    if kind in (JSON, NULL):
        return arrow.string()
    if isinstance(kind, str):
        return getattr(arrow, kind)()
    if kind[0] == "list":
        return arrow.list_(arrow_type(arrow, kind[1]))
    return arrow.struct([(name, arrow_type(arrow, each)) for name, each in kind[1]])


def as_text(value: Any) -> str | None:
    """A value of a JSON column: null stays null, a text stays unchanged."""
    return value if value is None or isinstance(value, str) else msgspec.json.encode(value).decode()


def table_type(arrow: Any, name: str, found: Any, path: str, *, inside: bool = False) -> Any:
    """The type of an output column for a column of a Parquet input. inside: the type is inside a list or a struct.

    Raises UsageError for a type that has no JSON values, such as binary.
    """
    types = arrow.types
    if types.is_dictionary(found):
        return table_type(arrow, name, found.value_type, path)
    if types.is_list(found) or types.is_large_list(found) or types.is_fixed_size_list(found):
        return arrow.list_(table_type(arrow, name, found.value_type, path, inside=True))
    if types.is_struct(found) and found.num_fields:
        fields = [found.field(i) for i in range(found.num_fields)]
        return arrow.struct([(each.name, table_type(arrow, name, each.type, path, inside=True)) for each in fields])
    plain = [types.is_boolean, types.is_integer, types.is_float32, types.is_float64, types.is_string,
             types.is_large_string]  # fmt: skip
    if not inside:
        plain += [types.is_date, types.is_timestamp, types.is_decimal]
    if any(is_one(found) for is_one in plain):
        return found
    raise UsageError(
        f"--keep names the column {name}, whose type is {found}; text, numbers, dates, lists and structs can be kept",
        path=path,
        remedy="write the column as text, or leave it out of --keep",
    )


def column(arrow: Any, values: list[Any], kind: Any, type: Any) -> Any:
    """An array of Arrow from JSON values. kind: of the column. type: Arrow's type for it."""
    if kind == JSON:
        return arrow.array([as_text(value) for value in values], type)
    if not isinstance(kind, str | tuple) and not _is_json(arrow, type):
        return arrow.array(values, arrow.string()).cast(type)  # in JSON dates and decimals are texts
    return arrow.array(values, type)


def _is_json(arrow: Any, type: Any) -> bool:
    """True if JSON can represent values of this type."""
    types = arrow.types
    return not (types.is_date(type) or types.is_timestamp(type) or types.is_decimal(type))
