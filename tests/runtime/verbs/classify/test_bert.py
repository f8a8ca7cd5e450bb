"""`classify` with a BERT: the same bytes from any shards, workers and batches; resume; what is refused; the plan."""

import json

import numpy as np
import pytest

from bert_models import random_texts, saved
from tilewright.errors import InputError, Interrupted, UsageError
from tilewright.runtime.jobs.settings import Settings
from tilewright.runtime.load import load
from tilewright.runtime.verbs.classify import ClassifyJob, classify
from tilewright.runtime.verbs.classify import worker as module
from tilewright.runtime.verbs.classify.plan import plan


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model directory `m` and 120 texts in `in.txt`."""
    folder = tmp_path_factory.mktemp("bert")
    saved("distilbert", 0, folder / "m")
    (folder / "in.txt").write_text("\n".join(random_texts(120)) + "\n")
    return folder


def run(folder, output, input="in.txt", **settings):
    job = ClassifyJob(str(folder / "m"), str(folder / input), str(output), settings=Settings(device="cpu", **settings))
    return classify(job), output.read_bytes()


def test_answers_are_the_model_s(folder, tmp_path):
    report, said = run(folder, tmp_path / "out.jsonl")
    texts = (folder / "in.txt").read_text().splitlines()
    answers = load(folder / "m", device="cpu").classify(texts)
    lines = [json.loads(line) for line in said.splitlines()]
    assert [line["id"] for line in lines] == list(range(1, 121))
    assert [line["label"] for line in lines] == [answer["label"] for answer in answers]
    found = np.array([line["logits"] for line in lines], np.float32)
    assert np.array_equal(found, np.array([answer["logits"] for answer in answers], np.float32))
    assert report.cut == sum(len(text.split()) > 68 for text in texts) > 0


def test_same_bytes_from_any_shards_and_workers(folder, tmp_path):
    _, whole = run(folder, tmp_path / "whole.jsonl")
    for name, settings in (
        ("small", {"shard_size": 1500}), ("batch", {"batch_size": 1}), ("two", {"workers": 2, "shard_size": 4000}),
    ):  # fmt: skip
        assert run(folder, tmp_path / f"{name}.jsonl", **settings)[1] == whole, name


def test_a_stopped_job_is_resumed(folder, tmp_path, monkeypatch):
    _, whole = run(folder, tmp_path / "whole.jsonl")
    calls, real = [], module.ClassifyWorker.run

    def stop_after_two(self, *arguments):
        calls.append(1)
        if len(calls) == 3:
            raise Interrupted("stopped by the test")
        return real(self, *arguments)

    monkeypatch.setattr(module.ClassifyWorker, "run", stop_after_two)
    with pytest.raises(Interrupted):
        run(folder, tmp_path / "out.jsonl", shard_size=1500)
    monkeypatch.setattr(module.ClassifyWorker, "run", real)
    report, resumed = run(folder, tmp_path / "out.jsonl", shard_size=1500)
    assert resumed == whole and 0 < report.computed < 120


def test_a_text_without_tokens_is_an_error_of_its_record(tmp_path):
    """It ended the job, if the tokenizer adds no special tokens. An empty second text was told as the first one."""
    saved("bert", 0, tmp_path / "m")
    path = tmp_path / "m" / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"post_processor": None}))
    lines = [{"text": "good film"}, {"text": "\x01"}, {"text": "good", "text_pair": " "}, {"text": "\x01 good"}]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    report, said = run(tmp_path, tmp_path / "out.jsonl", "in.jsonl")
    found = [json.loads(line) for line in said.splitlines()]
    assert report.errors == 2 and "label" in found[0] and "label" in found[3]
    assert found[1]["error"] == {"line": 2, "field": "text", "message": "has no token; the model reads at least one"}
    assert found[2]["error"]["field"] == "text_pair"


def test_json_lines_with_ids_and_errors(folder, tmp_path):
    (tmp_path / "m").symlink_to(folder / "m")
    lines = [{"id": "a", "text": "good film"}, {"id": "b", "tokens": [2, 5, 8, 3]}, {"id": "c", "tokens": [2] * 71},
             {"id": "d", "text": " "}]  # fmt: skip
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    report, said = run(tmp_path, tmp_path / "out.jsonl", "in.jsonl", max_errors=2)
    found = {line["id"]: line for line in map(json.loads, said.splitlines())}
    assert "label" in found["a"] and "label" in found["b"]
    assert found["c"]["error"]["field"] == "tokens" and "71 ids" in found["c"]["error"]["message"]
    assert found["d"]["error"]["field"] == "text"
    assert report.errors == 2


def test_what_only_a_textcnn_takes_is_refused(folder, tmp_path):
    def refused(said, error=UsageError, input="in.txt", output="out.jsonl", settings=None, **options):
        job = ClassifyJob(str(folder / "m"), str(folder / input), str(tmp_path / output),
                          settings=Settings(device="cpu", **settings or {}), **options)  # fmt: skip
        with pytest.raises(error, match=said):
            classify(job)

    refused("--table-memory is for a TextCNN", table_memory=1 << 20)
    refused("--keep-table is for a TextCNN", table_path=str(tmp_path / "t"))
    refused("texts of any length", input="in.bin", output="out.bin")
    refused("no effect for a BERT", settings={"rungs": {"embedding_conv1d": "cpu.gather"}})


def test_a_model_without_a_tokenizer_is_refused(folder, tmp_path):
    saved("bert", 1, tmp_path / "m")
    (tmp_path / "m" / "tokenizer.json").unlink()
    job = ClassifyJob(str(tmp_path / "m"), str(folder / "in.txt"), str(tmp_path / "o.jsonl"), settings=Settings())
    with pytest.raises(InputError, match=r"no tokenizer\.json"):
        classify(job)


def test_plan(folder, tmp_path):
    job = ClassifyJob(str(folder / "m"), str(folder / "in.txt"), str(tmp_path / "o.jsonl"),
                      settings=Settings(device="cpu"))  # fmt: skip
    found = plan(job)
    assert found.records == 120 and found.counted and 30 < found.figures["tokens_per_text"] < 71
    assert found.flops > 0 and found.peak_memory > 100 << 20


def test_pairs_of_texts_in_lines(folder, tmp_path):
    texts = random_texts(60, 4)
    lines = [{"text": a, "text_pair": b} if i % 3 else {"text": a}
             for i, (a, b) in enumerate(zip(texts[:30], texts[30:], strict=True))]  # fmt: skip
    lines += [{"tokens": [2, 5, 3], "text_pair": "good"}, {"text": "good", "text_pair": " "}, {"text_pair": "good"}]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "m").symlink_to(folder / "m")
    report, said = run(tmp_path, tmp_path / "out.jsonl", "in.jsonl")
    _, small = run(tmp_path, tmp_path / "small.jsonl", "in.jsonl", shard_size=900, batch_size=3)
    assert small == said and report.errors == 3 and report.cut > 0
    found = [json.loads(line) for line in said.splitlines()]
    given = [(line["text"], line["text_pair"]) if "text_pair" in line else line["text"] for line in lines[:30]]
    answers = load(folder / "m", device="cpu").classify(given)
    assert [line["score"] for line in found[:30]] == [answer["score"] for answer in answers]
    assert [line["error"]["field"] for line in found[30:]] == ["text_pair", "text_pair", "text"]


def test_a_second_text_goes_with_the_field_that_the_user_names(folder, tmp_path):
    """In JSON lines and in tables: it is read, not ignored."""
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    texts = random_texts(12, 4)
    pairs = list(zip(texts[:6], texts[6:], strict=True))
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"q": a, "text_pair": b}) + "\n" for a, b in pairs))
    (tmp_path / "in.csv").write_text("q,text_pair\n" + "".join(f'"{a}","{b}"\n' for a, b in pairs))
    columns = [list(column) for column in zip(*pairs, strict=True)]
    parquet.write_table(pyarrow.table(columns, names=["q", "text_pair"]), tmp_path / "in.parquet")
    answers = [answer["score"] for answer in load(folder / "m", device="cpu").classify(pairs)]
    for name in ("in.jsonl", "in.csv", "in.parquet"):
        output = tmp_path / f"{name}.jsonl"
        job = ClassifyJob(str(folder / "m"), str(tmp_path / name), str(output), content_field="q",
                          settings=Settings(device="cpu"))  # fmt: skip
        classify(job)
        assert [json.loads(line)["score"] for line in output.read_text().splitlines()] == answers
