"""Text files, read line by line. A line that cannot be used becomes a record with an error and affects no other
record."""

from __future__ import annotations

import json
import os
from collections.abc import Generator, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Annotated, Any, Generic, Protocol, TypeVar

import msgspec
import numpy as np

from tilewright.errors import InputError, counted
from tilewright.formats.files import InputFile, Part
from tilewright.formats.inputs import open_text
from tilewright.formats.magic import kind_of_bytes
from tilewright.formats.names import kind_of_records
from tilewright.formats.quoted import BOM, line_starts, quoted_records
from tilewright.formats.record_fields import NOTHING_KEPT, PLAIN, RecordFields
from tilewright.formats.records import BadLine, Id, Record, RecordError, repeated_id
from tilewright.formats.seen_ids import SeenIds, id_hashes

MAX_LINE_BYTES = 16 << 20
LOOSE_BYTES = 1 << 20  # longest line that Python reads a second time: its objects take up to 50 times its bytes
CHUNK_BYTES = 1 << 20
TRUNCATED = "Input data was truncated"  # msgspec's words for JSON that ends too early, and for half a surrogate pair
FIRST_BLOCK = 64 << 10  # a binary file has a NUL within so many bytes
FIRST_BYTES = 64 << 20  # within so many bytes there must be a readable line, which shows whether lines have ids

Row = dict[str, Any]  # a row of a table in JSON's values. A text that is not UTF-8 is bytes; null values are left out
Line = tuple[int, bytes | Row | None, int]  # number from 1; the line, or None if it is too long; the offset of its end
TextLine = tuple[int, bytes | None, int]  # the same for a line of a text

LineId = Annotated[str, msgspec.Meta(max_length=512)] | Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode  # for a line that is an object

_Unset = msgspec.UnsetType


def naming(content: str, kind: Any, more: Iterable[tuple[str, Any, Any]] = ()) -> type[msgspec.Struct]:
    """The struct of a line whose field `content` the user has named: its attribute "content", of the type `kind`. more:
    other fields, as `msgspec.defstruct` takes them."""
    fields = [("id", LineId | _Unset, msgspec.UNSET), ("content", kind | _Unset, msgspec.UNSET), *more]
    return msgspec.defstruct("_NamedLine", fields, rename={"content": content})


Raw = TypeVar("Raw")  # the content of a line before it is checked
Content = TypeVar("Content")  # the content after the check
Fields = TypeVar("Fields", bound=msgspec.Struct)  # fields of a line or row, each with a default


class Table(Protocol):
    """The header of a CSV file."""

    def row(self, line: bytes) -> Row:
        """The fields of a record. Raises BadLine."""


