"""The same job by 1, 2, 4 ... workers. The rows say how much faster more workers are, and the bytes must be the same.

Every run executes the command line in a process of its own, as a user does. The times of its shards are read from its
trace. On a CPU every worker gets the same number of cores, so that two workers have twice the cores of one. Each
number of workers is run once.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tilewright.bench.results import Row
from tilewright.errors import InternalError, ResourceError

JOBS = ("sentiment", "gpt2", "dcgan", "dcgan-pixels")
COUNT = {  # records of a run if the user names none: seconds of one worker on an H200, or of one core on a CPU
    "cuda": {"sentiment": 50_000_000, "gpt2": 25_600, "dcgan": 200_000, "dcgan-pixels": 340_000},
    "cpu": {"sentiment": 65_536, "gpt2": 512, "dcgan": 512, "dcgan-pixels": 512},
}
RECORDS = {"sentiment": "sentences", "gpt2": "prompts", "dcgan": "images", "dcgan-pixels": "images"}
MODELS = {"sentiment": "textcnn", "gpt2": "gpt2", "dcgan": "dcgan", "dcgan-pixels": "dcgan"}
# dcgan: float32 values, which all workers write into one file. dcgan-pixels: 8-bit values, one file per shard
ENDINGS = {"sentiment": ".bin", "gpt2": ".bin", "dcgan": ".npy", "dcgan-pixels": ".bmp"}
PROMPT = 16  # tokens of a sentence or of a prompt
TOKENS = 8  # new tokens per prompt, unless the size of a row names another number
TINY = {  # options of `tilewright init` by model, for tests
    "textcnn": "--vocab-size 50 --hidden-size 8 --num-filters 4 --hidden-sizes 8",
    "gpt2": "--vocab-size 50 --layers 1 --heads 2 --width 8 --context 256",
    "dcgan": "--z-size 4 --channels 8,4,3",
}
WARM = 1024  # records of the run that warms up on a CPU and is not measured
GREEDY = ("--temperature", "0")  # as in the other measurements of GPT-2; by default, `generate` samples
BLOCK = 1 << 20  # rows of an input that are generated at a time
SECONDS = 600  # after which a run is stopped
SAME = "same bytes, SHA-256 "  # how a row's check begins; the first digits of its output's digest follow
DIGITS = 16  # of a digest: enough to tell outputs of one job apart
Say = Callable[[str], None]


@dataclass(frozen=True)
class Setting:
    """folder: where models, inputs and outputs are written; models and inputs stay there. workers: the numbers of
    workers, ascending from 1. tokens: new tokens of gpt2.

    With the engine mpi a worker is a rank, with ray an actor. Both may run on other hosts. launcher: the command that
    starts the ranks, in which "{n}" stands for their number. more: options of every run.
    """

    folder: Path
    workers: tuple[int, ...] = (1, 2, 4)
    engine: str = "local"
    device: str = "cpu"
    dtype: str = "float32"
    launcher: str = "mpiexec -n {n}"
    tokens: int = 128
    tiny: bool = False
    more: tuple[str, ...] = ()

    @property
    def cores(self) -> int:
        """Cores of a worker; 0 if it has a GPU."""
        return 0 if self.device == "cuda" else max(len(os.sched_getaffinity(0)) // self.workers[-1], 1)


@dataclass(frozen=True)
class Run:
    """seconds: time of the shards, from `seconds_together`. whole: time of the process. digest: SHA-256 of the output.
    hosts, devices: how many different ones the workers used, according to the trace."""

    seconds: float
    whole: float
    shards: int
    digest: str
    hosts: int = 1
    devices: int = 1

    @property
    def check(self) -> str:
        """The row's `check`: all numbers of workers have written these bytes."""
        return SAME + self.digest[:DIGITS]


