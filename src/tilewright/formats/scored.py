"""Texts to score and their scores: JSON lines for both, or a text file with one text per line as input.

A JSON line is {"id": ..., "context": "text", "continuation": "text"}, or {"id": ..., "text": "text"} for a text alone.
"prompt" is another name of "context". Each of them is a text or a list of token ids. "prompt_token_ids",
"continuation_token_ids" and "tokens" are token ids, too. All other fields are ignored. If the user names the field of
the text (record_fields.py), that field is a text alone, and no other field is read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec
import numpy as np

from tilewright.errors import InputError, UsageError
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
from tilewright.formats.model_inputs import check_beside
from tilewright.formats.record_fields import PLAIN, RecordFields, kept_in
from tilewright.formats.record_files import open_records
from tilewright.formats.records import Id, Record, RecordError

Tokens = str | list[int]
T = TypeVar("T")  # the prepared form of a record
_Unset = msgspec.UnsetType
CONTEXTS, CONTINUATIONS, TEXTS = (
    ("context", "prompt", "prompt_token_ids"), ("continuation", "continuation_token_ids"), ("text", "tokens"),
)  # fmt: skip
_Line = msgspec.defstruct(
    "_Line",
    [("id", LineId | _Unset, msgspec.UNSET),
     *((name, (list[int] if name.endswith(("_ids", "tokens")) else Tokens) | _Unset, msgspec.UNSET)
       for name in (*CONTEXTS, *CONTINUATIONS, *TEXTS))],
)  # fmt: skip
# the fields that ScoreWriter writes
ANSWER = frozenset({"id", "logprob", "is_greedy", "token_ids", "token_logprobs", "cut", "error"})


class _IdOnly(msgspec.Struct):
    id: LineId | None = None


class Given(NamedTuple):
    """The content of a line. context: None for a text alone, which is in `scored`. field: the name of the scored
    field."""

    context: Tokens | None
    scored: Tokens
    field: str


@dataclass(frozen=True, slots=True)
class ScoredBatch(Generic[T]):
    """Records in the order of the input, each with its prepared form; None for a bad one. end: bytes of the input used
    up to now."""

    records: list[Record]
    contents: list[T | None]
    end: int


class ScoredLines(LineReader[Given, T | None], Generic[T]):
    """Texts to score of a JSONL file in batches. Lines that cannot be used become records with an error.

    prepare: turns (context, scored) into the form that is computed. If it raises UsageError or InputError, the record
    has this error. Ids are 0 to vocabulary - 1. fields: if they name the content, only that field is read: a text
    alone, or its token ids. count, memory and errors are LineReader's.
    """

    example = '{"id": ..., "context": "text", "continuation": "text"} or {"id": ..., "text": "text"}'

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        prepare: Callable[[Tokens | None, Tokens], T],
        vocabulary: int,
        count: int | None = None,
        fields: RecordFields = PLAIN,
    ) -> None:
        super().__init__(path, count=count, example=self.example, fields=fields)
        self._prepare, self._vocabulary = prepare, vocabulary
        self._line: type = _Line if fields.content is None else naming(fields.content, Tokens)
        self._decode_line: Callable[[bytes], Any] = msgspec.json.Decoder(self._line).decode

    def batches(self, size: int) -> Iterator[ScoredBatch[T]]:
        """All records in order, `size` at a time."""
        for records, contents, end in self._groups(size):
            good = [c if r.error is None else None for r, c in zip(records, contents, strict=True)]
            yield ScoredBatch(records, good, end)

    def _decode(self, line: bytes | Row) -> tuple[Id | None, Given]:
        if isinstance(line, dict):
            return self._found(convert_row(line, self._line), line)
        decode_text(line)
        try:
            record = self._decode_line(line)
            fields = decode_fields(line)
            check_keys(line, len(fields))
        except (msgspec.MsgspecError, RecursionError) as error:
            raise json_error(error, line) from error
        return self._found(record, fields)

    def _found(self, record: Any, fields: Row) -> tuple[Id | None, Given]:
        """The id, and what is to be scored. Raises BadLine unless the record is a pair or a text alone."""
        check_beside(fields)
        own = None if record.id is msgspec.UNSET else record.id
        if (name := self.fields.content) is not None:
            if record.content is msgspec.UNSET:
                raise missing(fields, name)
            return own, Given(None, record.content, name)
        context, continuation, text = map(_one_of(record), (CONTEXTS, CONTINUATIONS, TEXTS))
        if text and (context or continuation):
            raise BadLine(f"is given together with {context or continuation}; a text alone has neither", text)
        if text:
            return own, Given(None, getattr(record, text), text)
        if context and continuation:
            return own, Given(getattr(record, context), getattr(record, continuation), continuation)
        raise missing(fields, CONTINUATIONS[0] if context else CONTEXTS[0] if continuation else TEXTS[0])

    def _check(self, raw: Given) -> T:
        for name, tokens in (("context", raw.context), (raw.field, raw.scored)):
            if isinstance(tokens, list):
                check_tokens(tokens, self._vocabulary, name)
        try:
            return self._prepare(raw.context, raw.scored)
        except (UsageError, InputError) as error:
            raise BadLine(_said(error), raw.field) from error

    def _recover(self, line: bytes | Row | None) -> tuple[Id | None, T | None]:
        return recovered(line, _IdOnly).id, None


def _one_of(record: Any) -> Callable[[tuple[str, ...]], str]:
    """A function that finds which one of several names a record has; "" for none. Raises BadLine for more than one."""

    def find(names: tuple[str, ...]) -> str:
        given = [name for name in names if getattr(record, name) is not msgspec.UNSET]
        if len(given) > 1:
            raise BadLine(f"is given together with {' and '.join(given[1:])}; one of them is wanted", given[0])
        return given[0] if given else ""

    return find


def _said(error: UsageError | InputError) -> str:
    """The message with its remedy, without a path."""
    return f"{error.message}; {error.remedy}" if error.remedy else error.message


class ScoredText(ScoredLines[T]):
    """Texts alone of a UTF-8 text file, one per line. The number of the line is the id. Blank lines are skipped."""

    example = "a text"
    IDS = False

    def _decode(self, line: bytes | Row) -> tuple[Id | None, Given]:
        assert isinstance(line, bytes)
        return None, Given(None, decode_text(line).removesuffix("\r"), "")

    def _recover(self, line: bytes | Row | None) -> tuple[Id | None, T | None]:
        return None, None


def open_scored(
    path: str | os.PathLike[str],
    *,
    prepare: Callable[[Tokens | None, Tokens], T],
    vocabulary: int,
    count: int | None = None,
    fields: RecordFields = PLAIN,
) -> ScoredLines[T]:
    """The reader for a file, by its name; see `open_records`. The arguments are those of ScoredLines."""
    lines, text = ScoredLines[T], ScoredText[T]
    return open_records(lines, text, path, prepare=prepare, vocabulary=vocabulary, count=count, fields=fields)


class Scores(NamedTuple):
    """The values of an output line. logprob: the sum. cut: number of context tokens that were not read."""

    token_ids: list[int]
    logprobs: list[float]
    logprob: float
    is_greedy: bool
    cut: int


class ScoreWriter:
    """Writes one line per record to an open AtomicFile: {"id", "logprob", "is_greedy", "token_ids", "token_logprobs",
    "cut"?}, or {"id", "error": {"line", "field", "message"}}. Kept fields follow the id."""

    def __init__(self, file: Writable) -> None:
        self.file = file
        self._encode_lines = msgspec.json.Encoder().encode_lines

    def write(self, results: Iterable[tuple[Record, Scores | None]]) -> None:
        """results: records and their scores, in the order of the input. Raises ResourceError."""
        self.file.write(self._encode_lines([_answer(*result) for result in results]))


def _answer(record: Record, scores: Scores | None) -> dict[str, Any]:
    if scores is None:
        return {"id": record.id, **record.kept, "error": record.error}
    values = [float(str(np.float32(value))) for value in scores.logprobs]  # the fewest digits that identify them
    answer = {"id": record.id, **record.kept, "logprob": scores.logprob, "is_greedy": scores.is_greedy,
              "token_ids": scores.token_ids, "token_logprobs": values}  # fmt: skip
    return answer | {"cut": scores.cut} if scores.cut else answer


def error_line(said: bytes, error: RecordError) -> bytes:
    """The line that replaces `said`, which ScoreWriter wrote before, for a record that now has this error."""
    fields = msgspec.json.decode(said, type=dict[str, msgspec.Raw])
    return msgspec.json.encode({"id": fields["id"], **kept_in(fields, ANSWER), "error": error}) + b"\n"