class LineReader(Generic[Raw, Content]):
    """The records of a file, one per line. Blank lines are skipped.

    Either every line has an id, or none has. Then the number of the line, from 1, is its id. count: how many records to
    use from the start; None: all. fields: the ones that the user named.

    Memory does not grow with the file, except for 8 bytes per id, which find repeated ids. These are 64-bit hashes:
    with a million ids, two different ones have the same hash in one of 40 million files. Raises InputError at once for
    a file that is empty or has only blank lines (example: what a line looks like). Raises it later for a file that
    becomes shorter, or has fewer than `count` records. `only` selects the lines of one shard of a job, and may be
    called again and again. A subclass for a file format defines `_decode`, `_check` and `_recover`.
    """

    IDS: bool | None = None  # whether its lines have ids; None: the first line decides

    def __init__(
        self, path: str | os.PathLike[str], *, count: int | None, example: str, fields: RecordFields = PLAIN
    ) -> None:
        self._count, self.path = count, path
        self.fields = fields
        self.table: Table | None = None  # converts lines of a CSV file to rows
        self.file = open_text(path, "input")
        self.total = count
        self.bytes = self.file.size
        self._has_ids = self.IDS
        self._only: Iterable[Line] | None = None
        self.hashes: list[np.ndarray] = []  # of the records read since the last `only`, see `id_hashes`
        try:
            self._check_text()
            self._check_not_blank(example)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self.file.close()

    def only(self, lines: Iterable[Line]) -> None:
        """Read only these lines next. Their ids are known from their `hashes`. Whether lines have ids is still decided
        by the first line of the file."""
        if self.IDS is None:
            self.IDS = self._first_has_an_id()
        self._only, self.hashes = lines, []

    def located(self, error: RecordError) -> RecordError:
        """The error with the name of the file and the line in it, if there are many files. error: of a record that was
        read since the last `only`."""
        file, line = self.file.located(error.line)
        return RecordError(line, error.field, error.message, file) if file else error

    def _decode(self, line: bytes | Row) -> tuple[Id | None, Raw]:
        """The id (None: missing) and the content of the line. Raises BadLine."""
        raise NotImplementedError

    def _check(self, raw: Raw) -> Content:
        """The content of a good record. Raises BadLine."""
        raise NotImplementedError

    def _recover(self, line: bytes | Row | None) -> tuple[Id | None, Content]:
        """What can still be read of a bad line (None: it is too long): its id, and a content without tokens."""
        raise NotImplementedError

    def _check_text(self) -> None:
        """Raises InputError for a binary file, which has a NUL near its start. In JSON lines, which begin with a
        bracket, a NUL is an error of its record."""
        if kind_of_records(self.path) == ".parquet":
            return
        block = bytearray(min(self.file.size, FIRST_BLOCK))
        self.file.read_into(block, 0)
        is_json = self.IDS is None and block.removeprefix(BOM).lstrip().startswith((b"{", b"["))
        if (at := block.find(0)) >= 0 and not is_json:
            kind = kind_of_bytes(bytes(block))
            raise InputError(
                f"is not text: byte 0x00 at offset {at}{f'; the file is {kind}' if kind else ''}", path=self.file.path,
                remedy="give UTF-8 text, .jsonl or .parquet",
            )  # fmt: skip

    def _check_not_blank(self, example: str) -> None:
        if next(read_lines(self.file), None) is None:
            what = "is empty" if self.bytes == 0 else "holds 0 records: all its lines are blank"
            raise InputError(f"the input {what}", path=self.file.path, remedy=f"write lines such as {example}")

    def _groups(self, size: int) -> Iterator[tuple[list[Record], list[Content], int]]:
        """(records, their contents, offset of the end), `size` records at a time. Repeated ids are marked as errors."""
        seen, found = SeenIds(), 0
        records: list[Record] = []
        contents: list[Content] = []
        for record, content, end in self._records():
            records.append(record)
            contents.append(content)
            found += 1
            if len(records) == size or found == self._count:
                yield self._marked(records, seen), contents, end
                records, contents = [], []
            if found == self._count:
                return
        if records:
            yield self._marked(records, seen), contents, self.bytes
        if self._only is None and (found == 0 or self._count is not None):
            raise too_few(self.file, found, self._count)

    def _marked(self, records: list[Record], seen: SeenIds) -> list[Record]:
        hashes = id_hashes([record.id if self._has_ids else None for record in records])
        if self._only is not None:
            self.hashes.append(hashes)
        for i, (record, twice) in enumerate(zip(records, seen.add(hashes), strict=True)):
            if twice and record.error is None:
                records[i] = replace(record, error=repeated_id(record.line, record.id))
        return records

    def _records(self) -> Iterator[tuple[Record, Content, int]]:
        """(record, its content, offset of its end) of each line that is not blank."""
        self._has_ids, keeps = self.IDS, bool(self.fields.keep)
        for number, line, end in read_lines(self.file) if self._only is None else self._only:
            kept = NOTHING_KEPT
            try:
                if line is None:
                    raise BadLine(f"is longer than {MAX_LINE_BYTES >> 20} MiB")
                if self.table and isinstance(line, bytes):
                    said, line = line, None  # without a row there is nothing to copy
                    line = self.table.row(said)
                kept, wrong = self.fields.kept(line) if keeps else (kept, None)
                id, raw = self._decode(line)
                self._check_id(id)
                content = self._check(raw)
                if wrong:
                    raise wrong
            except BadLine as error:
                kept = kept or (self.fields.kept(line)[0] if keeps else kept)
                known, content = self._recover(line)
                if self._has_ids is None:
                    self._has_ids = self._first_has_an_id()
                if known is None and not self._has_ids:
                    known = self.file.id_of(number)
                yield Record(number, known, RecordError(number, error.field, str(error)), kept=kept), content, end
            else:
                yield Record(number, self.file.id_of(number) if id is None else id, kept=kept), content, end

    def _first_has_an_id(self) -> bool:
        """Whether the first readable line has an id. False if no line is readable."""
        for _, line, end in read_lines(self.file):
            with suppress(BadLine):
                if line is not None:
                    return self._decode(line)[0] is not None
            if end > FIRST_BYTES:
                break
        return False

    def _check_id(self, id: Id | None) -> None:
        given = id is not None
        if self._has_ids is None:
            self._has_ids = given
        if given and not self._has_ids:
            raise BadLine("is given, and the first line has none", "id")
        if self._has_ids and not given:
            raise BadLine("is missing, and the first line has one", "id")


