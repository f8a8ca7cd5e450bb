"""Sentences as JSON lines: {"id": ..., "tokens": [...]}, {"input_ids": [...]} or a bare list; labels or errors out.

Other fields of an input line are ignored. Either every line has an id (a string or a 64-bit integer), or none has and
the number of the line, from 1, is its id.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Annotated, Any

import msgspec
import numpy as np

from tilewright.errors import InputError
from tilewright.formats.atomic import AtomicFile
from tilewright.formats.files import InputFile
from tilewright.formats.records import Batch, Id, Record, RecordError

MAX_LINE_BYTES = 16 << 20
CHUNK_BYTES = 1 << 20

_Id = Annotated[str, msgspec.Meta(max_length=512)] | Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class _Line(msgspec.Struct):
    id: _Id | msgspec.UnsetType = msgspec.UNSET
    tokens: list[int] | msgspec.UnsetType = msgspec.UNSET
    input_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


class _IdOnly(msgspec.Struct):
    id: _Id | None = None


_decode_line = msgspec.json.Decoder(_Line).decode
_decode_list = msgspec.json.Decoder(list[int]).decode
_decode_id = msgspec.json.Decoder(_IdOnly).decode


class _Bad(Exception):
    """A rule that a line breaks, and the field."""

    def __init__(self, message: str, field: str = "") -> None:
        super().__init__(message)
        self.field = field


class TokenLines:
    """Records of a JSONL file in batches; lines that cannot be used become records with an error.

    count: how many records to use from the start; None: all. Blank lines are skipped. Memory does not grow with the
    file, but for 8 bytes an id to find ids given twice (by 64-bit hashes: two different ids of a million meet by
    chance once in 40 million files). Raises InputError for an empty file, or one that shrinks, or holds fewer than
    `count` records.
    """

    def __init__(self, path: str | os.PathLike[str], *, length: int, vocabulary: int, count: int | None = None) -> None:
        self._length = length
        self._vocabulary = vocabulary
        self._count = count
        self.file = InputFile(path, "input")
        self.total = count
        self.bytes = self.file.size
        self._has_ids: bool | None = None
        if self.bytes == 0:
            self.close()
            raise InputError("the input is empty", path=self.file.path, hint='a line is {"id": ..., "tokens": [...]}')

    def close(self) -> None:
        self.file.close()

    def batches(self, size: int) -> Iterator[Batch]:
        """All records in order, `size` at a time."""
        seen, found = _SeenIds(), 0
        records: list[Record] = []
        sentences: list[list[int]] = []
        for record, ids, end in self._records():
            records.append(record)
            sentences.append(ids)
            found += 1
            if len(records) == size or found == self._count:
                yield self._batch(records, sentences, seen, end)
                records, sentences = [], []
            if found == self._count:
                return
        if records:
            yield self._batch(records, sentences, seen, self.bytes)
        if found == 0 or self._count is not None:
            wanted = f"; {self._count:,} were asked for" if self._count else ""
            hint = "lower -n" if found else None
            raise InputError(f"the input holds {found:,} records{wanted}", path=self.file.path, hint=hint)

    def _batch(self, records: list[Record], sentences: list[list[int]], seen: _SeenIds, end: int) -> Batch:
        again = seen.add([record.id for record in records]) if self._has_ids else [False] * len(records)
        for i, (record, twice) in enumerate(zip(records, again, strict=True)):
            if twice and record.error is None:
                records[i] = replace(record, error=RecordError(record.line, "id", f"{record.id!r} was given before"))
        good = [ids for ids, record in zip(sentences, records, strict=True) if record.error is None]
        return Batch(np.array(good, np.int32).reshape(-1, self._length), end, records)

    def _records(self) -> Iterator[tuple[Record, list[int], int]]:
        """(record, its token ids, end in bytes) of each line that is not blank; a record with an error has no ids."""
        self._has_ids = None
        for number, line, end in read_lines(self.file):
            id = None
            try:
                id, name, ids = _parse(line)
                self._check_id(id)
                self._check_tokens(name, ids)
            except _Bad as error:
                yield Record(number, id or _id_of(line), RecordError(number, error.field, str(error))), [], end
            else:
                yield Record(number, number if id is None else id), ids, end

    def _check_id(self, id: Id | None) -> None:
        given = id is not None
        if self._has_ids is None:
            self._has_ids = given
        if given and not self._has_ids:
            raise _Bad("is given, and the first line has none", "id")
        if self._has_ids and not given:
            raise _Bad("is missing, and the first line has one", "id")

    def _check_tokens(self, name: str, ids: list[int]) -> None:
        if len(ids) != self._length:
            raise _Bad(f"has {len(ids)} ids; the model takes {self._length}", name)
        if min(ids) < 0 or max(ids) >= self._vocabulary:
            place = next(i for i, token in enumerate(ids) if not 0 <= token < self._vocabulary)
            rule = f"token id {ids[place]} is outside the vocabulary (ids 0 to {self._vocabulary - 1})"
            raise _Bad(rule, f"{name}[{place}]")


class LabelWriter:
    """Writes a line a record to an open AtomicFile: {"id", "label", "score", "logits"}, or {"id", "error"}.

    error: {"line", "field", "message"}. answer: turns one sentence's logits (labels,) into its label.
    """

    def __init__(self, file: AtomicFile, answer: Callable[[np.ndarray], dict[str, Any]]) -> None:
        self.file = file
        self._answer = answer
        self._encode_lines = msgspec.json.Encoder().encode_lines

    def write(self, batch: Batch, logits: np.ndarray) -> list[RecordError]:
        """logits: float32 (n, labels) of the batch's n good records. Returns the errors of those not finite."""
        rows = iter(logits)
        overflows = []
        lines: list[dict[str, Any]] = []
        for record in batch.records or ():
            error = record.error
            if error is None:
                row = next(rows)
                if np.isfinite(row).all():
                    shortest = [float(str(x)) for x in row]  # the fewest digits that give the float32 back
                    lines.append({"id": record.id, **self._answer(row), "logits": shortest})
                    continue
                error = RecordError(record.line, "", "the logits are not finite: the weights are too large")
                overflows.append(error)
            lines.append({"id": record.id, "error": error})
        self.file.write(self._encode_lines(lines))
        return overflows


