"""`tilewright work`: the whole way of a worker, in this process."""

import json
import os
import shutil
from pathlib import Path

import pytest

import cloud
from tilewright.runtime import named_models
from tilewright.runtime.jobs.durable import Folder
from tilewright.runtime.stores import request
from tilewright.runtime.stores.board import Board
from tilewright.runtime.stores.folder import FolderKeys
from tilewright.runtime.stores.objects import Objects

try:
    import obstore
except ImportError:
    obstore = None


@pytest.fixture(name="begun")
def _begun(run, small):
    """A job of five shards, three of them there; the command that made it."""
    run(*small)
    Path("out.bin").rename("expected.bin")
    job = (*small[:-1], "--shard-size", "4")
    assert run(*job, "--restart")[0] == 0
    for number in (1, 3):
        Path(f"out.bin.job/shards/{number:05d}.part").unlink()
    Path("out.bin.job/report.json").unlink()
    Path("out.bin").unlink()
    return job


def test_a_worker_makes_what_is_missing(run, begun):
    code, out, errors = run("work", "out.bin", "--json")
    assert code == 0, errors
    said = json.loads(out.splitlines()[-1])
    assert {name: said[name] for name in ("shards", "done", "mine", "records", "errors", "exit_code")} == {
        "shards": 5, "done": 5, "mine": 2, "records": 8, "errors": 0, "exit_code": 0,
    }  # fmt: skip
    assert "Joined: 3 of 5 shards are there" in errors
    code, out, _ = run("work", "out.bin.job")
    assert code == 0 and "This worker made 0 shards, 0 records, 0 bad. 5 of 5 shards of the job are there" in out
    code, out, _ = run(*begun)
    assert code == 0 and "All 5 shards were there" in out
    assert Path("out.bin").read_bytes() == Path("expected.bin").read_bytes()
    assert run("verify", "out.bin")[0] == 0


def test_a_worker_needs_the_same_version(run, begun, monkeypatch):
    monkeypatch.setattr(request, "own_version", lambda: "0.0.1")
    code, _, errors = run("work", "out.bin")
    assert code == 2 and "the job was begun by tilewright version" in errors and "this is version 0.0.1" in errors


def test_a_worker_needs_the_same_input(run, begun):
    content = Path("in.bin").read_bytes()
    Path("in.bin").write_bytes(content[24:] + content[:24])
    code, _, errors = run("work", "out.bin")
    assert code == 2 and "the job was begun with other settings or inputs: the input has other content" in errors
    assert "Give this machine the files" in errors and "--restart" not in errors, "the worker has no such option"


def test_mutants_of_the_job(run, begun, rng):
    """job.json is text that anyone who may write there can change: it ends in an error of ours, or works."""
    whole = Path("out.bin.job/job.json").read_bytes()
    for _ in range(60):
        raw = bytearray(whole)
        for at in rng.integers(0, len(raw), 2):
            raw[at] = rng.integers(32, 127)
        Path("out.bin.job/job.json").write_bytes(raw)
        code, _, errors = run("work", "out.bin")
        assert code in (0, 2, 3, 4), errors


def test_jobs_that_cannot_be_joined(run, small):
    code, _, errors = run("work", "nothing.bin")
    assert code == 2 and "there is no job for this output" in errors
    run(*small)
    Path("out.bin.job/job.json").write_text('{"verb": "rm"}')
    code, _, errors = run("work", "out.bin")
    assert code == 2 and "this is not a job that can be joined" in errors
    Path("out.bin.job/job.json").unlink()
    code, _, errors = run("work", "out.bin")
    assert code == 2 and "the job has no job.json" in errors


@pytest.mark.long
@pytest.mark.parametrize(
    "words",
    [
        ("draw", "--model", "portraits", "-n", "8", "-o", "faces.npy", "--shard-size", "2"),
        ("convolve", "-i", "volume.npy", "--kernel", "gaussian:1", "-o", "smooth.npy", "--shard-size", "3"),
        ("generate", "--model", "poet", "-i", "lines.txt", "-o", "verse.jsonl", "--shard-size", "8", "--stop", "x",
         "--max-tokens", "2"),
        ("score", "--model", "poet", "-i", "lines.txt", "-o", "scores.jsonl", "--shard-size", "8"),
        ("embed", "--model", "bert", "-i", "lines.txt", "-o", "vectors.npy", "--shard-size", "8"),
    ],
    ids=lambda words: words[0],
)  # fmt: skip
def test_every_verb_can_be_joined(run, words, rng):
    import numpy as np

    from bert_models import saved

    saved("bert", 0, Path("bert"))
    np.save("volume.npy", rng.random((12, 10, 9), np.float32))
    Path("lines.txt").write_text("one\ntwo three\nfour\n")
    assert run(*words)[0] == 0
    output = words[words.index("-o") + 1]
    whole = Path(output).read_bytes()
    Path(f"{output}.job/report.json").unlink()
    Path(f"{output}.job/shards/00001.part").unlink()
    Path(output).unlink()
    code, out, errors = run("work", output)
    assert code == 0 and "This worker made 1 shard" in out, errors
    code, out, errors = run(*words)
    assert code == 0 and Path(output).read_bytes() == whole, errors


