"""`embed` as a job: rows and lines are the model's vectors; shards, workers, resume; bad records; what is refused."""

import base64
import csv
import gzip
import io
import json

import numpy as np
import pytest

from bert_models import random_texts
from sentence_models import saved_sentences
from tilewright.errors import InputError, InternalError, Interrupted, UsageError
from tilewright.formats.embedding_modules import EmbeddingModules
from tilewright.runtime.jobs.merge import verify
from tilewright.runtime.jobs.settings import Settings
from tilewright.runtime.load import load
from tilewright.runtime.verbs.embed import EmbedJob, embed
from tilewright.runtime.verbs.embed import worker as module
from tilewright.runtime.verbs.embed.plan import plan

BAD = {4: {"id": "s4", "text": " "}, 9: {"id": "s9", "text": 3}, 100: {"id": "s3", "text": "a film"}}
REQUEST = {"method": "POST", "url": "/v1/embeddings"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model directory `m`, 120 texts in `in.txt`, and the same with ids and three bad records in `in.jsonl`."""
    folder = tmp_path_factory.mktemp("embed")
    saved_sentences("bert", 5, folder / "m", poolings=["mean"], default_prompt_name="query", include_prompt=False)
    texts = random_texts(120)
    (folder / "in.txt").write_text("\n".join(texts) + "\n\n")
    lines = [BAD.get(i, {"id": f"s{i}", "text": text}) for i, text in enumerate(texts)]
    (folder / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def job_of(folder, output, input="in.txt", options=None, **settings):
    return EmbedJob(str(folder / "m"), str(folder / input), str(output), settings=Settings(device="cpu", **settings),
                    **options or {})  # fmt: skip


def run(folder, output, input="in.txt", options=None, **settings):
    return embed(job_of(folder, output, input, options, **settings)), output.read_bytes()


def bits(vectors):
    return np.asarray(vectors, np.float32).view(np.uint32).tolist()


def vectors_of(folder, texts=None, **options):
    return load(folder / "m", device="cpu").embed(
        texts or (folder / "in.txt").read_text().splitlines()[:120], **options
    )


@pytest.mark.parametrize("options", [{}, {"dimensions": 7, "prompt": ""}, {"prompt_name": "passage"}])
def test_rows_are_the_model_s_vectors(folder, tmp_path, options):
    report, _ = run(folder, tmp_path / "out.npy", options=options)
    found = np.load(tmp_path / "out.npy")
    assert found.dtype == np.float32 and found.flags.c_contiguous
    assert bits(found) == bits(vectors_of(folder, **options))
    assert (report.records, report.errors, report.dimensions) == (120, 0, found.shape[1]) and report.cut > 0
    assert verify(str(tmp_path / "out.npy")).intact


@pytest.mark.parametrize("end", ["npy", "jsonl"])
def test_same_bytes_from_any_shards_batches_and_workers(folder, tmp_path, end):
    report, whole = run(folder, tmp_path / f"whole.{end}", "in.jsonl")
    assert report.errors == 3
    settings = {"small": {"shard_size": 1500}, "batch": {"batch_size": 1}, "threads": {"threads": 1}}
    if end == "npy":
        settings["two"] = {"workers": 2, "shard_size": 4000}
    for name, each in settings.items():
        assert run(folder, tmp_path / f"{name}.{end}", "in.jsonl", **each)[1] == whole, name


def test_bad_records_are_rows_of_nan_and_lines_with_their_error(folder, tmp_path):
    report, _ = run(folder, tmp_path / "out.npy", "in.jsonl", shard_size=2000)
    assert (report.records, report.errors) == (
        120,
        3,
    ) and "line 101, id: 's3' is also the id of an earlier record" in report.first_errors
    rows, (_, lines) = np.load(tmp_path / "out.npy"), run(folder, tmp_path / "out.jsonl", "in.jsonl", shard_size=2000)
    expected = vectors_of(folder)
    for i, line in enumerate(map(json.loads, lines.splitlines())):
        if i in BAD:
            assert line["error"]["line"] == i + 1 and "embedding" not in line and np.isnan(rows[i]).all()
        else:
            assert line["id"] == f"s{i}" and bits(line["embedding"]) == bits(rows[i]) == bits(expected[i])
    with pytest.raises(InternalError, match="bad"):
        embed(job_of(folder, tmp_path / "few.npy", "in.jsonl", max_errors=2))


def test_parquet_has_a_column_of_lists(folder, tmp_path):
    pq = pytest.importorskip("pyarrow.parquet")
    run(folder, tmp_path / "out.parquet", "in.jsonl", shard_size=2000)
    table, expected = pq.read_table(tmp_path / "out.parquet"), vectors_of(folder)
    assert table.column_names == ["id", "embedding", "error"] and str(table.schema.field("embedding").type).count(
        "float"
    )
    for i, row in enumerate(table.to_pylist()):
        assert (row["error"] is not None) == (i in BAD)
        assert row["embedding"] is None if i in BAD else bits(row["embedding"]) == bits(expected[i])


def test_a_stopped_job_is_resumed(folder, tmp_path, monkeypatch):
    _, whole = run(folder, tmp_path / "whole.npy")
    calls, real = [], module.EmbedWorker.run

    def stop_after_two(self, *arguments):
        calls.append(1)
        if len(calls) == 3:
            raise Interrupted("stopped by the test")
        return real(self, *arguments)

    monkeypatch.setattr(module.EmbedWorker, "run", stop_after_two)
    with pytest.raises(Interrupted):
        run(folder, tmp_path / "out.npy", shard_size=1500)
    assert not (tmp_path / "out.npy").exists()
    monkeypatch.setattr(module.EmbedWorker, "run", real)
    with pytest.raises(UsageError, match="prompt was"):
        embed(job_of(folder, tmp_path / "out.npy", options={"prompt": "a "}, shard_size=1500))
    report, resumed = run(folder, tmp_path / "out.npy", shard_size=1500)
    assert resumed == whole and 0 < report.computed < 120


def test_lines_of_openai_s_batches(folder, tmp_path):
    bodies = [{"input": "good film", "model": "m"}, {"input": ["good film", "bad"], "dimensions": 5},
              {"input": [[2, 5, 8, 3], [2, 6, 3]], "encoding_format": "base64"}, {"input": [2, 5, 3]},
              {"input": []}, {"input": "good", "normalize": False}, {"input": "good", "dimensions": 10**6}]  # fmt: skip
    lines = [{"custom_id": f"r{i}", **REQUEST, "body": body} for i, body in enumerate(bodies)]
    lines += [{"custom_id": "r7", **REQUEST, "url": "/v1/completions", "body": {"input": "good"}}]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "m").symlink_to(folder / "m")
    report, said = run(tmp_path, tmp_path / "out.jsonl", "in.jsonl")
    found = [json.loads(line) for line in said.splitlines()]
    assert [line["custom_id"] for line in found] == [f"r{i}" for i in range(8)] and report.errors == 4
    fields = ["body.input", "body.normalize", "body.dimensions", "url"]
    assert [line["error"]["param"] for line in found[4:]] == fields and found[4]["response"] is None
    bodies = [line["response"]["body"] for line in found[:4]]
    assert bodies[0]["object"] == "list" and bodies[0]["model"] == "m" and bodies[1]["model"] is None
    assert bodies[3]["usage"] == {"prompt_tokens": 3, "total_tokens": 3}
    data = [[item["embedding"] for item in body["data"]] for body in bodies]
    assert [item["index"] for item in bodies[1]["data"]] == [0, 1]
    assert bits(data[0]) == bits(vectors_of(folder, ["good film"]))
    assert bits(data[1]) == bits(vectors_of(folder, ["good film", "bad"], dimensions=5))
    raw = [np.frombuffer(base64.b64decode(text), "<f4") for text in data[2]]
    model = load(folder / "m", device="cpu")
    skip = model.text_encoder("good film . ").prompt_tokens
    assert bits(raw) == bits(model.embeddings([[2, 5, 8, 3], [2, 6, 3]], skip=skip))
    assert run(tmp_path, tmp_path / "out.npy", "in.jsonl")[0].errors == 6  # two texts in a line, another size


def test_fields_that_would_change_a_vector_and_are_not_read_are_errors(folder, tmp_path):
    """They were ignored: padding was pooled, and vectors had all their elements."""
    ids = {"input_ids": [2, 5, 3]}
    lines = [{**ids, "attention_mask": [1, 1, 1], "token_type_ids": [0, 0, 0], "dimensions": "3 x 4"}, ids,
             {"input_ids": [2, 5, 3, 0], "attention_mask": [1, 1, 1, 0]}, {**ids, "token_type_ids": [0, 1, 1]},
             {"text": "good", "position_ids": [4]}, {"text": "good", "dimensions": 5}]  # fmt: skip
    batch = [{**REQUEST, "body": {"input": "good"}, "dimensions": 5}, {**REQUEST, "body": {}, "input": "good"}]
    lines = [{"id": f"r{i}", **line} for i, line in enumerate(lines)]
    lines += [{"custom_id": f"b{i}", **line} for i, line in enumerate(batch)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    report, said = run(folder, tmp_path / "out.jsonl", tmp_path / "in.jsonl")
    found = [json.loads(line) for line in said.splitlines()]
    assert report.errors == 6 and found[0]["embedding"] == found[1]["embedding"]
    fields = ["attention_mask", "token_type_ids", "position_ids", "dimensions"]
    assert [line["error"]["field"] for line in found[2:6]] == fields
    assert found[5]["error"]["message"] == "is 5; this is not read here: give --dimensions"
    assert [line["error"]["param"] for line in found[6:]] == ["dimensions", "input"]
    _, said = run(folder, tmp_path / "named.jsonl", tmp_path / "in.jsonl", {"content_field": "text"})
    assert "embedding" in json.loads(said.splitlines()[5]), "the other fields are data then"


def test_a_rung_of_pool(folder, tmp_path, monkeypatch):
    wanted, found = (run(folder, tmp_path / f"{i}.npy", rungs=rungs)[1]
                     for i, rungs in enumerate(({}, {"pool": "cpu.naive"})))  # fmt: skip
    assert found == wanted, "each rung of a CPU adds the rows in their order"
    first = EmbeddingModules(poolings=("cls",))
    monkeypatch.setattr("tilewright.runtime.verbs.embed.task.embedding_modules", lambda *given: first)
    with pytest.raises(
        UsageError, match="no effect for a model whose vectors are no means: embed runs its own pooling"
    ):
        run(folder, tmp_path / "cls.npy", rungs={"pool": "cpu.naive"})


def test_what_is_refused(folder, tmp_path):
    def refused(said, output="out.npy", input="in.txt", error=UsageError, settings=None, **options):
        with pytest.raises(error, match=said):
            embed(job_of(folder, tmp_path / output, input, options, **settings or {}))

    refused(r"ends with \.txt", "out.txt")
    refused(r"ends with \.csv; \.npy", "out.csv")
    refused("no suffix", "out")
    refused("--dimensions is 99; the model's vectors have 24", dimensions=99)
    refused("'other'; the model has", prompt_name="other")
    refused("not both", prompt_name="query", prompt="a")
    refused("a shorter prompt", prompt="good " * 90, error=InputError)
    refused("it has no effect on embed", settings={"without": frozenset({"kv-cache"})})
    refused("it has no effect: embed runs", settings={"rungs": {"softmax": "cpu.naive"}})
    (folder / "other.bin").write_bytes(b"1234")
    refused("embed reads texts of any length", input="other.bin")
    refused("--keep needs an output with fields", input="in.jsonl", keep=KEEP)
    refused("'embedding', which is a field of the output", "o.jsonl", "in.jsonl", keep=(("embedding", "embedding"),))
    refused("--text-field names 'x', and the input has no fields", content_field="x")
    with pytest.raises(UsageError, match="the name is that of a folder"):
        embed(EmbedJob(str(folder / "m"), str(folder / "in.jsonl"), f"{tmp_path}/out/", settings=Settings()))
    with pytest.raises(UsageError, match="overwrite the input"):
        embed(EmbedJob(str(folder / "m"), str(folder / "in.jsonl"), str(folder / "in.jsonl"), settings=Settings()))
    tokenizer = (folder / "m" / "tokenizer.json").rename(tmp_path / "tokenizer.json")
    try:
        refused(r"no tokenizer\.json", error=InputError)
    finally:
        tokenizer.rename(folder / "m" / "tokenizer.json")


def test_files_of_modules_are_part_of_the_job(folder, tmp_path):
    run(folder, tmp_path / "out.npy")
    path = folder / "m" / "1_Pooling" / "config.json"
    whole = path.read_text()
    try:
        path.write_text(whole.replace('"mean"', '"max"'))
        with pytest.raises(UsageError, match="1_Pooling"):
            embed(job_of(folder, tmp_path / "out.npy"))
    finally:
        path.write_text(whole)


@pytest.mark.parametrize("end", ["npy", "jsonl", "parquet"])
def test_plan(folder, tmp_path, end):
    found = plan(job_of(folder, tmp_path / f"o.{end}", "in.jsonl"))
    assert (found.records, found.counted, found.unit) == (120, True, "texts") and found.figures["dimensions"] == 24
    assert found.flops > 0 and found.peak_memory > 100 << 20
    report, written = run(folder, tmp_path / f"o.{end}", "in.jsonl")
    assert found.outputs.exact == (end == "npy") and report.records == 120
    assert abs(found.outputs.bytes - len(written)) <= (0 if end == "npy" else 0.5 * len(written))


KEEP = (("label", "gold"), ("meta", "meta"))


def named(folder, name, rows):
    """The rows with the text in the field `review`, as the file's name says; those of a .csv are texts."""
    path = folder / name
    if name.endswith(".parquet"):
        pa = pytest.importorskip("pyarrow")
        pytest.importorskip("pyarrow.parquet").write_table(pa.Table.from_pylist(rows), path)
    elif name.endswith(".csv"):
        table = io.StringIO(newline="")
        writer = csv.DictWriter(table, ["id", "review", "label", "meta", "text"])
        writer.writeheader()
        writer.writerows(rows)
        path.write_text(table.getvalue())
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("name", ["in.jsonl", "in.csv", "in.parquet"])
def test_a_named_field_is_embedded_and_others_pass_through(folder, tmp_path, name):
    """One record is bad, and one has the id of another shard's: they keep their fields, too."""
    texts = random_texts(12)
    rows = [
        {"id": f"s{i}", "review": text, "label": i, "meta": f"m{i}", "text": "data"} for i, text in enumerate(texts)
    ]
    rows[2]["review"], rows[11]["id"] = "", "s0"
    options = {"content_field": "review", "keep": KEEP}
    size = {} if name == "in.parquet" else {"shard_size": 300}
    report, said = run(folder, tmp_path / "out.jsonl", named(tmp_path, name, rows), options, **size)
    found = [json.loads(line) for line in said.splitlines()]
    assert report.errors == 2 and (report.job["shards"] > 2 or not size)
    assert [*found[0]] == ["id", "gold", "meta", "embedding"] and [*found[11]] == ["id", "gold", "meta", "error"]
    assert [(line["gold"], line["meta"]) for line in found] == [
        (str(i) if name == "in.csv" else i, f"m{i}") for i in range(12)
    ]
    expected = vectors_of(folder, texts[3:11])
    assert [bits(line["embedding"]) for line in found[3:11]] == [bits(vector) for vector in expected]


def test_kept_columns_of_a_table(folder, tmp_path):
    """With the names that the completions of generate have, too."""
    pq = pytest.importorskip("pyarrow.parquet")
    rows = [
        {"id": i, "text": "good film", "choices": ["a", "b"], "logprobs": 0.5, "meta": {"a": [i]}} for i in range(4)
    ]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    keep = tuple((name, name) for name in ("choices", "logprobs", "meta"))
    run(folder, tmp_path / "out.parquet", tmp_path / "in.jsonl", {"keep": keep})
    found = pq.read_table(tmp_path / "out.parquet").to_pylist()
    assert [{name: row[name] for name in ("id", "choices", "logprobs", "meta")} for row in found] == [
        {name: row[name] for name in ("id", "choices", "logprobs", "meta")} for row in rows
    ]
    assert all(row["embedding"] for row in found)


def test_batch_lines_keep_fields_and_a_named_field_makes_them_data(folder, tmp_path):
    rows = [{"custom_id": id, **REQUEST, "body": {"input": "good", "user": "u"}, "tag": id} for id in "aba"]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    keep = (("user", "user"), ("tag", "tag"))
    report, said = run(folder, tmp_path / "out.jsonl", tmp_path / "in.jsonl", {"keep": keep}, shard_size=1)
    found = [json.loads(line) for line in said.splitlines()]
    assert [(line["custom_id"], line["user"], line["tag"]) for line in found] == [(id, "u", id) for id in "aba"]
    assert report.errors == 1 and found[2]["error"] and found[0]["response"]
    _, said = run(folder, tmp_path / "data.jsonl", tmp_path / "in.jsonl", {"content_field": "tag"})
    assert [json.loads(line)["id"] for line in said.splitlines()] == [1, 2, 3]


def test_csv_compressed_and_many_files_give_the_lines_of_one_file(folder, tmp_path):
    """A repeated id is found across shards in each of them."""
    lines = [{"id": f"s{i % 35}", "text": f'{text} "a",\nb'} for i, text in enumerate(random_texts(40))]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / "in.jsonl").write_text(text)
    table = io.StringIO(newline="")
    csv.writer(table).writerows([("id", "text"), *(line.values() for line in lines)])
    (tmp_path / "in.csv.gz").write_bytes(gzip.compress(table.getvalue().encode()))
    (tmp_path / "many").mkdir()
    for part in range(2):
        (tmp_path / "many" / f"{part}.jsonl").write_text("".join(text.splitlines(keepends=True)[20 * part :][:20]))
    found = {}
    for name in ("in.jsonl", "in.csv.gz", "many"):
        report, said = run(folder, tmp_path / f"{name}.out.jsonl", tmp_path / name, shard_size=300)
        rows = [json.loads(line) for line in said.splitlines()]
        found[name] = [(row["id"], row.get("embedding"), "error" in row) for row in rows]
        assert (report.records, report.errors) == (40, 5) and report.job["shards"] > 2
    assert found["in.csv.gz"] == found["in.jsonl"] == found["many"]
