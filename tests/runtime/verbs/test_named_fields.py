"""--text-field, --prompt-field and --keep: jobs whose records keep the fields that users have."""

import json
from dataclasses import replace

import pytest

from gpt2_models import save
from tilewright.errors import UsageError
from tilewright.generation.sampling import SamplingParams
from tilewright.runtime.jobs.settings import Settings
from tilewright.runtime.verbs.classify import ClassifyJob, classify
from tilewright.runtime.verbs.generate import GenerateJob, generate

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

GREEDY = SamplingParams(temperature=0, max_tokens=2)
KEEP = (("label", "gold"), ("meta", "meta"))
SMALL = Settings(shard_size=120)  # bytes: several shards


def write(path, rows):
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
    return str(path)


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def sentences():
    """A kept field is of any type; a record lacks it; one is bad; an id is given twice in another shard."""
    rows = [{"id": f"s{i}", "ids": [i, 1, 2, 3, 4, 5], "label": i % 3, "meta": {"a": [i, None]}} for i in range(9)]
    rows[2]["ids"], rows[4]["meta"], rows[8]["id"] = [1], None, "s0"
    del rows[3]["label"]
    return [*rows, '{"id": "broken']


def test_classify_keeps_fields(tmp_path, model, sentences):
    source = write(tmp_path / "in.jsonl", sentences)
    job = ClassifyJob(model, source, str(tmp_path / "out.jsonl"), content_field="ids", keep=KEEP, settings=SMALL)
    report = classify(job)
    found = lines(tmp_path / "out.jsonl")
    assert report.errors == 3 and report.job["shards"] > 3
    assert [line["gold"] for line in found] == [0, 1, 2, None, 1, 2, 0, 1, 2, None]
    assert found[0]["meta"] == {"a": [0, None]} and found[4]["meta"] is found[9]["meta"] is None
    assert found[8]["error"]["message"] == "'s0' is also the id of an earlier record" and found[8]["gold"] == 2
    assert [*found[0]] == ["id", "gold", "meta", "label", "score", "logits"]
    plain = replace(job, output=str(tmp_path / "plain.jsonl"), keep=())
    classify(plain)
    assert [{k: v for k, v in line.items() if k not in ("gold", "meta")} for line in found] == lines(
        tmp_path / "plain.jsonl"
    )
    classify(replace(job, output=str(tmp_path / "out.parquet")))
    table = pq.read_table(tmp_path / "out.parquet")
    assert table.schema.field("gold").type == pa.int64()
    assert table.schema.field("meta").type == pa.struct([("a", pa.list_(pa.int64()))])
    assert table.column("gold").to_pylist() == [line["gold"] for line in found]
    assert table.column("meta").to_pylist() == [line["meta"] for line in found]


def test_generate_keeps_fields(tmp_path):
    save(tmp_path / "gpt2")
    rows = [{"question": f"the cat {i}", "label": ["a", 1][i % 2], "meta": 2.5, "n": 1 + i % 2} for i in range(6)]
    source = write(tmp_path / "in.jsonl", rows)
    job = GenerateJob(
        str(tmp_path / "gpt2"), source, str(tmp_path / "out.jsonl"), SamplingParams(temperature=1, max_tokens=2),
        content_field="question", keep=KEEP, settings=SMALL,
    )  # fmt: skip
    assert generate(job).errors == 0
    found = lines(tmp_path / "out.jsonl")
    assert [*found[0]] == ["id", "gold", "meta", "text", "token_ids", "finish_reason"]
    assert [*found[1]] == ["id", "gold", "meta", "choices"] and [line["gold"] for line in found] == ["a", 1] * 3
    generate(replace(job, output=str(tmp_path / "out.parquet")))
    table = pq.read_table(tmp_path / "out.parquet")
    assert table.column("gold").to_pylist() == ["a", "1", "1"] * 3, "values without a common type are texts"
    assert table.column("meta").to_pylist() == [2.5] * 9


def test_batch_lines_keep_fields(tmp_path):
    save(tmp_path / "gpt2")
    body = {"prompt": "the cat", "metadata": {"k": 1}}
    rows = [{"custom_id": id, "method": "POST", "url": "/v1/completions", "body": body, "tag": id} for id in "aba"]
    source = write(tmp_path / "in.jsonl", rows)
    keep = (("metadata", "metadata"), ("tag", "tag"))
    job = GenerateJob(
        str(tmp_path / "gpt2"), source, str(tmp_path / "out.jsonl"), GREEDY, keep=keep, settings=Settings(shard_size=1)
    )
    assert generate(job).errors == 1
    found = lines(tmp_path / "out.jsonl")
    assert [(line["custom_id"], line["metadata"], line["tag"]) for line in found] == [(i, {"k": 1}, i) for i in "aba"]
    assert found[2]["error"] and found[0]["response"]
    generate(replace(job, output=str(tmp_path / "out.parquet")))
    assert pq.read_table(tmp_path / "out.parquet").column("tag").to_pylist() == ["a", "b", "a"]


