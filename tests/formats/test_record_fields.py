"""Fields that the user names: what passes through to the output, and the types that it has as Parquet."""

import json

import msgspec
import pytest

from tilewright.formats.jsonl import TokenLines
from tilewright.formats.kept_types import JSON, KeptTypes
from tilewright.formats.prompts import PromptLines
from tilewright.formats.record_fields import RecordFields

VALUES = [1, 1.0, 1e-300, 2**70, "a\u2028b", True, None, [1, "a", None], {"a": {"b": [1.5]}}, {}, -0.0]


def kept(line, *names):
    found, wrong = RecordFields(keep=tuple((name, name) for name in names)).kept(line)
    return msgspec.json.encode(found), wrong


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_a_value_stays_what_it_is(value):
    said = json.dumps({"m": value, "x": 1})
    found, wrong = kept(said.encode(), "m")
    assert wrong is None and json.loads(found) == {"m": value}
    assert found.decode() == json.dumps({"m": json.loads(said)["m"]}, separators=(",", ":")).replace('", "', '","') or (
        isinstance(value, list | dict)
    )


def test_digits_stay():
    assert kept(b'{"m": 1.000, "n": 0.1000000000000000055511151231257827}', "m", "n")[0] == (
        b'{"m":1.000,"n":0.1000000000000000055511151231257827}'
    )


def test_carriage_returns_between_values_go():
    assert kept(b'{"m": [1,\r2], "s": "\\r"}', "m", "s") == (b'{"m":[1, 2],"s":"\\r"}', None)


@pytest.mark.parametrize("line", [b'{"id": "broken', b"[1, 2]", b"", None, b'{"x": 1}', b'{"m": "\\ud800"}'])
def test_what_is_missing_is_null(line):
    assert kept(line, "m") == (b'{"m":null}', None)


@pytest.mark.parametrize("value", [b"1e999", b'"\xff"'])
def test_what_is_no_json_value_is_an_error_and_null(value):
    found, wrong = kept(b'{"m": ' + value + b"}", "m")
    assert found == b'{"m":null}' and wrong.field == "m" and str(wrong).startswith("cannot be kept: ")


@pytest.mark.parametrize("value", [float("inf"), [1.0, float("-inf")], {"a": [float("inf")]}], ids=repr)
def test_an_infinite_number_of_a_table_is_an_error(value):
    """It became null without a word."""
    found, wrong = RecordFields(keep=(("m", "m"),)).kept({"m": value})
    assert found == {"m": None} and str(wrong) == "cannot be kept: json has no infinite numbers"
    assert RecordFields(keep=(("m", "m"),)).kept({"m": [0.5, None]}) == ({"m": [0.5, None]}, None)


def test_fields_beside_and_inside_the_body_of_a_batch_line():
    line = b'{"custom_id": "a", "tag": 1, "body": {"prompt": "x", "metadata": {"k": 2}, "tag": 3}}'
    assert kept(line, "tag", "metadata")[0] == b'{"tag":1,"metadata":{"k": 2}}'


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, None, 3], "int64"),
        ([1, 2.5], "float64"),
        ([2**60, 2.5], JSON),
        ([[2**60, 1], [2.5]], JSON),
        ([{"a": 2**60}, {"a": 2.5}], JSON),
        ([{"a": 1}, {"a": 2**60, "b": 2.5}], ("struct", (("a", "int64"), ("b", "float64")))),
        ([[1, 2.5], [2**60]], JSON),
        ([2**60, 1], "int64"),
        ([2**64], JSON),
        ([True, 1], JSON),
        (["a", 1], JSON),
        ([None], "string"),
        ([[1], [], [None, 2]], ("list", "int64")),
        ([[1], ["a"]], JSON),
        ([{"a": 1}, {"b": "x", "a": None}], ("struct", (("a", "int64"), ("b", "string")))),
        ([{}], JSON),
        ([{"a": 1}, [1]], JSON),
        ([{str(i): i for i in range(300)}], JSON),
    ],
    ids=str,
)
def test_the_type_of_a_column(values, kind):
    found = KeptTypes(("m",))
    for value in values:
        found.add(json.dumps({"id": 1, "m": value}).encode())
    assert found.columns() == {"m": kind}


def test_a_named_content_makes_other_names_data(tmp_path):
    (tmp_path / "in.jsonl").write_text(
        '{"id": 1, "ids": [1, 2], "tokens": "data"}\n{"id": 2, "tokens": [1, 2]}\n[1, 2]\n'
    )
    reader = TokenLines(tmp_path / "in.jsonl", length=2, vocabulary=9, fields=RecordFields("ids"))
    (batch,) = reader.batches(9)
    assert batch.tokens.tolist() == [[1, 2]]
    assert [(error.line, error.field) for error in batch.errors] == [(2, "ids"), (3, "")]
    assert (
        batch.errors[0].message == "is missing; the record has id, tokens. Use --text-field NAME to read another field"
    )
    reader.close()


def test_a_named_prompt_makes_other_names_data(tmp_path):
    lines = [
        {"id": 1, "question": "ab", "prompt": [], "custom_id": [], "body": "data", "stops": 3, "top_k": 2},
        {"id": 2, "prompt": "ab"},
        {"id": 3, "question": [1, 2]},
        {"id": 4, "question": "ab", "top_kk": 1},
        {"id": 5, "question": 7},
    ]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    fields = RecordFields("question", (("stops", "stops"), ("top_k", "k")))
    reader = PromptLines(
        tmp_path / "in.jsonl", encode=lambda text: [*text.encode()], vocabulary=128, max_length=9, fields=fields
    )
    (batch,) = reader.batches(9)
    reader.close()
    good = [prompt for prompt in batch.prompts if prompt.error is None]
    assert [prompt.id for prompt in good] == [1, 3] and good[0].text == "ab" and good[0].sampling == {"top_k": 2}
    assert msgspec.json.encode(good[0].kept) == b'{"stops":3,"k":2}'
    assert [(error.line, error.field) for error in batch.errors] == [(2, "question"), (4, "top_kk"), (5, "question")]
