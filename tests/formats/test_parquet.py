"""Rows of Parquet files as records, and JSON lines as rows; files that are damaged or lie are InputErrors."""

import gc
import io
import json
import os
import sys
from dataclasses import replace
from importlib.util import find_spec

import msgspec
import numpy as np
import pytest

from tilewright.errors import InputError, ResourceError
from tilewright.formats import parquet as module
from tilewright.formats.atomic import AtomicFile
from tilewright.formats.completions import CompletionWriter
from tilewright.formats.files import InputFile
from tilewright.formats.parquet import ParquetEncoder, TextIds, all_rows, group_rows, has_ids, row_groups
from tilewright.formats.prompts import open_prompts
from tilewright.formats.records import Completion, Prompt, RecordError
from tilewright.formats.sentences import open_sentences

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
ROWS = [
    {"id": f"r{i}", "prompt_token_ids": [i, 1, 2], "temperature": 0.5 if i % 2 else None, "photo": b"\xff\xd8"}
    for i in range(10)
]


@pytest.fixture
def file(tmp_path):
    """An open Parquet file of these rows or this table."""
    opened = []

    def write(rows, size=4, **options):
        table = pa.Table.from_pylist(rows) if isinstance(rows, list) else rows
        pq.write_table(table, tmp_path / "in.parquet", row_group_size=size, **options)
        opened.append(InputFile(tmp_path / "in.parquet", "input"))
        return opened[-1]

    yield write
    for each in opened:
        each.close()


def test_rows_as_records(file):
    """Columns that nobody wants are not read; a null is a field that is not given."""
    found = file(ROWS)
    assert row_groups(found) == (4, 4, 2) and has_ids(found)
    rows = list(group_rows(found, 1, 4, 4))
    assert [number for number, _, _ in rows] == [5, 6, 7, 8]
    assert rows[0][1] == {"id": "r4", "prompt_token_ids": [4, 1, 2]}
    assert rows[1][1] == {"id": "r5", "prompt_token_ids": [5, 1, 2], "temperature": 0.5}
    assert [number for number, _, _ in all_rows(found, None)] == list(range(1, 11))


@pytest.mark.parametrize(("count", "groups"), [(1, (1,)), (4, (4,)), (5, (4, 1)), (10, (4, 4, 2))])
def test_the_first_rows(file, count, groups):
    found = file(ROWS)
    assert row_groups(found, count) == groups
    assert [number for number, _, _ in all_rows(found, count)] == list(range(1, count + 1))


def test_too_few_rows(file):
    with pytest.raises(InputError, match="the input holds 10 records; 11 were asked for"):
        row_groups(file(ROWS), 11)
    with pytest.raises(InputError, match="the input holds 0 records"):
        row_groups(file(pa.table({"text": pa.array([], "string")})))


def test_text_that_is_no_utf8_costs_its_record_alone(file):
    texts = pa.Array.from_buffers(pa.binary(), 3, pa.array([b"good", b"\xff\xfe", b"fine"], pa.binary()).buffers())
    rows = list(all_rows(file(pa.table({"text": texts.view(pa.string())})), None))
    assert [row for _, row, _ in rows] == [{"text": "good"}, {"text": b"\xff\xfe"}, {"text": "fine"}]


def test_text_that_is_no_utf8_costs_no_id(file, tmp_path):
    texts = pa.Array.from_buffers(pa.binary(), 2, pa.array([b"good", b"\xff"], pa.binary()).buffers())
    file(pa.table({"text": texts.view(pa.string()), "prompt": texts.view(pa.string()), "id": [7, 8]}))
    reader = open_prompts(tmp_path / "in.parquet", encode=None, vocabulary=9, max_length=9)
    (batch,) = reader.batches(9)
    reader.close()
    assert [prompt.id for prompt in batch.prompts] == [7, 8]
    assert str(batch.prompts[1].error) == "line 2, text: byte 0 is not UTF-8"


