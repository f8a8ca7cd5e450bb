"""An output that no run of the job has made is replaced with --force alone; the job's own goes on as ever."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from tilewright.cli import main
from tilewright.runtime.convert.models import init_dcgan, init_textcnn
from tilewright.runtime.jobs import run as run_module

VERBS = [
    ("classify", ("-p", "textcnn", "-i", "in.jsonl"), "jsonl"),
    ("classify", ("-p", "textcnn", "-i", "in.jsonl"), "parquet"),
    ("generate", ("-p", "poet", "-i", "in.txt", "--max-tokens", "2"), "txt"),
    ("draw", ("-p", "dcgan", "-n", "5"), "npy"),
    ("draw", ("-p", "dcgan", "-n", "5"), "png"),
    ("draw", ("-p", "dcgan", "-n", "5"), ""),
    ("convolve", ("-i", "v.npy", "-k", "box:3"), "nii"),
    ("convolve", ("-i", "v.npy", "-k", "box:3"), "nii.gz"),
    ("convolve", ("-i", "v.npy", "-k", "box:3"), "zarr"),
]


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch, rng):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    init_textcnn("textcnn", 3, vocab_size=50, sequence_length=6, hidden_size=8, num_filters=5, kernel_sizes=(2, 3),
                 hidden_sizes=(7,))  # fmt: skip
    init_dcgan("dcgan", 3, z_size=3, size=2, channels=(4, 3), kernel=4)
    np.save("v.npy", rng.standard_normal((9, 8, 7)).astype(np.float32))
    Path("in.jsonl").write_text('{"tokens": [1, 2, 3, 4, 5, 6]}\n' * 5)
    Path("in.txt").write_text("My lord\n")


@pytest.fixture
def run(capsys):
    def call(*arguments):
        with pytest.raises(SystemExit) as ended:
            main([*arguments, "--threads", "1"])
        return ended.value.code or 0, "".join(capsys.readouterr())

    return call


def there(path):
    """The content of a file or of all files in a directory."""
    if os.path.isdir(path):
        return {name: there(os.path.join(path, name)) for name in os.listdir(path)}
    return Path(path).read_bytes()


def foreign(output):
    """Something of the right kind that no job has made; what lies at the output's name then."""
    path = output.rstrip("/")
    if output.endswith(("/", ".zarr")):
        os.mkdir(path)
        Path(path, "00000.png" if output.endswith("/") else "zarr.json").write_bytes(b"precious")
    else:
        Path(path).write_bytes(b"precious")
    return there(path)


@pytest.mark.parametrize(("verb", "options", "form"), VERBS)
def test_another_file_is_replaced_with_force_alone(run, verb, options, form):
    output = f"out.{form}" if form else "out/"
    path = output.rstrip("/")
    before = foreign(output)
    for command in ((verb,), ("plan", verb)):
        code, said = run(*command, *options, "-o", output)
        assert code == 2 and "which this job has not made. Give another name, or --force to replace it" in said, said
        assert ("a directory" if os.path.isdir(path) else "a file of 8 bytes") in said
        assert there(path) == before and not os.path.exists(f"{path}.job")
    assert run("plan", verb, *options, "-o", output, "--force")[0] == 0 and there(path) == before
    code, said = run(verb, *options, "-o", output, "--force")
    assert code == 0 and there(path) != before, said
    made = there(path)
    code, said = run(verb, *options, "-o", output)  # its own: the same command does nothing
    assert code == 0 and "Nothing to do" in said and there(path) == made
    os.unlink(f"{path}.job/report.json")  # as a kill between the rename and the report leaves it
    assert run(verb, *options, "-o", output)[0] == 0 and there(path) == made
    shutil.rmtree(f"{path}.job")  # who needs none of it any more removes it: then nobody knows whose the output is
    code, said = run(verb, *options, "-o", output)
    assert code == 2 and "or --force to replace it" in said and there(path) == made


def test_a_second_output(run):
    Path("grid.png").write_bytes(b"precious")
    job = ("draw", "-p", "dcgan", "-n", "5", "-o", "out.npy", "--image", "grid.png")
    code, said = run(*job)
    assert code == 2 and "grid.png: the output is a file of 8 bytes" in said and not os.path.exists("out.npy")
    assert Path("grid.png").read_bytes() == b"precious" and run(*job, "--force")[0] == 0
    assert Path("grid.png").read_bytes() != b"precious" and run(*job)[0] == 0


JOB = ("classify", "-p", "textcnn", "-i", "in.jsonl", "-o", "out.jsonl")


def test_a_file_that_came_while_the_job_was_stopped(run, monkeypatch):
    real = run_module.merge
    monkeypatch.setattr(run_module, "merge", lambda *a: (_ for _ in ()).throw(KeyboardInterrupt))
    assert run(*JOB)[0] == 130 and not os.path.exists("out.jsonl")
    monkeypatch.setattr(run_module, "merge", real)
    Path("out.jsonl").write_bytes(b"precious")
    assert run(*JOB)[0] == 2 and Path("out.jsonl").read_bytes() == b"precious"
    code, said = run(*JOB, "--force")
    assert code == 0 and "The only shard was there" in said
    assert b"precious" not in Path("out.jsonl").read_bytes()


def test_another_file_in_place_of_a_finished_output(run):
    """By a rename, as editors save; --restart does not replace it either."""
    assert run(*JOB)[0] == 0
    made = Path("out.jsonl").read_bytes()
    os.rename("out.jsonl", "kept")
    Path("other").write_bytes(b"precious")
    os.rename("other", "out.jsonl")
    for more in ((), ("--restart",)):
        assert run(*JOB, *more)[0] == 2 and Path("out.jsonl").read_bytes() == b"precious"
    assert run(*JOB, "--force")[0] == 0 and Path("out.jsonl").read_bytes() == made


def test_a_copied_job_knows_its_output(run):
    """Other inodes, the same bytes."""
    assert run(*JOB)[0] == 0
    for name in ("out.jsonl", "out.jsonl.job"):
        os.rename(name, f"old.{name}")
    shutil.copy("old.out.jsonl", "out.jsonl")
    shutil.copytree("old.out.jsonl.job", "out.jsonl.job")
    code, said = run(*JOB)
    assert code == 0 and "Nothing to do" in said
    assert run(*JOB, "--restart")[0] == 0


def test_a_damaged_output_is_made_again(run):
    """Written in place, so that it is still the job's own file."""
    assert run(*JOB)[0] == 0
    made = Path("out.jsonl").read_bytes()
    with open("out.jsonl", "r+b") as file:
        file.write(b"?")
    assert run(*JOB)[0] == 0 and Path("out.jsonl").read_bytes() == made


def test_force_given_once_holds_until_the_job_is_done(run, monkeypatch):
    Path("out.jsonl").write_bytes(b"precious")
    real = run_module.merge
    monkeypatch.setattr(run_module, "merge", lambda *a: (_ for _ in ()).throw(KeyboardInterrupt))
    assert run(*JOB, "--force")[0] == 130 and Path("out.jsonl").read_bytes() == b"precious"
    monkeypatch.setattr(run_module, "merge", real)
    assert run(*JOB)[0] == 0 and Path("out.jsonl").read_bytes() != b"precious"


def test_what_holds_nothing_is_no_loss(run):
    Path("out.jsonl").touch()
    os.mkdir("faces")
    assert run(*JOB)[0] == 0 and run("draw", "-p", "dcgan", "-n", "3", "-o", "faces")[0] == 0
    assert sorted(os.listdir("faces")) == ["00000.png", "00001.png", "00002.png"]
