"""CSV and TSV: every record belongs to one shard, whatever its size; the fields are those of Python's csv."""

import csv
import io
import json
import os
import random

import pytest

from tilewright.errors import InputError, UsageError
from tilewright.formats import quoted
from tilewright.formats.csv_rows import Columns
from tilewright.formats.inputs import open_text
from tilewright.formats.jsonl import TokenLines
from tilewright.formats.lines import read_lines
from tilewright.formats.prompts import open_prompts
from tilewright.formats.record_fields import PLAIN, RecordFields
from tilewright.formats.records import BadLine
from tilewright.runtime.jobs.cut import LineIndex, Lines, Shard


def shards_of(path, per_shard, order=None):
    """The records of all shards, in order."""
    with open_text(path, "input") as file:
        cut = Lines(file.size, per_shard)
        fd = os.open(f"{path}.index", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        shards = [Shard(n, cut, LineIndex(fd, "", cut, "k" * 64)) for n in range(cut.shards)]
        found = {n: list(shards[n].lines(file)) for n in order or range(cut.shards)}
        os.close(fd)
    return [record for n in sorted(found) for record in found[n]]


def rows_of(path, fields=PLAIN):
    """Each row, with the line at which it begins."""
    with open_text(path, "input") as file:
        columns = Columns(file, path.suffix, fields)
        return [(number, columns.row(line)) for number, line, _ in read_lines(file)]


TEXTS = [
    b"id,text\n1,a\n2,b\n",
    b'id,text\n1,"a\nb"\n\n2,"c""\n""d"\r\n3,e',
    b'\xef\xbb\xbf"id","te\nxt"\n"1","\n"\n',
    b"text\n",
    b"text",
    b'text\n"never closed\na\nb',
    b"\n\n",
]


@pytest.mark.parametrize("content", TEXTS)
def test_records_at_every_size(tmp_path, content):
    path = tmp_path / "in.csv"
    path.write_bytes(content)
    with open_text(path, "input") as file:
        wanted = list(read_lines(file))
    for per_shard in range(1, len(content) + 2):
        assert shards_of(path, per_shard) == wanted, per_shard


def test_random_rows_in_random_order(tmp_path, monkeypatch):
    """As Python's csv reads what it has written."""
    monkeypatch.setattr(quoted, "CHUNK_BYTES", 16)
    monkeypatch.setattr(quoted, "TAIL_BYTES", 8)
    draw = random.Random(7)
    for turn in range(150):
        kind, delimiter = draw.choice(((".csv", ","), (".tsv", "\t")))
        path = tmp_path / f"in{turn}{kind}"
        rows = [["".join(draw.choice('ab"\n,\t\u00e9') for _ in range(draw.randint(0, 9))) for _ in "xyz"]
                for _ in range(draw.randint(1, 20))]  # fmt: skip
        text = io.StringIO(newline="")
        csv.writer(text, delimiter=delimiter, lineterminator=draw.choice(("\n", "\r\n")), quoting=draw.choice((0, 1))
                   ).writerows([["x", "y", "z"], *rows])  # fmt: skip
        path.write_bytes(text.getvalue().encode())
        assert [[*row.values()] for _, row in rows_of(path)] == rows
        per_shard = draw.randint(1, 40)
        order = list(range(-(-path.stat().st_size // per_shard)))
        draw.shuffle(order)
        with open_text(path, "input") as file:
            assert shards_of(path, per_shard, order) == list(read_lines(file)), (text.getvalue(), per_shard)


def test_lines_are_those_of_an_editor(tmp_path):
    (tmp_path / "in.csv").write_text('id,text\n1,"a\nb"\n\n2,c\n')
    assert rows_of(tmp_path / "in.csv") == [(2, {"id": "1", "text": "a\nb"}), (5, {"id": "2", "text": "c"})]


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (b'1,5" disk', "has a quoted field that is not closed"),
        (b'1,a "b" c', "has a quote inside a field: put the field in quotes, and double the quotes in it"),
        (b'1,"a"b', "has a quote inside a field"),
        (b"1", "has 1 field; the header has 2"),
        (b"1,2,3", "has 3 fields; the header has 2"),
        (b"1,\xff", "byte 2 is not UTF-8"),
    ],
)
def test_bad_records(tmp_path, record, message):
    (tmp_path / "in.csv").write_bytes(b"id,text\n")
    with open_text(tmp_path / "in.csv", "input") as file, pytest.raises(BadLine, match=message.replace("(", r"\(")):
        Columns(file, ".csv", PLAIN).row(record)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"a,b,a\n", "the header has the name 'a' twice"),
        (b"\n1\n", "the header is empty"),
        (b'a,"b\n', "the header has a quoted field that is not closed"),
    ],
)
def test_bad_headers(tmp_path, header, message):
    (tmp_path / "in.csv").write_bytes(header)
    with open_text(tmp_path / "in.csv", "input") as file, pytest.raises(InputError, match=message):
        Columns(file, ".csv", PLAIN)


def test_a_named_field_must_be_a_column(tmp_path):
    (tmp_path / "in.csv").write_bytes(b"id,review\n")
    with open_text(tmp_path / "in.csv", "input") as file:
        with pytest.raises(UsageError, match="--keep names 'stars'; the columns are id, review"):
            Columns(file, ".csv", RecordFields("review", (("stars", "stars"),)))
        with pytest.raises(UsageError, match="the field of the text names 'text'"):
            Columns(file, ".csv", RecordFields("text"))


def test_prompts_with_sampling_fields(tmp_path):
    rows = ["id,prompt,temperature,stop,seed,note,tokens", 'a,"x, y",0.5,END,,top,', 'b,z,,"[""a"", ""b""]",7,,']
    rows += ["c,z,hot,,,,", ",z,,,,,", "a,z,,,,,"]
    (tmp_path / "in.csv").write_text("\n".join(rows))
    reader = open_prompts(
        tmp_path / "in.csv", encode=lambda text: [*text.encode()], vocabulary=128, max_length=9,
        fields=RecordFields(keep=(("note", "note"),)),
    )  # fmt: skip
    (batch,) = reader.batches(9)
    reader.close()
    first, second, third, fourth, fifth = batch.prompts
    assert (first.text, first.sampling) == ("x, y", {"temperature": 0.5, "stop": "END"})
    assert (second.id, second.sampling) == ("b", {"stop": ["a", "b"], "seed": 7})
    assert third.sampling == {"temperature": "hot"} and [first.kept, second.kept] == [{"note": "top"}, {"note": ""}]
    assert (fourth.error.field, fourth.error.message) == ("id", "is missing, and the first line has one")
    assert fifth.error.message == "'a' is also the id of an earlier record"


def test_token_ids(tmp_path):
    (tmp_path / "in.csv").write_text('tokens\n"[1, 2]"\n1 2\n""\n')
    from tilewright.formats.sentences import open_sentences

    reader = open_sentences(tmp_path / "in.csv", encoder=None, length=2, vocabulary=9)
    assert isinstance(reader, TokenLines)
    (batch,) = reader.batches(9)
    reader.close()
    assert batch.tokens.tolist() == [[1, 2]] and [record.id for record in batch.records] == [2, 3, 4]
    said = [json.loads(json.dumps([error.line, error.field, error.message])) for error in batch.errors]
    assert said == [[3, "tokens", "is '1 2'; a JSON list such as [1, 2] is wanted"], [4, "tokens", "is missing"]]
