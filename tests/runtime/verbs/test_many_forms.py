"""The same records as .jsonl, .csv, .tsv and compressed: the same answers, in shards of any size."""

import csv
import gzip
import json

import pytest

from gpt2_models import save
from tilewright.errors import InputError, UsageError
from tilewright.generation.sampling import SamplingParams
from tilewright.runtime.jobs.merge import verify
from tilewright.runtime.jobs.settings import Settings
from tilewright.runtime.verbs.classify import ClassifyJob, classify
from tilewright.runtime.verbs.generate import GenerateJob, generate

zstd = pytest.importorskip("backports.zstd")
pq = pytest.importorskip("pyarrow.parquet")
COMPRESS = {".gz": gzip.compress, ".zst": zstd.compress}
SMALL = Settings(shard_size=150)


@pytest.fixture
def rows():
    """Texts with line ends and quotes, an id given twice in another shard, and a bad row."""
    texts = [f'the "cat"\nsat, on\t{i}' for i in range(12)]
    rows = [
        {"id": f"s{i % 11}", "tokens": json.dumps([i, 1, 2, 3, 4, 5]), "note": text} for i, text in enumerate(texts)
    ]
    rows[3]["tokens"] = "[1]"
    return rows


def write(path, rows):
    """The rows, in the form that the name says."""
    kind = path.suffixes[0]
    if kind == ".jsonl":
        lines = [{**row, "tokens": json.loads(row["tokens"])} for row in rows]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    else:
        with open(path, "w", newline="") as file:
            table = csv.DictWriter(file, [*rows[0]], delimiter="\t" if kind == ".tsv" else ",")
            table.writeheader()
            table.writerows(rows)
    if path.suffix in COMPRESS:
        path.write_bytes(COMPRESS[path.suffix](path.read_bytes()))
    return str(path)


def said(path):
    """The answers, errors without their lines."""
    found = [json.loads(line) for line in path.read_text().splitlines()]
    for line in found:
        if "error" in line:
            del line["error"]["line"]
    return found


@pytest.mark.parametrize("name", ["in.csv", "in.tsv", "in.jsonl.gz", "in.csv.zst"])
def test_the_same_answers(tmp_path, model, rows, name):
    keep = (("note", "note"),)
    right = ClassifyJob(model, write(tmp_path / "in.jsonl", rows), str(tmp_path / "right.jsonl"), keep=keep)
    classify(right)
    job = ClassifyJob(model, write(tmp_path / name, rows), str(tmp_path / "out.jsonl"), keep=keep, settings=SMALL)
    report = classify(job)
    assert (report.records, report.errors) == (12, 2) and report.job["shards"] > 3
    assert said(tmp_path / "out.jsonl") == said(tmp_path / "right.jsonl")
    assert verify(job.output).intact
    assert classify(job).computed == 0, "the finished job is left alone"


@pytest.mark.long
def test_two_workers_and_a_table_as_output(tmp_path, model, rows):
    job = ClassifyJob(
        model, write(tmp_path / "in.csv.gz", rows), str(tmp_path / "out.parquet"), keep=(("note", "note"),),
        settings=Settings(shard_size=150, workers=2),
    )  # fmt: skip
    assert classify(job).errors == 2
    assert pq.read_table(job.output).column("note").to_pylist() == [row["note"] for row in rows]


def test_prompts(tmp_path):
    save(tmp_path / "gpt2")
    texts = [f"the cat\n{i}" for i in range(5)]
    (tmp_path / "in.jsonl").write_text(
        "".join(json.dumps({"id": str(i), "prompt": t}) + "\n" for i, t in enumerate(texts))
    )
    (tmp_path / "in.csv").write_text("id,q\n" + "".join(f'{i},"{text}"\n' for i, text in enumerate(texts)))
    greedy, done = SamplingParams(temperature=0, max_tokens=2), []
    for name, options in (("in.jsonl", {}), ("in.csv", {"content_field": "q"})):
        output = tmp_path / f"{name}.out.jsonl"
        generate(GenerateJob(str(tmp_path / "gpt2"), str(tmp_path / name), str(output), greedy, **options))
        done.append(output.read_bytes())
    assert done[0] == done[1]


def test_a_damaged_file_is_refused_before_the_work(tmp_path, model, rows):
    name = write(tmp_path / "in.jsonl.gz", rows)
    (tmp_path / "in.jsonl.gz").write_bytes((tmp_path / "in.jsonl.gz").read_bytes()[:-4])
    with pytest.raises(InputError, match="it was cut short"):
        classify(ClassifyJob(model, name, str(tmp_path / "out.jsonl")))
    assert not (tmp_path / "out.jsonl.job").exists()


def test_text_of_another_kind_is_no_binary_input(tmp_path, model):
    (tmp_path / "in.jsonl.xz").write_bytes(b"x" * 24)
    with pytest.raises(UsageError, match=r"the name of the input ends with \.xz.*Unpack it first"):
        classify(ClassifyJob(model, str(tmp_path / "in.jsonl.xz"), str(tmp_path / "out.bin")))
