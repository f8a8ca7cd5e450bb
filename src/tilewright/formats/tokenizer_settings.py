"""What tokenizer_config.json says about texts that are too long (the most tokens, the side that is cut) and about pairs
of texts."""

from __future__ import annotations

import os
from typing import Literal, NamedTuple

import msgspec

from tilewright.formats.sharded import read_json

TOKENIZER_CONFIG = "tokenizer_config.json"
MAX_BYTES = 16 << 20  # it may contain a chat template and thousands of added tokens
UNLIMITED = 1e18  # transformers writes 1e30 for a tokenizer without a limit
TYPES = "token_type_ids"
GENERAL = ("PreTrainedTokenizerFast", "TokenizersBackend")  # they give types only if told to

Side = Literal["right", "left"]


class Truncation(NamedTuple):
    """longest: the most tokens of a text, including special ones; None: no limit. side: the end at which a longer text
    loses tokens. types: the second text of a pair has token type 1, if the model has types."""

    longest: int | None = None
    side: Side = "right"
    types: bool = True


class _Settings(msgspec.Struct):
    model_max_length: float | None = None
    truncation_side: Side = "right"
    model_input_names: list[str] | None = None
    tokenizer_class: str | None = None


def read_truncation(path: str | os.PathLike[str]) -> Truncation:
    """The truncation of the tokenizer in the model directory `path`. Raises InputError for a damaged file."""
    name = os.path.join(path, TOKENIZER_CONFIG)
    if not os.path.isfile(name):
        return Truncation()
    found: _Settings = read_json(name, "tokenizer's configuration", MAX_BYTES, _Settings)
    longest = found.model_max_length
    limited = longest is not None and 1 <= longest < UNLIMITED
    names = found.model_input_names
    types = found.tokenizer_class not in GENERAL if names is None else TYPES in names
    return Truncation(int(longest) if longest is not None and limited else None, found.truncation_side, types)
