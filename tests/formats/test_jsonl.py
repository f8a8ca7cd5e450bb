"""JSON lines: a bad line is a record with its line and field, and costs no other record."""

import json
import os
import tracemalloc

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tilewright.errors import InputError
from tilewright.formats import lines as text_lines
from tilewright.formats.atomic import AtomicFile
from tilewright.formats.jsonl import LabelWriter, TokenLines

L, V = 3, 10


def read(path, content, size=4, count=None):
    path.write_bytes(content if isinstance(content, bytes) else "".join(f"{line}\n" for line in content).encode())
    lines = TokenLines(path, length=L, vocabulary=V, count=count)
    try:
        batches = list(lines.batches(size))
    finally:
        lines.close()
    records = [record for batch in batches for record in batch.records]
    return np.concatenate([batch.tokens for batch in batches]), records


def good(**fields):
    return json.dumps({"tokens": [1, 2, 3], **fields})


@pytest.mark.parametrize(
    "line", ["[1, 2, 3]", '{"tokens": [1,2,3]}', '{"text": {"a": [1]}, "input_ids": [1,2,3]}', " [1,2,3] "]
)
def test_good_lines(tmp_path, line):
    tokens, records = read(tmp_path / "in", [line, "", "  ", line])
    assert tokens.dtype == np.int32 and tokens.tolist() == [[1, 2, 3]] * 2
    assert [(record.id, record.line, record.error) for record in records] == [(1, 1, None), (4, 4, None)]


def test_ids(tmp_path):
    ids = ["a", 0, -5, "0", "\u00e9\x00", 2**63 - 1]
    _, records = read(tmp_path / "in", [good(id=id) for id in ids])
    assert [record.id for record in records] == ids and not any(record.error for record in records)


@pytest.mark.parametrize(
    ("line", "field", "message", "id"),
    [
        (b"{bad", "", "JSON is malformed", None),
        (b'{"id":"q","tokens":[1,2', "", "the JSON is not whole, it ends at byte 23", None),
        (b"[1,2,3] x", "", "trailing", None),
        (b'{"id":"q","tokens":[1,2,3],"text":"\xff"}', "", "byte 35 is not UTF-8", "q"),
        (b'{"id":"q","tokens":[1,"2",3]}', "tokens[1]", "expected int, got str", "q"),
        (b'{"id":"q","tokens":[1,2.5,3]}', "tokens[1]", "expected int, got float", "q"),
        (b'{"id":"q","tokens":[1,true,3]}', "tokens[1]", "expected int, got bool", "q"),
        (b'{"id":"q","tokens":[1,NaN,3]}', "", "JSON is malformed", "q"),
        (b'{"id":"q","note":"a\tb","tokens":[1,2,3]}', "", "JSON is malformed", "q"),
        (b'{"id":"q","tokens":[1,2,3],"note":"\\ud800"}', "note", r"\ud800 is half of a surrogate pair", "q"),
        (b'{"id":-7,"a b":["\\udfff"]}', "", r"\udfff is half of a surrogate pair", -7),
        (b'{"id":"q","\\ud83d":1}', "", r"\ud83d is half of a surrogate pair", "q"),
        (b'{"id":"\\ud83d","tokens":[1,2,3]}', "id", r"\ud83d is half of a surrogate pair", None),
        (b'{"id":"q","\\ud800":"\\udc01"}', "", r"\udc01 is half of a surrogate pair", "q"),
        (b'{"id":"q","tokens":"1 2 3"}', "tokens", "expected array, got str", "q"),
        (b'{"id":"q","tokens":[1,2]}', "tokens", "has 2 ids; the model takes 3", "q"),
        (b'{"id":"q","input_ids":[1,2,3,4]}', "input_ids", "has 4 ids", "q"),
        (b'{"id":"q","tokens":[]}', "tokens", "has 0 ids", "q"),
        (b'{"id":"q","tokens":[1,2,10]}', "tokens[2]", "token id 10 is outside the vocabulary (ids 0 to 9)", "q"),
        (b'{"id":"q","tokens":[1,-1,10]}', "tokens[1]", "token id -1 is outside", "q"),
        (b'{"id":"q","tokens":[1,' + b"9" * 5000 + b",2]}", "tokens[1]", "out of range", "q"),
        (b'{"id":"q","tokns":[1,2,3]}', "tokens", "is missing; the record has id, tokns", "q"),
        (b'{"id":"q","tokens":[1,2,3],"input_ids":[1,2,3]}', "tokens", "is given together with input_ids", "q"),
        (b'{"id":"q","tokens":[1,2,3],"tokens":[3,2,1]}', "tokens", "the key 'tokens' occurs twice", "q"),
        (b'{"id":"p","id":"q","tokens":[1,2,3]}', "id", "the key 'id' occurs twice", "q"),
        (b'{"id":null,"tokens":[1,2,3]}', "id", "expected int | str, got null", None),
        (b'{"id":[1],"tokens":[1,2,3]}', "id", "expected int | str, got array", None),
        (b'{"id":1.5,"tokens":[1,2,3]}', "id", "got float", None),
        (b'{"id":9223372036854775808,"tokens":[1,2,3]}', "id", "<=", None),
        (b'{"id":"' + b"x" * 513 + b'","tokens":[1,2,3]}', "id", "length <= 512", None),
        (b'{"id":"a","tokens":[1,2,3]}', "id", "'a' is also the id of an earlier record", "a"),
        (b'{"tokens":[1,2,3]}', "id", "is missing", None),
        (b"[1,2,3]", "id", "is missing", None),
        (b'{"id":"q","x":' + b"[" * 100_000, "", "nested too deeply", None),
        (b"null", "", "expected object, got null", None),
        (b'{"id":"q","tokens":[1,2,3]' + b" " * (16 << 20) + b"}", "", "is longer than 16 MiB", None),
        (b"\x00\x01\x02", "", "JSON is malformed", None),
    ],
)
def test_bad_lines(tmp_path, line, field, message, id):
    content = [good(id="a").encode(), b"", line, good(id="z").encode()]
    tokens, records = read(tmp_path / "in", b"\n".join(content))
    assert tokens.tolist() == [[1, 2, 3]] * 2
    assert [record.error is None for record in records] == [True, False, True]
    error = records[1].error
    assert (error.line, error.field, records[1].id) == (3, field, id)
    assert message in error.message
    assert str(error).startswith(f"line 3, {field}: " if field else "line 3: ")