def test_a_binary_column_is_text(file, tmp_path):
    """As Spark and Hive write texts without their type. They were read as base64."""
    texts = ["caf\u00e9 \u4e16", "a", "b"]
    column = pa.array([*[text.encode() for text in texts], b"\xff"], pa.binary())
    ids = pa.array([b"x", b"y", b"z", b"w"], pa.large_binary())
    file(pa.table({"id": ids, "prompt": column.dictionary_encode()}))
    reader = open_prompts(tmp_path / "in.parquet", encode=lambda text: [1], vocabulary=9, max_length=9)
    (batch,) = reader.batches(9)
    reader.close()
    assert [prompt.text for prompt in batch.prompts[:3]] == texts
    assert [prompt.id for prompt in batch.prompts] == ["x", "y", "z", "w"]
    assert str(batch.prompts[3].error) == "line 4, prompt: byte 0 is not UTF-8"


def test_nan_is_not_given_and_infinity_is_refused(file, tmp_path):
    """As pandas writes what is not given; an infinite field was taken for that, too."""
    ids = [[1], [2], [3]]
    file(
        pa.table(
            {"temperature": [0.5, float("nan"), 1.0], "length_penalty": [1.0, 1.0, float("inf")], "input_ids": ids}
        )
    )
    reader = open_prompts(tmp_path / "in.parquet", encode=None, vocabulary=9, max_length=9)
    (batch,) = reader.batches(9)
    reader.close()
    assert [prompt.sampling for prompt in batch.prompts] == [{"temperature": 0.5}, {}, {}]
    assert str(batch.prompts[2].error).startswith("line 3, length_penalty: is inf; this is not supported")


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pa.array([[1, 2], [1, None]]), "expected int, got null"),
        (pa.array([["1"], ["2"]]), "expected int, got str"),
        (pa.array([[1.0], [2.0]]), "expected int, got float"),
        (pa.array([1, 2]), "expected array, got int"),
        (pa.array([[1], [2**64 - 1]], pa.list_(pa.uint64())), f"token id {2**64 - 1} is outside the vocabulary"),
        (pa.array([[[1]], [[2]]]), "expected int, got array"),
        (pa.array([b"a", b"b"]), "expected array, got str"),
        (pa.array([{"a": 1}, {"a": 2}]), "expected array, got object"),
    ],
    ids=str,
)
def test_a_column_of_another_type_is_told_as_in_json(file, tmp_path, column, message):
    file(pa.table({"tokens": column, "when": pa.array([1, 2], "timestamp[us]")}))
    (tmp_path / "in.jsonl").write_bytes(
        b"".join(msgspec.json.encode({"tokens": v}) + b"\n" for v in column.to_pylist())
    )
    said = []
    for name in ("in.parquet", "in.jsonl"):
        reader = open_sentences(tmp_path / name, encoder=None, length=2, vocabulary=9)
        said.append([str(record.error) for batch in reader.batches(9) for record in batch.records])
        reader.close()
    assert said[0] == said[1] and message in said[0][1]


@pytest.mark.parametrize("kind", ["timestamp[ns]", "duration[ns]", "time64[ns]", "timestamp[us]"])
def test_a_value_that_python_has_no_type_for(file, kind):
    """Nanoseconds, and a year behind 9999."""
    if "[ns]" in kind and find_spec("pandas"):
        pytest.skip("pandas has a type for nanoseconds")
    value = 2**62 if kind == "timestamp[us]" else 1001
    array = pa.array([1000, value]).view(pa.type_for_alias(kind))
    with pytest.raises(InputError, match=r"in\.parquet, column id: cannot be read: .*\. Write the column as text$"):
        list(all_rows(file(pa.table({"id": array, "text": ["a", "b"]})), None))


def test_a_long_row(file, monkeypatch):
    monkeypatch.setattr(module, "MAX_LINE_BYTES", 40)
    rows = all_rows(file([{"text": "a" * 10}, {"text": "a" * 100}]), None)
    assert [row is None for _, row, _ in rows] == [False, True]


def given(row):
    return {name: value for name, value in row.items() if value is not None}


def test_the_readers_are_those_of_json_lines(file, tmp_path):
    rows = [{"id": i, "prompt_token_ids": [i]} for i in range(5)] + [{"id": None, "prompt_token_ids": [99]}]
    file(rows)
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(given(row)) + "\n" for row in rows))
    found = []
    for name in ("in.parquet", "in.jsonl"):
        reader = open_prompts(tmp_path / name, encode=None, vocabulary=50, max_length=8, length=16)
        found.append([(p.line, p.id, str(p.error), p.token_ids.tolist()) for b in reader.batches(4) for p in b.prompts])
        reader.close()
    assert found[0] == found[1] and found[0][4] == (5, 4, "None", [4])


