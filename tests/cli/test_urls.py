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