def test_without_ids_a_bad_record_has_its_line(tmp_path):
    """Even where it comes before the first good one, which says that there are none."""
    for first in ("{bad", "[1]", '{"tokens": ["x"]}'):
        _, records = read(tmp_path / "in", [first, "", "{worse", "[1,2,3]", "[4]"])
        assert [record.id for record in records] == [1, 3, 4, 5]
    _, records = read(tmp_path / "in", ["{bad", "{worse"])
    assert [record.id for record in records] == [1, 2], "nothing tells of ids"
    _, records = read(tmp_path / "in", ["{bad", good(id="a")])
    assert [record.id for record in records] == [None, "a"]


def test_an_id_where_the_first_line_has_none(tmp_path):
    _, records = read(tmp_path / "in", ["[1,2,3]", good(id="a")])
    assert records[1].error.field == "id" and "is given" in records[1].error.message


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_duplicates_are_found_in_any_batch(tmp_path, rng, size):
    ids = rng.integers(0, 60, 200).tolist()
    _, records = read(tmp_path / "in", [good(id=f"r{id}") for id in ids], size=size)
    expected = [ids.index(id) != i for i, id in enumerate(ids)]
    assert [record.error is not None for record in records] == expected


def test_a_bad_record_takes_its_id(tmp_path):
    _, records = read(tmp_path / "in", ['{"id": 1, "tokens": []}', good(id=1)])
    assert [record.error.field for record in records] == ["tokens", "id"]


@pytest.mark.parametrize("size", [1, 4, 5, 100])
@pytest.mark.parametrize("count", [None, 1, 4, 10])
def test_count_and_batches(tmp_path, size, count):
    tokens, records = read(tmp_path / "in", [f"[{i % V},0,0]" for i in range(10)], size=size, count=count)
    assert tokens[:, 0].tolist() == [i % V for i in range(count or 10)] and len(records) == (count or 10)


def test_whole_file_errors(tmp_path):
    with pytest.raises(InputError, match="is empty"):
        read(tmp_path / "in", b"")
    for blank in (b"\n  \n", b" ", b"\xef\xbb\xbf\r\n", b"\n" * (3 << 20)):
        (tmp_path / "in").write_bytes(blank)
        with pytest.raises(InputError, match="holds 0 records: all its lines are blank"):
            TokenLines(tmp_path / "in", length=L, vocabulary=V)  # before anything is read of it
    with pytest.raises(InputError, match="holds 2 records; 3 were asked for"):
        read(tmp_path / "in", ["[1,2,3]"] * 2, count=3)


def test_a_file_that_shrinks(tmp_path, monkeypatch):
    monkeypatch.setattr(text_lines, "CHUNK_BYTES", 64)
    (tmp_path / "in").write_text("[1,2,3]\n" * 100)
    lines = TokenLines(tmp_path / "in", length=L, vocabulary=V)
    batches = lines.batches(4)
    next(batches)
    os.truncate(tmp_path / "in", 100)
    with pytest.raises(InputError, match="shrank"):
        list(batches)
    lines.close()


