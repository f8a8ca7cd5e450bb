"""`plan classify` against what a TextCNN holds."""

import json
import os

import numpy as np
import pytest

from tilewright.errors import InputError, ResourceError
from tilewright.models.textcnn import TextCNN
from tilewright.ops.core.ladder import using
from tilewright.ops.core.memory import LINE
from tilewright.runtime.convert.models import init_textcnn
from tilewright.runtime.jobs.settings import Settings
from tilewright.runtime.load import read_weights
from tilewright.runtime.verbs.classify import ClassifyJob
from tilewright.runtime.verbs.classify.plan import plan

PREPARED, TABLE = "weights, prepared", "token table"


def parts_of(found):
    return {part.name: part.bytes for part in found.parts}


@pytest.fixture
def job(model, sentences, tmp_path):
    return ClassifyJob(model, str(tmp_path / "in.bin"), str(tmp_path / "out.bin"))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_and_rows_of_the_table_are_those_of_the_model(job, sentences, dtype):
    config, weights = read_weights(job.model)
    placed = TextCNN(config, weights, dtype=dtype)
    placed.logits(sentences)
    table = placed.convolutions.state
    packed = [*table.packed, *(weight for weight, _ in placed.linears)]
    job.settings = Settings(dtype=dtype)
    found = plan(job)
    assert 0 <= sum(one.data.nbytes for one in packed) - parts_of(found)[PREPARED] <= LINE * len(packed)
    assert found.figures["table_rows"] == table.used
    assert parts_of(found)[TABLE] == table.used * 4 * table.slices.shape[0] * table.slices.shape[2]
    assert found.figures["table_at_most"] == table.slices.nbytes


def test_a_limit_of_the_table_holds_and_one_too_small_is_refused(job):
    whole = plan(job).figures
    job.table_memory = whole["table_bytes"] // 2
    assert plan(job).figures["table_at_most"] <= job.table_memory
    job.table_memory = 100
    with pytest.raises(ResourceError, match="a sentence may need"):
        plan(job)


def test_a_rung_without_a_table_has_none(job):
    with using(embedding_conv1d="cpu.gather"):
        found = plan(job)
    assert found.figures["token_table"] is False and parts_of(found)[TABLE] == 0


@pytest.mark.parametrize("name", ["in.bin", "in.jsonl"])
def test_a_batch_is_no_larger_than_a_shard(job, sentences, tmp_path, name):
    """In a shard of text there are as many lines as fit in its bytes."""
    job.settings = Settings(shard_size=10)
    if name == "in.jsonl":
        lines = [json.dumps({"id": i, "tokens": ids.tolist()}) + "\n" for i, ids in enumerate(sentences)]
        (tmp_path / name).write_text("".join(lines))
        job.input, job.output = str(tmp_path / name), str(tmp_path / "out.jsonl")
        job.settings = Settings(shard_size=10 * max(map(len, lines)))
    small = plan(job)
    job.settings = Settings()
    whole = plan(job)
    assert whole.figures["batch"] == len(sentences) and 10 <= small.figures["batch"] <= 14
    assert parts_of(small)["batch and records"] < parts_of(whole)["batch and records"]


def test_each_of_several_workers_has_the_rows_of_its_part(job, sentences):
    config, weights = read_weights(job.model)
    placed = TextCNN(config, weights)
    placed.logits(sentences[:20])
    job.settings = Settings(workers=2)
    assert plan(job).figures["table_rows"] == placed.convolutions.state.used


def test_rows_that_were_not_seen_are_estimated(tmp_path, monkeypatch, rng):
    """Of words as frequent as those of a language, Zipf's law."""
    from tilewright.runtime.verbs.classify import plan as plan_classify

    monkeypatch.setattr(plan_classify, "SAMPLED", 4096)
    init_textcnn(str(tmp_path / "m"), 3, vocab_size=5000, sequence_length=8, hidden_size=8, num_filters=5,
                 kernel_sizes=(2, 3), hidden_sizes=(7,))  # fmt: skip
    ids = (rng.zipf(1.3, (40_000, 8)) % 5000).astype(np.int32)
    ids.tofile(tmp_path / "in.bin")
    found = plan(ClassifyJob(str(tmp_path / "m"), str(tmp_path / "in.bin"), str(tmp_path / "out.bin")))
    config, weights = read_weights(str(tmp_path / "m"))
    placed = TextCNN(config, weights)
    placed.logits(ids)
    used = placed.convolutions.state.used
    assert used <= found.figures["table_rows"] <= 1.5 * used


@pytest.mark.parametrize("count", [1, 500, 70_000])
def test_bad_lines_are_counted(model, tmp_path, count):
    """Also where there is no good one, and where there are more than are encoded."""
    (tmp_path / "in.jsonl").write_text("{bad\n" * count)
    found = plan(ClassifyJob(model, str(tmp_path / "in.jsonl"), str(tmp_path / "out.jsonl")))
    assert (found.records, found.counted) == (count, True) and found.outputs.bytes > 0


def test_10_gib_are_planned_by_a_sample(model, tmp_path, bytes_read):
    source = tmp_path / "large.bin"
    with open(source, "wb") as file:
        os.truncate(file.fileno(), 24 * (450 << 20))  # a hole: it takes no space
    found = plan(ClassifyJob(model, str(source), str(tmp_path / "out.bin")))
    assert found.records == 450 << 20 and found.counted
    assert found.outputs.bytes == 8 * found.records and found.outputs.exact
    assert bytes_read(source) < 80 << 20


def test_weights_that_are_not_the_models_are_refused(job):
    file = os.path.join(job.model, "model.safetensors")
    with open(file, "r+b") as weights:
        weights.truncate(os.path.getsize(file) - 4)
    with pytest.raises(InputError):
        plan(job)


def test_bad_records_are_counted_and_the_first_is_named(job, sentences, tmp_path):
    lines = [json.dumps({"tokens": ids.tolist()}) for ids in sentences[:9]]
    lines[3], lines[7] = '{"tokens": 5}', "none"
    (tmp_path / "in.jsonl").write_text("\n".join(lines))
    job.input, job.output = str(tmp_path / "in.jsonl"), str(tmp_path / "out.jsonl")
    figures = plan(job).figures
    assert figures["bad"] == 2 and figures["first_bad"].startswith("tokens: ")


def test_an_input_of_good_records_has_no_bad_one(job):
    assert plan(job).figures["bad"] == 0
