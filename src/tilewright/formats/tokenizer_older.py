"""Tokenizers of older checkpoints, converted to the tokenizer.json that `tokenizers` reads: vocab.json with merges.txt
(GPT-2, OPT, RoBERTa), and vocab.txt (BERT, DistilBERT).

Settings that these files lack are in tokenizer_config.json and special_tokens_map.json. Sources: transformers,
models/gpt2/tokenization_gpt2.py, models/roberta/tokenization_roberta.py, models/bert/tokenization_bert.py.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import msgspec

from tilewright.errors import InputError
from tilewright.formats.sharded import read_json
from tilewright.formats.tokenizer_settings import MAX_BYTES, TOKENIZER_CONFIG

VOCAB, MERGES, WORDS = "vocab.json", "merges.txt", "vocab.txt"
SPECIAL_TOKENS, ADDED = "special_tokens_map.json", "added_tokens.json"
OLDER_FILES = (VOCAB, MERGES, WORDS, SPECIAL_TOKENS, ADDED)  # files that may replace tokenizer.json
END_OF_TEXT = "<|endoftext|>"
GPT2 = {"unk_token": END_OF_TEXT, "bos_token": END_OF_TEXT, "eos_token": END_OF_TEXT}
ROBERTA = {
    "bos_token": "<s>", "eos_token": "</s>", "sep_token": "</s>", "cls_token": "<s>", "unk_token": "<unk>",
    "pad_token": "<pad>", "mask_token": "<mask>",
}  # fmt: skip
BERT = {"unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]", "mask_token": "[MASK]"}
NAMES = tuple(dict.fromkeys((*GPT2, *ROBERTA)))  # of the fields that name special tokens
LONGEST = 100  # characters of a word that WordPiece splits

Settings = Mapping[str, Any]


def read_settings(folder: str) -> dict[str, Any]:
    """The fields of tokenizer_config.json and, if that lacks them, of special_tokens_map.json. Raises InputError for a
    damaged file, and for tokens of added_tokens.json, which are not read."""
    added = os.path.join(folder, ADDED)
    if os.path.isfile(added) and read_json(added, "list of added tokens", MAX_BYTES, dict[str, Any]):
        remedy = "write tokenizer.json with transformers: AutoTokenizer.from_pretrained(...).save_pretrained(...)"
        raise InputError("lists tokens that the vocabulary lacks, which only tokenizer.json can hold", path=added,
                         remedy=remedy)  # fmt: skip
    found: dict[str, Any] = {}
    for name in (SPECIAL_TOKENS, TOKENIZER_CONFIG):
        path = os.path.join(folder, name)
        if os.path.isfile(path):
            given = read_json(path, "tokenizer's configuration", MAX_BYTES, dict[str, Any])
            found |= {field: value for field, value in given.items() if value is not None}
    return found


def byte_level(vocab: bytes, path: str, merges: bytes, settings: Settings, kind: str = "") -> bytes:
    """The tokenizer.json for the vocab.json at `path` and the merges.txt beside it.

    kind: the model_type; "roberta" adds <s> and </s>. merges: a first line that may start with "#version", then two
    tokens per line. Raises InputError.
    """
    merges_path = os.path.join(os.path.dirname(path), MERGES)
    try:
        tokens = msgspec.json.decode(vocab, type=dict[str, int])
        lines = merges.decode().split("\n")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        wrong = merges_path if isinstance(error, UnicodeDecodeError) and error.object is merges else path
        raise InputError(f"no valid tokenizer: {str(error)[:300]}", path=wrong) from error
    pairs = [line.removesuffix("\r").split(" ") for line in lines[lines[0].startswith("#version") :] if line.strip()]
    if (odd := next((pair for pair in pairs if len(pair) != 2), None)) is not None:
        what = f"no valid tokenizer: {' '.join(odd)[:100]!r} is a line of {len(odd)} tokens; a merge has two"
        raise InputError(what, path=merges_path)
    space = settings.get("add_prefix_space") is True
    level = {"type": "ByteLevel", "add_prefix_space": space, "trim_offsets": True, "use_regex": True}
    special = _special(settings, ROBERTA if kind == "roberta" else GPT2)
    fields = {
        "version": "1.0", "added_tokens": _added(special, tokens), "pre_tokenizer": level, "decoder": level,
        "model": {"type": "BPE", "vocab": tokens, "merges": pairs},
        "post_processor": _around(special, tokens, settings, path, kind),
    }  # fmt: skip
    return msgspec.json.encode(fields)


def word_piece(vocab: bytes, path: str, settings: Settings) -> bytes:
    """The tokenizer.json for a BERT's vocab.txt, which has one token per line. Raises InputError."""
    try:
        lines = vocab.decode().split("\n")
    except UnicodeDecodeError as error:
        raise InputError(f"no valid tokenizer: {error}", path=path) from error
    lines = lines[:-1] if not lines[-1] else lines
    tokens = {line.removesuffix("\r"): i for i, line in enumerate(lines)}
    special = _special(settings, BERT)
    flags = {"do_lower_case": True, "tokenize_chinese_chars": True, "strip_accents": None} | dict(settings)
    fields = {
        "version": "1.0", "added_tokens": _added(special, tokens),
        "normalizer": {
            "type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": flags["tokenize_chinese_chars"],
            "strip_accents": flags["strip_accents"], "lowercase": flags["do_lower_case"],
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece", "unk_token": special["unk_token"]["content"], "continuing_subword_prefix": "##",
            "max_input_chars_per_word": LONGEST, "vocab": tokens,
        },
        "post_processor": _template(["cls_token"], ["sep_token"], special, tokens, path),
    }  # fmt: skip
    return msgspec.json.encode(fields)


