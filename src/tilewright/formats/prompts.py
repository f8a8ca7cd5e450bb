"""Readers of prompts: JSON lines, OpenAI batch lines, a text file with one prompt per line, or the course's binary
files.

A JSON line is {"id": ..., "prompt": "text"}, or has "prompt_token_ids" (or "input_ids") instead, and may have its own
sampling fields. An OpenAI batch line has "custom_id", "method", "url" and a "body" with the prompt and these fields:
https://platform.openai.com/docs/guides/batch. `sampling_fields` says which are supported. A field that would change the
answer and is not supported is an error of the record. So is a name that is almost one of those, such as "tempreature".
All other fields of a line, and "model", are ignored, unless the user names them (record_fields.py).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec
import numpy as np

from tilewright.errors import InputError
from tilewright.formats.course import TokenFile
from tilewright.formats.json_keys import check_keys
from tilewright.formats.lines import (
    LineId,
    LineReader,
    Row,
    check_tokens,
    convert_row,
    decode_fields,
    decode_text,
    json_error,
    missing,
    recovered,
)
from tilewright.formats.model_inputs import value_of
from tilewright.formats.names import check_records_name, kind_of_records
from tilewright.formats.record_fields import PLAIN, RecordFields
from tilewright.formats.record_files import open_records
from tilewright.formats.records import BadLine, Id, Prompt, PromptBatch, RecordError
from tilewright.formats.sampling_fields import HONOURED, PROMPT_FIELDS, is_known, meant_by, refusal, shown

Encode = Callable[[str], list[int]]

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"

_Unset = msgspec.UnsetType
_Request = msgspec.defstruct(
    "_Request",
    [
        ("prompt", str | list[int] | _Unset, msgspec.UNSET),
        ("prompt_token_ids", list[int] | _Unset, msgspec.UNSET),
        ("input_ids", list[int] | _Unset, msgspec.UNSET),
        ("messages", msgspec.Raw | _Unset, msgspec.UNSET),
        *((name, Any, None) for name in HONOURED),
    ],
)
_Line = msgspec.defstruct(
    "_Line",
    [
        ("id", LineId, None),
        ("custom_id", LineId | _Unset, msgspec.UNSET),
        ("method", str, "POST"),
        ("url", str, COMPLETIONS),
        ("body", _Request | _Unset, msgspec.UNSET),
    ],
    bases=(_Request,),
)


def _naming(content: str) -> type:
    """A class for a line whose field `content` has the prompt. "custom_id" and "body" are then not read."""
    fields = [
        ("id", LineId, None),
        ("content", str | list[int] | _Unset, msgspec.UNSET),
        *((name, Any, None) for name in HONOURED),
    ]
    return msgspec.defstruct("_NamedLine", fields, rename={"content": content})


class _IdOnly(msgspec.Struct):
    id: LineId | None = None
    custom_id: LineId | None = None


_KNOWN = {*_Line.__struct_fields__, "model"}
_ATTRIBUTES = {name: name for name in PROMPT_FIELDS}  # field of a line -> attribute


class _Found(NamedTuple):
    """The content of a line. `field` is the name of the prompt's field, `prompt` its text or token ids."""

    field: str
    prompt: str | list[int]
    sampling: dict[str, Any]
    openai: bool


class _Content(NamedTuple):
    """The fields of `Prompt` with the same names."""

    token_ids: np.ndarray
    text: str | None = None
    sampling: dict[str, Any] = {}  # noqa: RUF012 - never written to
    openai: bool = False


_NO_TOKENS = np.zeros(0, np.int32)


