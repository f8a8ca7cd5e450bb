"""Plain sentences: a text's ids do not depend on its neighbours, and a bad one is a record with its line."""

import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tilewright.errors import InputError, UsageError
from tilewright.formats.lines import BOM
from tilewright.formats.sentence_encoder import CHARACTERS, SentenceEncoder, encoder_for
from tilewright.formats.sentences import open_sentences
from tilewright.formats.tokenizer import Tokenizer
from tilewright.models.textcnn import TextCNNConfig

WORDS = ["[PAD]", "[UNK]", "a", "good", "bad", "film", "##s", ".", "!"]
L, V, PAD, UNKNOWN = 5, 12, 0, 1


def save(path, **model):
    vocabulary = {word: i for i, word in enumerate(WORDS)}
    content = {
        "version": "1.0",
        "normalizer": {"type": "Lowercase"},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 20,
            "vocab": vocabulary,
        }
        | model,
    }
    path.write_text(json.dumps(content))
    return path


@pytest.fixture
def encoder(tmp_path):
    return SentenceEncoder(Tokenizer(save(tmp_path / "tokenizer.json")), length=L, pad_id=PAD, vocabulary=V)


def read(path, content, encoder, size=3, **options):
    path.write_bytes(content)
    reader = open_sentences(path, encoder=encoder, length=L, vocabulary=V, **options)
    try:
        batches = list(reader.batches(size))
    finally:
        reader.close()
    rows = np.concatenate([batch.tokens for batch in batches])
    assert rows.dtype == np.int32 and rows.shape[1] == L
    return rows.tolist(), [record for batch in batches for record in batch.records]


TEXTS = [
    ("A good film!", [2, 3, 5, 8, 0]),
    ("bad", [4, 0, 0, 0, 0]),
    ("films films a", [5, 6, 5, 6, 2]),
    ("a a a a bad film", [2, 2, 2, 2, 4]),  # what is behind the fifth token does not count
    ("\U0001f600", [1, 0, 0, 0, 0]),
    ("\0 good", [1, 3, 0, 0, 0]),
    ("a" * 10**6, [1, 0, 0, 0, 0]),
    ("good " * 10_000, [3, 3, 3, 3, 3]),
]


def test_texts_become_as_many_ids_as_the_model_takes(encoder):
    rows = encoder.rows([encoder.checked(text) for text, _ in TEXTS])
    assert rows.tolist() == [ids for _, ids in TEXTS]
    assert encoder.rows([]).shape == (0, L)


def test_what_counts_of_a_long_text_has_a_limit(encoder):
    assert len(encoder.checked("x " * 10**6)) == CHARACTERS * L + 1


def test_texts_that_are_cut_are_counted(tmp_path, encoder):
    """Those with more tokens than count, or more characters than are looked at; ids never are."""
    whole = "a" * CHARACTERS * L  # one unknown word
    for text, cut in [("a a a a bad", 0), ("a a a a bad film", 1), (whole, 0), (f"{whole}a", 1), (f"{whole} film", 1)]:
        assert encoder.encoded([encoder.checked(text)])[1] == cut, len(text)
    assert encoder.encoded([[2] * L, "good " * L, "good " * (L + 1)])[1] == 1
    lines = [line(id=i, text="good " * (4 + i)) for i in range(5)] + [line(id=3, text="good " * 9), line(id=9)]
    (tmp_path / "in.jsonl").write_text("\n".join(lines))
    reader = open_sentences(tmp_path / "in.jsonl", encoder=encoder, length=L, vocabulary=V)
    assert [batch.cut for batch in reader.batches(3)] == [1, 2, 0]  # a record with an error is not counted
    reader.close()


def test_text_files(tmp_path, encoder):
    lines = [text for text, _ in TEXTS if text != "\U0001f600" and "\0" not in text]  # a file with NULs is binary
    content = "\r\n".join([lines[0], "", "  ", *lines[1:]]).encode() + b"\n\xff good\n\xf0\x9f\x98\x80"
    rows, records = read(tmp_path / "in.txt", content, encoder)
    assert rows == [ids for text, ids in TEXTS if text in lines] + [[1, 0, 0, 0, 0]]
    assert [record.id for record in records] == [1, *range(4, 4 + len(lines) + 1)]
    assert [str(record.error) for record in records if record.error] == [f"line {3 + len(lines)}: byte 0 is not UTF-8"]


def line(**fields):
    return json.dumps({"id": "q"} | fields)


@pytest.mark.parametrize(
    ("content", "ids"),
    [
        (line(text="A good film!", label="x"), [2, 3, 5, 8, 0]),
        (line(tokens=[2, 11]), [2, 11, 0, 0, 0]),
        (line(input_ids=[2, 3, 5, 8, 4]), [2, 3, 5, 8, 4]),
        ("[7]", [7, 0, 0, 0, 0]),
    ],
)
def test_json_lines(tmp_path, encoder, content, ids):
    rows, records = read(tmp_path / "in.jsonl", content.encode(), encoder)
    assert rows == [ids] and [record.error for record in records] == [None]


