"""How long a job takes and how many workers pay, by what the bench has saved for this machine."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from tilewright.bench.results import PEER, Row, read
from tilewright.generation.memory import Prompts
from tilewright.hardware import gpu_name, machine_name
from tilewright.models.dcgan import DCGANConfig
from tilewright.models.gpt2 import GPT2Config
from tilewright.models.textcnn import TextCNNConfig

WORKLOADS = {
    "generate": "gpt2", "score": "score", "classify": "sentiment", "embed": "embed", "draw": "dcgan",
    "convolve": "volumes",
}  # fmt: skip
SCALED = {
    "generate": ("gpt2",),
    "score": (),
    "classify": ("sentiment",),
    "embed": (),
    "draw": ("dcgan", "dcgan-pixels"),
    "convolve": (),
}
TOKENS = re.compile(r"124M, \w+: (\d+) -> (\d+)")  # the size of a row of the workload gpt2: of prompts, new ones
REPEATED = "as given"  # rows of the workload gpt2 whose equal prompts are computed once
BUILT, EXISTS = "table inside", "table exists"  # rows of the workload sentiment
PAYS = 0.7  # of linear scaling: with less, most of a further worker is lost


class Job(NamedTuple):
    """What is to be measured against. flops: of all records. threads: of a worker, 0 on a GPU. figures: of its plan."""

    verb: str
    dtype: str
    threads: int
    records: int
    flops: float
    figures: Mapping[str, Any]


class Rate(NamedTuple):
    """seconds: of the whole job by one worker. row: the measurement that says so."""

    seconds: float
    row: Row


def saved_rows(job: Job, folder: Path = Path("results")) -> list[Row]:
    """Own measurements of this machine or its GPU in the job's accuracy class."""
    machine, dtype = machine_name() if job.threads else gpu_name(), measured_dtype(job)
    rows = [row for op in (WORKLOADS[job.verb], "scaling") for row in read(folder, machine, op)]
    rows += _swept_workers(read(folder, machine, f"sweep_{WORKLOADS[job.verb]}"))
    return [row for row in rows if (row.machine, row.dtype) == (machine, dtype) and row.check != PEER]


def _swept_workers(rows: list[Row]) -> Iterator[Row]:
    """The points of `tilewright sweep --job` over records and workers, as rows of `bench scaling`."""
    runs = {tuple(row.setting.items()): row for row in rows if row.runs and list(row.setting)[1:] == ["workers"]}
    for (records, (name, workers)), row in runs.items():
        if one := runs.get((records, (name, "1"))):
            count, job = int(records[1]), row.op.removeprefix("sweep_")
            size, faster = f"{job}, {count:,} {records[0]}", one.median_s / row.median_s
            yield replace(row, op="scaling", size=size, label=workers, rows=count, versus_below=faster)


def rate(job: Job, rows: list[Row]) -> Rate | None:
    """By the workload nearest to the job, scaled by operations; None for a job without operations, and if none
    is saved for these threads."""
    rows = [row for row in rows if row.op == WORKLOADS[job.verb] and row.threads == job.threads]
    return _RATES[job.verb](job, rows) if job.flops else None


