"""A tokenizer.json is a program of another: it is refused when it is loaded, or it costs one record an error, and never
more memory than a limit that the system holds."""

import base64
import json
import os
import subprocess
import sys

import pytest

from tilewright.errors import InputError
from tilewright.formats import tokenizer as module
from tilewright.formats import tokenizer_limits as limits
from tilewright.formats.panics import ASIDE
from tilewright.formats.sentence_encoder import SentenceEncoder
from tilewright.formats.tokenizer import Tokenizer
from tokenizer_files import alphabet, contents

LIMIT = 3 << 30  # bytes of address space of a process that loads one and encodes with it


def replace(text, content, kind="String"):
    return {"type": "Replace", "pattern": {kind: text}, "content": content}


def sequence(kind, parts):
    return {"type": "Sequence", {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers",
                                 "post_processor": "processors", "decoder": "decoders"}[kind]: parts}  # fmt: skip


def charsmap(longest):
    """SentencePiece's table: an empty trie of 4 bytes, and one replacement."""
    return base64.b64encode(bytes([4, 0, 0, 0]) + bytes(4) + b"x" * longest + b"\0").decode()


def template(single, ids=1):
    token = {"id": "!", "ids": [0] * ids, "tokens": ["!"] * ids}
    pair = [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}]
    return {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": {"!": token}}


A, SPECIAL = {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "!", "type_id": 0}}
LEVEL = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
META = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True}
UNK = "<" + "u" * 100_000 + ">"
MODELS = {
    "BPE": {"type": "BPE", "vocab": {"a": 0, UNK: 1}, "merges": [], "unk_token": UNK},
    "WordLevel": {"type": "WordLevel", "vocab": {"a": 0, UNK: 1}, "unk_token": UNK},
    "WordPiece": {"type": "WordPiece", "vocab": {"a": 0, UNK: 1}, "unk_token": UNK, "continuing_subword_prefix": "##",
                  "max_input_chars_per_word": 100},
}  # fmt: skip
BOMBS = {
    "a replacement of a million": contents(normalizer=replace("e", "x" * 10**6)),
    "a replacement by a pattern": contents(normalizer=replace("[a-z]", "x" * 10**6, "Regex")),
    "40 replacements that double": contents(normalizer=sequence("normalizer", [replace("e", "ee")] * 40)),
    "replacements that insert": contents(normalizer=sequence("normalizer", [replace("", "ab", "Regex")] * 20)),
    "a prefix of a million": contents(normalizer={"type": "Prepend", "prepend": "x" * 10**6}),
    "20 prefixes, doubled": contents(normalizer=sequence("normalizer", [{"type": "Prepend", "prepend": "x" * 900},
                                                                         replace("x", "xx")] * 20)),
    "a table of replacements": contents(normalizer={"type": "Precompiled", "precompiled_charsmap": charsmap(10**6)}),
    "10,000 normalizers": contents(normalizer=sequence("normalizer", [{"type": "NFC"}] * 10_000)),
    "30 decompositions": contents(normalizer=sequence("normalizer", [{"type": "NFKD"}] * 30)),
    "30 levels of bytes": contents(pre_tokenizer=sequence("pre_tokenizer", [LEVEL] * 30)),
    "30 metaspaces": contents(pre_tokenizer=sequence("pre_tokenizer", [META] * 30)),
    "a nest of sequences": contents(normalizer=sequence("normalizer", [sequence("normalizer", [replace("e", "ee")] * 9)
                                                                        ] * 9)),
    "a pattern of a million": contents(normalizer=replace("(a|b)" * 200_000, "x", "Regex")),
    "a template of the text 100,000 times": contents(post_processor=template([A] * 100_000)),
    "templates that double": contents(post_processor=sequence("post_processor", [template([A, A])] * 40)),
    "a template of a million ids": contents(post_processor=template([A, SPECIAL], 10**6)),
    "a decoder that replaces by a million": contents(decoder=replace("e", "x" * 10**6)),
    "decoders that double": contents(decoder=sequence("decoder", [replace("e", "ee")] * 40)),
    "a token of 100,000 characters": contents(model={"type": "BPE", "vocab": {"a" * 100_000: 0}, "merges": []}),
    "words of a million characters": contents(model=MODELS["WordPiece"] | {"max_input_chars_per_word": 10**6}),
    **{f"{name}: an unknown token of 100,000 characters": contents(model=model) for name, model in MODELS.items()},
}  # fmt: skip

LOAD = """
import json, resource, sys
sys.path[:] = json.loads(sys.argv[1])
import tokenizers
from tilewright.errors import InputError
from tilewright.formats.tokenizer import Tokenizer
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[2]),) * 2)
scale = int(sys.argv[3])
for path in sys.argv[4:]:
    try:
        tokenizer = Tokenizer(path)
    except InputError as error:
        print(json.dumps([path, "refused", str(error)]))
        continue
    told = "encoded"
    for text in ("e a " * 256, "e" * 22_000, "\\ufdfa" * 5_000 * scale, "<a " * 5_000 * scale, "e " * 600_000):
        try:
            tokenizer.decode(tokenizer.encode(text)[:1024])
            tokenizer.encode_batch([text] * 3 * scale)
        except InputError as error:
            told = "error"
    print(json.dumps([path, told, ""]))
"""


