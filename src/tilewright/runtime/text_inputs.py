"""Refuses text for a model without a tokenizer before the work, instead of one error per record."""

from __future__ import annotations

from typing import Any

import msgspec

from tilewright.errors import UsageError
from tilewright.formats.files import InputFile

FIRST_BYTES, FIRST_LINES = 1 << 16, 64  # of an input are read: a file of text shows it there
IDS = ("prompt_token_ids", "input_ids", "tokens")
TEXTS = ("prompt", "text", "messages")


def check_has_ids(path: str, model: str, example: str) -> None:
    """Raises UsageError if the model has no tokenizer, and the input is a .txt, or a .jsonl whose first lines all
    are text. example: a line with token ids. A single line of text among token ids is an error of its record only."""
    if path.endswith(".txt") or (path.endswith(".jsonl") and _only_text(path)):
        raise UsageError(
            "the input is text, and the model has no tokenizer.json",
            path=path,
            remedy=f"put the model's tokenizer.json, or its vocab.json and merges.txt, into {model}, or give token ids "
            f"in a .jsonl file: {example}",
        )


def _only_text(path: str) -> bool:
    with InputFile(path, "input") as file:
        start = bytearray(min(file.size, FIRST_BYTES))
        file.read_into(start, 0)
        whole = file.size <= FIRST_BYTES
    lines = bytes(start).split(b"\n")[: None if whole else -1]
    kinds = [_is_text(line) for line in lines[:FIRST_LINES] if line.strip()]
    return bool(kinds) and all(kinds)


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