class _SeenIds:
    """64-bit hashes of all ids so far, in sorted runs; two are merged when the last is half as large as the other."""

    def __init__(self) -> None:
        self._runs: list[np.ndarray] = []

    def add(self, ids: list[Id | None]) -> np.ndarray:
        """bool (n,): which ids were given before, here or in an earlier call; None never was."""
        again = np.zeros(len(ids), bool)
        known = np.array([i for i, id in enumerate(ids) if id is not None], np.intp)
        hashes, first = np.unique(np.array([_hash(id) for id in ids if id is not None], np.uint64), return_index=True)
        old = np.zeros(len(hashes), bool)
        for run in self._runs:
            old |= run[np.minimum(np.searchsorted(run, hashes), len(run) - 1)] == hashes
        again[known] = True
        again[known[first[~old]]] = False
        if not old.all():
            self._runs.append(hashes[~old])
        while len(self._runs) > 1 and len(self._runs[-2]) <= 2 * len(self._runs[-1]):
            last = self._runs.pop()
            self._runs[-1] = np.sort(np.concatenate([self._runs[-1], last]))
        return again


def _hash(id: Id) -> int:
    text = f"{type(id).__name__} {id}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def _parse(line: bytes | None) -> tuple[Id | None, str, list[int]]:
    """The id (None: not given), and the name and value of the field with the token ids. Raises _Bad."""
    if line is None:
        raise _Bad(f"is longer than {MAX_LINE_BYTES >> 20} MiB")
    try:
        line.decode()
        if line.lstrip().startswith(b"["):
            return None, "", _decode_list(line)
        record = _decode_line(line)
    except UnicodeDecodeError as error:
        raise _Bad(f"byte {error.start} is not UTF-8") from error
    except (msgspec.MsgspecError, RecursionError) as error:
        raise _json_error(error) from error
    given = [name for name in ("tokens", "input_ids") if getattr(record, name) is not msgspec.UNSET]
    if len(given) != 1:
        raise _Bad("and input_ids are both given; one is wanted" if given else "is missing", "tokens")
    return (None if record.id is msgspec.UNSET else record.id), given[0], getattr(record, given[0])


def read_lines(file: InputFile) -> Iterator[tuple[int, bytes | None, int]]:
    """(number from 1, line or None if it is too long, end in bytes) of each line that is not blank."""
    carry = bytearray()
    number, too_long = 0, False
    for offset in range(0, file.size, CHUNK_BYTES):
        chunk = bytearray(min(CHUNK_BYTES, file.size - offset))
        file.read_into(chunk, offset)
        if offset + len(chunk) == file.size and not chunk.endswith(b"\n"):
            chunk += b"\n"
        start = 0
        while (end := chunk.find(b"\n", start)) >= 0:
            carry += chunk[start:end]
            number += 1
            if too_long or len(carry) > MAX_LINE_BYTES:
                yield number, None, offset + end + 1
            elif not carry.isspace() and carry:
                yield number, bytes(carry), offset + end + 1
            carry.clear()
            start, too_long = end + 1, False
        too_long = too_long or len(carry) + len(chunk) - start > MAX_LINE_BYTES
        if too_long:
            carry.clear()
        else:
            carry += chunk[start:]


def _id_of(line: bytes | None) -> Id | None:
    """The id of a line whose other fields are bad, if it can be read."""
    try:
        return _decode_id(line).id if line else None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _json_error(error: Exception) -> _Bad:
    """msgspec's "Expected `int`, got `str` - at `$.tokens[3]`" as a message and a field."""
    if isinstance(error, RecursionError):
        return _Bad("JSON is nested too deeply")
    message, _, place = str(error).partition(" - at `$")
    message = message.replace("`", "").replace("Expected", "expected", 1)
    return _Bad(message, place.rstrip("`").lstrip("."))
