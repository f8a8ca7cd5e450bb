"""Jobs of all verbs that are killed at random moments, by SIGKILL, and begun again with other options.

A case is a command with its inputs and outputs, and the options that change no bytes. Each run takes some of them at
random, one or two workers, and a moment for the kill. The victim is the process group, the first process alone, or a
worker. As soon as a run ends by itself, the outputs must be those of an undisturbed run, and the job is begun anew.
"""

import csv
import gzip
import json
import os
import shutil
import signal
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from tilewright.runtime.convert.models import init_dcgan
from tilewright.runtime.jobs.merge import digest_of, verify

WORKERS_CHANCE = 0.08  # of a run with two workers: their start takes twenty times as long as a run without
THREADS = ("1", "2")
BYTES = {"--shard-size": ("900", "1500", "4000")}  # of JSON lines


@dataclass(frozen=True)
class Case:
    """given: the command without its output. output: its name. others: outputs beside it. flips: values by option.
    elsewhere: with --job-dir."""

    given: tuple[str, ...]
    output: str
    flips: dict[str, tuple[str, ...]]
    others: tuple[str, ...] = ()
    elsewhere: bool = False

    def command(self, output, *options):
        return [*self.given, "-o", str(output), *map(str, options)]

    def warmed(self, prefix):
        """The command with outputs of its own, whose names begin with `prefix`."""
        return [
            f"{prefix}{word}" if word in self.others else word for word in self.command(f"{prefix}{self.output[3:]}")
        ]


def _generate(input, output, more=(), model="gpt2", **flips):
    flips = {"--threads": THREADS, "--max-batch-memory": ("200K", "1M", "4M"), **flips}
    sampled = ("--temperature", "1", "--max-tokens", "3")
    return Case(("generate", "-p", model, "-i", input, *sampled, *more), output, flips)


def _score(input, output, more=(), model="gpt2", **flips):
    flips = {"--threads": THREADS, "--max-batch-memory": ("200K", "1M", "4M"), **flips}
    return Case(("score", "-p", model, "-i", input, *more), output, flips)


def _classify(input, output, more=(), model="textcnn", **flips):
    flips = {"--threads": THREADS, "--batch-size": ("1", "7", "64", "1000"), **flips}
    return Case(("classify", "-p", model, "-i", input, *more), output, flips)


def _embed(output, more=(), model="bert"):
    flips = {"--threads": THREADS, "--batch-size": ("1", "7", "64", "1000"), **BYTES}
    return Case(("embed", "-p", model, "-i", "texts.jsonl", *more), output, flips)


def _draw(given, output, image, *, elsewhere=False):
    flips = {"--threads": THREADS, "--batch-size": ("1", "2", "16"), "--shard-size": ("2", "3", "5")}
    return Case(("draw", "-p", "dcgan", *given, "--image", image), output, flips, (image,), elsewhere)


def _convolve(input, output):
    flips = {"--threads": THREADS, "--memory": ("1G", "3G"), "--shard-size": ("8", "16", "64")}
    return Case(("convolve", "-i", input, "-k", "kernel.npy"), output, flips)


