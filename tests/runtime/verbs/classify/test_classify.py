"""The job end to end: right answers, in any batches; bad input costs no output; a full disk costs no earlier output."""

import errno
import itertools
import json
import os
import shutil

import numpy as np
import pytest
import safetensors.numpy

from named_stand_ins import stand_ins
from tilewright.errors import InputError, InternalError, ResourceError, UsageError
from tilewright.formats import atomic
from tilewright.runtime.jobs import metrics
from tilewright.runtime.jobs.directory import JobDirectory
from tilewright.runtime.jobs.settings import Settings
from tilewright.runtime.progress import JobProgress
from tilewright.runtime.verbs.classify import ClassifyJob, classify
from tilewright.runtime.verbs.classify import worker as module


@pytest.fixture
def run(tmp_path, model, sentences):
    """run(input, output, ...) with fields of ClassifyJob and of Settings; it begins with nothing unless told so."""

    def call(input="in.bin", output="out.bin", restart=True, **options):
        given = {name: options.pop(name) for name in Settings.__dataclass_fields__ if name in options}
        settings = Settings(restart=restart, **given)
        return classify(ClassifyJob(model, str(tmp_path / input), str(tmp_path / output), settings=settings, **options))

    return call


def reference(model, tokens):
    """Logits in float64, straight from the formulas."""
    w = {
        name: array.astype(np.float64)
        for name, array in safetensors.numpy.load_file(f"{model}/model.safetensors").items()
    }
    x, features = w["embedding.weight"][tokens], []  # (n, L, H)
    for i in range(2):
        kernel = w[f"convs.{i}.weight"]  # (F, H, K)
        windows = np.lib.stride_tricks.sliding_window_view(x, kernel.shape[2], axis=1)  # (n, P, H, K)
        features.append(np.maximum(np.einsum("nphk,fhk->npf", windows, kernel) + w[f"convs.{i}.bias"], 0).max(axis=1))
    y = np.concatenate(features, axis=1)
    y = np.maximum(y @ w["linears.0.weight"].T + w["linears.0.bias"], 0)
    return y @ w["linears.1.weight"].T + w["linears.1.bias"]


def logits(tmp_path, name="out.bin"):
    return np.fromfile(tmp_path / name, "<f4").reshape(-1, 2)


def names(tmp_path):
    return sorted(os.listdir(tmp_path))


def test_logits_are_right(tmp_path, model, sentences, run):
    report = run()
    error = np.abs(logits(tmp_path) - reference(model, sentences)).max()
    assert error < 1e-5
    assert (report.records, report.errors, report.exit_code) == (40, 0, 0)
    assert {"check", "load", "prepare", "compile", "run", "write", "total"} <= report.seconds.keys()
    assert sum(report.seconds.values()) <= 2 * report.seconds["total"] + 1e-3
    assert report.records_per_second > 0 and report.peak_memory > 10 << 20
    assert names(tmp_path) == ["in.bin", "model", "out.bin", "out.bin.job"]


def test_how_much_of_a_text_is_done_is_told_before_the_first_shard_is(tmp_path, run, sentences, monkeypatch):
    told = []
    monkeypatch.setattr(JobProgress, "at_work", lambda self, worker, done, share=None: told.append((done, share)))
    lines = [f'{{"id": {i}, "tokens": {row.tolist()}}}\n' for i, row in enumerate(sentences)]
    (tmp_path / "in.jsonl").write_text("".join(lines))
    run("in.jsonl", "out.jsonl", batch_size=10)
    parts = [sum(map(len, lines[: 10 * i])) / sum(map(len, lines)) for i in (1, 2, 3)]
    assert [one for one in told if one[0]] == [(10 * i, pytest.approx(part)) for i, part in enumerate(parts, 1)]


@pytest.mark.parametrize("batch", [1, 7, 39, 41])
def test_batches_change_no_bits(tmp_path, run, batch):
    run()
    expected = (tmp_path / "out.bin").read_bytes()
    run(batch_size=batch)
    assert (tmp_path / "out.bin").read_bytes() == expected