@pytest.mark.parametrize(
    ("content", "field", "message"),
    [
        (line(text=""), "text", "is empty; a sentence has at least one word"),
        (line(text=" \t\n"), "text", "is empty"),
        (line(text=3), "text", "expected str, got int"),
        (line(txt="bad film"), "text", "is missing; the record has id, txt"),
        (line(text="a", tokens=[1]), "text", "is given together with tokens; one of them is wanted"),
        (line(tokens=[]), "tokens", "has 0 ids; the model takes 1 to 5"),
        (line(tokens=[1] * 6), "tokens", "has 6 ids; the model takes 1 to 5"),
        (line(tokens=[1, 12]), "tokens[1]", "token id 12 is outside"),
        ('{"id": "q", "text": "\\ud800"}', "text", r"\ud800 is half of a surrogate pair"),
        ('{"id": "q", "text": "' + "x" * 100, "", "the JSON is not whole, it ends at byte 121"),
    ],
)
def test_a_bad_line_is_a_record_and_costs_no_other(tmp_path, encoder, content, field, message):
    good = [json.dumps({"id": i, "text": "bad film"}) for i in range(2)]
    rows, records = read(tmp_path / "in.jsonl", "\n".join([good[0], content, good[1]]).encode(), encoder)
    assert rows == [[4, 5, 0, 0, 0]] * 2 and [record.id for record in records] in ([0, "q", 1], [0, None, 1])
    assert records[1].error.field == field and message in records[1].error.message and records[1].error.line == 2


@given(
    content=st.lists(
        st.sampled_from(
            [b'{"text":"', b'"}', b"good", b" ", b"\n", b"\r\n", b"\0", b"\xff", b"\xed\xa0\x80", b"\\ud83d"]
        )
        | st.text(max_size=5).map(lambda text: text.encode(errors="ignore"))
        | st.binary(max_size=5),
        max_size=12,
    ),
    name=st.sampled_from(["in.txt", "in.jsonl"]),
)
@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes(tmp_path, encoder, content, name):
    """Every line that is not blank is one record with ids or an error; only InputError comes out."""
    content = b"".join(content)
    try:
        rows, records = read(tmp_path / name, content, encoder)
    except InputError:
        text = content.removeprefix(BOM).strip()
        assert not text or (b"\0" in content and (name == "in.txt" or text[:1] not in b"{["))
        return
    assert len(records) == sum(1 for line in content.removeprefix(BOM).split(b"\n") if line.strip())
    good = [record for record in records if not record.error]
    assert len(rows) == len(good) and all(0 <= id < len(WORDS) for row in rows for id in row)


def test_without_a_tokenizer_there_is_no_text(tmp_path):
    with pytest.raises(UsageError, match="the input is text, and the model has no tokenizer"):
        open_sentences(tmp_path / "in.txt", encoder=None, length=L, vocabulary=V)
    rows, records = read(tmp_path / "in.jsonl", line(text="a", tokens=[1] * 5).encode(), None)
    assert rows == [[1] * 5] and not records[0].error
    _, records = read(tmp_path / "in.jsonl", b'{"tokens": [1]}\n{"text": "a"}', None)
    wanted = [
        "has 1 ids; the model takes 5",
        "is missing; the record has text. Use --text-field NAME to read another field",
    ]
    assert [record.error.message for record in records] == wanted


def test_the_example_in_an_error_is_one_for_this_file(tmp_path, encoder):
    for name, example in (("in.txt", "Write lines such as a sentence"), ("in.jsonl", '"text": "a sentence"')):
        with pytest.raises(InputError, match=example):
            read(tmp_path / name, b"", encoder)


def test_binary_files_are_what_they_were(tmp_path, encoder):
    (tmp_path / "in.bin").write_bytes(np.arange(10, dtype="<i4").tobytes())
    reader = open_sentences(tmp_path / "in.bin", encoder=encoder, length=L, vocabulary=V)
    assert next(iter(reader.batches(9))).tokens.tolist() == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    reader.close()


def test_a_tokenizer_has_to_fit_its_model(tmp_path):
    config = TextCNNConfig(vocab_size=9, sequence_length=9, pad_token_id=0)
    tokenizer = Tokenizer(save(tmp_path / "tokenizer.json"))
    assert encoder_for(None, config) is None and encoder_for(tokenizer, config).length == 9
    with pytest.raises(InputError, match=r"tokenizer.json: the tokenizer has 9 tokens; the model's vocabulary has 8"):
        encoder_for(tokenizer, TextCNNConfig(vocab_size=8, pad_token_id=0))
    sparse = save(tmp_path / "tokenizer.json", vocab={"[UNK]": 0, "a": 9, "film": 300})
    with pytest.raises(InputError, match="the tokenizer gave id 300; the model's vocabulary has 9"):
        encoder_for(Tokenizer(sparse), config).rows(["a film"])
    with pytest.raises(InputError, match="has no pad_token_id, with which"):
        encoder_for(tokenizer, TextCNNConfig())
    with pytest.raises(InputError, match="Missing"):  # a token for what is unknown
        Tokenizer(save(tmp_path / "tokenizer.json", unk_token="[GONE]"))  # noqa: S106 - no password
    with pytest.raises(ValueError, match="pad_token_id is 9; ids are 0 to 8"):
        TextCNNConfig(vocab_size=9, pad_token_id=9)


@pytest.mark.parametrize("name", ["in.txt", "in.jsonl"])
def test_a_byte_order_mark_is_no_text(tmp_path, encoder, name):
    content = b"a good film\nbad\n" if name == "in.txt" else b'{"id": 1, "text": "a good film"}\n'
    plain, marked = (read(tmp_path / name, start + content, encoder) for start in (b"", b"\xef\xbb\xbf"))
    assert plain == marked and not any(record.error for record in plain[1])
