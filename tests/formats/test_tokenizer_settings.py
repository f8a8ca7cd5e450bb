"""tokenizer_config.json beside a tokenizer.json: what transformers makes of the two."""

import json

import pytest
from transformers import AutoTokenizer, BertTokenizer, RobertaTokenizer

from tilewright.errors import InputError
from tilewright.formats.tokenizer_settings import Truncation, read_truncation
from tilewright.runtime.load import tokenizer_of
from tokenizer_files import alphabet

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "film", "Film", "caf", "##e", "##\u00e9", "cafe",
         "\u4e16", "\u754c", "\u4e16\u754c", "."]  # fmt: skip
LETTERS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", *alphabet(), "\u0120f"]
TEXTS = ["a Film.", "caf\u00e9 CAFE", "\u4e16\u754c", "film a"]


def saved(folder, kind, **fields):
    """A model directory with kind's tokenizer.json. fields: of tokenizer_config.json, changed afterwards."""
    vocab = {word: i for i, word in enumerate(WORDS if kind is BertTokenizer else LETTERS)}
    made = kind(vocab=vocab) if kind is BertTokenizer else kind(vocab=vocab, merges=[("\u0120", "f")])
    made.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": "bert" if kind is BertTokenizer else "roberta"}))
    path = folder / "tokenizer_config.json"
    values = json.loads(path.read_text()) | fields
    path.write_text(json.dumps({name: value for name, value in values.items() if value is not None}))
    return folder


@pytest.mark.parametrize("kind, fields", [
    (BertTokenizer, {}),
    (BertTokenizer, {"do_lower_case": False}),
    (BertTokenizer, {"strip_accents": False}),
    (BertTokenizer, {"tokenize_chinese_chars": False}),
    (RobertaTokenizer, {}),
    (RobertaTokenizer, {"add_prefix_space": True}),
], ids=str)  # fmt: skip
def test_its_fields_decide(kind, fields, tmp_path):
    """They were ignored beside a tokenizer.json that says something else."""
    other, ours = AutoTokenizer.from_pretrained(saved(tmp_path, kind, **fields)), tokenizer_of(tmp_path)
    found = [ours.encode(text) for text in TEXTS]
    assert found == [other(text)["input_ids"] for text in TEXTS]
    if fields:
        plain = tokenizer_of(saved(tmp_path / "plain", kind))
        assert found != [plain.encode(text) for text in TEXTS]
    saved(tmp_path, kind, **fields, tokenizer_class="PreTrainedTokenizerFast")
    assert tokenizer_of(tmp_path).encode("a Film.") == AutoTokenizer.from_pretrained(tmp_path)("a Film.")["input_ids"]


def test_the_older_name_of_the_limit_and_special_tokens_that_are_split(tmp_path):
    saved(tmp_path, BertTokenizer, model_max_length=None, max_len=7)
    assert read_truncation(tmp_path) == Truncation(7) and AutoTokenizer.from_pretrained(tmp_path).model_max_length == 7
    saved(tmp_path, BertTokenizer, model_max_length=9, max_len=7)
    assert read_truncation(tmp_path).longest == 9
    saved(tmp_path, BertTokenizer, split_special_tokens=True)
    with pytest.raises(InputError, match=r"tokenizer_config\.json: split_special_tokens is true; special tokens in a"):
        tokenizer_of(tmp_path)
