"""Inputs and models by URL, from a store in memory."""

import gzip
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

import cloud
from gpt2_models import save
from tilewright.formats import fetched
from tilewright.runtime.stores.remote import Remote

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
    assert code == 2 and "the job was begun for other results: input." in errors
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
    code, _, errors = run("convolve", "-i", "s3://bucket/folder", "-k", "mean", "-o", "out.npy")
    assert code == 3 and "this is a folder of 1 objects; one object is wanted" in errors
    code, _, errors = run("classify", "--model", "m", "-i", "s3://bucket/folder/*.jsonl", "-o", "out.bin")
    assert code == 3 and "s3://bucket/folder/*.jsonl: there are no objects of this name. Check the URL" in errors
    obstore.put(store, "folder/_a.jsonl", b"1")
    obstore.delete(store, "folder/a")
    code, _, errors = run("classify", "--model", "m", "-i", "s3://bucket/folder/", "-o", "out.jsonl")
    assert code == 3 and "there is no such object" in errors


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
    assert code == 2 and errors.startswith("Error: s3://bucket/jobs/far.bin.job: the job was begun for other results")
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
        ("--job-dir", "far"): "--job-dir needs a local output, and the output is a URL",
        ("--part", "0/2"): "--part needs a local output, and the output is a URL",
        ("--engine", "ray"): "the engine ray needs a local output, and the output is a URL",
        ("--trace", "s3://bucket/trace.json"): "the trace is the URL 's3://bucket/trace.json'",
    }.items():
        code, _, errors = run(*far, *words)
        assert code == 2 and said in errors, errors
    code, _, errors = run(*far[:-1], "s3://bucket/folder/")
    assert code == 2 and "only single files of generate" in errors
    code, _, errors = run("convolve", "-i", "in.npy", "-k", "mean", "-o", "s3://bucket/out.zarr")
    assert code == 2 and "only single files of generate, classify, score, embed, draw and convolve can be" in errors
    draw = ("draw", "--model", "portraits", "-n", "1", "-o", "s3://bucket/faces.npy")
    code, _, errors = run(*draw, "--image", "grid.png")
    assert code == 2 and "--image needs a local output, and the output is a URL" in errors


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


FACES = ("draw", "--model", "portraits", "-n", "6", "--shard-size", "2")
MEAN = ("convolve", "-i", "s3://bucket/in.npy", "-k", "mean", "--shard-size", "8")


@pytest.fixture(name="volume")
def _volume(run, store, rng):
    """A volume, also in the store."""
    np.save("in.npy", rng.random((24, 20, 20), np.float32))
    obstore.put(store, "in.npy", Path("in.npy").read_bytes())


@pytest.mark.parametrize(
    ("given", "name"),
    [
        (FACES, "faces.npy"),
        pytest.param(FACES, "faces.png", marks=pytest.mark.long),
        pytest.param(FACES, "faces.txt", marks=pytest.mark.long),
        pytest.param(FACES, "faces.bmp", marks=pytest.mark.long),
        (MEAN, "out.npy"),
        pytest.param(MEAN, "out.txt", marks=pytest.mark.long),
        pytest.param(MEAN, "out.nii.gz", marks=pytest.mark.long),
        pytest.param(MEAN, "out.tif", marks=pytest.mark.long),
    ],
)
def test_images_and_volumes_by_url(run, store, volume, given, name, monkeypatch):
    """What a shard wrote in place is in the store, too, until the output is there: so others can go on."""
    for missing in {".gz": ["nibabel"], ".tif": ["tifffile"]}.get(os.path.splitext(name)[1], []):
        pytest.importorskip(missing)
    assert run(*given, "-o", name)[0] == 0
    whole, url, count = Path(name).read_bytes(), f"s3://bucket/{name}", 3
    with monkeypatch.context() as patched:
        patched.setattr(Remote, "deliver", lambda remote, directory: 1 / 0)
        assert run(*given, "-o", url)[0] == 5, "the run ends when it has all shards"
    parts = {found["path"] for chunk in obstore.list(store, prefix=f"{name}.job") for found in chunk}
    placed = [f"{name}.job/pieces/{number:05}" for number in range(count)]
    assert parts.issuperset(placed) == name.endswith((".npy", ".tif"))
    assert run("status", url)[1].startswith("stopped: 3 of 3 shards")
    assert run("verify", url)[1].startswith("unfinished: 3 of 3 shards are there, and all that is there is intact")
    obstore.delete(store, [f"{name}.job/shards/00001.part"])
    code, out, errors = run("work", url)
    assert code == 0 and "This worker made 1 shard" in out, errors
    if parts.issuperset(placed):
        obstore.put(store, placed[2], kept(store, placed[2])[:-1])
    code, out, errors = run(*given, "-o", url)
    assert code == 0 and kept(store, name) == whole, errors
    parts = {found["path"] for chunk in obstore.list(store, prefix=f"{name}.job") for found in chunk}
    assert not parts.intersection(placed) and os.listdir("copies/jobs") == []
    assert run("verify", url)[1] == run("verify", name)[1] and "Nothing to do" in run(*given, "-o", url)[1]


