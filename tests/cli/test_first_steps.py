"""What a new user stumbled over: the order of lines, exit codes without a GPU, names of jobs, plurals, odd files."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gpt2_models import save
from options import replaced
from tilewright import cli
from tilewright.errors import UsageError, counted
from tilewright.ops.core.ladder import in_words, using
from tilewright.ops.matmul import matmul
from tilewright.runtime.load import load

NO_DRIVER = "the NVIDIA driver shows no GPU"


@pytest.fixture
def gpt2(run, tmp_path):
    """The command line of a job in the working directory of `run`."""
    save(tmp_path / "m")
    (tmp_path / "in.txt").write_text("the cat\nthe dog\n")
    return ("generate", "-p", "m", "-i", "in.txt", "-o", "out.txt", "--max-tokens", "2", "--threads", "1")


@pytest.mark.parametrize("more", [(), ("--workers", "2", "--shard-size", "8")], ids=["inline", "two workers"])
def test_the_banner_comes_first(gpt2, tmp_path, more):
    """In a file that gets stdout and stderr, as in `tilewright ... > log 2>&1`."""
    with open(tmp_path / "log", "wb") as log:
        around = {**os.environ, "PYTHONPATH": str(Path(cli.__file__).parents[2])}
        job = [sys.executable, "-m", "tilewright", *gpt2, *more]
        subprocess.run(job, cwd=tmp_path, env=around, stdout=log, stderr=log, check=True)
    lines = (tmp_path / "log").read_text().splitlines()
    assert set(lines[0]) == {"="} and lines[1] == " tilewright generate"
    assert "Checking input: 16 bytes...Done!" in lines and lines[-1].startswith("Peak memory: ")


@pytest.fixture
def no_gpu(monkeypatch):
    """A machine without a GPU, whose kernels are not simulated."""
    monkeypatch.setattr("tilewright.hardware.unavailable", lambda engine: NO_DRIVER)
    monkeypatch.setattr("tilewright.runtime.devices.no_gpu", lambda: NO_DRIVER)
    monkeypatch.setattr("tilewright.bench.clocks.cuda.no_gpu", lambda: NO_DRIVER)
    monkeypatch.setattr("tilewright.hardware.gpus", tuple)


@pytest.mark.parametrize(
    "command",
    [
        ("generate", "-p", "m", "-i", "in.txt", "-o", "out.txt", "--device", "cuda"),
        ("generate", "-p", "m", "-i", "in.txt", "-o", "out.txt", "--rung", "matmul=simt.shared"),
        ("plan", "generate", "-p", "m", "-i", "in.txt", "--device", "cuda"),
        ("plan", "generate", "-p", "m", "--count", "3", "--device", "cuda"),
        ("plan", "generate", "-p", "m", "-i", "in.txt", "--rung", "matmul=simt.shared"),
        ("ladder", "matmul", "--explain", "--device", "cuda"),
        ("ladder", "softmax", "--device", "cuda"),
        ("bench", "dcgan", "--device", "cuda"),
    ],
    ids=" ".join,
)
def test_no_gpu_is_exit_code_4(run, gpt2, no_gpu, command):
    code, out, errors = run(*command)
    assert code == 4 and "GPU" in errors and "Problem(" not in errors + out


def test_a_job_is_named_by_its_output_or_its_directory(run, gpt2, tmp_path):
    assert run(*gpt2)[0] == 0
    for verb in ("status", "verify"):
        plain = run(verb, "out.txt")
        assert plain[0] == 0 and run(verb, "out.txt.job") == run(verb, "out.txt.job/") == plain
        assert json.loads(run(verb, "out.txt.job", "--json")[1])["output"] == "out.txt"
    os.rename("out.txt", "x.job")  # an output may end with .job itself
    os.rename("out.txt.job", "x.job.job")
    assert "finished" in run("status", "x.job")[1]
    code, _, errors = run("status", "none.job")
    assert code == 2 and "none.job" in errors


def test_dtype_auto_is_that_of_the_weights(run, tmp_path):
    import torch
    from safetensors.torch import load_file, save_file

    save(tmp_path / "m")
    weights = tmp_path / "m" / "model.safetensors"
    save_file({name: tensor.to(torch.bfloat16) for name, tensor in load_file(weights).items()}, weights)
    (tmp_path / "in.txt").write_text("the cat\n")
    job = ("-p", "m", "-i", "in.txt", "-o", "out.txt", "--max-tokens", "2", "--device", "cpu", "--dtype")
    code, out, errors = run("generate", *job, "auto")
    assert code == 0 and " Precision:  bfloat16" in out, errors
    assert "Nothing to do" in run("generate", *job, "bfloat16")[1]  # the same job
    assert json.loads(run("plan", "generate", *job, "auto", "--json")[1])["dtype"] == "bfloat16"


def test_load_names_its_dtypes(tmp_path):
    save(tmp_path / "m")
    with pytest.raises(UsageError) as caught:
        load(tmp_path / "m", dtype="half")
    rule = "float32, bfloat16, on a GPU also float16 or tf32, or auto for the checkpoint's, is wanted"
    assert str(caught.value) == f"dtype is 'half'; {rule}"
    assert (caught.value.parameter, caught.value.value) == ("dtype", "'half'")


def test_a_refusal_of_a_rung_names_plain_sizes(rng):
    a = rng.standard_normal((4, 6)).astype(np.float32)
    with using(matmul="simt.shared"), pytest.raises(UsageError) as caught:
        matmul(a, a.T)
    assert str(caught.value).startswith("matmul.simt.shared refuses N=4, K=6, float32 on cpu\n")


def test_every_problem_in_words():
    from importlib import import_module

    from tilewright.ops.core.ladder import operations

    for op in operations():
        for case in import_module(f"tilewright.bench.sizes.{op}").sizes():
            said = in_words(case.problem)
            assert "Problem" not in said and "Axis" not in said and "'" not in said and said.endswith(" on cpu"), said


BINARY = {
    b"PK\x03\x04\x14\x00": "the file is a zip archive",
    b"\x1f\x8b\x08\x00": "the file is compressed with gzip",
    b"\x89PNG\r\n\x1a\n\x00": "the file is a PNG picture",
    b"\x93NUMPY\x01\x00": "the file is a NumPy array",
    b"\x40\x00\x00\x00\x00\x00\x00\x00" + b'{"a"': "the file is a safetensors file",
    b"\xff\xfeh\x00i\x00": "the file is text in UTF-16",
    b"abc\x00": "is not text: byte 0x00 at offset 3",
}


@pytest.mark.parametrize("start", BINARY, ids=ascii)
def test_a_binary_file_that_is_named_as_text(run, gpt2, tmp_path, start):
    (tmp_path / "in.txt").write_bytes(start)
    code, _, errors = run(*gpt2)
    assert code == 3 and "in.txt: is not text" in errors and BINARY[start] in errors


def test_one_is_no_plural(run, gpt2, tmp_path):
    assert [counted(n, "prompt") for n in (0, 1, 1000)] == ["0 prompts", "1 prompt", "1,000 prompts"]
    Path("in.txt").write_text("the cat\n")
    code, out, _ = run(*replaced(gpt2, "--max-tokens", "1"))
    assert code == 0 and "Generating 1 token...Done!" in out
    assert "1 of 1 shard, 1 record, 0 bad" in run("status", "out.txt")[1]