def _special(settings: Settings, usual: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Name of the field -> the token that it names, in the form of tokenizer.json."""
    found = {}
    for name in NAMES:
        given = settings.get(name, usual.get(name))
        if given is None:
            continue
        token = given if isinstance(given, dict) else {"content": given}
        flags = {flag: token.get(flag) is True for flag in ("single_word", "lstrip", "rstrip", "normalized")}
        found[name] = {"content": str(token.get("content")), "special": True, **flags}
    return found


def _added(special: Mapping[str, dict[str, Any]], tokens: Mapping[str, int]) -> list[dict[str, Any]]:
    """The special tokens of the vocabulary, in the order of their ids."""
    known = {token["content"]: token for token in special.values() if token["content"] in tokens}
    return sorted(({"id": tokens[name], **token} for name, token in known.items()), key=lambda token: token["id"])


def _around(special: Mapping[str, dict[str, Any]], tokens: Mapping[str, int], settings: Settings, path: str, kind: str):
    """The part that puts tokens before and after a text; None if there are none."""
    if kind == "roberta":
        (sep, sep_id), (cls, cls_id) = (_known(name, special, tokens, path) for name in ("sep_token", "cls_token"))
        space = settings.get("add_prefix_space") is True
        return {"type": "RobertaProcessing", "sep": [sep, sep_id], "cls": [cls, cls_id], "trim_offsets": True,
                "add_prefix_space": space}  # fmt: skip
    before = ["bos_token"] if settings.get("add_bos_token") is True else []
    after = ["eos_token"] if settings.get("add_eos_token") is True else []
    return _template(before, after, special, tokens, path) if before or after else None


def _template(before: list[str], after: list[str], special: Mapping[str, dict[str, Any]], tokens: Mapping[str, int],
              path: str) -> dict[str, Any]:  # fmt: skip
    """The template of a single text, and of a pair as BERT joins it: the token of `after` ends each part."""
    named = {name: _known(name, special, tokens, path) for name in (*before, *after)}

    def piece(name: str, part: int) -> dict[str, Any]:
        return {"SpecialToken": {"id": named[name][0], "type_id": part}}

    def text(name: str, part: int) -> list[dict[str, Any]]:
        return [{"Sequence": {"id": name, "type_id": part}}, *(piece(one, part) for one in after)]

    single = [*(piece(name, 0) for name in before), *text("A", 0)]
    return {
        "type": "TemplateProcessing", "single": single, "pair": [*single, *text("B", 1)],
        "special_tokens": {token: {"id": token, "ids": [id], "tokens": [token]} for token, id in named.values()},
    }  # fmt: skip


def _known(name: str, special: Mapping[str, dict[str, Any]], tokens: Mapping[str, int], path: str) -> tuple[str, int]:
    """(token, its id). Raises InputError for a token that the vocabulary lacks."""
    token = special.get(name, {}).get("content")
    if token is None or token not in tokens:
        remedy = "get the files of the tokenizer from where the model came"
        raise InputError(f"{name} is {token!r:.100}; the vocabulary lacks it", path=path, remedy=remedy)
    return token, tokens[token]