def test_repeated_ids_by_url(run, store, there):
    """The merge makes records with a repeated id errors; the store gets the shards that it has changed."""
    far = [*there[:-1], "s3://bucket/jobs/far.jsonl", "--shard-size", "200"]
    far[far.index("s3://bucket/in.bin")] = "s3://bucket/in.jsonl"
    lines = Path("in.jsonl").read_bytes()
    obstore.put(store, "in.jsonl", lines + lines.splitlines(keepends=True)[0])
    code, out, _ = run(*far)
    assert code == 0 and "Bad records: 1 of 21" in out
    code, out, _ = run("verify", far[-3])
    assert code == 0 and out.startswith("intact"), out


@pytest.fixture(name="folder")
def _folder(store, small):
    """A folder of files, also below data/ in the store, with a hidden one and one in a folder of its own."""
    lines = Path("in.jsonl").read_bytes().splitlines(keepends=True)
    texts = {
        "a.jsonl": lines[:3],
        "b.jsonl.gz": [gzip.compress(b"".join(lines[3:11]))],
        "deep/c.jsonl": lines[11:],
        "_SUCCESS": [b""],
        "deep/.d.jsonl": [b"odd"],
    }
    os.makedirs("data/deep")
    for name, parts in texts.items():
        Path("data", name).write_bytes(b"".join(parts))
        obstore.put(store, f"data/{name}", b"".join(parts))


@pytest.mark.parametrize("given", ["data/", "data", "data/*.jsonl*", "data/**/*.jsonl", "da*/a.jsonl"])
def test_many_inputs_by_url(run, store, small, folder, given):
    """A folder and a pattern mean the same objects as they mean files, with the same ids."""
    job = ("classify", "--model", "m", "--shard-size", "300", "-i")
    assert run(*job, given, "-o", "near.jsonl")[0] == 0
    far = (*job, f"s3://bucket/{given}", "-o", "far.jsonl")
    code, _, errors = run(*far)
    assert code == 0, errors
    assert Path("far.jsonl").read_bytes() == Path("near.jsonl").read_bytes()
    copied = {name for _, _, names in os.walk("copies/objects") for name in names}
    assert not copied & {"_SUCCESS", ".d.jsonl"}
    shutil.rmtree("copies")
    code, out, errors = run(*far)
    assert code == 0 and "Nothing to do" in out and "another time of change" not in out, errors


def test_a_worker_reads_many_inputs_by_url(run, store, small, folder):
    far = ("classify", "--model", "m", "--shard-size", "300", "-i", "s3://bucket/data/**/*.jsonl*", "-o")
    assert run(*far, "far.jsonl")[0] == 0
    shards = sorted(Path("far.jsonl.job/shards").iterdir())
    whole = Path("far.jsonl").read_bytes()
    for path in (shards[1], Path("far.jsonl"), Path("far.jsonl.job/report.json")):
        path.unlink()
    shutil.rmtree("copies")
    code, out, errors = run("work", "far.jsonl")
    assert code == 0 and "This worker made 1 shard" in out, errors
    code, out, errors = run(*far, "far.jsonl")
    assert code == 0 and f"All {len(shards)} shards were there" in out and Path("far.jsonl").read_bytes() == whole
    obstore.put(store, "data/a.jsonl", Path("data/a.jsonl").read_bytes() + b"\n")
    code, _, errors = run(*far, "far.jsonl")
    assert code == 2 and "the job was begun for other results: input." in errors


@pytest.mark.long
@pytest.mark.parametrize(
    ("verb", "name"),
    [("score", "out.jsonl"), ("score", "out.parquet"), ("embed", "out.npy"), ("embed", "out.jsonl"),
     ("embed", "out.parquet")],
)  # fmt: skip
def test_scores_and_vectors_by_url(run, store, monkeypatch, verb, name):
    """Input, model and output in the store; a worker makes a shard that is missing."""
    from bert_models import random_texts, saved

    if verb == "embed":
        saved("bert", 0, Path("m"))
    else:
        save(Path("m"))
    texts = random_texts(30) if verb == "embed" else [f"the cat {n}" for n in range(60)]
    lines = [json.dumps({"id": f"s{n}", "text": text}) for n, text in enumerate(texts)]
    Path("in.jsonl").write_text("\n".join([*lines, "odd"]) + "\n")
    for path in (*Path("m").iterdir(), Path("in.jsonl")):
        obstore.put(store, str(path), path.read_bytes())
    given, url = ("--shard-size", "1500"), f"s3://bucket/{name}"
    assert run(verb, "--model", "m", "-i", "in.jsonl", "-o", name, *given)[0] == 0
    far = (verb, "--model", "s3://bucket/m", "-i", "s3://bucket/in.jsonl", "-o", url, *given)
    with monkeypatch.context() as patched:
        patched.setattr(Remote, "deliver", lambda remote, directory: 1 / 0)
        assert run(*far)[0] == 5
    obstore.delete(store, [f"{name}.job/shards/00001.part"])
    assert run("status", url)[1].startswith("stopped: ")
    code, out, errors = run("work", url)
    assert code == 0 and "This worker made 1 shard" in out, errors
    code, out, errors = run(*far)
    assert code == 0 and "shards were there: the output was made of them" in out, errors
    assert kept(store, name) == Path(name).read_bytes()
    assert run("verify", url)[1].startswith("intact")
    assert "Nothing to do" in run(*far)[1]