def test_rows_without_ids(file, tmp_path):
    file([{"tokens": [1, 2]}, {"tokens": [3]}])
    reader = open_sentences(tmp_path / "in.parquet", encoder=None, length=2, vocabulary=9)
    (batch,) = reader.batches(8)
    reader.close()
    assert reader.total == 2 and [record.id for record in batch.records] == [1, 2]
    assert str(batch.records[1].error) == "line 2, tokens: has 1 ids; the model takes 2"


def damaged(rng, data):
    """A byte or some of them changed, removed, put in; half of the time in the part that describes the others."""
    data = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 8])):
        at = int(rng.integers(len(data)))
        at = at if rng.random() < 0.5 else max(len(data) - 1 - at % 900, 0)
        kind = rng.random()
        if kind < 0.7:
            data[at] = int(rng.integers(256))
        elif kind < 0.8:
            del data[at : at + int(rng.integers(1, 20))]
        elif kind < 0.9:
            data[at:at] = rng.bytes(int(rng.integers(1, 9)))
        else:
            data[at : at + 4] = b"\xff\xff\xff\x7f"
    return bytes(data)


@pytest.mark.parametrize("count", [400, pytest.param(10_000, marks=pytest.mark.long)])
def test_damaged_files(file, tmp_path, rng, count):
    file(ROWS, compression="snappy")
    whole = (tmp_path / "in.parquet").read_bytes()
    refused = 0
    for _ in range(count):
        (tmp_path / "bad.parquet").write_bytes(damaged(rng, whole))
        with InputFile(tmp_path / "bad.parquet", "input") as bad:
            try:
                has_ids(bad)
                sum(1 for _ in all_rows(bad, None))
            except InputError as error:
                assert error.path.endswith("bad.parquet")
                refused += 1
    assert refused > count / 2


def test_a_row_group_that_lies(file):
    """The file's list says more rows than there are."""
    found = file(ROWS)
    with pytest.raises(InputError, match=r"row group 2: it has 2 rows; the file's footer says 4"):
        list(group_rows(found, 2, 8, 4))


def test_limits(file, monkeypatch):
    found = file(ROWS)
    monkeypatch.setattr(module, "MOST_GROUPS", 2)
    with pytest.raises(InputError, match="it has 3 row groups; 2 are allowed"):
        row_groups(found)
    monkeypatch.setattr(module, "MOST_GROUPS", 3)
    monkeypatch.setattr(module, "MOST_BYTES", 10)
    with pytest.raises(InputError, match=r"row group 0: it has .* bytes; at most 10 are allowed"):
        row_groups(found)


def test_a_file_that_shrinks(file, tmp_path):
    found = file([{"text": os.urandom(50_000).hex()} for _ in range(20)], 10)
    rows = all_rows(found, None)
    next(rows)
    os.truncate(tmp_path / "in.parquet", 100)
    with pytest.raises(InputError, match="shrank while it was read"):
        list(rows)


def test_without_pyarrow(file, monkeypatch):
    found = file(ROWS)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ResourceError, match=r"Parquet needs pyarrow: .*pip install .*\[parquet\]'"):
        row_groups(found)


class Written(io.BytesIO):
    path = "out.parquet"


def encoded(lines, size, ids="string"):
    """The bytes of a Parquet file of these lines, handed over in blocks of this size."""
    out, text = Written(), b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
    columns = {"text": "string", "token_ids": "list<int32>", "logprobs": "logprobs", "error": "error"}
    encoder = ParquetEncoder(out, columns | {"index": "int32"}, ids)
    for first in range(0, len(text), size):
        encoder.write(text[first : first + size])
    encoder.finish()
    return out.getvalue()


