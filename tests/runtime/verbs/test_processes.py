"""`embed` and `score` in processes of their own: on ranks of MPI, killed there, and the memory that plans tell."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from bert_models import random_texts, saved
from decoder_models import save_with_tokenizer
from tilewright.runtime.convert.models import init_gpt2
from tilewright.runtime.jobs.merge import verify

MPIEXEC = Path(sys.executable).with_name("mpiexec")
needs_mpi = pytest.mark.skipif(not MPIEXEC.exists(), reason="mpiexec is not installed: pip install mpi4py mpich")
pytestmark = pytest.mark.long


def started(*command, before=()):
    return subprocess.Popen(
        [*map(str, before), sys.executable, "-m", "tilewright", *map(str, command)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def tilewright(*command, before=()):
    """What a command that ends well says on stdout."""
    process = started(*command, before=before)
    said, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors
    return said


def small(folder, verb):
    """A command without its output, of a job of many shards, with a bad record and ids that are given twice."""
    rows = [{"id": f"s{i % 290}", "text": text, "note": i} for i, text in enumerate(random_texts(300))]
    rows[7]["text"] = ""
    (folder / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if verb == "embed":
        saved("bert", 0, folder / "m")
    else:
        save_with_tokenizer("gpt_neox", folder / "m")
    more = () if verb == "embed" else ("--truncate",)
    return (verb, "-p", folder / "m", "-i", folder / "in.jsonl", "--keep", "note", "--threads", "1", "--shard-size",
            "2K", *more)  # fmt: skip


@needs_mpi
@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("verb", ["embed", "score"])
def test_ranks(tmp_path, verb, ranks):
    line, outputs = small(tmp_path, verb), [tmp_path / f"{name}.jsonl" for name in ("inline", "mpi")]
    tilewright(*line, "-o", outputs[0])
    said = tilewright(*line, "-o", outputs[1], "--engine", "mpi", before=(MPIEXEC, "-n", ranks))
    assert said.count(f"tilewright {verb}") == 1
    assert outputs[0].read_bytes() == outputs[1].read_bytes() and verify(str(outputs[1])).intact


@needs_mpi
@pytest.mark.parametrize("verb", ["embed", "score"])
def test_ranks_that_are_killed(tmp_path, verb):
    """Another engine goes on with what they have left."""
    line, outputs = small(tmp_path, verb), [tmp_path / f"{name}.jsonl" for name in ("inline", "mpi")]
    tilewright(*line, "-o", outputs[0])
    process = started(*line, "-o", outputs[1], "--engine", "mpi", before=(MPIEXEC, "-n", 2))
    shards, until = Path(f"{outputs[1]}.job/shards"), time.monotonic() + 300
    while process.poll() is None and not any(shards.glob("*.part")):
        assert time.monotonic() < until
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=300)
    tilewright(*line, "-o", outputs[1], "--workers", "1", "--engine", "local")
    assert outputs[0].read_bytes() == outputs[1].read_bytes() and verify(str(outputs[1])).intact


def middling(folder, verb):
    """The command of a job of which the model and the work take more memory than the program."""
    rng = np.random.default_rng(0)
    if verb == "embed":
        sizes = {"hidden_size": 512, "num_hidden_layers": 8, "num_attention_heads": 8, "intermediate_size": 2048}
        saved("bert", 0, folder / "m", **sizes)
        rows = [{"id": i, "text": text} for i, text in enumerate(random_texts(600))]
    else:
        init_gpt2(str(folder / "m"), 3, vocab_size=50257, n_positions=128, n_embd=256, n_layer=4, n_head=4)
        ids = rng.integers(0, 50257, (500, 80)).tolist()
        rows = [{"id": i, "context": row[:60], "continuation": row[60:]} for i, row in enumerate(ids)]
    (folder / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return (verb, "-p", folder / "m", "-i", folder / "in.jsonl", "-o", folder / "out.jsonl", "--restart", "--json")


@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.long)])
@pytest.mark.parametrize("verb", ["embed", "score"])
def test_the_peak_is_within_15_percent_of_a_real_run(tmp_path, verb, dtype):
    line = (*middling(tmp_path, verb), "--dtype", dtype)
    tilewright(*line, "--count", 3)  # kernels are on the disk after it
    planned, real = json.loads(tilewright("plan", *line)), json.loads(tilewright(*line))
    assert planned["memory"]["compiling kernels, the first time"] == 0
    assert planned["shards"] == real["job"]["shards"]
    assert planned["output_bytes"] == pytest.approx(real["job"]["bytes"], rel=0.15)
    assert planned["peak_memory"] == pytest.approx(real["peak_memory"], rel=0.15)
