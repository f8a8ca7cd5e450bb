"""Parquet, with the extra `parquet`: reads the rows of a row group as records, and writes JSON lines as a Parquet file.

A row has the meaning of a JSON line with the same fields. A null means that the field is missing, and so does NaN,
which pandas writes for null. An input has a column of texts or of lists of token ids. It may have other COLUMNS and
sampling fields. Other columns are read only if the user names them.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec

from tilewright.errors import InputError, ResourceError, TilewrightError, UsageError, brief
from tilewright.formats.completions import ANSWER
from tilewright.formats.files import InputFile, Part, Writable
from tilewright.formats.kept_types import JSON, arrow_type, column, table_type
from tilewright.formats.lines import MAX_LINE_BYTES, Line, LineReader
from tilewright.formats.packages import install_command
from tilewright.formats.record_fields import PLAIN, RecordFields, check_columns, kept_in
from tilewright.formats.records import RecordError
from tilewright.formats.sampling_fields import PROMPT_FIELDS, names_sampling

SCORED = ("context", "continuation", "continuation_token_ids")
COLUMNS = frozenset({"id", "text", "text_pair", "tokens", *PROMPT_FIELDS, *SCORED})  # and sampling fields
MOST_GROUPS = 100_000  # row groups of a file: the job's manifest lists all of them
MOST_BYTES = 4 << 30  # of the columns of a row group, uncompressed, because all their pages are in memory at once
READ = 1024  # rows that are Python objects at a time: they take ten times the memory of Arrow's columns
PART = 1 << 16  # bytes of lines that are split at a time
# A written row group has so many rows, or lines with so many bytes. To write 16,384 rows of short completions, pyarrow
# takes 17 MB besides their columns, a twelfth of the memory of the smallest job.
ROWS, BYTES = 1 << 13, 64 << 20

R = TypeVar("R", bound=LineReader)


class _Source(io.RawIOBase):
    """An InputFile with the interface that pyarrow reads. If it becomes shorter, tilewright's own error is raised."""

    def __init__(self, file: InputFile) -> None:
        super().__init__()
        self._file, self._at = file, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self._file.size)[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        count = max(min(len(buffer), self._file.size - self._at), 0)
        self._file.read_into(memoryview(buffer)[:count], self._at)
        self._at += count
        return count


def check_installed(path: str) -> None:
    """Raises ResourceError with the path if pyarrow is not installed."""
    _pyarrow(path)


def _pyarrow(path: str) -> Any:
    try:
        import pyarrow.parquet
    except ImportError as error:
        remedy = f"install it: {install_command('parquet')}"
        raise ResourceError(f"Parquet needs pyarrow: {error}", path=path, remedy=remedy) from error
    return pyarrow


@contextmanager
def _opened(file: InputFile) -> Iterator[Any]:
    """pyarrow's ParquetFile. Raises InputError for everything that pyarrow refuses, also inside the block."""
    arrow = _pyarrow(file.path)
    try:
        with arrow.PythonFile(_Source(file), mode="r") as source, arrow.parquet.ParquetFile(source) as opened:
            yield opened
    except TilewrightError:
        raise
    except (arrow.ArrowException, OSError, KeyError, UnicodeDecodeError, OverflowError) as error:
        remedy = "copy the file again, or write it again, for instance with pandas: it is cut short or damaged"
        raise InputError(f"cannot be read as Parquet: {brief(error)}", path=file.path, remedy=remedy) from error


def row_groups(file: InputFile, count: int | None = None) -> tuple[int, ...]:
    """Rows of each row group of all files, for the first `count` rows (None: all). Raises InputError, also if there are
    fewer rows."""
    file.groups = [_groups_of(part) for part in file.members()]
    found = [rows for groups in file.groups for rows in groups]
    if len(found) > MOST_GROUPS:
        what = f"it has {len(found):,} row groups; {MOST_GROUPS:,} are allowed"
        raise InputError(what, path=file.path, remedy="write it again with more rows per row group")
    rows: list[int] = []
    left = sum(found) if count is None else count
    for group in found:
        if left > 0 and group > 0:
            rows.append(min(group, left))
            left -= rows[-1]
        elif left > 0:
            rows.append(0)
    if left > 0 or not sum(rows):
        asked = f"; {count:,} were asked for" if count else ""
        remedy = "lower -n" if count and sum(rows) else None
        raise InputError(f"the input holds {sum(rows):,} records{asked}", path=file.path, remedy=remedy)
    return tuple(rows)


def _groups_of(file: InputFile) -> list[int]:
    """Rows of each row group of one file. Raises InputError for a group that is too large."""
    with _opened(file) as opened:
        about = opened.metadata
        if about.num_row_groups > MOST_GROUPS:
            what = f"it has {about.num_row_groups:,} row groups; {MOST_GROUPS:,} are allowed"
            raise InputError(what, path=file.path, remedy="write it again with more rows per row group")
        groups = [about.row_group(number) for number in range(about.num_row_groups)]
        for number, group in enumerate(groups):
            if group.total_byte_size > MOST_BYTES:
                what = f"it has {group.total_byte_size:,} bytes; at most {MOST_BYTES:,} are allowed"
                raise InputError(what, path=file.path, where=f"row group {number}", remedy="write smaller row groups")
        return [group.num_rows for group in groups]


def has_ids(file: InputFile, fields: RecordFields = PLAIN) -> bool:
    """Whether its rows have ids; then every row must have one. fields: the ones that the user named.

    Raises InputError; UsageError for a named field that is no column, or cannot be copied.
    """
    found: dict[bool, str] = {}
    for part in file.members():
        with _opened(part) as opened:
            names = opened.schema_arrow.names
        check_columns(names, fields, part.path)
        found.setdefault("id" in names, part.path)
    if len(found) > 1:
        raise InputError(f"has no column id, and {found[True]} has one", path=found[False],
                         remedy="give the files to jobs of their own, or add the column")  # fmt: skip
    kept_columns(file, fields)
    return next(iter(found))


def kept_columns(file: InputFile, fields: RecordFields) -> dict[str, Any]:
    """Arrow's types of the copied columns, by their names in the output. Raises InputError, UsageError."""
    columns: dict[str, Any] = {}
    first = ""
    for part in file.members() if fields.keep else ():
        with _opened(part) as opened:
            schema = opened.schema_arrow
        for name, shown in fields.keep:
            kind = table_type(_pyarrow(part.path), name, schema.field(name).type, part.path)
            if columns.setdefault(shown, kind) != kind:
                raise UsageError(f"--keep names {name}, which is {kind} here and {columns[shown]} in {first}",
                                 path=part.path, remedy="write one type in all files, or do not keep it")  # fmt: skip
        first = first or part.path
    return columns


def group_rows(file: InputFile, group: int, first: int, count: int) -> Iterator[Line]:
    """(number from 1, row or None if it is too long, 0) of the first `count` rows of a row group, of all files.

    first: the number, from 0, of the group's first row in the input. Raises InputError.
    """
    file.groups = file.groups or [_groups_of(part) for part in file.members()]
    number = 0
    while number < len(file.groups) - 1 and group >= len(file.groups[number]):
        group, number = group - len(file.groups[number]), number + 1
    part, rows = file.member(number), sum(file.groups[number][:group])
    file.forget_parts()
    file.begin_part(Part(part, 0, 0, 0, number), first + 1, lambda: rows)
    part.columns = file.columns
    yield from _group_rows(part, group, first, count)
    file.check_read()


def _group_rows(file: InputFile, group: int, first: int, count: int) -> Iterator[Line]:
    """`group_rows` of one file."""
    with _opened(file) as opened:
        wanted = COLUMNS if file.columns is None else file.columns
        names = [name for name in opened.schema_arrow.names if name in wanted or names_sampling(name)]
        number = first
        for batch in opened.iter_batches(READ, [group], columns=names, use_threads=False):
            batch = batch.slice(0, first + count - number)
            columns = {name: _values(batch.column(name), name, file.path) for name in names}
            for i in range(batch.num_rows):
                number += 1
                row = {name: v for name, values in columns.items() if (v := values[i]) is not None and v == v}
                yield number, row if len(msgspec.json.encode(row)) <= MAX_LINE_BYTES else None, 0
            if number == first + count:
                return
    if number < first + count:
        what = f"it has {number - first:,} rows; the file's footer says {count:,}"
        raise InputError(what, path=file.path, where=f"row group {group}")


def all_rows(file: InputFile, count: int | None) -> Iterator[Line]:
    """The first `count` rows of the file (None: all), in the form of `group_rows`."""
    first = 0
    for group, rows in enumerate(row_groups(file, count)):
        yield from group_rows(file, group, first, rows)
        first += rows


def as_rows(reader: R, count: int | None) -> R:
    """Let a reader of JSON lines read the rows of its Parquet file."""
    try:
        reader.IDS = has_ids(reader.file, reader.fields)
        reader.file.columns = reader.fields.columns(COLUMNS)
        reader.total = sum(row_groups(reader.file, count))
    except BaseException:
        reader.close()
        raise
    reader.only(all_rows(reader.file, count))
    return reader


def _values(column: Any, name: str, path: str) -> list[Any]:
    """A column of Arrow as JSON values, in which a text that is not UTF-8 is bytes. A binary column is read as texts,
    because some programs write texts without their type. Raises InputError for a value for which Python has no type: a
    time in nanoseconds, the year 10000."""
    try:
        values = msgspec.to_builtins(column.to_pylist(), str_keys=True, enc_hook=str, builtin_types=(bytes,))
        return [_text_of(value) if isinstance(value, bytes) else value for value in values]
    except UnicodeDecodeError as error:
        if len(column) == 1:
            return [error.object]
        return [value for i in range(len(column)) for value in _values(column.slice(i, 1), name, path)]
    except (ValueError, OverflowError) as error:
        said, remedy = brief(error).partition(". ")[0], "write the column as text"
        raise InputError(f"cannot be read: {said}", path=path, where=f"column {name}", remedy=remedy) from error


def _text_of(value: bytes) -> str | bytes:
    """The text, or the bytes if they are not UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


class TextIds(Exception):
    """Raised if an id is a string, but the column has integers."""


class ParquetEncoder:
    """Makes a Parquet file from JSON lines, which are given in blocks. Missing fields become null.

    columns: name -> a type with pyarrow's name, as in "string" or "list<int32>", or one of `kept_types`. ids: the type
    of the column "id", which comes first: "int64", or "string", in which integers are written as text. The row groups
    do not depend on the blocks. `write` and `finish` raise TextIds for a string if ids are integers, InputError for
    lines that are no records.
    """

    def __init__(self, file: Writable, columns: dict[str, Any], ids: str = "string") -> None:
        arrow = _pyarrow(file.path)
        self._kinds = {"id": ids} | columns
        fields = [(name, _type(arrow, kind)) for name, kind in self._kinds.items()]
        self._arrow, self._schema = arrow, arrow.schema(fields)
        self._id: type = str if ids == "string" else int
        self._target = _Target(file)
        self._writer = arrow.parquet.ParquetWriter(self._target, self._schema, compression="snappy")
        self._rest, self._lines, self._batches = b"", list[bytes](), list[Any]()
        self._count = self._bytes = 0  # number of lines of this row group, and their bytes

    def __del__(self) -> None:
        """Mark the target as given up. pyarrow's writer is freed after this object, and would otherwise write to a file
        that is already closed."""
        if target := getattr(self, "_target", None):
            target.given_up = True

    def write(self, block: bytes | memoryview) -> None:
        """Take the next bytes."""
        for line in self._split(block):
            self._lines.append(line)
            self._count, self._bytes = self._count + 1, self._bytes + len(line)
            if len(self._lines) == READ:
                self._convert()
            if self._count == ROWS or self._bytes >= BYTES:
                self._flush()

    def _split(self, block: bytes | memoryview) -> Iterator[bytes]:
        """The lines that end in a block. Only PART bytes are split at a time, because short lines take several times
        their bytes as objects."""
        for first in range(0, len(block), PART):
            *lines, self._rest = (self._rest + block[first : first + PART]).split(b"\n")
            yield from lines

    def finish(self) -> None:
        """Finish the file."""
        self._flush()
        self._writer.close()

    def _convert(self) -> None:
        """Convert the lines up to now to columns. Raises InputError if they are no lines of records."""
        try:
            batch = self._columns(
                [row for line in self._lines for row in _rows(msgspec.json.decode(line), self._kinds)]
            )
        except (msgspec.MsgspecError, ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
            what = f"the job's shards hold lines that are no records ({type(error).__name__}): they were edited"
            remedy = "give --restart to compute them again"
            raise InputError(what, path=self._target.path, remedy=remedy) from error
        if batch is not None:
            self._batches.append(batch)
        self._lines = []

    def _columns(self, rows: list[dict[str, Any]]) -> Any:
        """A batch of Arrow; None for no rows."""
        for row in rows:
            if self._id is int and isinstance(row["id"], str):
                self._writer.close()  # otherwise it is closed when it is freed, after the file
                raise TextIds
            row["id"] = None if row["id"] is None else self._id(row["id"])
        if not rows:
            return None
        columns = [column(self._arrow, [row.get(f.name) for row in rows], self._kinds[f.name], f.type)
                   for f in self._schema]  # fmt: skip
        return self._arrow.RecordBatch.from_arrays(columns, schema=self._schema)

    def _flush(self) -> None:
        self._convert()
        if self._batches:
            table = self._arrow.Table.from_batches(self._batches, self._schema).combine_chunks()
            self._writer.write_table(table, table.num_rows)
        self._batches = []
        self._count = self._bytes = 0


class _Target(io.RawIOBase):
    """The file to which pyarrow writes. given_up: nothing more is written."""

    def __init__(self, file: Writable) -> None:
        super().__init__()
        self._file, self.path, self.given_up = file, file.path, False

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        if not self.given_up:
            self._file.write(bytes(data))
        return len(data)


def _rows(said: dict[str, Any], kinds: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The rows of a line: one, or one per completion. kinds: of the columns. A kept field may have any name."""
    if "custom_id" in said and "custom_id" not in kinds:
        said = _line_of(said)
    choices = None if "choices" in kinds else said.pop("choices", None)
    for more in [{}] if choices is None else choices:
        row = said | more
        if kinds.get("logprobs") == "logprobs" and row.get("logprobs") is not None:
            row["logprobs"] = [[(int(id), value) for id, value in token.items()] for token in row["logprobs"]]
        yield row


def _line_of(answer: dict[str, Any]) -> dict[str, Any]:
    """The answer to an OpenAI batch line in the form of all other answers of `completions`."""
    line: dict[str, Any] = {"id": answer["custom_id"]} | kept_in(answer, ANSWER)
    if error := answer["error"]:
        said = RecordError(error["line"], error["param"] or "", "", error.get("file", ""))
        rule = error["message"].removeprefix(said.where)
        return line | {"error": msgspec.structs.asdict(msgspec.structs.replace(said, message=rule))}
    choices = answer["response"]["body"]["choices"]
    for choice in choices:
        if found := choice["logprobs"]:
            tokens = found["top_logprobs"]
            choice["logprobs"] = [{id.removeprefix("token_id:"): x for id, x in token.items()} for token in tokens]
    return line | {"choices": choices}


def _type(arrow: Any, kind: Any) -> Any:
    if kind in ("error", "error in a file"):
        fields = [("line", arrow.int64()), ("field", arrow.string()), ("message", arrow.string())]
        return arrow.struct(fields + [("file", arrow.string())] * (kind != "error"))
    if kind == "logprobs":
        return arrow.list_(arrow.map_(arrow.int32(), arrow.float32()))
    if not isinstance(kind, str) or kind == JSON:
        return arrow_type(arrow, kind)
    inner = kind.removeprefix("list<").removesuffix(">")
    plain = getattr(arrow, inner)()
    return plain if inner == kind else arrow.list_(plain)
