"""classify and generate from Parquet and into it: what JSON lines give, a shard a row group."""

import json
import os
import sys
from dataclasses import replace

import pytest

from gpt2_models import save
from tilewright.errors import InputError, ResourceError, UsageError
from tilewright.generation.sampling import SamplingParams
from tilewright.runtime.jobs.settings import Settings
from tilewright.runtime.verbs.classify import ClassifyJob, classify
from tilewright.runtime.verbs.generate import GenerateJob, generate
from tilewright.runtime.verbs.model_job import check_records

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


@pytest.fixture
def rows(tmp_path):
    """Writes rows as in.parquet, four a row group, and as in.jsonl."""

    def write(given):
        pq.write_table(pa.Table.from_pylist(given), tmp_path / "in.parquet", row_group_size=4)
        said = [{name: value for name, value in row.items() if value is not None} for row in given]
        (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in said))

    return write


def check_all(run, job, path):
    """The same lines from both, and the same rows. Returns them and the report."""
    done = []
    for name, output in [("in.jsonl", "a.jsonl"), ("in.parquet", "b.jsonl")]:
        done.append(run(replace(job, input=str(path / name), output=str(path / output))))
    assert done[1].job["shards"] == 3
    assert len({(path / f"{name}.jsonl").read_bytes() for name in "ab"}) == 1
    for name in ("in.jsonl", "in.parquet"):
        run(replace(job, input=str(path / name), output=str(path / f"{name}.parquet")))
    found = [pq.read_table(path / f"{name}.parquet").to_pylist() for name in ("in.jsonl", "in.parquet")]
    assert found[0] == found[1]
    return [json.loads(line) for line in (path / "a.jsonl").read_text().splitlines()], found[0], done[1]


def test_sentences(rows, model, tmp_path):
    """One has no tokens, one a token that there is none, and one the id of another row group's."""
    sentences = [{"id": f"s{i}", "tokens": [i + k for k in range(6)]} for i in range(10)]
    sentences[2]["tokens"], sentences[5]["tokens"], sentences[9]["id"] = None, [50] * 6, "s1"
    rows(sentences)
    lines, found, report = check_all(classify, ClassifyJob(model, "", ""), tmp_path)
    assert (report.records, report.errors) == (10, 3)
    assert [line["error"]["line"] for line in lines if "error" in line] == [3, 6, 10]
    for line, row in zip(lines, found, strict=True):
        assert row["id"] == line["id"] and row["error"] == line.get("error") and row["label"] == line.get("label")


def test_prompts(rows, tmp_path):
    save(tmp_path / "m")
    prompts = [{"id": i, "prompt": "the cat"[: i + 1], "max_tokens": 3 if i == 4 else None} for i in range(9)]
    prompts[7]["max_tokens"] = -1
    rows(prompts)
    job = GenerateJob(str(tmp_path / "m"), "", "", SamplingParams(temperature=0, max_tokens=5, logprobs=1))
    lines, found, report = check_all(generate, job, tmp_path)
    assert (report.records, report.errors) == (9, 1) and len(found[4]["token_ids"]) == 3
    for line, row in zip(lines, found, strict=True):
        assert row["id"] == line["id"] and all(row[name] == line.get(name) for name in ("text", "token_ids", "error"))
        assert [dict(token).keys() for token in row["logprobs"] or []] == [
            {int(id) for id in token} for token in line.get("logprobs", [])
        ]


@pytest.mark.parametrize(
    ("ids", "kind"),
    [
        ([3, 1, 2], "int64"),
        (["3", "1", "2"], "string"),
        ([3, 1, "2"], "string"),
        ([None] * 3, "int64"),  # they are counted
    ],
    ids=["integers", "strings", "both", "none"],
)
def test_ids_keep_their_type(model, tmp_path, ids, kind):
    """Where one is a string, all are: a column has one type. Each shard is a row group or two of the output."""
    lines = [{"tokens": [i] * 6} | ({} if id is None else {"id": id}) for i, id in enumerate(ids)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    job = ClassifyJob(model, str(tmp_path / "in.jsonl"), str(tmp_path / "o.parquet"), settings=Settings(shard_size=30))
    assert classify(job).job["shards"] > 1
    found = pq.read_table(tmp_path / "o.parquet")["id"]
    expected = [1, 2, 3] if ids == [None] * 3 else ids
    assert str(found.type) == kind
    assert found.to_pylist() == [id if kind == "int64" else str(id) for id in expected]
    assert sorted(os.listdir(tmp_path)) == ["in.jsonl", "model", "o.parquet", "o.parquet.job"]


def test_several_completions(rows, tmp_path):
    """A row each."""
    save(tmp_path / "m")
    rows([{"id": "a", "prompt": "the cat"}, {"id": "b", "prompt": "the dog"}])
    params = SamplingParams(temperature=1, max_tokens=3, n=2)
    generate(GenerateJob(str(tmp_path / "m"), str(tmp_path / "in.parquet"), str(tmp_path / "o.parquet"), params))
    found = pq.read_table(tmp_path / "o.parquet").to_pylist()
    assert [(row["id"], row["index"]) for row in found] == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"settings": Settings(shard_size=2)}, UsageError, "the shards of a Parquet file are its row groups"),
        ({"count": 3}, InputError, "the input holds 2 records; 3 were asked for"),
        ({"output": "out.bin"}, UsageError, "Name it .jsonl or .parquet"),
        (
            {"output": "o.parquet", "answers": "in.jsonl"},
            UsageError,
            "a Parquet output cannot be compared with answers",
        ),
    ],
)
def test_what_is_refused(rows, model, tmp_path, monkeypatch, options, kind, message):
    monkeypatch.chdir(tmp_path)
    rows([{"tokens": [1] * 6}] * 2)
    with pytest.raises(kind, match=message):
        classify(ClassifyJob(model, "in.parquet", **({"output": "out.jsonl"} | options)))


def test_an_output_without_pyarrow(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    job = ClassifyJob("model", "in.jsonl", "out.parquet")
    with pytest.raises(ResourceError, match="Parquet needs pyarrow"):
        check_records(job)
    check_records(replace(job, output="out.jsonl"))