@given(
    content=st.lists(
        st.sampled_from(
            [
                b"[1,2,3]",
                b'{"tokens":[1,2,3],"id":',
                b'"a"',
                b"}",
                b"\n",
                b"\r\n",
                b" ",
                b"[",
                b"\xff",
                b"7",
                b"\\u",
                b'"',
            ]
        ),
        min_size=1,
        max_size=30,
    ),
    chunk=st.integers(1, 40),
    longest=st.integers(5, 60),
)
@settings(
    max_examples=3 * settings.default.max_examples,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_any_bytes(tmp_path, monkeypatch, content, chunk, longest):
    """Every line that is not blank is one record, wherever chunks end; only InputError comes out."""
    monkeypatch.setattr(text_lines, "CHUNK_BYTES", chunk)
    monkeypatch.setattr(text_lines, "MAX_LINE_BYTES", longest)
    content = b"".join(content)
    expected = [i for i, line in enumerate(content.split(b"\n"), 1) if line.strip() or len(line) > longest]
    try:
        tokens, records = read(tmp_path / "in", content)
    except InputError:
        assert not expected
        return
    assert [record.line for record in records] == expected
    assert len(tokens) == sum(record.error is None for record in records)
    for record in records:
        if len(content.split(b"\n")[record.line - 1]) > longest:
            assert "longer" in record.error.message


def test_memory_does_not_grow_with_the_input(tmp_path):
    def peak(n):
        (tmp_path / "in").write_text("".join(f'{{"id": {i}, "tokens": [1, 2, 3]}}\n' for i in range(n)))
        tracemalloc.start()
        lines = TokenLines(tmp_path / "in", length=L, vocabulary=V)
        for batch in lines.batches(100):
            assert not batch.errors
        lines.close()
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    small, large = peak(1000), peak(30_000)
    assert large - small < 3.5 * text_lines.CHUNK_BYTES + 24 * 30_000


def answers(logits):
    return [{"label": "b" if row[1] > row[0] else "a", "score": 0.5, "logits": row.tolist()} for row in logits]


def test_labels(tmp_path):
    path = tmp_path / "in"
    path.write_text("\n".join([good(id="x\x1b\u202e"), "{", good(id="y"), good(id="w")]))
    lines = TokenLines(path, length=L, vocabulary=V)
    (batch,) = lines.batches(10)
    lines.close()
    with AtomicFile(tmp_path / "out") as file:
        logits = np.array([[0.2, 0.1], [np.inf, 0], [1e-7, 3]], np.float32)
        overflows = LabelWriter(file, answers).write(batch, logits)
    text = (tmp_path / "out").read_bytes()
    assert b"\x1b" not in text
    found = [json.loads(line) for line in text.splitlines()]
    assert found[0] == {"id": "x\x1b\u202e", "label": "a", "score": 0.5, "logits": [0.2, 0.1]}
    assert found[1]["id"] is None and found[1]["error"]["line"] == 2
    assert found[2]["id"] == "y" and "not finite" in found[2]["error"]["message"]
    assert [error.line for error in overflows] == [3]
    assert found[3] == {"id": "w", "label": "b", "score": 0.5, "logits": [1e-7, 3]}


def test_fields_beside_token_ids_that_would_change_the_answer_are_refused(tmp_path):
    """As a tokenizer of transformers writes them: also for a text, of which nobody would know what they mean."""
    lines = [
        '{"input_ids": [1, 2, 3], "attention_mask": [1, 1, 1], "token_type_ids": [0, 0, 0], "position_ids": null}',
        '{"input_ids": [1, 2, 0], "attention_mask": [1, 1, 0]}',
        '{"input_ids": [1, 2, 3], "token_type_ids": [0, 0, 1]}',
        '{"input_ids": [1, 2, 3], "position_ids": [1, 2, 3]}',
        '{"input_ids": [1, 2, 3], "attention_mask": 7}',
        '{"attention_mask": [0]}',
    ]
    (tmp_path / "in.jsonl").write_text("".join(f"{line}\n" for line in lines))
    reader = TokenLines(tmp_path / "in.jsonl", length=3, vocabulary=9)
    (batch,) = reader.batches(9)
    reader.close()
    assert batch.tokens.tolist() == [[1, 2, 3]]
    fields = ["attention_mask", "token_type_ids", "position_ids", "attention_mask", "tokens"]
    assert [(error.line, error.field) for error in batch.errors] == list(zip(range(2, 7), fields, strict=True))
    assert batch.errors[0].message == (
        "is [1, 1, 0]; this is not supported: leave out the tokens with 0, and attention_mask"
    )