def _generate(job: Job, rows: list[Row]) -> Rate | None:
    config, found = GPT2Config(), []
    for row in rows:
        sizes = TOKENS.fullmatch(row.size)
        if sizes is None or (row.rung == "1 prompt") != (job.records == 1):
            continue
        length, tokens = map(int, sizes.groups())
        count = max(1, row.rows // tokens)
        flops = config.flops(Prompts(count, count * length, length), tokens)
        distance = abs(math.log(tokens / job.figures["new_tokens"]))
        found.append(((distance, row.rung == REPEATED), Rate(job.flops / flops * row.median_s, row)))
    return min(found, key=lambda one: one[0])[1] if found else None


def _classify(job: Job, rows: list[Row]) -> Rate | None:
    """Sentences at the rate of a table that has all rows, and once the time of its making, as for the saved ones."""
    by_name = {row.rung: row for row in rows}
    if BUILT not in by_name or EXISTS not in by_name:
        return None
    built, exists = by_name[BUILT], by_name[EXISTS]
    scale = job.flops / job.records / TextCNNConfig().flops
    once = max(0.0, built.median_s - exists.median_s)
    return Rate(scale * (job.records / exists.rows * exists.median_s + once), exists)


def _embed(job: Job, rows: list[Row]) -> Rate | None:
    """By the saved model whose operations per text are nearest, at its rate of operations."""
    found = [row for row in rows if row.rung == "tilewright" and row.gflops]
    own = job.flops / max(job.records, 1)
    row = min(
        found, key=lambda row: abs(math.log((row.gflops or 1) * row.median_s / row.rows * 1e9 / own)), default=None
    )
    return Rate(job.flops / (row.gflops or 1) / 1e9, row) if row else None


def _draw(job: Job, rows: list[Row]) -> Rate | None:
    for row in rows:
        if row.rung == "tilewright":
            return Rate(job.flops / (DCGANConfig().flops * row.rows) * row.median_s, row)
    return None


def _convolve(job: Job, rows: list[Row]) -> Rate | None:
    """By the case whose operations per byte are nearest to the job's, at its rate of either."""
    own = job.flops / (8 * job.records)
    found = [(row.gflops, row.gbytes_s, row) for row in rows if row.rung == "tilewright"]
    rated = [(gflops, gbytes, row) for gflops, gbytes, row in found if gflops and gbytes]
    if not rated:
        return None
    gflops, gbytes, row = min(rated, key=lambda one: abs(math.log(one[0] / one[1] / own)))
    return Rate(max(job.flops / gflops, 8 * job.records / gbytes) / 1e9, row)


_RATES: dict[str, Callable[[Job, list[Row]], Rate | None]] = {
    "generate": _generate, "score": lambda job, rows: None, "classify": _classify, "embed": _embed, "draw": _draw,
    "convolve": _convolve,
}  # fmt: skip


class Scaling(NamedTuple):
    """workers: the most that pay. faster: how many times as fast as one they are. row: the measurement; None: by the
    rule that workers must not share cores or GPUs."""

    workers: int
    faster: float
    row: Row | None


def scaling(job: Job, rows: list[Row], most: int, units: int) -> Scaling:
    """How many workers pay. most: shards of the job. units: cores or GPUs here.

    By saved rows of the same kind of job with the nearest number of records, else by the rule: one worker per GPU, on a
    CPU as many as have `job.threads` cores each.
    """
    measured = [row for row in rows if row.op == "scaling" and row.size.partition(",")[0] in SCALED[job.verb]]
    nearest = min((row.rows for row in measured), key=lambda rows: abs(math.log(rows / max(job.records, 1))), default=0)
    paying = [
        row
        for row in measured
        if row.rows == nearest and (row.versus_below or 0) >= PAYS * int(row.label) and int(row.label) <= most
    ]
    if paying:
        best = max(paying, key=lambda row: row.versus_below or 0)
        return Scaling(int(best.label), best.versus_below or 1, best)
    workers = max(1, min(units // max(job.threads, 1), most))
    return Scaling(workers, float(workers), None)


def measured_dtype(job: Job) -> str:
    """The accuracy class of the rows for a job: the bench of some workloads has one class of 16 bits."""
    return "bfloat16" if job.dtype == "float16" and job.verb in ("generate", "classify") else job.dtype


def saving_command(job: Job) -> str | None:
    """The command that measures a rate and saves it; None if the bench has none for the job's accuracy class."""
    words = ["tilewright bench", {"volumes": "convolve"}.get(name := WORKLOADS[job.verb], name)]
    if job.verb != "convolve":
        words += ["--dtype", measured_dtype(job)]
    elif job.dtype != "float32":
        return None
    words += ["--threads", str(job.threads)] if job.threads else ["--device", "cuda"]
    return " ".join([*words, "--save"])