class PromptLines(LineReader[_Found, _Content]):
    """Prompts of a JSONL file in batches. Lines that cannot be used become prompts with an error.

    encode: text -> token ids; None if the model has no tokenizer. If it raises InputError, the record has this error.
    Ids are 0 to vocabulary - 1. max_length: the most tokens of a prompt. fields: if they name the content, that field
    has the text or the token ids of the prompt, and no other field is read for it. count, memory and errors are
    LineReader's.
    """

    example = '{"id": ..., "prompt": "text"} or {"id": ..., "prompt_token_ids": [...]}'

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        encode: Encode | None,
        vocabulary: int,
        max_length: int,
        count: int | None = None,
        fields: RecordFields = PLAIN,
    ) -> None:
        super().__init__(path, count=count, example=self.example, fields=fields)
        content = fields.content
        self._line: type = _Line if content is None else _naming(content)
        self._data = [{name for name in fields.data if not is_known(name, body=body)} for body in (False, True)]
        self._attributes = _ATTRIBUTES if content is None else {content: "content"}
        self._decode_line: Callable[[bytes], Any] = msgspec.json.Decoder(self._line).decode
        self._encode = encode
        self._vocabulary = vocabulary
        self._max_length = max_length

    def batches(self, size: int) -> Iterator[PromptBatch]:
        """All prompts in order, `size` at a time."""
        for records, contents, end in self._groups(size):
            prompts = [
                Prompt(r.line, r.id, r.error, c.token_ids if r.error is None else _NO_TOKENS, *c[1:], kept=r.kept)
                for r, c in zip(records, contents, strict=True)
            ]
            yield PromptBatch(prompts, end)

    def _decode(self, line: bytes | Row) -> tuple[Id | None, _Found]:
        if isinstance(line, dict):
            row: Any = convert_row(line, self._line)
            return row.id, self._found(row, line, "")
        decode_text(line)
        try:
            record: Any = self._decode_line(line)
            outer = fields = decode_fields(line)
            body = getattr(record, "body", msgspec.UNSET)
            if body is not msgspec.UNSET:
                fields = decode_fields(fields["body"])
            check_keys(line, len(outer) + (len(fields) if fields is not outer else 0))
        except (msgspec.MsgspecError, RecursionError) as error:
            raise json_error(error, line) from error
        openai = body is not msgspec.UNSET or getattr(record, "custom_id", msgspec.UNSET) is not msgspec.UNSET
        if openai:
            _check_batch_line(record)
            _check_outside(outer)
            return record.custom_id, self._found(body, fields, "body.")
        return record.id, self._found(record, fields, "")

    def _found(self, request: Any, fields: dict[str, Any], inside: str) -> _Found:
        """The prompt and the sampling fields of a record. Raises BadLine unless it has exactly one prompt.

        fields: all of its fields, as JSON (msgspec.Raw) or values. inside: "body." for the fields of an OpenAI line's
        body.
        """
        names = tuple(self._attributes)
        given = [name for name in names if name in fields]
        data = self._data[bool(inside)]
        read = {name: fields[name] for name in fields.keys() - data} if data else fields
        _check_names(read, inside, HONOURED if given else names + HONOURED)
        if not given:
            raise missing(fields, f"{inside}{names[0]}", "" if inside else "--prompt-field")
        if getattr(request, "messages", msgspec.UNSET) is not msgspec.UNSET:
            given.append("messages")
        if len(given) > 1:
            other = " and ".join(given[1:])
            raise BadLine(f"is given together with {other}; one of them is wanted", f"{inside}{given[0]}")
        sampling = {
            name: value for name in HONOURED if name in fields and (value := getattr(request, name)) is not None
        }
        prompt = getattr(request, self._attributes[given[0]])
        return _Found(f"{inside}{given[0]}", prompt, sampling, bool(inside))

    def _check(self, raw: _Found) -> _Content:
        ids = raw.prompt if isinstance(raw.prompt, list) else self._encoded(raw.prompt, raw.field)
        if not ids:
            raise BadLine("is empty", raw.field)
        if len(ids) > self._max_length:
            raise BadLine(f"has {len(ids):,} tokens; at most {self._max_length:,} are possible", raw.field)
        check_tokens(ids, self._vocabulary, raw.field)
        text = raw.prompt if isinstance(raw.prompt, str) else None
        return _Content(np.array(ids, np.int32), text, raw.sampling, raw.openai)

    def _encoded(self, text: str, field: str) -> list[int]:
        if self._encode is None:
            raise BadLine("is text, and the model has no tokenizer.json: give prompt_token_ids", field)
        try:
            return self._encode(text)
        except InputError as error:
            raise BadLine(error.message, field) from error

    def _recover(self, line: bytes | Row | None) -> tuple[Id | None, _Content]:
        found = recovered(line, _IdOnly)
        openai = found.custom_id is not None and self.fields.content is None
        return (found.custom_id if openai else found.id), _Content(_NO_TOKENS, openai=openai)


