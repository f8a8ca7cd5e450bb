"""The command line in this process, and a small model for it."""

import json
from pathlib import Path

import numpy as np
import pytest

import cloud
from tilewright.cli import main

SIZES = {"vocab-size": 50, "sequence-length": 6, "hidden-size": 8, "num-filters": 5, "kernel-sizes": "2,3"}
INIT = [word for name, size in {**SIZES, "hidden-sizes": 7}.items() for word in (f"--{name}", str(size))]


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """run("classify", ...) -> (exit code, stdout, stderr), in `tmp_path`."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        capsys.readouterr()
        with pytest.raises(SystemExit) as caught:
            main([*arguments])
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return caught.value.code or 0, captured.out, captured.err

    return call


@pytest.fixture(name="sizes")
def _sizes():
    """Options of `init` for the small model."""
    return INIT


@pytest.fixture
def small(run, rng):
    """A small model in `m`, sentences in `in.bin` and `in.jsonl`."""
    assert run("init", "textcnn", "m", "--seed", "3", *INIT)[0] == 0
    tokens = rng.integers(0, 50, (20, 6), np.int32)
    tokens.tofile("in.bin")
    with open("in.jsonl", "w") as file:
        file.writelines(json.dumps({"id": f"s{i}", "tokens": row}) + "\n" for i, row in enumerate(tokens.tolist()))
    return ("classify", "--model", "m", "-i", "in.bin", "-o", "out.bin", "--restart")


@pytest.fixture(name="store")
def _store(monkeypatch, tmp_path):
    """A store in this process's memory, which all URLs mean."""
    monkeypatch.setenv("TILEWRIGHT_OBJECTS", str(tmp_path / "copies"))
    return cloud.memory(monkeypatch)


@pytest.fixture(name="there")
def _there(store, small):
    """The small model and its input are in the store; returns the job's command line with URLs."""
    import obstore

    for path in Path("m").iterdir():
        obstore.put(store, f"models/m/{path.name}", path.read_bytes())
    obstore.put(store, "in.bin", Path("in.bin").read_bytes())
    return ("classify", "--model", "s3://bucket/models/m", "-i", "s3://bucket/in.bin", "-o", "far.bin")