def test_lines_as_rows(monkeypatch):
    """The bytes do not depend on the blocks; row groups are of ROWS lines."""
    monkeypatch.setattr(module, "ROWS", 3)
    error = {"line": 3, "field": "id", "message": "was given before"}
    two = [{"index": n, "text": "ab"[n], "token_ids": [n]} for n in range(2)]
    lines = [
        {"id": 7, "text": "so", "token_ids": [1, 2], "logprobs": [{"1": -0.5, "9": -1.0}, {"2": 0.0}]},
        {"id": "b", "choices": two},
        {"id": None, "error": error},
        {"id": "d", "token_ids": []},
    ]
    found = {encoded(lines, size) for size in (1, 7, 1000)}
    assert len(found) == 1
    read = pq.ParquetFile(io.BytesIO(found.pop()))
    assert [read.metadata.row_group(n).num_rows for n in range(read.num_row_groups)] == [4, 1]
    rows = read.read().to_pylist()
    assert [row["id"] for row in rows] == ["7", "b", "b", None, "d"]
    assert rows[0]["logprobs"] == [[(1, -0.5), (9, -1.0)], [(2, 0.0)]] and rows[3]["error"] == error
    assert [(row["index"], row["text"], row["token_ids"]) for row in rows[1:3]] == [(0, "a", [0]), (1, "b", [1])]
    assert rows[4]["token_ids"] == [] and rows[4]["error"] is None


def test_integer_ids():
    """Stay integers; a string among them is refused, at whatever place."""
    lines = [{"id": -(2**63), "text": "a"}, {"id": None, "text": "b"}, {"id": 2**63 - 1, "text": "c"}]
    read = pq.read_table(io.BytesIO(encoded(lines, 9, "int64")))
    assert read.schema.field("id").type == pa.int64() and read["id"].to_pylist() == [-(2**63), None, 2**63 - 1]
    for place in range(4):
        with pytest.raises(TextIds):
            encoded([*lines[:place], {"id": "7"}, *lines[place:]], 9, "int64")


def test_answers_to_openai_lines():
    """Are rows like those of any other prompt."""
    logprobs = [{5: -0.5, 2: -1.0}, {7: 0.0}]
    made = [Completion(0, [5, 7], "so", "stop", logprobs), Completion(1, [5], "be it", "length")]
    error = RecordError(3, "body.prompt", "is missing")
    results = [(Prompt(1, "a", token_ids=np.ones(2, int)), made), (Prompt(3, "b", error), ())]
    expected = []
    for openai in (False, True):
        text = io.BytesIO()
        CompletionWriter(text).write([(replace(prompt, openai=openai), done) for prompt, done in results])
        lines = [msgspec.json.decode(line) for line in text.getvalue().splitlines()]
        expected.append(pq.read_table(io.BytesIO(encoded(lines, 1000))).to_pylist())
    assert expected[0] == expected[1] and len(expected[0]) == 3
    assert expected[0][0]["logprobs"] == [[(5, -0.5), (2, -1.0)], [(7, 0.0)]]
    assert expected[0][2]["error"] == {"line": 3, "field": "body.prompt", "message": "is missing"}


def test_no_lines():
    assert pq.read_table(io.BytesIO(encoded([], 1))).num_rows == 0


def test_an_output_that_was_given_up_leaves_no_traceback(tmp_path, monkeypatch):
    """pyarrow's writer finishes its file when it is collected; the file is closed by then, as a rebuild shows."""
    said = []
    monkeypatch.setattr("sys.unraisablehook", said.append)
    with pytest.raises(KeyError), AtomicFile(tmp_path / "out.parquet") as file:
        encoder = ParquetEncoder(file, {"label": "string"}, "int64")
        encoder.write(b'{"id": 1, "label": "a"}\n')
        encoder._flush()
        raise KeyError("damaged shards")
    del encoder
    gc.collect()
    assert said == [] and os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "line",
    [b"no JSON", b'{"id": "a"', b'{"id": "\xff"}', b"[1]", b"7", b'{"text": "no id"}',
     b'{"id": "a", "token_ids": [1e99]}',
     b'{"id": "a", "token_ids": [99999999999]}', b'{"id": "a", "logprobs": [{"x": 1}]}', b'{"id": "a", "choices": 5}',
     b'{"custom_id": "a"}', b'{"id": "a", "error": {"line": "x"}}'],
)  # fmt: skip
def test_shards_that_hold_no_records_are_refused(line):
    """They were edited and sealed anew: the encoder failed with an internal error, and so did each resume."""
    columns = {"text": "string", "token_ids": "list<int32>", "logprobs": "logprobs", "error": "error"}
    encoder = ParquetEncoder(Written(), columns)
    encoder.write(b'{"id": "good"}\n' + line + b"\n")
    with pytest.raises(InputError, match=r"^out\.parquet: the job's shards hold lines that are no records .*--restart"):
        encoder.finish()
    encoder._writer.close()
