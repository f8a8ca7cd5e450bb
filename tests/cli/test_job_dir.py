"""--job-dir on the command line: outputs that are written in place, and commands that name the directory."""

import json
import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest

from tilewright.runtime.jobs import placed

MEMORY = "/dev/shm"  # noqa: S108 - Linux's file system in memory


@pytest.fixture(name="far")
def _far(tmp_path, monkeypatch):
    """A directory of another file system; if there is none, of one that only claims to be another."""
    made = tempfile.mkdtemp(dir=MEMORY if os.access(MEMORY, os.W_OK) else None)
    if os.stat(made).st_dev == os.stat(tmp_path).st_dev:
        monkeypatch.setattr(placed, "can_rename", lambda directory: False)
    yield os.path.join(made, "state")
    shutil.rmtree(made)


@pytest.mark.parametrize("output", ["far.npy", pytest.param("far.zarr", marks=pytest.mark.long)])
def test_an_output_that_no_rename_can_move(run, rng, far, output):
    """It is copied, it is the job's own, and damage to it is repaired."""
    np.save("in.npy", rng.random((24, 20, 20), np.float32))
    given = ("convolve", "-i", "in.npy", "-k", "box:1", "--shard-size", "8")
    near = f"near{output[3:]}"
    assert run(*given, "-o", near)[0] == 0
    code, _, errors = run(*given, "-o", output, "--job-dir", far)
    assert code == 0, errors
    read = tree if output.endswith(".zarr") else lambda name: np.load(name).tobytes()
    assert read(output) == read(near)
    assert os.path.isfile(f"{output}.job") and not os.path.exists(f"{far}/output")
    for named in (output, f"{output}.job", far):
        assert run("verify", named)[:2] == (0, run("verify", near)[1])
        assert run("status", named)[1].startswith("finished: ")
    assert "Nothing to do" in run(*given, "-o", output)[1]
    damage(output)
    assert run("verify", output)[0] == 1 and run(*given, "-o", output)[0] == 0
    assert read(output) == read(near) and [name for name in os.listdir() if name.endswith(".tmp")] == []


def tree(path):
    return {
        os.path.relpath(os.path.join(at, name), path): Path(at, name).read_bytes()
        for at, _, names in os.walk(path)
        for name in names
    }


def damage(path):
    for at, _, names in os.walk(path) if os.path.isdir(path) else [(".", (), [path])]:
        for name in names:
            with open(os.path.join(at, name), "r+b") as file:
                file.seek(-1, os.SEEK_END)
                last = file.read()
                file.seek(-1, os.SEEK_END)
                file.write(bytes([last[0] ^ 1]))


def test_a_plan_refuses_the_directories_that_the_job_refuses(run, small, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "theirs").write_text("")
    assert run(*small[:-2], "other.bin", "--job-dir", "other")[0] == 0
    for path, wanted in {"/proc/x": 4, "none/x": 4, "in.bin/x": 4, "in.bin": 4, "full": 2, "other": 2}.items():
        ours, theirs = run("plan", *small[:-1], "--job-dir", path), run(*small[:-1], "--job-dir", path)
        assert (ours[0], ours[2]) == (theirs[0], theirs[2]) and ours[0] == wanted, (path, ours, theirs)
    assert run("plan", *small[:-1], "--job-dir", "new")[0] == 0 and not (tmp_path / "new").exists()


def test_the_report_names_the_directory(run, small, tmp_path):
    code, out, _ = run(*small[:-1], "--job-dir", "state", "--json")
    assert code == 0 and json.loads(out)["job"]["directory"] == str(tmp_path / "state")
    assert run("plan", *small[:-1])[0] == 0
    code, _, errors = run("plan", *small[:-1], "--job-dir", "other")
    assert code == 2 and f"the state of this job is in {tmp_path}/state, and --job-dir names another" in errors
    code, _, errors = run(*small[:-1], "--job-dir", "other")
    assert code == 2 and f"Leave out --job-dir; or remove {tmp_path}/out.bin.job, to begin anew" in errors
    code, out, _ = run("work", "state")
    assert code == 0 and "shards of the job are there" in out
