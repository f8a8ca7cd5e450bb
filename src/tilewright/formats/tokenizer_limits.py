"""Limits of a tokenizer.json: how much a text may grow, and how long its strings, patterns and tokens may be.

A tokenizer.json is a program, and often somebody else's. One that replaces each letter by a million letters used 22 GB
for a text of 22 KB. Its parts are read back from the library, so that exactly what will run is checked.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from tilewright.errors import InputError

MAX_STRING = 1024  # bytes of a replacement, a prefix, a special token; those in use have under 100
MAX_PATTERN = 4096  # bytes of a regular expression; those in use have under 500
MAX_TOKEN = 4096  # characters of a token of the vocabulary; those in use have under 600
MAX_WORD = 1000  # characters of a word that WordPiece splits; its time grows as their cube. BERT's limit is 100
MAX_PARTS = 64  # normalizers, pre-tokenizers, ...
MAX_FACTOR = 1 << 16  # the largest growth of a text, if it repeats the character that grows most
MAX_CHARSMAP = 16 << 20  # bytes; those in use have under 400 KB

# kind -> the most bytes that one byte becomes. NFKD makes 33 bytes from the 3 of U+FDFA, NFD 12 from the 4 of U+1D160,
# Lowercase 3 from the 2 of U+0130. BertNormalizer is NFD with spaces around ideographs.
GROWTH = {
    "NFC": 3, "NFD": 3, "NFKC": 11, "NFKD": 11, "Nmt": 2, "Lowercase": 2, "Strip": 1, "StripAccents": 1,
    "BertNormalizer": 6, "BertPreTokenizer": 1, "Whitespace": 1, "WhitespaceSplit": 1, "Punctuation": 1, "Digits": 1,
    "Split": 1, "CharDelimiterSplit": 1, "UnicodeScripts": 1, "FixedLength": 1, "BertProcessing": 1,
    "RobertaProcessing": 1, "ByteFallback": 3, "Fuse": 1, "CTC": 1, "BPEDecoder": 2,
}  # fmt: skip
UNKNOWN = 16  # for a kind that this table lacks

PARTS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
SEQUENCES = ("normalizers", "pretokenizers", "processors", "decoders")


class Growth(NamedTuple):
    """A text of n bytes becomes at most factor * n + extra bytes, or as many tokens."""

    factor: int
    extra: int

    def of(self, size: int) -> int:
        return self.factor * size + self.extra


def checked_growth(library: Any, path: str) -> Growth:
    """How much a text grows in the library's tokenizer. Raises InputError for a tokenizer that exceeds the limits."""
    _check_model(library, path)
    growth = Growth(1, 0)
    for name in PARTS:
        own = Growth(1, 0)
        for count, part in enumerate(_parts(library, name), 1):
            own = _after(own, part, path, name)
            if count > MAX_PARTS or max(own) > MAX_FACTOR or max(growth.factor * own.factor, own.extra) > MAX_FACTOR:
                what = (
                    f"{name} has more than {MAX_PARTS} parts" if count > MAX_PARTS else f"{name} makes texts too long"
                )
                raise _refused(f"{what}: a text may become at most {MAX_FACTOR:,} times as long", path)
        if name != "decoder":
            growth = Growth(growth.factor * own.factor, growth.extra * own.factor + own.extra)
    return growth


def patterns(library: Any) -> list[str]:
    """The regular expressions of the library's tokenizer."""
    texts = (text for name in PARTS for part in _parts(library, name) for text in _strings(part))
    return [text for field, text in texts if field == "Regex"]


def _after(growth: Growth, part: dict[str, Any], path: str, name: str) -> Growth:
    """The growth in all parts up to and including this one."""
    for field, text in _strings(part):
        limit = {"Regex": MAX_PATTERN, "precompiled_charsmap": MAX_CHARSMAP}.get(field, MAX_STRING)
        if len(text.encode()) > limit:
            raise _refused(f"{name}, field {field} has {len(text.encode()):,} bytes; the limit is {limit:,}", path)
    kind = part.get("type")
    if kind == "Replace":
        found, content = part["pattern"].get("String"), len(part["content"].encode())
        if found:
            return _times(growth, -(-content // len(found.encode())))
        between = _times(growth, 1 + content)  # a pattern may match the empty text, before and after each character
        return Growth(between.factor, between.extra + content)
    if kind == "Prepend":
        return Growth(growth.factor, growth.extra + len(part["prepend"].encode()))
    if kind == "Precompiled":
        return _times(growth, _longest_replacement(part["precompiled_charsmap"]))
    if kind == "ByteLevel":
        return _times(growth, 4 if part.get("add_prefix_space") else 2)
    if kind == "Metaspace":
        return _times(growth, len(part["replacement"].encode()) * (1 if part.get("prepend_scheme") == "never" else 2))
    if kind == "WordPiece":  # a decoder writes a space for a prefix
        return _times(growth, 2)
    if kind == "TemplateProcessing":
        ids = sum(len(token["ids"]) for token in part["special_tokens"].values()) * max(1, len(part["single"]))
        return Growth(growth.factor * max(1, sum("Sequence" in piece for piece in part["single"])), growth.extra + ids)
    return _times(growth, GROWTH.get(str(kind), UNKNOWN))


def _times(growth: Growth, factor: int) -> Growth:
    return Growth(growth.factor * max(factor, 1), growth.extra * max(factor, 1))


def _parts(library: Any, name: str) -> Iterator[dict[str, Any]]:
    """The parts of a normalizer, a pre-tokenizer or similar, in their order."""
    part = getattr(library, name)
    if part is None:
        return
    todo = [msgspec.json.decode(part.__getstate__())]
    while todo:
        part = todo.pop()
        inner = next((part[field] for field in SEQUENCES if field in part), None)
        if inner is None:
            yield part
        else:
            todo += inner[::-1]


def _strings(value: Any, field: str = "") -> Iterator[tuple[str, str]]:
    """(field, text) of all texts in a part."""
    if isinstance(value, str):
        yield field, value
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield field, name
            yield from _strings(inner, name)
    elif isinstance(value, list):
        for inner in value:
            yield from _strings(inner, field)


def _longest_replacement(charsmap: str | list[int]) -> int:
    """Bytes of the longest text in SentencePiece's table, which is the length of a trie, the trie, and texts that end
    with NUL."""
    try:
        table = base64.b64decode(charsmap, validate=True) if isinstance(charsmap, str) else bytes(charsmap)
    except (binascii.Error, ValueError):
        return MAX_FACTOR + 1
    return max((len(text) for text in table[4 + int.from_bytes(table[:4], "little") :].split(b"\0")), default=1)


def _check_model(library: Any, path: str) -> None:
    model = library.model
    for field in ("unk_token", "continuing_subword_prefix", "end_of_word_suffix"):
        text = getattr(model, field, None)
        if isinstance(text, str) and len(text.encode()) > MAX_STRING:
            raise _refused(f"model, field {field} has {len(text.encode()):,} bytes; the limit is {MAX_STRING:,}", path)
    word = getattr(model, "max_input_chars_per_word", 0)
    if word > MAX_WORD:
        raise _refused(f"model, field max_input_chars_per_word is {word:,}; the limit is {MAX_WORD:,}", path)
    longest = max(map(len, library.get_vocab()), default=0)
    if longest > MAX_TOKEN:
        raise _refused(f"a token has {longest:,} characters; the limit is {MAX_TOKEN:,}", path)


def _refused(what: str, path: str) -> InputError:
    return InputError(f"not loaded, because it could take all memory: {what}", path=path,
                      remedy="use the tokenizer.json that came with the model")  # fmt: skip