def _check_names(fields: dict[str, Any], inside: str, wanted: tuple[str, ...]) -> None:
    """Raises BadLine for a field that would change the answer and is not supported, and for an unknown field whose name
    is almost that of a `wanted` one. fields, inside: as in `_found`."""
    body = bool(inside)
    for name in fields.keys() - _KNOWN:
        if not is_known(name, body=body):
            if (meant := meant_by(name, wanted)) and value_of(fields[name]) is not None:
                raise BadLine(f"is not a known field; did you mean {meant}?", f"{inside}{name}")
        elif rule := refusal(name, value := value_of(fields[name]), body=body):
            raise BadLine(f"is {shown(value)}; {rule}", f"{inside}{name}")


class PromptText(PromptLines):
    """Prompts of a UTF-8 text file, one per line. The number of the line is the id. Blank lines are skipped."""

    example = "a prompt"
    IDS = False

    def _decode(self, line: bytes | Row) -> tuple[Id | None, _Found]:
        assert isinstance(line, bytes)
        return None, _Found("", decode_text(line).removesuffix("\r"), {}, False)

    def _recover(self, line: bytes | Row | None) -> tuple[Id | None, _Content]:
        return None, _Content(_NO_TOKENS)


class PromptFile:
    """Prompts of a binary file, i32 [n][length]. The number of a prompt, from 1, is its id. Errors are TokenFile's."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        length: int,
        vocabulary: int,
        count: int | None = None,
        scan: int | None = None,
    ) -> None:
        self._rows = TokenFile(path, length=length, vocabulary=vocabulary, count=count, what="prompt", scan=scan)
        self.file, self.total, self.bytes = self._rows.file, self._rows.total, self._rows.bytes
        self._only: range | None = None
        self.hashes: list[np.ndarray] = []  # of ids; there are none

    def close(self) -> None:
        self._rows.close()

    def located(self, error: RecordError) -> RecordError:
        """The error unchanged, because there is only one file."""
        return error

    def only(self, rows: range) -> None:
        """Read only these rows next, counted from 0."""
        self._only = rows

    def batches(self, size: int) -> Iterator[PromptBatch]:
        """All prompts in order, `size` at a time. Their token ids are rows of one array."""
        number = 1 if self._only is None else self._only.start + 1
        for batch in self._rows.batches(size, self._only):
            numbers = range(number, number + len(batch))
            yield PromptBatch(
                [Prompt(i, i, token_ids=ids) for i, ids in zip(numbers, batch.tokens, strict=True)], batch.end
            )
            number += len(batch)


PromptReader = PromptLines | PromptFile


def open_prompts(
    path: str | os.PathLike[str],
    *,
    encode: Encode | None,
    vocabulary: int,
    max_length: int,
    length: int = 16,
    count: int | None = None,
    scan: int | None = None,
    fields: RecordFields = PLAIN,
) -> PromptReader:
    """The reader for a file, by its name: .jsonl for JSON lines; .parquet, .csv and .tsv for rows with the same fields;
    .txt for one prompt per line; .bin for binary.

    length: number of token ids of a prompt in a binary file, 16 in the course's. scan: as in TokenFile. The other
    arguments are those of PromptLines. Raises UsageError for another name, and InputError.
    """
    check_records_name(path, "input")
    if kind_of_records(path) == ".bin":
        return PromptFile(path, length=length, vocabulary=vocabulary, count=count, scan=scan)
    return open_records(PromptLines, PromptText, path, encode=encode, vocabulary=vocabulary, max_length=max_length,
                        count=count, fields=fields)  # fmt: skip


def _check_batch_line(record: Any) -> None:
    """Raises BadLine for an OpenAI batch line that asks for anything but a completion."""
    for name in ("custom_id", "body"):
        if getattr(record, name) is msgspec.UNSET:
            raise BadLine("is missing from a batch line", name)
    if record.method != "POST":
        raise BadLine(f"is {record.method[:40]!r}; POST is wanted", "method")
    if record.url == CHAT or record.body.messages is not msgspec.UNSET:
        raise BadLine(f"asks for a chat, and chat templates are not applied; use {COMPLETIONS} with a prompt", "url")
    if record.url != COMPLETIONS:
        raise BadLine(f"is {record.url[:80]!r}; {COMPLETIONS} is wanted", "url")


def _check_outside(fields: dict[str, msgspec.Raw]) -> None:
    """Raises BadLine for a sampling field outside the body of an OpenAI line, where nothing reads it."""
    for name in fields.keys() - {"custom_id", "method", "url", "body"}:
        if name in PROMPT_FIELDS or (is_known(name, body=False) and bytes(fields[name]) != b"null"):
            raise BadLine("stands beside the body; move it into the body", name)