def bench(job: str, count: int, setting: Setting, say: Say) -> list[Row]:
    """Rows of one of JOBS with `count` records: one row per number of workers.

    Raises InternalError if a run fails, or if its bytes differ from those of one worker. Raises ResourceError if the
    engine is local and this host has fewer cores or GPUs than workers.
    """
    rows: list[Row] = []
    one: Run | None = None
    for workers in setting.workers:
        run = run_once(job, count, setting, workers)
        one = one or run
        if run.digest != one.digest:
            raise InternalError(
                f"{job}: {workers} workers and one do not give the same bytes", path=str(setting.folder)
            )
        faster = one.seconds / run.seconds
        rows.append(
            Row(
                op="scaling",
                rung=f"{setting.engine}, {workers}",
                size=_size(job, count, setting),
                dtype=setting.dtype,
                threads=setting.cores,
                rows=count,
                median_s=run.seconds,
                low_s=run.seconds,
                high_s=run.seconds,
                runs=1,
                versus_below=faster,
                one_off_s=run.whole - run.seconds,
                check=run.check,
                label=str(workers),
                point=f"workers={workers}, hosts={run.hosts}, devices={run.devices}",
            )
        )
        say(
            f"{job}, {setting.engine}, {workers}: {run.seconds:.2f} s, {faster / workers:.0%} of linear, "
            f"{run.whole - run.seconds:.2f} s besides, {run.shards} shards"
        )
    return rows


def _size(job: str, count: int, setting: Setting) -> str:
    """The `size` of a row. Rows of one size are compared: a tiny model measures no real job, and more tokens take
    longer."""
    tokens = f", {setting.tokens:,} new tokens each" if job == "gpt2" and setting.tokens != TOKENS else ""
    return f"{job}{' (tiny)' * setting.tiny}, {count:,} {RECORDS[job]}{tokens}"


def run_once(job: str, count: int, setting: Setting, workers: int) -> Run:
    """One of JOBS with `count` records by so many workers, one of `setting.workers`. It compares no bytes.

    A run that is not measured comes first in a folder, so that kernels are compiled. Raises as `bench`.
    """
    _check(setting)
    command = _prepare(job, count, setting)
    warm = setting.folder / f"{_name(job, setting)}.{setting.device}.{setting.dtype}.warm"
    few = count if setting.device == "cuda" else min(count, WARM)  # full batches of a GPU compile kernels of their own
    if not warm.exists() or (setting.device == "cuda" and int(warm.read_text() or 0) < few):
        _run(job, [*command, "--count", str(few)], 1, setting)  # so that no measured run compiles
        warm.write_text(str(few))
    return _run(job, [*command, "--count", str(count)], workers, setting)


def _check(setting: Setting) -> None:
    from tilewright.hardware import gpus

    if setting.engine != "local":  # its workers may run on other hosts
        return
    most = setting.workers[-1]
    there = len(gpus()) if setting.device == "cuda" else len(os.sched_getaffinity(0))
    if there < most:
        what = "GPUs" if setting.device == "cuda" else "cores"
        raise ResourceError(
            f"{most} workers need as many {what}, and there are {there}",
            remedy="give fewer, as in --workers 1,2, or --engine mpi with ranks on several hosts",
        )


def _name(job: str, setting: Setting) -> str:
    """How the job's files in `folder` begin. A tiny model is never taken for one of full size, nor the reverse."""
    return f"{job}.tiny" if setting.tiny else job


def _prepare(job: str, count: int, setting: Setting) -> list[str]:
    """Make the model and the input if they are missing. Return the verb and its options, without the output and
    --count."""
    setting.folder.mkdir(parents=True, exist_ok=True)
    name = _name(job, setting)
    model, records = setting.folder / name, setting.folder / f"{name}.{count}.bin"
    if not model.exists():
        sizes = shlex.split(TINY[MODELS[job]]) if setting.tiny else []
        _call([*_python(), "init", MODELS[job], str(model), "--seed", "1", *sizes], os.environ)
    vocabulary = json.loads((model / "config.json").read_text()).get("vocab_size", 0)
    if vocabulary and not records.exists():
        rng, part = np.random.default_rng(1), records.with_suffix(".part")
        with part.open("wb") as file:
            for first in range(0, count, BLOCK):
                shape = min(BLOCK, count - first), PROMPT
                file.write(rng.integers(0, vocabulary, shape, np.int32).tobytes())
        part.rename(records)  # so a run that was stopped leaves no shorter input to the next one
    own = {
        "textcnn": ["classify", "-i", str(records)],
        "gpt2": ["generate", "-i", str(records), "--max-tokens", str(setting.tokens), "--ignore-eos", *GREEDY],
        "dcgan": ["draw", "--seed", "1"],
    }[MODELS[job]]
    return [*own, "--model", str(model), "--dtype", setting.dtype, "--device", setting.device, *setting.more]