CASES = {
    "generate jsonl to jsonl": _generate("generate.jsonl", "out.jsonl", **BYTES),
    "generate jsonl to parquet": _generate("generate.jsonl", "out.parquet", **BYTES),
    "generate parquet to jsonl": _generate("generate.parquet", "out.jsonl"),
    "score jsonl to jsonl": _score("score.jsonl", "out.jsonl", **BYTES),
    "score parquet to parquet": _score("score.parquet", "out.parquet"),
    "generate jsonl to jsonl, opt": _generate("generate.jsonl", "out.jsonl", model="opt", **BYTES),
    "score jsonl to parquet, gpt_neox": _score(
        "score.jsonl", "out.parquet", ("--keep", "context"), model="gpt_neox", **BYTES
    ),
    "classify jsonl to jsonl, distilbert": _classify("texts.jsonl", "out.jsonl", model="distilbert", **BYTES),
    "classify jsonl to parquet": _classify("classify.jsonl", "out.parquet", **BYTES),
    "classify csv.gz to jsonl": _classify("classify.csv.gz", "out.jsonl", ("--keep", "note"), **BYTES),
    "classify files to jsonl": _classify("many", "out.jsonl", **BYTES),
    "classify files to a file each": _classify("many", "out/", ("--per-input",), **BYTES),
    "generate jsonl to parts": _generate("generate.jsonl", "out/", ("--shard-size", "1500")),
    "generate jsonl.zst to parquet": _generate("generate.jsonl.zst", "out.parquet", ("--keep", "id=name"), **BYTES),
    "classify parquet to parquet": _classify("classify.parquet", "out.parquet"),
    "classify binary to binary": _classify("classify.bin", "out.bin", **{"--shard-size": ("24", "60")}),
    "embed jsonl to npy": _embed("out.npy"),
    "embed jsonl to parquet": _embed("out.parquet"),
    "embed jsonl to jsonl, roberta": _embed("out.jsonl", ("--keep", "text=said"), model="roberta"),
    "draw npy to npy": _draw(("-i", "noise.npy"), "out.npy", "grid.png"),
    "draw seed to folder": _draw(("-n", "24", "--seed", "5"), "out/", "grid.bmp"),
    "draw npy to npy, its state elsewhere": _draw(("-i", "noise.npy"), "out.npy", "grid.png", elsewhere=True),
    "convolve npy to zarr": _convolve("v.npy", "out.zarr"),
    "convolve zarr to zarr": _convolve("v.zarr", "out.zarr"),
    "convolve zarr to npy": _convolve("v.zarr", "out.npy"),
    "convolve npy to nii.gz": _convolve("v.npy", "out.nii.gz"),
    "convolve npy to tif": _convolve("v.npy", "out.tif"),
}
QUICK = ("generate jsonl to parquet", "classify parquet to parquet", "draw seed to folder", "convolve zarr to npy")
NAMES = [pytest.param(name, marks=[] if name in QUICK else pytest.mark.long, id=name) for name in CASES]


