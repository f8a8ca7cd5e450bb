"""`classify` and `generate` as jobs in processes of their own: killed, stopped, on several workers, and very large."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from forked_verbs import PATHS, Forked
from verb_jobs import ERRORS, VERBS, Trapping, command, expected, intact, job_of, run


@pytest.fixture(scope="module")
def forked(verbs):
    """See forked_verbs.py."""
    warm = [[*command(verbs, verb, verbs / f"warm.{verb}.jsonl"), "--count", "5"] for verb in VERBS]
    made = Forked(verbs, *warm)
    yield made
    made.close()


@pytest.mark.parametrize("kills", [5, pytest.param(500, marks=pytest.mark.long)])
@pytest.mark.parametrize("verb", VERBS)
def test_killed_at_random_times(verbs, forked, tmp_path, rng, verb, kills):
    """SIGKILL of the process group, batch size and workers changed at each resume."""
    done = 0
    while done < kills:
        output, ended, patience = tmp_path / f"{done}.jsonl", None, 1.0
        while ended is None:
            workers = 2 if rng.random() < 0.03 else 1
            batch = ("--batch-size", rng.integers(1, 300)) if verb == "classify" else (
                "--max-batch-memory", f"{rng.integers(100, 3000)}K")  # fmt: skip
            longest, patience = patience * (0.12 if workers == 1 else 3.0), 1.1 * patience  # it ends on a slow machine
            code, _ = forked(*command(verbs, verb, output, "--workers", workers, *batch), after=rng.random() * longest)
            done += code == -signal.SIGKILL
            assert code in (-signal.SIGKILL, 0), forked.said()[-2000:]
            ended = code if code == 0 else None
        intact(output, expected(verbs, verb))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
@pytest.mark.parametrize("verb", VERBS)
def test_signals_at_random_times(verbs, forked, tmp_path, rng, verb, number):
    """Exit code 75 within the grace time, or done; the same command goes on."""
    stopped = 0
    for i in range(400):  # a fast machine ends many jobs before their signal
        output = tmp_path / f"{i}.jsonl"
        while stopped < 5:
            after = rng.uniform(0.005, 0.12)
            code, spent = forked(*command(verbs, verb, output, "--grace", 5), after=after, number=number)
            assert spent < 5
            if output.exists():
                break
            assert code == 75, forked.said()[-1500:]
            stopped += 1
        if output.exists():
            intact(output, expected(verbs, verb))
    assert stopped == 5


def tilewright(*argv, before=()):
    """(exit code, stderr) of the command line in a process of its own."""
    env = os.environ | {"PYTHONPATH": os.pathsep.join(PATHS)}
    done = subprocess.run([*before, sys.executable, "-m", "tilewright", *argv], capture_output=True, text=True, env=env)
    return done.returncode, done.stderr + done.stdout


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(
    "workers", [pytest.param(1, marks=pytest.mark.long), 2, pytest.param(4, marks=pytest.mark.long)]
)
def test_local_workers(verbs, tmp_path, verb, workers):
    output = tmp_path / "out.jsonl"
    code, said = tilewright(*command(verbs, verb, output, "--engine", "local", "--workers", str(workers)))
    assert code == 0, said
    intact(output, expected(verbs, verb))


@pytest.mark.long
def test_a_kernel_that_traps(verbs, tmp_path, monkeypatch):
    """The worker is replaced, the record reported, the others are as ever."""
    from tilewright.runtime.verbs.classify import task as module

    monkeypatch.setattr(module, "ClassifyTask", Trapping)
    job = job_of(verbs, "classify", "classify.jsonl", str(tmp_path / "out"), engine="local", shard_size=3000)
    report = run(job)
    found, wanted = Path(job.output).read_bytes().splitlines(), expected(verbs, "classify").splitlines()
    assert report.errors == ERRORS + 1 and report.job["replaced"] == 4
    assert json.loads(found[59])["error"]["message"] == "it ended its worker: SIGSEGV"
    assert found[:59] + found[60:] == wanted[:59] + wanted[60:]


MPIEXEC = Path(sys.executable).with_name("mpiexec")


@pytest.mark.skipif(not MPIEXEC.exists(), reason="mpiexec is not installed: pip install mpi4py mpich")
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.long), 2, pytest.param(4, marks=pytest.mark.long)])
def test_ranks(verbs, tmp_path, verb, ranks):
    output = tmp_path / "out.jsonl"
    before = [str(MPIEXEC), "-n", str(ranks)]
    code, said = tilewright(*command(verbs, verb, output, "--engine", "mpi"), before=before)
    assert code == 0 and said.count("tilewright " + verb) == 1, said
    intact(output, expected(verbs, verb))


@pytest.mark.skipif(not MPIEXEC.exists(), reason="mpiexec is not installed: pip install mpi4py mpich")
def test_ranks_that_find_a_bad_model(verbs, tmp_path):
    """All end, and it is one paragraph a rank at most."""
    shutil.copytree(verbs / "gpt2", tmp_path / "gpt2")
    (tmp_path / "gpt2/model.safetensors").write_bytes(b"junk")
    line = command(verbs, "generate", tmp_path / "out.jsonl", "--engine", "mpi")
    line[line.index("-p") + 1] = str(tmp_path / "gpt2")
    code, said = tilewright(*line, before=[str(MPIEXEC), "-n", "2"])
    assert code == 3 and "model.safetensors" in said and "Traceback" not in said, said
    assert sorted(os.listdir(tmp_path)) in (["gpt2"], ["gpt2", "out.jsonl.job"])


@pytest.mark.long
def test_a_shard_costs_little(verbs, tmp_path):
    """1,000 tiny ones: less than 5 ms each beside reading, the model and writing."""
    tokens = np.random.default_rng(0).integers(0, 50, (1000, 6), np.int32)
    tokens.tofile(tmp_path / "in.bin")
    job = job_of(verbs, "classify", str(tmp_path / "in.bin"), str(tmp_path / "out"), shard_size=1)
    report = run(job)
    assert report.job["shards"] == 1000
    inside = sum(report.seconds[name] for name in ("load", "prepare", "compile", "read", "run", "write"))
    assert report.seconds["total"] - inside < 5.0, report.seconds


SIZE = 10 << 30
SCRIPT = """
import sys, time, json
from tilewright.runtime.verbs.generate import GenerateJob
from tilewright.runtime.verbs.generate.task import task_of
from tilewright.runtime.engines.inline import Inline
from tilewright.runtime.jobs.run import run
from tilewright.runtime.jobs.manifest import Manifest
from tilewright.runtime.jobs.settings import Settings
from tilewright.runtime.jobs.task import Watch
from tilewright.runtime.reports import peak_memory
from tilewright.errors import Interrupted
from tilewright.generation.sampling import SamplingParams
model, input, output, shards = sys.argv[1:]