def _python() -> list[str]:
    return [sys.executable, "-m", "tilewright"]


def _run(job: str, command: list[str], workers: int, setting: Setting) -> Run:
    output = setting.folder / f"{job}{ENDINGS[job]}"
    trace = setting.folder / f"{job}.{setting.engine}.{workers}.json"
    whole = [*_python(), *command, "-o", str(output), "--trace", str(trace), "--restart", "--engine", setting.engine]
    if setting.engine == "mpi":
        whole = [*shlex.split(setting.launcher.format(n=workers)), *whole]
    else:
        whole += ["--workers", str(workers)]
    environment, cores = dict(os.environ), sorted(os.sched_getaffinity(0))
    beside = str(Path(sys.executable).parent)  # pip installs mpiexec there
    environment["PATH"] = os.pathsep.join(filter(None, (environment.get("PATH"), beside)))
    if setting.device == "cuda" and setting.engine == "local":
        names = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(workers)))
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(names.split(",")[:workers])
    elif setting.device != "cuda":
        cores = cores[: workers * setting.cores]
    begin = time.perf_counter()
    _call(whole, environment, cores)
    spent = time.perf_counter() - begin
    with output.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    output.unlink()
    shutil.rmtree(f"{output}.job")
    events = json.loads(trace.read_text())["traceEvents"]
    shards = [event for event in events if event["name"].startswith("shard ")]
    who = [event["args"] for event in events if event["name"] == "process_name"]
    ran = {(one["host"], one["device"]) for one in who if one["worker"] is not None}
    return Run(seconds_together(shards), spent, len(shards), digest, len({host for host, _ in ran}), len(ran))


def seconds_together(shards: list[dict]) -> float:
    """The seconds that all shards would take if all workers had begun at the same time. shards: events of a Chrome
    trace, in which each process is one worker.

    The work after the moment at which the last worker began is counted, in shards and parts of shards. Its rate,
    applied to all shards, gives the result. At the end some workers are idle, which makes the rate too low, and by much
    if there are few shards. So if all workers began within half the time of the shortest shard, the result is at most
    the longest time from a worker's first shard to the end of its last.

    All shards are assumed to have the same size; the last one of an input may be smaller. Before the last worker has
    begun, the others run faster than later, because fewer workers share the machine. With few shards, a worker that
    begins late therefore makes the result too small.
    """
    spans: dict[int, tuple[float, float]] = {}
    for event in shards:
        first, last = spans.get(event["pid"], (event["ts"], 0.0))
        spans[event["pid"]] = min(event["ts"], first), max(event["ts"] + event["dur"], last)
    begin, end = max(first for first, _ in spans.values()), max(last for _, last in spans.values())
    ends = [(event["ts"], event["ts"] + event["dur"]) for event in shards]
    done = sum((last - max(first, begin)) / (last - first) for first, last in ends if last > begin)
    together = (end - begin) * len(shards) / done
    if begin - min(first for first, _ in spans.values()) <= min(event["dur"] for event in shards) / 2:
        together = min(together, max(last - first for first, last in spans.values()))
    return together / 1e6  # from microseconds


def _call(command: list[str], environment: os._Environ[str] | dict[str, str], cores: list[int] | None = None) -> None:
    """Run the command. Raises InternalError with its last lines if it fails."""
    before = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores or before)  # the new process inherits it
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InternalError(f"{shlex.join(command)}: {error}") from error
    finally:
        os.sched_setaffinity(0, before)
    if done.returncode:
        said = (done.stderr + done.stdout).strip().splitlines()[-3:]
        raise InternalError(f"{shlex.join(command)} ends with exit code {done.returncode}: {' '.join(said)}")
