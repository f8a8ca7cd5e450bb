"""Readers of texts and writers of their vectors: JSON lines, OpenAI batch lines for /v1/embeddings, or a text file with
one text per line.

A JSON line is {"id": ..., "text": "..."}, or has "tokens" (or "input_ids") instead of "text". Its other fields are
ignored. An OpenAI batch line has "custom_id", "method", "url" and a "body". The body has "input": a text, a list of
texts, a list of token ids or a list of such lists. It may have "dimensions", "encoding_format", "model" and "user":
https://platform.openai.com/docs/guides/batch. Any other field of the body is an error of the record. If the user names
the field of the text (record_fields.py), no line is an OpenAI batch line.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import msgspec
import numpy as np

from tilewright.errors import InputError
from tilewright.formats.files import Writable
from tilewright.formats.json_keys import check_keys
from tilewright.formats.lines import (
    BadLine,
    LineId,
    LineReader,
    Row,
    check_tokens,
    convert_row,
    decode_fields,
    decode_text,
    json_error,
    missing,
    naming,
    recovered,
)
from tilewright.formats.model_inputs import check_beside, value_of
from tilewright.formats.record_fields import PLAIN, RecordFields, kept_in
from tilewright.formats.record_files import open_records
from tilewright.formats.records import Id, Record, RecordError, batch_error
from tilewright.formats.sampling_fields import shown
from tilewright.formats.sentence_encoder import RaggedEncoder, Text

OUTPUTS = (".npy", ".jsonl", ".parquet")
EMBEDDINGS = "/v1/embeddings"
BODY = ("input", "dimensions", "encoding_format", "model", "user")
NAMES = ("text", "tokens", "input_ids")
MOST_INPUTS = 2048  # of one line, OpenAI's limit
# the fields that EmbeddingWriter writes
ANSWER = frozenset({"id", "custom_id", "response", "error", "embedding"})

_Unset = msgspec.UnsetType


class _Line(msgspec.Struct):
    id: LineId | _Unset = msgspec.UNSET
    text: str | _Unset = msgspec.UNSET
    tokens: list[int] | _Unset = msgspec.UNSET
    input_ids: list[int] | _Unset = msgspec.UNSET
    custom_id: LineId | _Unset = msgspec.UNSET
    method: str = "POST"
    url: str = EMBEDDINGS
    body: msgspec.Raw | _Unset = msgspec.UNSET


class _Body(msgspec.Struct):
    input: Any = None
    dimensions: int | None = None
    encoding_format: str | None = None
    model: str | None = None


class _IdOnly(msgspec.Struct):
    id: LineId | None = None
    custom_id: LineId | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """The request of a line. contents: its texts or token ids. dimensions: of its vectors; None: the job's. openai: it
    is an OpenAI batch line. as_bytes: its vectors are written in base64. model: the name that it gives."""

    contents: tuple[Text, ...] = ()
    dimensions: int | None = None
    openai: bool = False
    as_bytes: bool = False
    model: str | None = None


class _Found(NamedTuple):
    """A line's request before it is checked, and the name of the field with its texts."""

    name: str
    request: Request


@dataclass(frozen=True, slots=True)
class TextBatch:
    """records: all records in order, including bad ones. requests: one per record. tokens: int32 (texts, longest) of
    the good records' texts. end: bytes of the input used up to now. cut: number of texts that have more tokens than the
    model takes."""

    records: list[Record]
    requests: list[Request]
    tokens: np.ndarray
    end: int
    cut: int = 0

    def __len__(self) -> int:
        return len(self.records)

    @property
    def errors(self) -> list[RecordError]:
        return [record.error for record in self.records if record.error]