def test_count(tmp_path, sentences, run):
    run()
    expected = (tmp_path / "out.bin").read_bytes()
    assert run(count=9).records == 9
    assert (tmp_path / "out.bin").read_bytes() == expected[: 9 * 8]


def test_labels(tmp_path, sentences, run):
    run()
    expected = logits(tmp_path)
    lines = [json.dumps({"id": f"s{i}", "tokens": row}) for i, row in enumerate(sentences.tolist())]
    (tmp_path / "in.jsonl").write_text("\n".join(lines))
    assert run("in.jsonl", "out.jsonl", batch_size=7).exit_code == 0
    found = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [record["id"] for record in found] == [f"s{i}" for i in range(40)]
    assert np.array([record["logits"] for record in found], np.float32).tobytes() == expected.tobytes()
    assert [record["label"] for record in found] == [("negative", "positive")[int(b > a)] for a, b in expected]
    for record in found:
        odds = np.exp(np.array(record["logits"], np.float64))
        assert record["score"] == pytest.approx(odds.max() / odds.sum(), rel=1e-6)


def spoilt(tmp_path, sentences, bad=(3, 17)):
    lines = [json.dumps(row) for row in sentences.tolist()]
    for i in bad:
        lines[i] = '{"tokens": ["x"]}'
    (tmp_path / "in.jsonl").write_text("\n".join(lines))


def test_bad_records_cost_nothing_else(tmp_path, sentences, run):
    run()
    expected = logits(tmp_path)
    spoilt(tmp_path, sentences)
    report = run("in.jsonl", "out.jsonl", batch_size=8)
    assert (report.records, report.errors, report.exit_code) == (40, 2, 0)
    assert report.first_errors[0].startswith("line 4, tokens[0]: expected int, got str")
    found = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [i for i, record in enumerate(found) if "error" in record] == [3, 17]
    for i, record in enumerate(found):
        assert "error" in record or np.float32(record["logits"]).tobytes() == expected[i].tobytes()


def test_a_batch_of_bad_records_only(tmp_path, sentences, run):
    spoilt(tmp_path, sentences, bad=range(8, 24))
    assert run("in.jsonl", "out.jsonl", batch_size=8).errors == 16
    spoilt(tmp_path, sentences, bad=range(40))
    assert run("in.jsonl", "out.jsonl", batch_size=8).errors == 40


def test_error_budget(tmp_path, sentences, run):
    spoilt(tmp_path, sentences)
    assert run("in.jsonl", "out.jsonl", max_errors=2).errors == 2
    before = (tmp_path / "out.jsonl").read_bytes()
    for allowed in (0, 1):
        with pytest.raises(
            InternalError, match=rf"2 of the first 40 records are bad and {allowed} are allowed.*line 4"
        ):
            run("in.jsonl", "out.jsonl", max_errors=allowed)
    assert (tmp_path / "out.jsonl").read_bytes() == before


