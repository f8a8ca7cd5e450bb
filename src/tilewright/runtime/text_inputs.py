"""Refuses text that a model cannot read, before the job starts. Otherwise each record would get an error."""

from __future__ import annotations

from typing import Any

import msgspec

from tilewright.errors import InputError, UsageError
from tilewright.formats.files import InputFile
from tilewright.formats.tokenizer import Tokenizer

FIRST_BYTES, FIRST_LINES = 1 << 16, 64  # of an input are read: a file of text shows it there
IDS = ("prompt_token_ids", "input_ids", "tokens")
TEXTS = ("prompt", "text", "messages")


def check_has_ids(path: str, model: str, example: str) -> None:
    """Raises UsageError if the model has no tokenizer, and the input is a .txt, or a .jsonl whose first lines all
    are text. example: a line with token ids. A single line of text among token ids is an error of its record only."""
    if path.endswith(".txt") or (path.endswith(".jsonl") and (kinds := _are_text(path)) and all(kinds)):
        raise UsageError(
            f"the input is text, and the model {model} has no tokenizer.json",
            path=path,
            remedy=f"put the model's tokenizer.json, or its vocab.json and merges.txt, into {model}. Or give token ids "
            f"in a .jsonl file: {example}",
        )


def check_tokenizer_fits(path: str, tokenizer: Tokenizer, vocabulary: int, example: str) -> None:
    """Raises InputError if the tokenizer makes ids of plain text that the model lacks, and the input may be text: it is
    no .bin, and no .jsonl whose first lines all are token ids. vocabulary: of the model. example: a line with ids."""
    if path.endswith(".bin") or (path.endswith(".jsonl") and not any(_are_text(path))):
        return
    if beyond := tokenizer.text_ids_beyond(vocabulary):
        ids = f"id {beyond[0]:,}" if len(beyond) == 1 else f"{len(beyond):,} ids from {beyond[0]:,} to {beyond[-1]:,}"
        raise InputError(
            f"the tokenizer has {tokenizer.size:,} tokens and the model {vocabulary:,}: the model lacks {ids}",
            path=tokenizer.path,
            remedy=f"use the tokenizer.json that came with the model. Or give token ids in a .jsonl file: {example}",
        )


def _are_text(path: str) -> list[bool]:
    """For each of the first non-blank lines of a .jsonl file: True if it is text."""
    with InputFile(path, "input") as file:
        start = bytearray(min(file.size, FIRST_BYTES))
        file.read_into(start, 0)
        whole = file.size <= FIRST_BYTES
    lines = bytes(start).split(b"\n")[: None if whole else -1]
    return [_is_text(line) for line in lines[:FIRST_LINES] if line.strip()]


def _is_text(line: bytes) -> bool:
    """True for a JSON object with text and without token ids, in it or in its OpenAI body."""
    try:
        found: Any = msgspec.json.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    if not isinstance(found, dict):
        return False
    body = found.get("body")
    fields = found | body if isinstance(body, dict) else found
    texts = any(isinstance(fields.get(name), str) or (name == "messages" and name in fields) for name in TEXTS)
    return texts and not any(isinstance(fields.get(name), list) for name in IDS)
