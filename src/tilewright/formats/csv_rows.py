"""Rows of CSV and TSV files (RFC 4180): a header with the names of the fields, then one record per row. All are texts.

An empty cell of a sampling field, of a list of token ids or of the id means that the field is missing. A cell of a
sampling field or a list of token ids is read as JSON: 0.5, true, [1, 2]. All other cells are texts.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from tilewright.errors import InputError, counted
from tilewright.formats.files import InputFile
from tilewright.formats.lines import MAX_LINE_BYTES, LineReader, Row, decode_text
from tilewright.formats.quoted import quoted_records
from tilewright.formats.record_fields import RecordFields, check_columns
from tilewright.formats.records import BadLine
from tilewright.formats.sampling_fields import names_sampling

DELIMITERS = {".csv": ",", ".tsv": "\t"}
IDS = ("tokens", "input_ids", "prompt_token_ids", "continuation_token_ids")
TEXTS = ("stop", "stop_strings", "stop_sequences", "bad_words")  # a cell is one text, or a JSON list of texts


class Columns:
    """The header of a file, with which its records become rows. kind: ".csv" or ".tsv". fields: the ones that the user
    named.

    Raises InputError for a file without a header, and for a name that occurs twice.
    """

    def __init__(self, file: InputFile, kind: str, fields: RecordFields) -> None:
        self._delimiter = delimiter = DELIMITERS[kind]
        field = rf'"(?:[^"]|"")*+"|[^"{delimiter}]*+'
        self._record = re.compile(rf"(?:{field})(?:{delimiter}(?:{field}))*+")
        self._cell = re.compile(rf"(?:^|{delimiter})({field})")
        header = next(quoted_records(file, 0, file.size, False, MAX_LINE_BYTES), (0, b"", 0))[1]
        try:
            self.names = self._cells(header or b"")
        except BadLine as error:
            raise InputError(f"the header {error}", path=file.path, where="line 1") from error
        if self.names == [""]:
            raise InputError("the header is empty", path=file.path, where="line 1",
                             remedy="write the names of the fields into the first line, as in id,text")  # fmt: skip
        for i, name in enumerate(self.names):
            if name and name in self.names[:i]:
                raise InputError(f"the header has the name {name[:64]!r} twice", path=file.path, where="line 1",
                                 remedy="rename one of the columns")  # fmt: skip
        check_columns(self.names, fields, file.path)
        self._fields = fields

    def row(self, line: bytes) -> Row:
        """The fields of a record. Raises BadLine."""
        cells = self._cells(line)
        if len(cells) != len(self.names):
            raise BadLine(f"has {counted(len(cells), 'field')}; the header has {len(self.names):,}")
        return {name: value for name, cell in zip(self.names, cells, strict=True)
                if (value := self._value(name, cell)) is not None}  # fmt: skip

    def _value(self, name: str, cell: str) -> Any:
        """The value of a cell; None if it is missing."""
        if name == self._fields.content:
            return cell
        if name == "id":
            return cell or None
        is_list, is_sampling = name in IDS and self._fields.content is None, names_sampling(name)
        if not is_list and not is_sampling:
            return cell
        if not cell:
            return None
        if name in TEXTS and not cell.startswith("["):
            return cell
        try:
            return msgspec.json.decode(cell)
        except (msgspec.MsgspecError, RecursionError) as error:
            if is_list:
                raise BadLine(f"is {cell[:40]!r}; a JSON list such as [1, 2] is wanted", name) from error
            return cell

    def _cells(self, line: bytes) -> list[str]:
        """The cells of a record. Raises BadLine."""
        text = decode_text(line.removesuffix(b"\r"))
        if '"' not in text:
            return text.split(self._delimiter)
        if not self._record.fullmatch(text):
            if text.count('"') % 2:
                raise BadLine("has a quoted field that is not closed")
            raise BadLine("has a quote inside a field: put the field in quotes, and double the quotes in it")
        cells = self._cell.findall(text)
        return [cell[1:-1].replace('""', '"') if cell.startswith('"') else cell for cell in cells]


def as_table(reader: LineReader[Any, Any], kind: str) -> None:
    """Let a reader of JSON lines read the rows of its CSV or TSV file."""
    try:
        reader.table = Columns(reader.file, kind, reader.fields)
        reader.IDS = "id" in reader.table.names
    except BaseException:
        reader.close()
        raise