def test_validation(tmp_path, run):
    run()
    (tmp_path / "ref.bin").write_bytes((tmp_path / "out.bin").read_bytes())
    answers = str(tmp_path / "ref.bin")
    assert run(answers=answers).validation.passed
    assert run(answers=answers, count=5).validation.checked == 10
    wrong = logits(tmp_path, "ref.bin")
    wrong[11, 1] += 1
    wrong.tofile(tmp_path / "ref.bin")
    report = run(answers=answers)
    assert report.exit_code == 1 and report.validation.first.startswith("sentence 11, logit 1 is ")
    assert run(answers=answers, tolerance=2.0).exit_code == 0


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (UsageError, {"output": "out.jsonl"}, "the input is binary by its name, and the output is not"),
        (UsageError, {"output": "in.bin"}, "overwrite the input"),
        (UsageError, {"max_errors": 3}, "--max-errors needs"),
        (InputError, {"input": "gone.bin"}, "no such input"),
        (InputError, {"input": "directory"}, "the directory holds no files"),
        (InputError, {"input": "empty.bin"}, "is empty"),
        (InputError, {"input": "odd.bin"}, "1 sentence of 24 bytes and 6 more"),
        (InputError, {"input": "range.bin"}, "token id 50 .*|sentence 1, position 2"),
        (InputError, {"count": 41}, "41 were asked for"),
        (InputError, {"answers": "gone.bin"}, "no such answers"),
        (UsageError, {"output": "model"}, "overwrite the model"),
        (UsageError, {"output": "model/model.safetensors"}, r"overwrite the model's model\.safetensors"),
        (UsageError, {"output": "model/config.json"}, r"overwrite the model's config\.json"),
        (UsageError, {"output": "model/token_table.bin"}, r"overwrite the model's token_table\.bin"),
        (UsageError, {"output": "directory/../link/tokenizer.json"}, r"overwrite the model's tokenizer\.json"),
        (UsageError, {"output": "hard"}, r"overwrite the model's model\.safetensors"),
        (ResourceError, {"output": "directory"}, "is a directory"),
        (ResourceError, {"output": "gone/out.bin"}, "there is no directory"),
    ],
)
def test_refusals_come_first(tmp_path, run, monkeypatch, kind, options, message):
    monkeypatch.setattr(module, "read_weights", lambda *given: pytest.fail("the work was started"))
    (tmp_path / "out.bin").write_bytes(b"earlier")
    (tmp_path / "empty.bin").write_bytes(b"")
    (tmp_path / "odd.bin").write_bytes(bytes(30))
    tokens = np.zeros((3, 6), np.int32)
    tokens[1, 2] = 50
    tokens.tofile(tmp_path / "range.bin")
    (tmp_path / "directory").mkdir()
    (tmp_path / "link").symlink_to("model")
    os.link(tmp_path / "model" / "model.safetensors", tmp_path / "hard")
    before = names(tmp_path)
    with pytest.raises(kind, match=message):
        run(**options)
    assert (tmp_path / "out.bin").read_bytes() == b"earlier" and names(tmp_path) == before


def test_the_table_of_a_headerless_model_is_no_output(tmp_path, run, model):
    (tmp_path / "params.bin").write_bytes(b"")
    job = ClassifyJob(str(tmp_path / "params.bin"), str(tmp_path / "in.bin"), str(tmp_path / "params.bin.table"))
    with pytest.raises(UsageError, match=r"overwrite the model's params\.bin\.table"):
        classify(job)


def change_weights(model, change):
    path = f"{model}/model.safetensors"
    weights = safetensors.numpy.load_file(path)
    change(weights)
    safetensors.numpy.save_file(weights, path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w["convs.1.weight"].__setitem__((1, 2, 0), np.nan), r"convs\.1\.weight holds nan at \[1, 2, 0\]"),
        (lambda w: w["linears.1.bias"].__setitem__(1, -np.inf), r"linears\.1\.bias holds -inf at \[1\]"),
        (lambda w: w.pop("linears.0.bias"), r"linears\.0\.bias \(7,\) is missing"),
        (lambda w: w.update(spare=np.zeros(1, np.float32)), "'spare'"),
        (
            lambda w: w.update({"linears.0.bias": np.zeros((7, 1), np.float32)}),
            r"is \(7, 1\); the configuration requires \(7,\)",
        ),
        (lambda w: w.update({"linears.0.bias": np.zeros(7, np.int64)}), "int64"),
        (lambda w: w["linears.1.weight"].fill(3e38), "not finite"),
    ],
)
def test_bad_weights(tmp_path, model, run, change, message):
    (tmp_path / "out.bin").write_bytes(b"earlier")
    change_weights(model, change)
    with pytest.raises(InputError, match=message) as caught:
        run()
    assert caught.value.path in (f"{model}/model.safetensors", None)  # None: the logits are not finite
    assert (tmp_path / "out.bin").read_bytes() == b"earlier" and names(tmp_path) == ["in.bin", "model", "out.bin"]


