"""Sentences as JSON lines: {"id": ..., "text": ...}, with "text_pair" if it is a pair, {"tokens": [...]}, {"input_ids":
[...]} or a list alone. Also writes labels or errors.

Other fields of an input line are ignored, unless the user names them (record_fields.py). Either every line has an id (a
string or a 64-bit integer), or none has. Then the number of the line, from 1, is its id.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from tilewright.errors import InputError
from tilewright.formats.files import Writable
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
    naming,
    recovered,
)
from tilewright.formats.model_inputs import BESIDE, check_beside
from tilewright.formats.record_fields import PLAIN, RecordFields, kept_in
from tilewright.formats.records import BadLine, Batch, Id, RecordError
from tilewright.formats.sentence_encoder import Content, Pair, SentenceEncoder


class _Line(msgspec.Struct):
    id: LineId | msgspec.UnsetType = msgspec.UNSET
    attention_mask: Any = msgspec.UNSET
    inputs_embeds: Any = msgspec.UNSET
    position_ids: Any = msgspec.UNSET
    token_type_ids: Any = msgspec.UNSET
    tokens: list[int] | msgspec.UnsetType = msgspec.UNSET
    input_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


class _TextLine(_Line):
    text: str | msgspec.UnsetType = msgspec.UNSET
    text_pair: str | msgspec.UnsetType = msgspec.UNSET


class _IdOnly(msgspec.Struct):
    id: LineId | None = None


def _naming(content: str, *, text: bool) -> type:
    """A class for a line whose field `content` has token ids, or a text."""
    more: list[tuple[str, Any, Any]] = [(name, Any, msgspec.UNSET) for name in BESIDE]
    if text and content != "text_pair":
        more.append(("text_pair", str | msgspec.UnsetType, msgspec.UNSET))
    return naming(content, str | list[int] if text else list[int], more)


_decode_list = msgspec.json.Decoder(list[int]).decode


class TokenLines(LineReader[tuple[str, Content], Content]):
    """Sentences of a JSONL file in batches. Lines that cannot be used become records with an error.

    length: number of token ids of a sentence. Ids are 0 to vocabulary - 1. encoder: of the model's tokenizer. With it a
    line may give a text, or fewer ids. None: "text" is ignored like other fields. fields: if they name the content,
    that field has the text or the token ids, and no other field is read for them. count, memory and errors are
    LineReader's.
    """

    example = '{"id": ..., "tokens": [...]}'
    example_of_text = '{"id": ..., "text": "a sentence"}'

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        length: int,
        vocabulary: int,
        encoder: SentenceEncoder | None = None,
        count: int | None = None,
        fields: RecordFields = PLAIN,
    ) -> None:
        super().__init__(path, count=count, example=self.example_of_text if encoder else self.example, fields=fields)
        self._length = length
        self._vocabulary = vocabulary
        self._encoder = encoder
        names = ("text", "tokens", "input_ids") if encoder else ("tokens", "input_ids")
        self._names = {name: name for name in names}  # field -> attribute
        kind: type = _TextLine if encoder else _Line
        if fields.content is not None:
            self._names, kind = {fields.content: "content"}, _naming(fields.content, text=encoder is not None)
        self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(kind)
        self.length = encoder.length if encoder else length

    def batches(self, size: int) -> Iterator[Batch]:
        """All records in order, `size` at a time."""
        for records, sentences, end in self._groups(size):
            good = [content for content, record in zip(sentences, records, strict=True) if record.error is None]
            if self._encoder:
                found = self._encoder.encoded_pairs(good)
                yield Batch(found.tokens, end, records, found.cut, found.seconds if found.seconds.any() else None)
            else:
                yield Batch(np.array(good, np.int32).reshape(-1, self._length), end, records)

    def _decode(self, line: bytes | Row) -> tuple[Id | None, tuple[str, Content]]:
        if isinstance(line, dict):
            return self._found(convert_row(line, self._decoder.type), line)
        decode_text(line)
        try:
            if line.lstrip().startswith(b"[") and self.fields.content is None:
                return None, ("", _decode_list(line))
            record = self._decoder.decode(line)
            found = sum([value is not msgspec.UNSET for value in msgspec.structs.astuple(record)])
            check_keys(line, found)
            return self._found(record, line, plain=found == 1 + (record.id is not msgspec.UNSET))
        except (msgspec.MsgspecError, RecursionError) as error:
            raise json_error(error, line) from error

    def _found(self, record: Any, line: bytes | Row, *, plain: bool = False) -> tuple[Id | None, tuple[str, Content]]:
        """The id of a line or row, and (name, content) of the field with its sentence. Raises BadLine unless there is
        exactly one such field. plain: the record has one known field besides its id."""
        if not plain:
            check_beside({name: value for name in BESIDE if (value := getattr(record, name)) is not msgspec.UNSET})
        given = [name for name, at in self._names.items() if getattr(record, at) is not msgspec.UNSET]
        if not given:
            raise missing(
                line if isinstance(line, dict) else decode_fields(line), next(iter(self._names)), "--text-field"
            )
        if len(given) > 1:
            raise BadLine(f"is given together with {' and '.join(given[1:])}; one of them is wanted", given[0])
        content, second = getattr(record, self._names[given[0]]), getattr(record, "text_pair", msgspec.UNSET)
        if second is not msgspec.UNSET:
            if not isinstance(content, str):
                raise BadLine(f"is given together with {given[0]}; it goes with a text", "text_pair")
            content = Pair(content, second)
        return (None if record.id is msgspec.UNSET else record.id), (given[0], content)

    def _check(self, raw: tuple[str, Content]) -> Content:
        name, content = raw
        if isinstance(content, Pair):
            assert self._encoder is not None
            try:
                return self._encoder.checked_pair(*content)
            except InputError as error:
                raise BadLine(error.message, error.where or name) from error
        if not isinstance(content, str):
            check_tokens(content, self._vocabulary, name)
        if self._encoder is None:
            if len(content) != self._length:
                raise BadLine(f"has {len(content)} ids; the model takes {self._length}", name)
            return content
        try:
            return self._encoder.checked(content) if isinstance(content, str) else self._encoder.filled(content)
        except InputError as error:
            raise BadLine(error.message, name) from error

    def _recover(self, line: bytes | Row | None) -> tuple[Id | None, Content]:
        return recovered(line, _IdOnly).id, []


ANSWER = frozenset({"id", "label", "score", "logits", "error"})  # the fields that LabelWriter writes


class LabelWriter:
    """Writes one line per record to an open AtomicFile: {"id", "label", "score", "logits"}, or {"id", "error"}.

    Copied fields follow the id. error: {"line", "field", "message"}. answers: turns finite logits (n, labels) into
    label and score of each row. located: `LineReader.located`.
    """

    def __init__(
        self,
        file: Writable,
        answers: Callable[[np.ndarray], Sequence[Mapping[str, Any]]],
        located: Callable[[RecordError], RecordError] = lambda error: error,
    ) -> None:
        self.file = file
        self._answers, self._located = answers, located
        self._encode_lines = msgspec.json.Encoder().encode_lines

    def write(self, batch: Batch, logits: np.ndarray) -> list[RecordError]:
        """logits: float32 (n, labels) of the batch's n good records. Returns the errors of records whose logits are not
        finite."""
        finite = np.isfinite(logits).all(axis=1)
        good = logits[finite]
        is_finite, answered = iter(finite.tolist()), zip(self._answers(good), good, strict=True)
        overflows = []
        lines: list[dict[str, Any]] = []
        for record in batch.records or ():
            error = record.error
            if error is None:
                if next(is_finite):
                    answer, row = next(answered)
                    shortest = [float(str(x)) for x in row]  # the fewest digits that identify a float32
                    lines.append({"id": record.id, **record.kept, **answer, "logits": shortest})
                    continue
                error = RecordError(record.line, "", "the logits are not finite: the weights are too large")
                overflows.append(error)
            lines.append({"id": record.id, **record.kept, "error": self._located(error)})
        self.file.write(self._encode_lines(lines))
        return overflows


def error_line(said: bytes, error: RecordError) -> bytes:
    """The line that replaces `said`, which LabelWriter wrote before, for a record that now has this error."""
    fields = msgspec.json.decode(said, type=dict[str, msgspec.Raw])
    return msgspec.json.encode({"id": fields["id"], **kept_in(fields, ANSWER), "error": error}) + b"\n"