def fill(verbs, path):
    """Models and inputs of all cases in the empty directory `path`; verbs: where verb_jobs.make has made its own."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    import zarr
    from backports import zstd

    # they import PyTorch and transformers, for 5 s of CPU time: processes that only run cases need neither
    from bert_models import random_texts, saved
    from decoder_models import save_with_tokenizer

    rng = np.random.default_rng(11)
    for name in ("gpt2", "textcnn", "generate.jsonl", "classify.jsonl", "classify.bin"):
        shutil.copytree(verbs / name, path / name) if (verbs / name).is_dir() else shutil.copy(verbs / name, path)
    lines = [{"id": i, "context": f"the cat {i % 91}", "continuation": f" sat {i % 7}"} for i in range(240)]
    (path / "score.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    pq.write_table(pa.Table.from_pylist(lines), path / "score.parquet", row_group_size=23)
    for verb in ("generate", "classify"):
        rows = [json.loads(line) for line in (path / f"{verb}.jsonl").read_text().splitlines() if line.endswith("}")]
        names = ("id", "prompt", "tokens")
        table = pa.Table.from_pylist([{name: row[name] for name in names if name in row} for row in rows])
        pq.write_table(table, path / f"{verb}.parquet", row_group_size=23)
    for family in ("bert", "distilbert", "roberta"):
        saved(family, 0, path / family)
    for family in ("opt", "gpt_neox"):
        save_with_tokenizer(family, path / family)
    lines = [{"id": f"s{i % 91}", "text": text} for i, text in enumerate(["", *random_texts(95)])]
    (path / "texts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    rows = [json.loads(line) for line in (path / "classify.jsonl").read_text().splitlines() if line.endswith("}")]
    with gzip.open(path / "classify.csv.gz", "wt", newline="") as file:
        table = csv.writer(file)
        table.writerows([("id", "tokens", "note"), *((row["id"], row["tokens"], 'a "\n') for row in rows)])
    (path / "generate.jsonl.zst").write_bytes(zstd.compress((path / "generate.jsonl").read_bytes()))
    (path / "many").mkdir()
    lines = (path / "classify.jsonl").read_bytes().splitlines(keepends=True)
    for number, first in enumerate(range(0, len(lines), 17)):
        (path / "many" / f"{number:02}.jsonl").write_bytes(b"".join(lines[first : first + 17]))
    init_dcgan(str(path / "dcgan"), 3, z_size=3, size=2, channels=(4, 3), kernel=4)
    np.save(path / "noise.npy", rng.standard_normal((24, 3), np.float32))
    volume = rng.standard_normal((160, 24, 24), np.float32)
    np.save(path / "v.npy", volume)
    np.save(path / "kernel.npy", rng.standard_normal((3, 3, 3)))
    zarr.create_array(str(path / "v.zarr"), shape=volume.shape, chunks=(8, 16, 16), dtype="f4")[...] = volume


def warm(prefix, request):
    """Commands that load all that the cases need which the module of `request` runs in this session. prefix: of the
    names of their outputs."""
    params = [
        item.callspec.params
        for item in request.session.items
        if item.path == request.path and hasattr(item, "callspec")
    ]
    names = {given["name"] for given in params if "name" in given}
    for number, (name, case) in enumerate(CASES.items()):
        if name in names:
            yield case.warmed(f"{prefix}{number}")


class Attack:
    """One case in the directory `path`, below the one that `fill` has filled, in which `forked` runs commands."""

    def __init__(self, case, path, forked, rng):
        self.case, self.path, self.forked, self.rng = case, path, forked, rng
        self.seconds = {}
        self.right = []
        self.counts = Counter()
        self.state = Path(f"{path}.state")
        path.mkdir()

    def run(self, kills, workers_chance=WORKERS_CHANCE):
        """At least so many kills; what happened."""
        self.finish(1)
        while self.counts["kills"] < kills:
            workers = 2 if self.rng.random() < workers_chance else 1
            if workers not in self.seconds:
                self.finish(workers)
            victim = str(self.rng.choice(("group", "lead", "worker"))) if workers == 2 else "lead"
            code, killed = self.end(workers, self.rng.uniform(0, 1.1 * self.seconds[workers]), victim)
            assert code in (-signal.SIGKILL, 0), self.said()
            self.counts["runs"] += 1
            self.counts["kills"] += killed
            self.counts[f"{victim} of {workers}"] += killed
            if code == 0:
                self.check()
            assert not self.output.exists() or self.found() == self.right, "an output is whole or not there"
        if os.path.exists(f"{self.output}.job"):
            self.finish(1)
        return self.counts

    def finish(self, workers):
        """A run that nobody kills; it is timed."""
        assert self.end(workers)[0] == 0, self.said()
        self.right = self.right or self.found()
        self.check()

    @property
    def output(self):
        return self.path / self.case.output.rstrip("/")

    def command(self, workers):
        """With options at random."""
        options = ["--workers", workers, *(["--job-dir", self.state] if self.case.elsewhere else [])]
        for name, values in self.case.flips.items():
            options += [name, self.rng.choice(values)]
        slash = "/" if self.case.output.endswith("/") else ""
        command = self.case.command(f"{self.output}{slash}", *options)
        return [str(self.path / word) if word in self.case.others else word for word in command]

    def end(self, workers, after=None, victim="group"):
        """The exit status of a run, and whether it or its worker was killed before its end."""
        begin = time.monotonic()
        code, later = self.forked(*self.command(workers), after=after, victim=victim)
        if code == 0 and (after is None or not later):  # of runs that only ended what others had begun, too
            self.seconds[workers] = max(self.seconds.get(workers, 0.0) * 0.7, time.monotonic() - begin)
        return code, code == -signal.SIGKILL or (victim == "worker" and later > 0)

    def said(self):
        return self.forked.said()[-2000:]

    def found(self):
        return [digest_of(str(self.path / name), lambda: None) for name in (self.output.name, *self.case.others)]

    def check(self):
        """The finished job is right and whole, and nothing else is there; then it is removed."""
        job = self.state if self.case.elsewhere else Path(f"{self.output}.job")
        assert self.found() == self.right and verify(str(self.output)).intact, self.said()
        assert sorted(os.listdir(self.path)) == sorted([self.output.name, f"{self.output.name}.job", *self.case.others])
        names = {one.name for one in job.rglob("*")}
        unfinished = [name for name in names if name.endswith(".tmp")]
        assert not unfinished and not os.path.exists(job / "output") and not any((job / "damaged").glob("*")), names
        self.counts["jobs"] += 1
        for name in os.listdir(self.path):
            shutil.rmtree(self.path / name) if (self.path / name).is_dir() else (self.path / name).unlink()
        shutil.rmtree(self.state, ignore_errors=True)