@pytest.mark.skipif(obstore is None, reason="obstore is not installed (extra cloud)")
def test_a_worker_of_a_job_in_a_store(run, small, monkeypatch, tmp_path):
    monkeypatch.setenv("TILEWRIGHT_OBJECTS", str(tmp_path / "copies"))
    store = cloud.memory(monkeypatch)
    run(*small)
    for path in (*Path("m").iterdir(), Path("in.bin")):
        obstore.put(store, str(path), path.read_bytes())
    far = "s3://bucket/far.bin"
    job = ("classify", "--model", "s3://bucket/m", "-i", "s3://bucket/in.bin", "-o", far, "--shard-size", "4")
    assert run("work", far)[0] == 2
    assert run(*job)[0] == 0
    obstore.delete(store, [f"far.bin.job/{name}" for name in ("report.json", "shards/00001.part", "shards/00004.part")])
    code, out, errors = run("work", far)
    assert code == 0 and "This worker made 2 shards, 8 records, 0 bad. 5 of 5 shards" in out, errors
    code, out, _ = run(*job)
    assert code == 0 and "All 5 shards were there" in out
    assert bytes(obstore.get(store, "far.bin").bytes()) == Path("out.bin").read_bytes()


@pytest.mark.skipif(obstore is None, reason="obstore is not installed (extra cloud)")
def test_status_when_the_starter_is_gone(run, small, monkeypatch, tmp_path, begun):
    """It was killed, so it has left its lease; a worker goes on. The same for a job in a directory."""
    monkeypatch.setenv("TILEWRIGHT_OBJECTS", str(tmp_path / "copies"))
    store = cloud.memory(monkeypatch)
    far, told = "s3://bucket/far.bin", "the process that started the job is gone; the workers continue. Run its"
    assert run(*small[:-2], far)[0] == 0
    obstore.delete(store, ["far.bin.job/report.json", "far.bin.job/shards/00000.part"])
    obstore.put(store, "far.bin.job/lead", b"a-host-1-1-00000000")
    for output, keys in (far, Objects(f"{far}.job")), ("out.bin", FolderKeys(Folder("out.bin.job"))):
        with Board(keys, "CPU"):
            code, out, errors = run("status", output)
            assert code == 0 and told in out and "cannot be read" not in out and "worker 0 on" in out, out + errors
            assert json.loads(run("status", output, "--json")[1])["starter_gone"]
        code, out, _ = run("status", output)
        assert code == 0 and out.startswith("stopped: ") and told not in out


@pytest.mark.skipif(obstore is None, reason="obstore is not installed (extra cloud)")
def test_a_named_model_of_another_installation(run, monkeypatch, tmp_path):
    """Each installation gives its files other times."""
    monkeypatch.setenv("TILEWRIGHT_OBJECTS", str(tmp_path / "copies"))
    store, far = cloud.memory(monkeypatch), "s3://bucket/labels.jsonl"
    obstore.put(store, "in.txt", b"a good film\na bad film\n")
    assert run("classify", "--model", "critic", "-i", "s3://bucket/in.txt", "-o", far)[0] == 0
    other = tmp_path / "other"
    shutil.copytree(named_models.FOLDER / "critic", other / "critic")
    for path in (other / "critic").iterdir():
        os.utime(path, (1, 1))
    monkeypatch.setattr(named_models, "FOLDER", other)
    monkeypatch.setattr(request, "FOLDER", other)
    obstore.delete(store, [f"labels.jsonl.job/{name}" for name in ("report.json", "shards/00000.part")])
    code, out, errors = run("work", far)
    assert code == 0 and "This worker made 1 shard" in out, errors
    code, out, errors = run("classify", "--model", "critic", "-i", "s3://bucket/in.txt", "-o", far)
    assert code == 0 and "The only shard was there" in out and "another time" not in out, errors
    weights = other / "critic/model.safetensors"
    raw = bytearray(weights.read_bytes())
    raw[200_000] ^= 1  # between two samples
    weights.write_bytes(raw)
    code, _, errors = run("work", far)
    assert code == 2 and "model.model.safetensors.sha256 was" in errors