def end_of(file: InputFile, count: int) -> int:
    """The offset at which the record with this number, from 1, ends. Raises InputError if there are fewer."""
    found = 0
    for _, _, end in read_lines(file):
        found += 1
        if found == count:
            return end
    raise too_few(file, found, count)


def too_few(file: InputFile, found: int, wanted: int | None) -> InputError:
    """The error for a file without records, or with fewer than requested."""
    asked = f"; {wanted:,} were asked for" if wanted else ""
    return InputError(
        f"the input holds {counted(found, 'record')}{asked}", path=file.path, remedy="lower -n" if found else None
    )


def read_lines(file: InputFile) -> Iterator[TextLine]:
    """Each line that is not blank; in CSV files each record without the headers."""
    number = 1
    for part in file.parts(0, file.size):
        file.begin_part(part, number, lambda: 0)
        if file.quoted:
            for at, record, end in quoted_records(part.file, 0, part.end, False, MAX_LINE_BYTES):
                if at and record != b"\r" and record != b"":
                    yield number + at, record, part.start + end
            number += line_starts(part.file, 0, part.end, False)[0] if part.start + part.end < file.size else 0
        else:
            number = yield from _read_lines(part, number)


def _read_lines(part: Part, first: int) -> Generator[TextLine, None, int]:
    """The lines of one file that are not blank. first: the number of its first line. Returns the first number of the
    next file."""
    file, carry = part.file, bytearray()
    number, too_long = first - 1, False
    for offset in range(0, file.size, CHUNK_BYTES):
        chunk = bytearray(min(CHUNK_BYTES, file.size - offset))
        file.read_into(chunk, offset)
        if offset + len(chunk) == file.size and not chunk.endswith(b"\n"):
            chunk += b"\n"
        start = len(BOM) if offset == 0 and chunk.startswith(BOM) else 0
        while (end := chunk.find(b"\n", start)) >= 0:
            carry += chunk[start:end]
            number += 1
            used = part.start + min(offset + end + 1, file.size)  # the last line may have no line end
            if too_long or len(carry) > MAX_LINE_BYTES:
                yield number, None, used
            elif not carry.isspace() and carry:
                yield number, bytes(carry), used
            carry.clear()
            start, too_long = end + 1, False
        too_long = too_long or len(carry) + len(chunk) - start > MAX_LINE_BYTES
        if too_long:
            carry.clear()
        else:
            carry += chunk[start:]
    return number + 1


def decode_text(line: bytes, field: str = "") -> str:
    """The line, or its field, as text. Raises BadLine, which names the first byte that is not UTF-8."""
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise BadLine(f"byte {error.start} is not UTF-8", field) from error


def convert_row(row: Row, kind: type[Fields]) -> Fields:
    """The fields of `kind`, checked like those of a JSON line. Raises BadLine."""
    for name, value in row.items():
        if isinstance(value, bytes):
            decode_text(value, name)
    try:
        return msgspec.convert(row, kind)
    except msgspec.ValidationError as error:
        raise json_error(error) from error