class EmbeddingLines(LineReader[_Found, Request]):
    """Texts of a JSONL file in batches. Lines that cannot be used become records with an error.

    encoder: from text to token ids. Ids of lines are 0 to vocabulary - 1. size: the most elements of a vector, for
    `dimensions` of a line. one_size: the output is an array, so all vectors have `size` elements, and a line has one
    text. fields: if they name the content, only that field is read as text or token ids. count, memory and errors are
    LineReader's.
    """

    example = '{"id": ..., "text": "a text"}'

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        encoder: RaggedEncoder,
        vocabulary: int,
        size: int,
        one_size: bool = False,
        count: int | None = None,
        fields: RecordFields = PLAIN,
    ) -> None:
        super().__init__(path, count=count, example=self.example, fields=fields)
        content = fields.content
        self._line: type = _Line if content is None else naming(content, Text)
        self._names = {name: name for name in NAMES} if content is None else {content: "content"}
        self._decode_line: Callable[[bytes], Any] = msgspec.json.Decoder(self._line).decode
        self._encoder, self._vocabulary, self._size, self._one_size = encoder, vocabulary, size, one_size

    def batches(self, size: int) -> Iterator[TextBatch]:
        """All records in order, `size` at a time."""
        for records, requests, end in self._groups(size):
            good = [request for record, request in zip(records, requests, strict=True) if record.error is None]
            tokens, cut = self._encoder.encoded([content for request in good for content in request.contents])
            yield TextBatch(records, requests, tokens, end, cut)

    def _decode(self, line: bytes | Row) -> tuple[Id | None, _Found]:
        if isinstance(line, dict):
            return self._of_record(convert_row(line, self._line), line)
        decode_text(line)
        try:
            record = self._decode_line(line)
            fields = decode_fields(line)
            given = [
                name for name in ("body", "custom_id") if getattr(record, name, msgspec.UNSET) is not msgspec.UNSET
            ]
            inside = decode_fields(fields["body"]) if "body" in given else {}
            check_keys(line, len(fields) + len(inside))
            if given:
                return self._of_request(record, inside, fields)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise json_error(error, line) from error
        return self._of_record(record, fields)

    def _of_record(self, record: Any, fields: dict[str, Any]) -> tuple[Id | None, _Found]:
        given = [name for name, at in self._names.items() if getattr(record, at) is not msgspec.UNSET]
        if not given:
            raise missing(fields, next(iter(self._names)), "--text-field")
        if len(given) > 1:
            raise BadLine(f"is given together with {' and '.join(given[1:])}; one of them is wanted", given[0])
        check_beside(fields)
        self._check_dimensions(fields)
        request = Request((getattr(record, self._names[given[0]]),))
        return (None if record.id is msgspec.UNSET else record.id), _Found(given[0], request)

    def _check_dimensions(self, fields: dict[str, Any]) -> None:
        """Raises BadLine for a number of elements that a line without a body asks for, where nothing reads it."""
        if "dimensions" not in fields or self.fields.content is not None:
            return
        asked = value_of(fields["dimensions"])
        if type(asked) is int and asked != self._size:
            raise BadLine(f"is {shown(asked)}; this is not read here: give --dimensions", "dimensions")

    def _of_request(
        self, record: _Line, inside: dict[str, msgspec.Raw], outside: dict[str, msgspec.Raw]
    ) -> tuple[Id | None, _Found]:
        for name in ("custom_id", "body"):
            if getattr(record, name) is msgspec.UNSET:
                raise BadLine("is missing from a batch line", name)
        for name in ("input", "dimensions", "encoding_format"):
            if bytes(outside.get(name, b"null")) != b"null":
                raise BadLine("stands beside the body; move it into the body", name)
        if record.method != "POST":
            raise BadLine(f"is {record.method[:40]!r}; POST is wanted", "method")
        if record.url != EMBEDDINGS:
            raise BadLine(f"is {record.url[:80]!r}; {EMBEDDINGS} is wanted", "url")
        for name in inside.keys() - set(BODY):
            if bytes(inside[name]) != b"null":
                raise BadLine(f"is not supported; the known fields are {', '.join(BODY)}", f"body.{name}")
        body: _Body = msgspec.json.decode(record.body, type=_Body)  # type: ignore[arg-type]
        if body.encoding_format not in (None, "float", "base64"):
            raise BadLine(f"is {body.encoding_format!r:.80}; float and base64 are known", "body.encoding_format")
        if body.input is None:
            raise missing(inside, "body.input")
        as_bytes = body.encoding_format == "base64"
        request = Request(_inputs(body.input), body.dimensions, openai=True, as_bytes=as_bytes, model=body.model)
        assert not isinstance(record.custom_id, _Unset)
        return record.custom_id, _Found("body.input", request)

    def _check(self, raw: _Found) -> Request:
        name, request = raw
        if self._one_size and len(request.contents) > 1:
            raise BadLine(f"has {len(request.contents):,} texts; this output has one vector per line", name)
        if request.dimensions is not None and not 1 <= request.dimensions <= self._size:
            raise BadLine(f"is {request.dimensions}; 1 to {self._size} are possible", "body.dimensions")
        if self._one_size and request.dimensions not in (None, self._size):
            what = f"is {request.dimensions}; all vectors of this output have {self._size} elements"
            raise BadLine(what, "body.dimensions")
        several = len(request.contents) > 1
        checked = [
            self._checked(content, f"{name}[{i}]" if several else name) for i, content in enumerate(request.contents)
        ]
        return replace(request, contents=tuple(checked))

    def _checked(self, content: Text, name: str) -> Text:
        if not isinstance(content, str):
            check_tokens(content, self._vocabulary, name)
        try:
            return self._encoder.checked(content) if isinstance(content, str) else self._encoder.filled(content)
        except InputError as error:
            raise BadLine(error.message, name) from error

    def _recover(self, line: bytes | Row | None) -> tuple[Id | None, Request]:
        found = recovered(line, _IdOnly)
        openai = found.custom_id is not None and self.fields.content is None
        return (found.custom_id if openai else found.id), Request(openai=openai)


