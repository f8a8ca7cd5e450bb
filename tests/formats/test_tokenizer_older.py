"""vocab.json with merges.txt, and vocab.txt, against transformers' tokenizers of the same files."""

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Library
from tokenizers import models, pre_tokenizers, trainers

from tilewright.errors import InputError
from tilewright.formats.tokenizer import Tokenizer
from tilewright.formats.tokenizer_older import read_settings
from tilewright.runtime.load import has_tokenizer, tokenizer_of

TEXT = Path(__file__).read_text() + "caf\u00e9 na\u00efve \u4e16\u754c \u00c5ngstr\u00f6m don't stop! 3.14 "
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "a", "film", "Film", "##s", "caf", "##e", "##\u00e9",
         "na", "##ive", "\u4e16", "\u754c", ".", ",", "!", "don", "'", "t", "3", "14"]  # fmt: skip
OPT = {"add_bos_token": True, "bos_token": "</s>", "eos_token": "</s>", "unk_token": "</s>", "pad_token": "<pad>"}
ADDED_TOKEN = {"__type": "AddedToken", "content": "</s>", "lstrip": False, "normalized": True, "rstrip": False,
               "single_word": False}  # fmt: skip
BYTE_LEVEL = {
    "gpt2": ("gpt2", ["<|endoftext|>"], {}),
    "gpt2 with a space": ("gpt2", ["<|endoftext|>"], {"add_prefix_space": True}),
    "opt": ("opt", ["<pad>", "</s>", "<|endoftext|>"], OPT),
    "opt as transformers 4 wrote it": ("opt", ["<pad>", "</s>", "<|endoftext|>"], OPT | {"bos_token": ADDED_TOKEN}),
    "roberta": ("roberta", ["<s>", "<pad>", "</s>", "<unk>", "<mask>"], {}),
}
WORD_PIECE = [{}, {"do_lower_case": False}, {"strip_accents": False}, {"tokenize_chinese_chars": False},
              {"do_lower_case": False, "strip_accents": True}]  # fmt: skip
CLASSES = {"gpt2": "GPT2Tokenizer", "opt": "GPT2Tokenizer", "roberta": "RobertaTokenizer", "bert": "BertTokenizer"}


def write(folder: Path, kind: str, fields: dict) -> None:
    (folder / "config.json").write_text(json.dumps({"model_type": kind}))
    if fields:
        (folder / "tokenizer_config.json").write_text(json.dumps(fields))


def byte_level_files(folder: Path, special: list[str]) -> None:
    library = Library(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=500, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    library.train_from_iterator([TEXT], trainer)
    library.model.save(str(folder))


def texts(rng) -> list[str]:
    """Parts of TEXT, and of every kind of character."""
    found = ["the films, don't!", " caf\u00e9  Film\n\tnaives\u4e16\u754c", "", "\u00c5 \ufb01 \U0001f600"]
    for _ in range(40):
        at = int(rng.integers(0, len(TEXT) - 60))
        found.append(TEXT[at : at + int(rng.integers(1, 60))])
    return found


def same_ids(folder: Path, kind: str, rng) -> Tokenizer:
    import transformers

    other = getattr(transformers, CLASSES[kind]).from_pretrained(folder)
    found = tokenizer_of(folder)
    assert has_tokenizer(folder)
    for text in texts(rng):
        assert found.encode(text) == other(text)["input_ids"], repr(text)
    return found


@pytest.mark.parametrize("name", BYTE_LEVEL)
def test_vocab_json_and_merges(name, tmp_path, rng):
    kind, special, fields = BYTE_LEVEL[name]
    byte_level_files(tmp_path, special)
    write(tmp_path, kind, fields)
    found = same_ids(tmp_path, kind, rng)
    vocab = json.loads((tmp_path / "vocab.json").read_text())
    start = {"opt": ["</s>"], "roberta": ["<s>"]}.get(kind, [])
    assert found.encode("a")[: len(start)] == [vocab[token] for token in start]
    assert found.decode(found.encode("a film")).strip() == "a film"


@pytest.mark.parametrize("fields", WORD_PIECE, ids=str)
def test_vocab_txt(fields, tmp_path, rng):
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS) + "\n", "utf-8")
    write(tmp_path, "bert", fields)
    found = same_ids(tmp_path, "bert", rng)
    assert found.encode("a film.") == [2, 6, 7, 17, 3]


def test_what_cannot_be_read_is_refused(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS[:2]) + "\n")
    write(tmp_path, "bert", {})
    with pytest.raises(InputError, match=r"cls_token is '\[CLS\]'; the vocabulary lacks it"):
        tokenizer_of(tmp_path)
    (tmp_path / "vocab.txt").write_bytes(b"\xff\n")
    with pytest.raises(InputError, match=r"vocab\.txt: no valid tokenizer"):
        tokenizer_of(tmp_path)
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS) + "\n", "utf-8")
    (tmp_path / "added_tokens.json").write_text('{"<new>": 25}')
    with pytest.raises(InputError, match=r"added_tokens\.json: lists tokens that the vocabulary lacks"):
        tokenizer_of(tmp_path)
    (tmp_path / "added_tokens.json").write_text("{}")
    assert tokenizer_of(tmp_path).size == len(WORDS)
    (tmp_path / "tokenizer_config.json").write_text("[")
    with pytest.raises(InputError, match=r"tokenizer_config\.json"):
        tokenizer_of(tmp_path)


def test_settings_come_from_both_files(tmp_path):
    (tmp_path / "special_tokens_map.json").write_text('{"bos_token": "a", "eos_token": "b", "pad_token": null}')
    (tmp_path / "tokenizer_config.json").write_text('{"bos_token": "c", "eos_token": null}')
    assert read_settings(str(tmp_path)) == {"bos_token": "c", "eos_token": "b"}


def test_a_bert_does_not_read_a_gpt2s_files(tmp_path):
    byte_level_files(tmp_path, [])
    write(tmp_path, "bert", {})
    assert tokenizer_of(tmp_path) is None and not has_tokenizer(tmp_path)