def json_error(error: Exception, line: bytes | bytearray = b"") -> BadLine:
    """Turn msgspec's "Expected `int`, got `str` - at `$.tokens[3]`" into a message and a field. line: the line that was
    decoded; empty for a value that was converted."""
    if isinstance(error, RecursionError):
        return BadLine("JSON is nested too deeply")
    if not isinstance(error, msgspec.ValidationError):
        said = _loosely(line)
        for name, value in said.items() if isinstance(said, dict) else ():
            if half := _half_pair(value):
                field = name if len(name) <= 64 and name.isidentifier() else ""
                return BadLine(f"\\u{ord(half):04x} is half of a surrogate pair", field)
    message, _, where = json_words(error, line).partition(" - at `$")
    message = message.replace("`", "").replace("Expected", "expected", 1)
    return BadLine(message, where.rstrip("`").lstrip("."))


def json_words(error: Exception, text: bytes | bytearray) -> str:
    """What is wrong with a JSON text. These are msgspec's words, except for a text that ends too early."""
    if str(error) != TRUNCATED:
        return str(error) or type(error).__name__
    if half := _half_pair(_loosely(text)):
        return f"\\u{ord(half):04x} is half of a surrogate pair"
    unread = ", or has half of a surrogate pair" if len(text) > LOOSE_BYTES else ""
    end = len(text.rstrip())
    return f"the JSON is not whole, it ends at byte {end:,}{unread}" if end else "it is empty where JSON is wanted"


def missing(fields: Iterable[str], field: str, option: str = "") -> BadLine:
    """The error for a missing field, with the names of the fields that are there. option: of the command line, which
    names another field to read."""
    found = [name if name.isprintable() else ascii(name) for name in fields]
    found = [name if len(name) <= 32 else f"{name[:29]}..." for name in found]
    more = [f"{len(found) - 5:,} more"] if len(found) > 6 else found[5:]
    there = f"; the record has {', '.join([*found[:5], *more])}" if found else ""
    other = f". Use {option} NAME to read another field" if option and set(found) - {"id"} else ""
    return BadLine(f"is missing{there}{other}", field)


def recovered(line: bytes | Row | None, kind: type[Fields]) -> Fields:
    """The ids that can still be read of a bad line (None: it is too long), or the defaults of `kind`.

    This also reads a line that is valid only in Python's JSON: half a surrogate pair, NaN, a tab in a string. A line
    that is longer than LOOSE_BYTES is not read.
    """
    if line is None:
        return kind()
    with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        if not isinstance(line, dict):
            return msgspec.json.decode(line, type=kind)
    said = line if isinstance(line, dict) else _loosely(line)
    with suppress(msgspec.MsgspecError, UnicodeEncodeError):
        given = {name: said[name] for name in kind.__struct_fields__ if name in said} if isinstance(said, dict) else {}
        found = msgspec.convert(given, kind)
        msgspec.json.encode(found)  # raises an error if the id itself has half a surrogate pair
        return found
    return kind()


def _loosely(line: bytes | bytearray) -> Any:
    """The line as Python reads it. None if it cannot, or if the line is longer than LOOSE_BYTES."""
    if len(line) > LOOSE_BYTES:
        return None
    with suppress(ValueError, RecursionError):
        return json.loads(line, strict=False)
    return None


def _half_pair(value: Any) -> str | None:
    """The first half surrogate pair in the texts of a value from JSON. None if there is none."""
    with suppress(RecursionError):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            return error.object[error.start]
    return None


def check_tokens(ids: list[int], vocabulary: int, name: str) -> None:
    """Raises BadLine, which names the field and the index, for the first id outside 0 to vocabulary - 1."""
    if ids and (min(ids) < 0 or max(ids) >= vocabulary):
        index = next(i for i, token in enumerate(ids) if not 0 <= token < vocabulary)
        rule = f"token id {ids[index]} is outside the vocabulary (ids 0 to {vocabulary - 1})"
        raise BadLine(rule, f"{name}[{index}]")