class EmbeddingText(EmbeddingLines):
    """Texts of a UTF-8 text file, one per line. The number of the line is the id. Blank lines are skipped."""

    example = "a text"
    IDS = False

    def _decode(self, line: bytes | Row) -> tuple[Id | None, _Found]:
        assert isinstance(line, bytes)
        return None, _Found("", Request((decode_text(line).removesuffix("\r"),)))

    def _recover(self, line: bytes | Row | None) -> tuple[Id | None, Request]:
        return None, Request()


def open_texts(path: str | os.PathLike[str], **options: Any) -> EmbeddingLines:
    """The reader for a file, by its name; see `open_records`. options: as for EmbeddingLines."""
    return open_records(EmbeddingLines, EmbeddingText, path, **options)


def _inputs(value: Any) -> tuple[Text, ...]:
    """The texts or lists of token ids of a body's input. Raises BadLine."""
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list) and value and all(type(item) is int for item in value):
        return (value,)
    lists = isinstance(value, list) and all(
        isinstance(item, str) or (isinstance(item, list) and all(type(id) is int for id in item)) for item in value
    )
    if not lists or not 1 <= len(value) <= MOST_INPUTS:
        rule = f"a text, token ids, or a list of 1 to {MOST_INPUTS:,} of them is wanted"
        raise BadLine(f"is {str(value)[:80]}; {rule}", "body.input")
    return tuple(value)


class Embedded(NamedTuple):
    """A record with its vectors, float32 (D,) for each of its texts; none if it has an error. tokens: of its texts."""

    record: Record
    request: Request
    vectors: Sequence[np.ndarray]
    tokens: int


class EmbeddingWriter:
    """Writes one line per record to an open AtomicFile: {"id", "embedding"}, or {"id", "error": {"line", "field",
    "message"}}. Kept fields follow the id.

    An OpenAI batch line is answered in OpenAI's form. Numbers have as many digits as identify the float32. plain: an
    OpenAI batch line gets the same form as other lines, for a table.
    """

    def __init__(self, file: Writable, *, plain: bool = False) -> None:
        self.file, self._plain = file, plain
        self._encode_lines = msgspec.json.Encoder().encode_lines

    def write(self, found: Sequence[Embedded]) -> None:
        """found: the records in the order of the input. Raises ResourceError."""
        self.file.write(self._encode_lines([self._line(one) for one in found]))

    def _line(self, one: Embedded) -> dict[str, Any]:
        if one.request.openai and not self._plain:
            return _answer(one)
        line = {"id": one.record.id, **one.record.kept}
        return line | ({"error": one.record.error} if one.record.error else {"embedding": numbers(one.vectors[0])})


class RowWriter:
    """Writes one row of `size` float32 per record: NaN for a record with an error."""

    def __init__(self, file: Writable, size: int) -> None:
        self.file, self._size = file, size

    def write(self, found: Sequence[Embedded]) -> None:
        """See `EmbeddingWriter.write`."""
        rows = np.full((len(found), self._size), np.nan, "<f4")
        for row, one in zip(rows, found, strict=True):
            if one.record.error is None:
                row[:] = one.vectors[0]
        self.file.write(rows.tobytes())


def numbers(vector: np.ndarray) -> msgspec.Raw:
    """A float32 vector as JSON. Nine digits identify each float32."""
    return msgspec.Raw(("[" + ",".join(["%.9g"] * len(vector)) + "]").encode() % tuple(vector.tolist()))


def error_line(said: bytes, error: RecordError) -> bytes:
    """The line that replaces `said`, which EmbeddingWriter wrote before, for a record that now has this error."""
    answer = msgspec.json.decode(said, type=dict[str, msgspec.Raw])
    openai = "custom_id" in answer
    id = msgspec.json.decode(answer["custom_id" if openai else "id"])
    record = Record(error.line, id, error, kept=kept_in(answer, ANSWER))
    if openai:
        return msgspec.json.encode(_answer(Embedded(record, Request(openai=True), (), 0))) + b"\n"
    return msgspec.json.encode({"id": id, **record.kept, "error": error}) + b"\n"


def error_row(said: bytes, error: RecordError) -> bytes:
    """The same for RowWriter."""
    return np.full(len(said) // 4, np.nan, "<f4").tobytes()


def _answer(one: Embedded) -> dict[str, Any]:
    """The answer to an OpenAI batch line. It has no times or random ids, so that the same job writes the same bytes."""
    line: dict[str, Any] = {"id": f"batch_req_{one.record.line}", "custom_id": one.record.id, **one.record.kept}
    if one.record.error:
        return line | {"response": None, "error": batch_error(one.record.error)}
    write = _base64 if one.request.as_bytes else numbers
    data = [{"object": "embedding", "index": i, "embedding": write(vector)} for i, vector in enumerate(one.vectors)]
    usage = {"prompt_tokens": one.tokens, "total_tokens": one.tokens}
    body = {"object": "list", "data": data, "model": one.request.model, "usage": usage}
    return line | {"response": {"status_code": 200, "body": body}, "error": None}


def _base64(vector: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(vector, "<f4").tobytes()).decode()
