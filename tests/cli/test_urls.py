"""Inputs and models by URL, from a store in memory."""

import json
import os
from pathlib import Path

import pytest

import cloud
from tilewright.formats import fetched

try:
    import obstore
except ImportError:
    obstore = None

pytestmark = pytest.mark.skipif(obstore is None, reason="obstore is not installed (extra cloud)")


@pytest.fixture(name="store")
def _store(monkeypatch, tmp_path):
    monkeypatch.setenv("TILEWRIGHT_OBJECTS", str(tmp_path / "copies"))
    return cloud.memory(monkeypatch)


@pytest.fixture(name="there")
def _there(store, small):
    """The small model and its input are in the store; returns the job's command line with URLs."""
    for path in Path("m").iterdir():
        obstore.put(store, f"models/m/{path.name}", path.read_bytes())
    obstore.put(store, "in.bin", Path("in.bin").read_bytes())
    return ("classify", "--model", "s3://bucket/models/m", "-i", "s3://bucket/in.bin", "-o", "far.bin")


def test_input_and_model_by_url(run, store, small, there):
    assert run(*small)[0] == 0
    code, _, errors = run(*there)
    assert code == 0, errors
    assert Path("far.bin").read_bytes() == Path("out.bin").read_bytes()
    copies = sorted(os.listdir("copies/objects"))
    code, out, _ = run(*there)
    assert code == 0 and "Nothing to do" in out
    assert sorted(os.listdir("copies/objects")) == copies
    assert run("plan", *there)[0] == 0


def test_the_manifest_has_etags_in_place_of_times(run, there):
    run(*there)
    fingerprint = json.loads(Path("far.bin.job/manifest.json").read_text())["fingerprint"]
    assert fingerprint["input.etag"] and fingerprint["model.config.json.etag"]
    assert not [name for name in fingerprint if name.endswith((".changed", ".ctime"))]


def test_a_changed_object_is_refused(run, store, there):
    run(*there)
    obstore.put(store, "in.bin", Path("in.bin").read_bytes()[:-24])
    code, _, errors = run(*there)
    assert code == 2 and "the job was begun with other settings or inputs: input." in errors
    obstore.put(store, "in.bin", Path("in.bin").read_bytes())
    code, _, errors = run(*there)
    assert code == 2 and "input.etag was" in errors


def test_errors_name_the_url(run, store, there):
    obstore.put(store, "in.bin", b"odd")
    code, _, errors = run(*there)
    assert code == 3 and errors.startswith("Error: s3://bucket/in.bin: "), errors
    obstore.put(store, "models/m/config.json", b"{")
    code, _, errors = run(*there)
    assert code == 3 and errors.startswith("Error: s3://bucket/models/m/config.json"), errors


def test_urls_that_name_nothing(run, store, small):
    for url, said in {
        "s3://bucket/nothing.bin": "s3://bucket/nothing.bin: there is no such object. Check the URL",
        "s3://bucket": "names no object",
        "s3://bucket/a/../b": "names no object",
        "https://example.com/in.bin": "has an unknown scheme; the known ones are s3://, gs://, az://, file://",
        "file://in.bin": "has no absolute path",
    }.items():
        code, _, errors = run("classify", "--model", "m", "-i", url, "-o", "out.bin")
        assert code in (2, 3) and said in errors, errors
    obstore.put(store, "folder/a", b"1")
    code, _, errors = run("classify", "--model", "m", "-i", "s3://bucket/folder", "-o", "out.bin")
    assert code == 3 and "this is a folder of 1 objects; one object is wanted" in errors


def test_file_urls_are_paths(run, small, tmp_path):
    run(*small)
    url = f"file://{tmp_path}"
    code, _, errors = run("classify", "--model", f"{url}/m", "-i", f"{url}/in.bin", "-o", f"{url}/other.bin")
    assert code == 0, errors
    assert Path("other.bin").read_bytes() == Path("out.bin").read_bytes()
    assert fetched.origin("in.bin") is None


def test_a_download_that_was_killed_is_made_again(run, store, there):
    assert run(*there)[0] == 0
    for path in Path("copies/objects").glob("*.json"):
        path.unlink()
    assert run(*there, "--restart")[0] == 0