def test_overflows_in_jsonl_are_records(tmp_path, model, sentences, run):
    change_weights(model, lambda w: w["linears.1.weight"].fill(3e38))
    spoilt(tmp_path, sentences, bad=(0,))
    report = run("in.jsonl", "out.jsonl")
    assert report.errors > 1 and "line 1, tokens[0]" in report.first_errors[0]
    assert sum("not finite" in line for line in (tmp_path / "out.jsonl").read_text().splitlines()) == report.errors - 1


@pytest.mark.parametrize("output", ["out.bin", "out.jsonl"])
def test_every_write_fails_once(tmp_path, sentences, run, monkeypatch, output):
    """ENOSPC at the Nth write, fsync or rename, for every N: exit code 4, earlier output intact, and it is resumed."""
    input = "in.bin"
    if output == "out.jsonl":
        input = "in.jsonl"
        spoilt(tmp_path, sentences)
    made = [0, 0]

    def failing(call):
        def counted(*args, **named):
            made[0] += 1
            if made[0] == made[1]:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return call(*args, **named)

        return counted

    monkeypatch.setattr(metrics, "_replace", lambda *args: None)  # the job goes on without metrics.prom and job.json
    monkeypatch.setattr(JobDirectory, "note_request", lambda *args: None)
    for name in ("write", "fsync", "replace"):
        monkeypatch.setattr(atomic.os, name, failing(getattr(os, name)))
    size = 20 if output == "out.bin" else 500
    run(input, output, shard_size=size)
    expected, before = (tmp_path / output).read_bytes(), names(tmp_path)
    for nth in itertools.count(1):
        (tmp_path / output).write_bytes(b"earlier")
        shutil.rmtree(tmp_path / f"{output}.job")
        made[:] = [0, nth]
        try:
            run(input, output, restart=False, shard_size=size)
            assert made[0] < nth  # it was not heard of
            break
        except ResourceError as error:
            caught = error
        assert "o space left on device" in str(caught)
        assert caught.exit_code == 4 and set(names(tmp_path)) <= set(before)
        assert (tmp_path / output).read_bytes() in (b"earlier", expected)
        run(input, output, restart=False)
        assert (tmp_path / output).read_bytes() == expected and names(tmp_path) == before
    assert nth > 15  # manifest, shards, output and report: write, fsync, rename each


def test_an_input_that_shrinks(tmp_path, run, monkeypatch):
    (tmp_path / "out.bin").write_bytes(b"earlier")
    load = module.read_weights
    monkeypatch.setattr(module, "read_weights", lambda *given: (os.truncate(tmp_path / "in.bin", 500), load(*given))[1])
    with pytest.raises(InputError, match=r"shrank|was changed while it ran: input\."):
        run(batch_size=4, shard_size=8)
    assert (tmp_path / "out.bin").read_bytes() == b"earlier"


def test_sentences_that_are_cut_are_counted_in_each_shard(tmp_path):
    """And added up, in a job that goes on, too, and in one that has nothing to do."""
    stand_ins(tmp_path / "models")  # a token of theirs is a byte, and a sentence has 12
    (tmp_path / "in.txt").write_text("".join(f"{'x' * (11 + i % 3)}\n" for i in range(40)))
    job = ClassifyJob(str(tmp_path / "models/critic"), str(tmp_path / "in.txt"), str(tmp_path / "out.jsonl"),
                      settings=Settings(shard_size=100))  # fmt: skip
    parts = tmp_path / "out.jsonl.job/shards"
    for computed in (40, 8, 0):
        said = []
        report = classify(job, said.append)
        assert (report.computed, report.cut) == (computed, 13) and report.job["shards"] > 4
        assert said[-1] == "13 of 40 sentences are longer than the model's 12 tokens and were cut"
        if computed == 40:
            (parts / sorted(os.listdir(parts))[1]).unlink()


def test_many_jobs_leak_nothing(run):
    run()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        run(batch_size=3)
    assert len(os.listdir("/proc/self/fd")) <= before
