"""What tokenizer_config.json says about texts that are too long (the most tokens, the side that is cut), about pairs of
texts, and about parts of tokenizer.json, which it overrides."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import msgspec

from tilewright.errors import InputError
from tilewright.formats.sharded import read_json

TOKENIZER_CONFIG = "tokenizer_config.json"
MAX_BYTES = 16 << 20  # it may contain a chat template and thousands of added tokens
UNLIMITED = 1e18  # transformers writes 1e30 for a tokenizer without a limit
TYPES = "token_type_ids"
GENERAL = ("PreTrainedTokenizerFast", "TokenizersBackend")  # they give types and override parts only if told to
OVERRIDES = {  # part of tokenizer.json -> its type, and the fields here -> its fields
    "normalizer": ("BertNormalizer", {"do_lower_case": "lowercase", "strip_accents": "strip_accents",
                                      "tokenize_chinese_chars": "handle_chinese_chars"}),
    "pre_tokenizer": ("ByteLevel", {"add_prefix_space": "add_prefix_space"}),
}  # fmt: skip

Side = Literal["right", "left"]


class Truncation(NamedTuple):
    """longest: the most tokens of a text, including special ones; None: no limit. side: the end at which a longer text
    loses tokens. types: the second text of a pair has token type 1, if the model has types."""

    longest: int | None = None
    side: Side = "right"
    types: bool = True


class _Settings(msgspec.Struct):
    model_max_length: float | None = None
    max_len: float | None = None  # the older name
    truncation_side: Side = "right"
    model_input_names: list[str] | None = None
    tokenizer_class: str | None = None
    split_special_tokens: bool = False


def read_truncation(path: str | os.PathLike[str]) -> Truncation:
    """The truncation of the tokenizer in the model directory `path`. Raises InputError for a damaged file, and for
    settings that are not supported."""
    name = os.path.join(path, TOKENIZER_CONFIG)
    if not os.path.isfile(name):
        return Truncation()
    found: _Settings = read_json(name, "tokenizer's configuration", MAX_BYTES, _Settings)
    if found.split_special_tokens:
        what = "split_special_tokens is true; special tokens in a text are always recognised here"
        raise InputError(what, path=name, remedy="set it to false")
    longest = found.max_len if found.model_max_length is None else found.model_max_length
    limited = longest is not None and 1 <= longest < UNLIMITED
    names = found.model_input_names
    types = found.tokenizer_class not in GENERAL if names is None else TYPES in names
    return Truncation(int(longest) if longest is not None and limited else None, found.truncation_side, types)


def read_overrides(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The fields of tokenizer_config.json in the model directory `path` that override tokenizer.json. Raises InputError
    for a damaged file."""
    name = os.path.join(path, TOKENIZER_CONFIG)
    found = read_json(name, "tokenizer's configuration", MAX_BYTES, dict[str, Any]) if os.path.isfile(name) else {}
    if found.get("tokenizer_class") in GENERAL:
        return {}
    names = [theirs for _, fields in OVERRIDES.values() for theirs in fields]
    return {name: found[name] for name in names if isinstance(found.get(name), bool)}


def overridden(content: bytes, fields: Mapping[str, Any]) -> bytes:
    """The tokenizer.json `content` with the fields that `read_overrides` found. As in transformers, they decide."""
    try:
        parts = msgspec.json.decode(content, type=dict[str, msgspec.Raw]) if fields else {}
        changed: dict[str, Any] = {}
        for name, (kind, names) in OVERRIDES.items():
            part = msgspec.json.decode(parts[name]) if name in parts else None
            if isinstance(part, dict) and part.get("type") == kind:
                wanted = part | {ours: fields[theirs] for theirs, ours in names.items() if theirs in fields}
                changed |= {name: wanted} if wanted != part else {}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return content  # the library says what is wrong with it
    return msgspec.json.encode({**parts, **changed}) if changed else content