def test_without_the_package(run, small, monkeypatch):
    import builtins

    from tilewright.runtime.stores import objects

    real = builtins.__import__

    def without(name, *others, **named):
        if name == "obstore":
            raise ImportError(name)
        return real(name, *others, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    objects.obstore.cache_clear()
    code, _, errors = run("classify", "--model", "m", "-i", "s3://bucket/in.bin", "-o", "out.bin")
    assert code == 4 and "URLs need the package obstore, which is not installed" in errors
    objects.obstore.cache_clear()


@pytest.fixture(name="far")
def _far(there):
    """The job's command line with an output by URL."""
    return (*there[:-1], "s3://bucket/jobs/far.bin")


def shards_of(store):
    return sorted(found["path"] for chunk in obstore.list(store, prefix="jobs/far.bin.job/shards") for found in chunk)


def kept(store, name="jobs/far.bin"):
    return bytes(obstore.get(store, name).bytes())


@pytest.mark.parametrize("how", [(), pytest.param(("--workers", "2"), marks=pytest.mark.long)], ids=["inline", "local"])
def test_output_by_url(run, store, small, far, how):
    run(*small)
    code, _, errors = run(*far, *how, "--shard-size", "4")
    assert code == 0, errors
    assert kept(store) == Path("out.bin").read_bytes()
    assert len(shards_of(store)) == 5
    left = {found["path"].split("/")[2] for chunk in obstore.list(store, prefix="jobs/far.bin.job") for found in chunk}
    assert left == {"delivered.json", "job.json", "manifest.json", "report.json", "shards"}
    assert os.listdir("copies/jobs") == []
    code, out, _ = run(*far, *how)
    assert code == 0 and "Nothing to do" in out


def test_a_job_in_a_store_goes_on(run, store, small, far):
    """Shards that are whole are not computed again; a damaged one is; an output that is gone is made again."""
    run(*small)
    assert run(*far, "--shard-size", "4")[0] == 0
    obstore.delete(store, [shards_of(store)[0], "jobs/far.bin.job/report.json"])
    whole = kept(store, shards_of(store)[2])
    obstore.put(store, shards_of(store)[2], bytes([whole[0] ^ 1]) + whole[1:-1] + b"x")
    code, out, _ = run(*far)
    assert code == 0 and "Resumed: 3 of 5 shards were there" in out
    assert kept(store) == Path("out.bin").read_bytes()
    obstore.delete(store, "jobs/far.bin")
    code, out, _ = run(*far)
    assert code == 0 and "All 5 shards were there: the output was made of them" in out
    assert kept(store) == Path("out.bin").read_bytes()
    code, _, errors = run(*far, "--dtype", "bfloat16")
    assert code == 2 and errors.startswith(
        "Error: s3://bucket/jobs/far.bin.job: the job was begun with other settings or inputs"
    )
    code, out, _ = run(*far, "--restart")
    assert code == 0 and "Resumed" not in out and kept(store) == Path("out.bin").read_bytes()


def test_status_verify_and_plan_by_url(run, store, there):
    jsonl = ["s3://bucket/in.jsonl" if word.endswith("in.bin") else word for word in there[:-1]]
    obstore.put(store, "in.jsonl", Path("in.jsonl").read_bytes() + b"odd\n")
    far = (*jsonl, "s3://bucket/jobs/far.jsonl", "--shard-size", "200")
    code, _, errors = run("status", far[-3])
    assert code == 2 and errors.startswith("Error: s3://bucket/jobs/far.jsonl.job: there is no job for this output")
    assert run("plan", *far)[0] == 0
    code, out, _ = run(*far)
    assert code == 0 and "Bad records: 1 of 21" in out
    code, out, _ = run("status", far[-3])
    assert code == 0 and out.startswith("finished: ") and "21 records, 1 bad" in out, out
    assert run("verify", far[-3] + ".job")[1] == run("verify", far[-3])[1] != ""
    assert "the job is finished, nothing to do" in run("plan", *far)[1]
    lines = kept(store, "jobs/far.jsonl")
    obstore.put(store, "jobs/far.jsonl", lines.replace(b"label", b"lapel", 1))
    code, out, _ = run("verify", far[-3])
    assert code == 1 and "output: its" in out
    assert run(*far)[0] == 2, "it is no longer the job's own"
    assert run(*far, "--force")[0] == 0 and kept(store, "jobs/far.jsonl") == lines
    obstore.put(store, "in.jsonl", Path("in.jsonl").read_bytes() + b"other\n")
    assert run("plan", *far)[0] == 2


def test_what_a_store_cannot_hold(run, store, far):
    for words, said in {
        ("--part", "0/2"): "--part needs a local output, and the output is a URL",
        ("--engine", "ray"): "the engine ray needs a local output, and the output is a URL",
        ("--trace", "s3://bucket/trace.json"): "the trace is the URL 's3://bucket/trace.json'",
    }.items():
        code, _, errors = run(*far, *words)
        assert code == 2 and said in errors, errors
    code, _, errors = run(*far[:-1], "s3://bucket/folder/")
    assert code == 2 and "only single files of generate" in errors
    code, _, errors = run("draw", "--model", "portraits", "-n", "1", "-o", "s3://bucket/faces.npy")
    assert code == 2 and "only single files of generate, classify, score and embed can be written to a store" in errors


def test_an_object_of_others_is_kept(run, store, far):
    obstore.put(store, "jobs/far.bin", b"theirs")
    code, _, errors = run(*far)
    assert code == 2 and "there is an object at the output's URL that this job has not made" in errors
    assert kept(store) == b"theirs"
    assert run(*far, "--force")[0] == 0 and kept(store) != b"theirs"


def test_two_runs_of_one_job(run, store, far):
    from tilewright.runtime.stores.board import Board
    from tilewright.runtime.stores.objects import Objects

    with Board(Objects("s3://bucket/jobs/far.bin.job")) as board, board.leading("wait"):
        code, _, errors = run(*far)
    assert code == 4 and f"another run works on this job: process {os.getpid()} on" in errors
    assert "tilewright work s3://bucket/jobs/far.bin" in errors
    assert run(*far)[0] == 0