def test_columns_keep_their_types(tmp_path, model):
    import datetime
    import decimal

    when, price = datetime.datetime(2026, 1, 2, 3, 4, 5), decimal.Decimal("1.50")
    table = pa.table({
        "id": pa.array([1, 2]),
        "ids": pa.array([[1, 2, 3, 4, 5, 6]] * 2),
        "small": pa.array([1, None], pa.int8()),
        "wide": pa.array([2**63, 1], pa.uint64()),
        "half": pa.array([0.1, 0.2], pa.float32()),
        "when": pa.array([when, None], pa.timestamp("us", "UTC")),
        "price": pa.array([price, None], pa.decimal128(10, 2)),
        "tags": pa.array([["a", None], []], pa.large_list(pa.string())),
        "raw": pa.array([b"a", b"b"]),
    })  # fmt: skip
    pq.write_table(table, tmp_path / "in.parquet")
    names = ("small", "wide", "half", "when", "price", "tags")
    keep = tuple((name, name) for name in names)
    job = ClassifyJob(
        model, str(tmp_path / "in.parquet"), str(tmp_path / "out.parquet"), content_field="ids", keep=keep
    )
    assert classify(job).errors == 0
    found = pq.read_table(tmp_path / "out.parquet")
    for name in names[:-1]:
        assert found.column(name).equals(table.column(name)), name
    assert found.column("tags").to_pylist() == [["a", None], []]
    classify(replace(job, output=str(tmp_path / "out.jsonl")))
    first = lines(tmp_path / "out.jsonl")[0]
    assert (first["wide"], first["when"], first["price"]) == (2**63, "2026-01-02T03:04:05Z", "1.50")
    with pytest.raises(UsageError, match="the column raw, whose type is binary; text, numbers"):
        classify(replace(job, keep=(("raw", "raw"),)))
    with pytest.raises(UsageError, match=r"--keep names 'raws'; the columns are id, ids, .*Name one of the columns"):
        classify(replace(job, keep=(("raws", "raws"),)))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"keep": (("label", "label"),)}, "--keep names 'label', which is a field of the output, too"),
        ({"keep": (("a", "m"), ("b", "m"))}, "--keep has the field 'm'; two kept fields have this name"),
        ({"keep": (("", ""),)}, "--keep has the field ''; a field has a name"),
        ({"keep": KEEP, "input": "in.txt"}, "--keep names 'label,meta', and the input has no fields"),
        ({"content_field": "x", "input": "in.txt"}, "--text-field names 'x', and the input has no fields"),
        ({"content_field": "id"}, "--text-field is 'id'; a field besides the id is wanted"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path, model, options, said):
    for name in ("in.jsonl", "in.txt"):
        (tmp_path / name).write_text('{"tokens": [1, 2, 3, 4, 5, 6]}\n')
    job = ClassifyJob(model, str(tmp_path / options.pop("input", "in.jsonl")), str(tmp_path / "out.jsonl"), **options)
    with pytest.raises(UsageError, match=said.replace("(", r"\(")):
        classify(job)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"keep": KEEP, "output": "out.txt"}, "--keep needs an output with fields"),
        ({"content_field": "temperature"}, "--prompt-field is 'temperature', which is a sampling field"),
    ],
)
def test_what_generate_cannot_do_is_refused(tmp_path, options, said):
    save(tmp_path / "gpt2")
    write(tmp_path / "in.jsonl", [{"prompt": "a"}])
    output = str(tmp_path / options.pop("output", "out.jsonl"))
    with pytest.raises(UsageError, match=said):
        generate(GenerateJob(str(tmp_path / "gpt2"), str(tmp_path / "in.jsonl"), output, GREEDY, **options))


def test_a_job_with_other_fields_is_another_job(tmp_path, model):
    source = write(tmp_path / "in.jsonl", [{"tokens": [1] * 6, "a": 1}])
    job = ClassifyJob(model, source, str(tmp_path / "out.jsonl"))
    classify(job)
    with pytest.raises(UsageError, match=r"other settings or inputs: --keep was not given and is \['a as a'\]"):
        classify(replace(job, keep=(("a", "a"),)))
    with pytest.raises(UsageError, match="other settings or inputs: --text-field was not given and is 'a'"):
        classify(replace(job, content_field="a"))


def test_a_field_that_no_record_has_is_told(tmp_path, model):
    source = write(tmp_path / "in.jsonl", [{"tokens": [1] * 6, "a": 1}] * 3)
    said = []
    classify(ClassifyJob(model, source, str(tmp_path / "out.jsonl"), keep=(("a", "a"), ("labbel", "b"))), said.append)
    assert "--keep names labbel; none of the first 3 records has a value for it" in said