class Ends(Watch):
    done = 0
    def committed(self, record, worker):
        self.done += 1
        if self.done == int(shards):
            raise Interrupted("enough")

job = GenerateJob(model, input, output, SamplingParams(temperature=0, max_tokens=1), batch_memory=1 << 20)
begin = time.perf_counter()
task = task_of(job, print)
Manifest(fingerprint=task.fingerprint(), cut=task.cut(None))
planned = time.perf_counter() - begin
try:
    run(task, output, Inline(), Settings(shard_size=256 if input.endswith("bin") else 1 << 14), Ends())
except Interrupted:
    pass
print(json.dumps({"planned": planned, "peak": peak_memory()}))
"""


@pytest.mark.long
@pytest.mark.parametrize("kind", ["bin", "jsonl"])
def test_ten_gibibytes(verbs, tmp_path, kind):
    """Planned in under 2 s; the first thousand shards take as much memory as the first ten."""
    path = tmp_path / f"in.{kind}"
    with open(path, "wb") as file:
        if kind == "jsonl":
            for i in range(20_000):
                file.write(b'{"prompt_token_ids": [%d, 7], "pad": "%s"}\n' % (i % 250, b"x" * 800))
        file.truncate(SIZE)
    found = []
    for shards in (10, 1000):
        argv = [sys.executable, "-c", SCRIPT, verbs / "gpt2", path, tmp_path / f"{shards}.jsonl", str(shards)]
        env = os.environ | {"PYTHONPATH": os.pathsep.join(PATHS)}
        done = subprocess.run(argv, capture_output=True, text=True, env=env, check=True)
        found.append(json.loads(done.stdout.splitlines()[-1]))
    assert max(one["planned"] for one in found) < 2, found
    assert found[1]["peak"] < 1.1 * found[0]["peak"], found
