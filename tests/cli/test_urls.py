"""Inputs and models by URL, from a store in memory."""

import gzip
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from tilewright.formats import fetched

try:
    import obstore
except ImportError:
    obstore = None

pytestmark = pytest.mark.skipif(obstore is None, reason="obstore is not installed (extra cloud)")


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
    assert code == 2 and "the job was begun with other settings or inputs: the size of the input was" in errors
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
    code, _, errors = run("convolve", "-i", "s3://bucket/folder", "-k", "box:1", "-o", "out.npy")
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


SLOW = ("data", "data/*.jsonl*", "da*/a.jsonl")


@pytest.mark.parametrize(
    "given", ["data/", "data/**/*.jsonl", *(pytest.param(o, marks=pytest.mark.long) for o in SLOW)]
)
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
    assert code == 2 and "the job was begun with other settings or inputs: " in errors


def test_a_zarr_array_by_url(run, store, rng):
    """Its copies on two machines have other times, and one identity."""
    np.save("in.npy", rng.random((24, 20, 20), np.float32))
    assert run("convolve", "-i", "in.npy", "-k", "box:1", "-o", "in.zarr")[0] == 0
    for path in (path for path in Path("in.zarr").rglob("*") if path.is_file()):
        obstore.put(store, str(path), path.read_bytes())
    given = ("convolve", "-k", "box:1", "-o")
    assert run(*given, "near.npy", "-i", "in.zarr")[0] == 0
    far = (*given, "far.npy", "-i", "s3://bucket/in.zarr/")
    code, _, errors = run(*far)
    assert code == 0 and Path("far.npy").read_bytes() == Path("near.npy").read_bytes(), errors
    shutil.rmtree("copies")
    code, out, errors = run(*far)
    assert code == 0 and "Nothing to do" in out and "another time of change" not in out, errors
    Path("far.npy.job/report.json").unlink()
    assert "This worker made 0 shards" in run("work", "far.npy")[1]
    obstore.put(store, "in.zarr/c/0/0/0", Path("in.zarr/c/0/0/0").read_bytes()[:-1])
    code, _, errors = run(*far)
    assert code == 2 and "the job was begun with other settings or inputs: the size of the input was" in errors