def outcomes(paths, scale=1):
    """[path, what happened, error] of each, in a process of little memory."""
    command = [sys.executable, "-c", LOAD, json.dumps(sys.path), str(LIMIT), str(scale), *map(str, paths)]
    environment = {"RAYON_NUM_THREADS": "2", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_bombs_are_refused_when_they_are_loaded(tmp_path):
    for i, text in enumerate(BOMBS.values()):
        (tmp_path / f"{i}.json").write_text(text)
    found = outcomes(tmp_path / f"{i}.json" for i in range(len(BOMBS)))
    assert len(found) == len(BOMBS)
    for name, (path, told, error) in zip(BOMBS, found, strict=True):
        assert told == "refused", name
        assert error.startswith(f"{path}: ") and len(error) < 600 and "\n" not in error, name


@pytest.mark.parametrize("scale", [1, pytest.param(20, marks=pytest.mark.long)])
def test_what_grows_a_little_is_held_by_each_text(tmp_path, scale):
    """Parts within the limits: every text is encoded, or is an error of its own, in little memory."""
    grown = {
        "as it is": contents(),
        "a replacement of 1,000": contents(normalizer=replace("e", "x" * 1000)),
        "two of 100": contents(normalizer=sequence("normalizer", [replace("e", "x" * 100), replace("x", "y" * 100)])),
        "decompositions": contents(normalizer=sequence("normalizer", [{"type": "NFKD"}] * 3)),
        "levels of bytes": contents(pre_tokenizer=sequence("pre_tokenizer", [LEVEL] * 4)),
        "the text 8 times": contents(post_processor=template([A] * 8)),
        "an unknown token of 1,000": contents(
            model={"type": "WordLevel", "vocab": {"u" * 1000: 0}, "unk_token": "u" * 1000},
            pre_tokenizer={"type": "Whitespace"}, decoder=None, added_tokens=[]),
    }  # fmt: skip
    for i, text in enumerate(grown.values()):
        (tmp_path / f"{i}.json").write_text(text)
    found = outcomes((tmp_path / f"{i}.json" for i in range(len(grown))), scale)
    told = {name: what for name, (_, what, _) in zip(grown, found, strict=True)}
    assert "refused" not in told.values() and told["a replacement of 1,000"] == "error", told


@pytest.fixture
def save(tmp_path):
    def run(text):
        (tmp_path / "tokenizer.json").write_text(text)
        return Tokenizer(tmp_path / "tokenizer.json")

    return run


def test_a_text_that_becomes_too_long_is_an_error_of_its_own(save):
    tokenizer = save(contents(normalizer=replace("e", "x" * 1000)))
    encoder = SentenceEncoder(tokenizer, length=512, pad_id=0, vocabulary=300)
    assert encoder.checked("an e") and tokenizer.encode("a" * 10_000)  # it could grow, and does not
    with pytest.raises(
        InputError, match=r"^[^:]*: has 2,000 bytes, and the tokenizer expands it to over 1,048,576; at"
    ):
        encoder.checked("e" * 2000)
    with pytest.raises(InputError, match=r"has 1,048,577 bytes; at most 1,048,576 can be encoded"):
        tokenizer.encode("a" * (module.MAX_TEXT + 1))
    with pytest.raises(InputError, match="and the tokenizer expands it to over"):
        tokenizer.encode_batch(["a", "e" * 2000])


def panicking():
    """A table of SentencePiece's whose trie ends before the first byte of an emoji."""
    table = (4 * 0xF0).to_bytes(4, "little") + bytes(4 * 0xF0) + b"x\0"
    return contents(normalizer={"type": "Precompiled", "precompiled_charsmap": base64.b64encode(table).decode()})


@pytest.mark.parametrize("trace", ["0", "1"])
def test_a_panic_writes_nothing_to_the_terminal(tmp_path, trace):
    (tmp_path / "tokenizer.json").write_text(panicking())
    environment = {"RUST_BACKTRACE": trace, "PATH": "/usr/bin:/bin", "RAYON_NUM_THREADS": "2"}
    command = [sys.executable, "-c", PANIC, json.dumps(sys.path), str(tmp_path / "tokenizer.json")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stdout, done.stderr) == (0, "3\n", "before\nbehind\n")


PANIC = """
import json, os, sys
sys.path[:] = json.loads(sys.argv[1])
from tilewright.errors import InputError
from tilewright.formats.tokenizer import Tokenizer
tokenizer, errors = Tokenizer(sys.argv[2]), 0
os.write(2, b"before\\n")
for encode in (tokenizer.encode, tokenizer.encode_word, lambda text: tokenizer.encode_batch([text, "a"])):
    try:
        encode("hi \\U0001f600")
    except InputError as error:
        errors += "index out of bounds" in str(error)
os.write(2, b"behind\\n")
print(errors)
"""


def test_what_others_write_meanwhile_comes_through(capfd):
    """Before and behind the traces of panics, which are left out."""
    trace = b"\nthread '<unnamed>' (4) panicked at src/lib.rs:1:2:\nindex out of bounds\n"
    stack = b"stack backtrace:\n   0: a::b\n             at ./c.rs:3\nnote: run with `RUST_BACKTRACE=full` for more.\n"
    with ASIDE.without_panics(), ASIDE.without_panics():
        os.write(2, b"one\n" + trace + b"two\n" + trace + stack + b"three\n")
    assert capfd.readouterr().err == "one\ntwo\nthree\n"
    os.write(2, b"after\n")
    assert capfd.readouterr().err == "after\n"


def test_a_child_that_is_forked_meanwhile_has_its_descriptor(capfd):
    with ASIDE.without_panics():
        child = os.fork()
        if child == 0:
            os.write(2, b"of the child\n")
            os._exit(0)
        os.waitpid(child, 0)
        assert capfd.readouterr().err == "of the child\n"


def test_groups_change_no_id(save, monkeypatch):
    tokenizer = save(contents())
    texts = ["", "the hen", "x" * 50, "\u00e9" * 20, "the", "y" * 90, "", "z"]
    expected = tokenizer.encode_batch(texts)
    assert expected == [tokenizer.encode(text) for text in texts]
    for together in (1, 60, 200, 300):
        monkeypatch.setattr(module, "MAX_TOGETHER", together)
        assert tokenizer.encode_batch(texts) == expected
        assert [text for some in tokenizer._together(texts) for text in some] == texts
    assert tokenizer.encode_batch([]) == []


def test_random_merges_are_off(save):
    vocab = {letter: i for i, letter in enumerate([*alphabet(), "he"])}
    model = {"type": "BPE", "dropout": 0.5, "vocab": vocab, "merges": ["h e"]}
    tokenizer = save(contents(model=model))
    assert {tuple(tokenizer.encode("he" * 20)) for _ in range(20)} == {(256,) * 20}


def test_too_many_items(save, monkeypatch):
    monkeypatch.setattr(module, "MAX_ITEMS", 100)
    with pytest.raises(InputError, match="no valid tokenizer: it has more than 100 items"):
        save(contents())


@pytest.mark.parametrize("kind", ["normalizers", "pre_tokenizers", "decoders"])
def test_the_bound_holds_for_each_part_of_the_library(kind):
    """No text that is made of what grows most becomes longer than the bound says."""
    import tokenizers

    texts = [
        "\ufdfa",
        "\U0001d160",
        "\u0130",
        "\u4e16",
        " ",
        "a b",
        "\u00e9",
        "e",
        "\u1e9b\u0323",
        "\x00",
        "\u0390",
        "##",
    ]
    parts = {
        "normalizers": [
            {"type": "NFC"}, {"type": "NFD"}, {"type": "NFKC"}, {"type": "NFKD"}, {"type": "Nmt"},
            {"type": "Lowercase"}, {"type": "StripAccents"}, {"type": "Prepend", "prepend": "xyz"}, replace("e", "abc"),
            replace("", "abc", "Regex"), replace(".", "abc", "Regex"), {"type": "ByteLevel"},
            {"type": "Strip", "strip_left": True, "strip_right": True},
            {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": False,
             "lowercase": True},
        ],
        "pre_tokenizers": [
            LEVEL, LEVEL | {"add_prefix_space": False}, META, META | {"prepend_scheme": "never"},
            {"type": "Whitespace"}, {"type": "WhitespaceSplit"}, {"type": "BertPreTokenizer"},
            {"type": "Digits", "individual_digits": True}, {"type": "UnicodeScripts"},
        ],
        "decoders": [LEVEL, META, {"type": "Fuse"}, {"type": "ByteFallback"}, replace("e", "abc"),
                     {"type": "WordPiece", "prefix": "##", "cleanup": True}],
    }[kind]  # fmt: skip
    for part in parts:
        field = {"normalizers": "normalizer", "pre_tokenizers": "pre_tokenizer", "decoders": "decoder"}[kind]
        own = getattr(tokenizers.Tokenizer.from_str(contents(**{field: part})), field)
        growth = limits._after(limits.Growth(1, 0), part, "path", field)
        for text in [*texts, *(text * 50 for text in texts)]:
            if kind == "normalizers":
                size = len(own.normalize_str(text).encode())
            elif kind == "pre_tokenizers":
                size = sum(len(word.encode()) for word, _ in own.pre_tokenize_str(text))
            else:
                size = len(own.decode([text] * 3).encode())
                text = text * 3
            assert size <= growth.of(len(text.encode())), (part, text[:3])
