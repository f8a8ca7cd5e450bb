"""Checks of an input's first lines, before the work: for text that the model cannot read, and for missing fields."""

from __future__ import annotations

import os
from typing import Any

import msgspec

from tilewright.errors import InputError, UsageError, counted
from tilewright.formats.inputs import open_text
from tilewright.formats.names import kind_of_records
from tilewright.formats.record_fields import RecordFields
from tilewright.formats.tokenizer import Tokenizer

FIRST_BYTES, FIRST_LINES = 1 << 16, 64  # the part of an input that is read: enough to recognise text
IDS = ("prompt_token_ids", "input_ids", "tokens")
TEXTS = ("prompt", "text", "messages")


def check_has_ids(path: str | os.PathLike[str], model: str, example: str, content: str | None = None) -> None:
    """Raises UsageError if the model has no tokenizer, and the input is a .txt, or a .jsonl whose first lines all are
    text.

    A single line of text among token ids is only an error of its record. example: a line with token ids, for the
    message. content: the name of the text's field, if the user gave one.
    """
    kind = kind_of_records(path)
    if kind == ".txt" or (kind == ".jsonl" and (kinds := _are_text(path, content)) and all(kinds)):
        raise UsageError(
            f"the input is text, and the model {model} has no tokenizer.json",
            path=path,
            remedy=f"put the model's tokenizer.json, or its vocab.json and merges.txt, into {model}. Or give token ids "
            f"in a .jsonl file: {example}",
        )


def check_tokenizer_fits(
    path: str | os.PathLike[str], tokenizer: Tokenizer, vocabulary: int, example: str, content: str | None = None
) -> None:
    """Raises InputError if the tokenizer gives ids that the model does not have, and the input may be text.

    The input may be text unless it is a .bin, or a .jsonl whose first lines all are token ids. vocabulary: the model's
    number of ids. example: a line with ids, for the message. content: the name of the text's field, if the user gave
    one.
    """
    kind = kind_of_records(path)
    if kind == ".bin" or (kind == ".jsonl" and not any(_are_text(path, content))):
        return
    if beyond := tokenizer.text_ids_beyond(vocabulary):
        ids = f"id {beyond[0]:,}" if len(beyond) == 1 else f"{len(beyond):,} ids from {beyond[0]:,} to {beyond[-1]:,}"
        raise InputError(
            f"the tokenizer has {tokenizer.size:,} tokens and the model {vocabulary:,}: the model lacks {ids}",
            path=tokenizer.path,
            remedy=f"use the tokenizer.json that came with the model. Or give token ids in a .jsonl file: {example}",
        )


def absent_fields(path: str | os.PathLike[str], fields: RecordFields) -> str:
    """The notice for kept fields that none of the first lines of a .jsonl has; "" if there are none."""
    if not fields.keep or kind_of_records(path) != ".jsonl":
        return ""
    lines = _first_lines(path)
    found = [fields.kept(line)[0] for line in lines]
    absent = [name for name, shown in fields.keep if all(kept[shown] is None for kept in found)]
    if not absent:
        return ""
    return f"--keep names {', '.join(absent)}; none of the first {counted(len(lines), 'record')} has a value for it"


def _are_text(path: str | os.PathLike[str], content: str | None) -> list[bool]:
    """For each of the first non-blank lines of a .jsonl file: True if it is text."""
    return [_is_text(line, content) for line in _first_lines(path)]


def _first_lines(path: str | os.PathLike[str]) -> list[bytes]:
    """The first lines that are not blank."""
    with open_text(path, "input") as file:
        first = next(file.parts(0, file.size), None)
        start = bytearray(min(first.end if first else 0, FIRST_BYTES))
        file.read_into(start, first.start if first else 0)
        whole = not first or first.end <= FIRST_BYTES
    lines = bytes(start).split(b"\n")[: None if whole else -1]
    return [line for line in lines[:FIRST_LINES] if line.strip()]


def _is_text(line: bytes, content: str | None) -> bool:
    """True for a JSON object with text and without token ids, in it or in its OpenAI body."""
    try:
        found: Any = msgspec.json.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    if not isinstance(found, dict):
        return False
    if content is not None:
        return isinstance(found.get(content), str)
    body = found.get("body")
    fields = found | body if isinstance(body, dict) else found
    texts = any(isinstance(fields.get(name), str) or (name == "messages" and name in fields) for name in TEXTS)
    return texts and not any(isinstance(fields.get(name), list) for name in IDS)
