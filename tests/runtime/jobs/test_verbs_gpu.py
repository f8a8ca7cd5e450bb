"""All four verbs as jobs on a GPU: killed, stopped, without memory, with a kernel that traps.

TILEWRIGHT_GPU=1 says that there is one; what a job is made of runs without, in the tests beside this file.
"""

import gc
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from compare import compare
from forked_verbs import PATHS
from gpu import ON_GPU
from tilewright.errors import ResourceError
from tilewright.generation.sampling import SamplingParams
from tilewright.runtime.jobs.merge import verify
from tilewright.runtime.jobs.settings import Settings
from tilewright.runtime.named_models import model_path
from tilewright.runtime.verbs.classify import ClassifyJob, classify
from tilewright.runtime.verbs.draw import DrawJob, draw
from tilewright.runtime.verbs.generate import GenerateJob, generate
from verb_jobs import POISON, TrappingThere

pytestmark = pytest.mark.skipif(not ON_GPU, reason="it takes a GPU: TILEWRIGHT_GPU=1")

RECORDS = 3000
VERBS = {  # argv, the output's ending, shards of a size that makes many
    "classify": ("--model critic -i sentences.txt", ".jsonl", 12_000),
    "generate": ("--model poet -i prompts.txt --max-tokens 20 --temperature 1 --seed 3", ".jsonl", 6_000),
    "draw": ("--model portraits -n 3000 --seed 5", ".npy", 200),
    "convolve": ("-i volume.npy --kernel gaussian:2 --mode reflect", ".npy", 20),
}
WORDS = ["the", "king", "of", "a", "small", "quiet", "house", "was", "never", "in", "love", "with", "this", "film"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Inputs, and of each verb what an uninterrupted run on the GPU makes of them."""
    path, rng = tmp_path_factory.mktemp("gpu"), np.random.default_rng(3)
    for name, least in (("sentences", 3), ("prompts", 1)):
        lines = [" ".join(rng.choice(WORDS, rng.integers(least, 12))) for _ in range(RECORDS)]
        (path / f"{name}.txt").write_text("\n".join(lines) + "\n")
    np.save(path / "volume.npy", rng.standard_normal((200, 150, 170), dtype=np.float32))
    return path


@pytest.fixture(scope="module", params=VERBS)
def whole(request, folder):
    """(verb, bytes of the uninterrupted run)."""
    verb = request.param
    output = folder / f"{verb}{VERBS[verb][1]}"
    done = start(folder, verb, output)
    assert done.wait(300) == 0, said(output)
    return verb, output.read_bytes()


def command(verb, output, *options, device="cuda"):
    argv, _, size = VERBS[verb]
    given = [*argv.split(), "-o", str(output), "--device", device, "--shard-size", str(size), *options]
    return [sys.executable, "-m", "tilewright", verb, *given]


def start(folder, verb, output, *options, device="cuda"):
    """The command line in a process group of its own; what it says stands beside the output."""
    with open(f"{output}.log", "ab") as log:
        return subprocess.Popen(command(verb, output, *options, device=device), cwd=folder, env=environment(),
                                stdout=log, stderr=log, start_new_session=True)  # fmt: skip


def environment():
    return os.environ | {"PYTHONPATH": os.pathsep.join([*PATHS, os.environ.get("PYTHONPATH", "")])}


def said(output):
    return Path(f"{output}.log").read_text()[-3000:]


def intact(output, wanted):
    assert output.read_bytes() == wanted, said(output)
    assert verify(str(output)).intact
    assert not [one for one in Path(f"{output}.job").rglob("*") if one.name.endswith(".tmp")]


def shards_of(output):
    """How many are committed."""
    return len(list(Path(f"{output}.job/shards").glob("*.part")))


def wait_for_shards(process, output, count):
    """Returns when so many are committed, or it has ended."""
    until = time.monotonic() + 300
    while shards_of(output) < count and process.poll() is None:
        assert time.monotonic() < until, said(output)
        time.sleep(0.002)


def numbers(verb, data, folder):
    """An output's figures, as a CPU and a GPU agree on them within a bound; of `generate` nothing is compared."""
    if verb == "classify":
        return np.array([json.loads(line)["logits"] for line in data.splitlines()], np.float32)
    path = folder / f"numbers.{verb}.npy"
    path.write_bytes(data)
    return np.load(path)


def test_answers_are_the_cpus(folder, whole, tmp_path):
    verb, wanted = whole
    output = tmp_path / f"cpu{VERBS[verb][1]}"
    assert start(folder, verb, output, device="cpu").wait(300) == 0, said(output)
    if verb == "generate":  # samples follow the same random numbers; where two tokens lie close, one goes another way
        pairs = zip(output.read_bytes().splitlines(), wanted.splitlines(), strict=True)
        assert np.mean([a == b for a, b in pairs]) > 0.98
        return
    expected = numbers(verb, output.read_bytes(), folder)
    compare(numbers(verb, wanted, folder), expected, np.full(expected.shape, 1e-4))


def test_killed_at_random_times(folder, whole, tmp_path, rng):
    """SIGKILL of the process group while shards are written; supervised at some resumes, alone at others."""
    verb, wanted = whole
    output, kills = tmp_path / f"out{VERBS[verb][1]}", 0
    while True:
        engine = ("--engine", ("inline", "local")[int(rng.integers(2))])
        process, before = start(folder, verb, output, *engine), shards_of(output)
        wait_for_shards(process, output, before + int(rng.integers(1, 4)))
        time.sleep(rng.random() * 0.05)
        if process.poll() is not None:
            break
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        kills += 1
    assert kills >= 2 and process.returncode == 0, said(output)
    intact(output, wanted)


def test_stopped_within_the_grace_time(folder, whole, tmp_path):
    verb, wanted = whole
    output = tmp_path / f"out{VERBS[verb][1]}"
    process = start(folder, verb, output, "--grace", "5")
    wait_for_shards(process, output, 1)
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 75, said(output)
    assert time.monotonic() - began < 7
    assert start(folder, verb, output, "--engine", "local").wait(300) == 0, said(output)
    intact(output, wanted)


def job_with_a_trap(folder, output, **settings):
    """Lines of which the 60th is verb_jobs.POISON."""
    lines = (folder / "sentences.txt").read_text().splitlines()
    lines[59] = POISON
    (folder / "trap.txt").write_text("\n".join(lines))
    return ClassifyJob(model_path("critic"), str(folder / "trap.txt"), str(output),
                       settings=Settings(device="cuda", shard_size=12_000, **settings))  # fmt: skip


def test_a_kernel_that_traps(folder, tmp_path, monkeypatch):
    """The worker is replaced, the record reported, the others are as ever."""
    job = job_with_a_trap(folder, tmp_path / "out.jsonl", engine="local")
    with monkeypatch.context() as patch:
        patch.setattr("tilewright.runtime.verbs.classify.task.ClassifyTask", TrappingThere)
        report = classify(job)
    classify(replace(job, output=str(tmp_path / "plain.jsonl")))
    found, wanted = ((tmp_path / name).read_bytes().splitlines() for name in ("out.jsonl", "plain.jsonl"))
    assert report.errors == 1 and report.job["replaced"] == 4
    assert json.loads(found[59])["error"]["message"].startswith("it ended its worker: exit code 1: ")
    assert "assert" in json.loads(found[59])["error"]["message"]
    assert found[:59] + found[60:] == wanted[:59] + wanted[60:]


def test_a_kernel_that_traps_here(folder, tmp_path):
    """Without a supervisor the job ends with one paragraph, in a process whose GPU is of no use any more."""
    job = job_with_a_trap(folder, tmp_path / "out.jsonl")
    code = f"""if True:
        from tilewright.cli import fail
        from tilewright.runtime.jobs.settings import Settings
        from tilewright.runtime.verbs.classify import ClassifyJob, classify, task
        from verb_jobs import TrappingThere
        task.ClassifyTask = TrappingThere
        try:
            classify(ClassifyJob({job.model!r}, {job.input!r}, {job.output!r}, settings=Settings(device="cuda")))
        except BaseException as error:
            fail(error)
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment())
    assert done.returncode == 4 and "the GPU failed: " in done.stderr, done.stderr
    assert not (tmp_path / "out.jsonl").exists()


@pytest.fixture
def memory():
    """memory(bytes): only so much more than what is in use now; (most that was in use, now) without an argument."""
    import torch

    total = torch.cuda.get_device_properties(0).total_memory

    def limit(more=None):
        gc.collect()
        torch.cuda.empty_cache()
        now, most = torch.cuda.memory_reserved(), torch.cuda.max_memory_reserved()
        torch.cuda.reset_peak_memory_stats()
        if more is not None:
            torch.cuda.set_per_process_memory_fraction(min((now + more) / total, 1.0))
        return most, now

    yield limit
    torch.cuda.set_per_process_memory_fraction(1.0)


@pytest.mark.parametrize("verb", ["classify", "generate", "draw"])
def test_short_of_memory(folder, tmp_path, memory, verb):
    """Batches become smaller and the bytes stay; where it is far too little, a clear error and no other output."""

    def run(name):
        path, again = str(tmp_path / name), Settings(device="cuda", restart=True)
        if verb == "classify":
            job = ClassifyJob(model_path("critic"), str(folder / "sentences.txt"), path, settings=again)
            return classify(job)
        if verb == "generate":
            greedy = SamplingParams(temperature=0, max_tokens=8)
            prompts = str(folder / "prompts.txt")
            return generate(GenerateJob(model_path("poet"), prompts, path, greedy, settings=again))
        return draw(DrawJob(model_path("portraits"), None, path, count=RECORDS, seed=5, settings=again))

    ending = VERBS[verb][1]
    run(f"whole{ending}")  # what earlier tests left in the process may go only now
    _, before = memory()
    run(f"whole{ending}")
    most, _ = memory()
    smaller, refused = [], {}
    for share in (0.95, 0.9, 0.8, 0.7, 0.5, 0.25, 0.1, 0.02, 0.005):  # classify's is mostly weights and tables
        memory(int((most - before) * share))
        try:
            run(f"out{ending}")
            smaller.append(share)
        except ResourceError as error:
            assert "memory" in str(error), error
            refused[share] = str(error)
        if (tmp_path / f"out{ending}").exists():
            assert (tmp_path / f"out{ending}").read_bytes() == (tmp_path / f"whole{ending}").read_bytes()
    assert smaller and refused, (smaller, refused, most, before)
