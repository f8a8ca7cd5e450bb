"""The tokenizer: the library's answers, and each of its ways to fail is one paragraph with the file's name."""

import json
import subprocess
import sys

import pytest

from tilewright.errors import InputError
from tilewright.formats import tokenizer as module
from tilewright.formats.tokenizer import Tokenizer
from tokenizer_files import alphabet, contents


@pytest.fixture
def save(tmp_path):
    def run(text):
        (tmp_path / "tokenizer.json").write_bytes(text if isinstance(text, bytes) else text.encode())
        return tmp_path / "tokenizer.json"

    return run


@pytest.mark.parametrize("text", ["the hen", " x\n\ty ", "\u00e9\u4e16\U0001f600\x00", ""])
def test_there_and_back(save, text):
    tokenizer = Tokenizer(save(contents()))
    ids = tokenizer.encode(text)
    assert tokenizer.size == 258 and all(type(id) is int and 0 <= id < 258 for id in ids)
    assert tokenizer.decode(ids) == text and len(ids) == len(text.encode()) - text.count("he")


def test_special_tokens(save):
    tokenizer = Tokenizer(save(contents()))
    assert tokenizer.encode("<|endoftext|>he") == [257, 256] and tokenizer.decode([256, 257, 256]) == "hehe"
    assert tokenizer.decode([256, 99_999]) == "he"
    part = tokenizer.encode("\u4e16")[:2]
    assert tokenizer.decode(part) == "\ufffd"


def test_nothing_is_cut_or_padded(save):
    truncation = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    padding = {"strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0}
    padding |= {"pad_type_id": 0, "pad_token": "!"}
    tokenizer = Tokenizer(save(contents(truncation=truncation, padding=padding)))
    assert len(tokenizer.encode("abcdef")) == 6


def bpe(**fields):
    return contents(model={"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"], **fields})


HOSTILE = {
    "empty": b"",
    "no JSON": b"{",
    "another object": b"{}",
    "a list": b"[]",
    "bad UTF-8": b'{"version": "\xff"}',
    "nested": b'{"version":' * 100_000,
    "a list 100,000 deep": b'{"model":' + b"[" * 100_000,
    "10,000 digits": contents().replace("257", "9" * 10_000).encode(),
    "a negative id": contents().replace("257", "-1").encode(),
    "a pickle": b"\x80\x04\x95\x10\0\0\0\0\0\0\0\x8c\x05posix\x94",
    "unknown model": contents(model={"type": "Magic"}),
    "merge of unknown tokens": bpe(merges=["a z"]),
    "bad pattern": contents(
        pre_tokenizer={"type": "Split", "pattern": {"Regex": "(("}, "behavior": "Isolated", "invert": False}
    ),
    "a panic: prefix longer than a token": bpe(continuing_subword_prefix="#####"),
    "a panic: no charsmap": contents(normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAA"}),
    "no token for the unknown": contents(model={"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "?"}),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files(save, capfd, name):
    path = save(HOSTILE[name])
    with pytest.raises(InputError) as caught:
        Tokenizer(path)
    assert str(caught.value).startswith(f"{path}: no valid tokenizer: ") and len(str(caught.value)) < 600
    assert "\n" not in str(caught.value) and capfd.readouterr() == ("", "")


def test_no_file(tmp_path, save, monkeypatch):
    for name, message in [("gone", "no such tokenizer"), ("", "is a directory")]:
        with pytest.raises(InputError, match=message):
            Tokenizer(f"{tmp_path}/{name}")
    monkeypatch.setattr(module, "MAX_BYTES", 100)
    with pytest.raises(InputError, match=r"the tokenizer has [0-9,]+ bytes; at most 100 are allowed"):
        Tokenizer(save(contents()))


def test_a_failure_later_is_an_input_error_too(save):
    tokenizer = Tokenizer(save(contents()))

    class PanicException(BaseException):
        pass

    class Library:
        def encode(self, text):
            raise PanicException("index out\nof range")

        def decode(self, ids):
            raise KeyboardInterrupt

    tokenizer._library = Library()
    with pytest.raises(InputError, match="cannot encode this text: index out of range"):
        tokenizer.encode("x")
    with pytest.raises(KeyboardInterrupt):
        tokenizer.decode([1])


def test_the_library_is_imported_when_it_is_used():
    code = "import sys, tilewright.formats.tokenizer; sys.exit('tokenizers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


TEXTS = [
    "", " ", "the hen", "  he  he\n\n\t he", "he's they'll I've 123 4,567.89 -- ...", "\u00e9\u4e16\U0001f600 \u00df",
    "<|endoftext|>", "a<|endoftext|> b <|endoftext|>", "<|endoftext", "\x00\x01\u2028\u00a0x", "HE he He hE", "hehehe",
    "x" * 500, "#version: 0.2", "a\r\nb\rc", "\u0301e\u0301", "\ufdfa\u1e9b\u0323",
]  # fmt: skip


def older(folder, merges="#version: 0.2\nh e\nt he\n\u0120 t\n\u0120t he\n", **changes):
    """GPT-2's vocab.json and merges.txt."""
    tokens = [*alphabet(), "he", "the", "\u0120t", "\u0120the", "<|endoftext|>"]
    vocab = {token: id for id, token in enumerate(tokens)}
    (folder / "vocab.json").write_text(json.dumps({**vocab, **changes}))
    (folder / "merges.txt").write_bytes(merges.encode())
    return folder / "vocab.json", folder / "merges.txt"


def test_the_older_files_are_what_transformers_makes_of_them(tmp_path, rng):
    from transformers import GPT2Tokenizer

    vocab, merges = older(tmp_path)
    theirs = GPT2Tokenizer(str(vocab), str(merges))
    ours = Tokenizer(vocab, older=("gpt2", {}))
    letters = [*"the  hHE'sll0123.,\n\t\r", "\u00e9", "\u4e16", "\U0001f600", "<|endoftext|>", "\u00a0", "\u0130"]
    texts = [*TEXTS, *("".join(rng.choice(letters, rng.integers(1, 40))) for _ in range(2_000))]
    for text in texts:
        ids = ours.encode(text)
        assert ids == theirs.encode(text), text
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    assert ours.size == 261 and len(texts) > 2_000


def test_the_older_files_without_a_version_and_with_carriage_returns(tmp_path):
    expected = Tokenizer(older(tmp_path)[0], older=("gpt2", {})).encode("the hen the")
    for merges in ("h e\r\nt he\r\n\u0120 t\r\n\u0120t he\r\n", "h e\nt he\n\n\u0120 t\n\u0120t he"):
        vocab, _ = older(tmp_path, merges)
        assert Tokenizer(vocab, older=("gpt2", {})).encode("the hen the") == expected


@pytest.mark.parametrize(
    ("merges", "changes", "file", "message"),
    [
        ("h e x\n", {}, "merges.txt", "'h e x' is a line of 3 tokens; a merge has two"),
        ("he\n", {}, "merges.txt", "'he' is a line of 1 tokens"),
        ("h \u4e16\n", {}, "vocab.json", "no valid tokenizer: "),
        ("", {"he": "x"}, "vocab.json", "no valid tokenizer: Expected `int`, got `str`"),
        ("", {"he": -1}, "vocab.json", "no valid tokenizer: "),
    ],
)
def test_older_files_that_are_wrong(tmp_path, merges, changes, file, message):
    vocab, _ = older(tmp_path, merges, **changes)
    with pytest.raises(InputError, match=message) as caught:
        Tokenizer(vocab, older=("gpt2", {}))
    assert str(caught.value).startswith(f"{tmp_path / file}: ")
