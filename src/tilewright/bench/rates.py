"""Estimate how long a job takes and how many workers are worthwhile, from rows that the bench has saved on this
machine."""

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
TOKENS = re.compile(r"124M, \w+: (\d+) -> (\d+)")  # size of a row of the workload gpt2: tokens of a prompt, new tokens
SAMPLED = ", sampled: "  # in the size of a row of the workload gpt2 in which tokens are sampled
REPEATED = "as given"  # rows of the workload gpt2 in which equal prompts are computed once
SHARED = "per context"  # rows of the workload score in which several continuations have one context
BUILT, EXISTS = "table inside", "table exists"  # rows of the workload sentiment
PAYS = 0.7  # share of linear scaling; below it, most of a further worker is wasted


class Job(NamedTuple):
    """The job whose time is estimated. flops: of all records. threads: of a worker, 0 on a GPU. figures: from its
    plan."""

    verb: str
    dtype: str
    threads: int
    records: int
    flops: float
    figures: Mapping[str, Any]


class Rate(NamedTuple):
    """seconds: time of the whole job with one worker. row: the measurement from which it is estimated."""

    seconds: float
    row: Row


def measured_verb(job: Job) -> str:
    """The verb whose measurements say how long the job takes: a BERT classifies as fast as it embeds, and has no token
    table. The figures of its plan have the tokens per text."""
    return "embed" if "tokens_per_text" in job.figures else job.verb


def saved_rows(job: Job, folder: Path = Path("results")) -> list[Row]:
    """tilewright's rows, not its peers', of this machine or its GPU, in the job's accuracy class."""
    machine, dtype = machine_name() if job.threads else gpu_name(), measured_dtype(job)
    workload = WORKLOADS[measured_verb(job)]
    rows = [row for op in (workload, "scaling") for row in read(folder, machine, op)]
    rows += _swept_workers(read(folder, machine, f"sweep_{workload}"))
    return [row for row in rows if (row.machine, row.dtype) == (machine, dtype) and row.check != PEER]


def _swept_workers(rows: list[Row]) -> Iterator[Row]:
    """The points of `tilewright sweep --job` over records and workers, as rows of `bench scaling`. Each is compared
    with one worker of the same dtype and number of cores."""
    runs: dict[tuple[str, int, str, str, str], Row] = {}
    for row in rows:
        if row.runs and list(row.setting)[1:] == ["workers"]:
            (unit, records), (_, workers) = row.setting.items()
            runs[row.dtype, row.threads, unit, records, workers] = row
    for (_, _, unit, records, workers), row in runs.items():
        if one := runs.get((row.dtype, row.threads, unit, records, "1")):
            count, job = int(records), row.op.removeprefix("sweep_")
            size, faster = f"{job}, {count:,} {unit}", one.median_s / row.median_s
            yield replace(row, op="scaling", size=size, label=workers, rows=count, versus_below=faster)


def rate(job: Job, rows: list[Row]) -> Rate | None:
    """Estimate from the workload nearest to the job, scaled by the number of operations. None for a job without
    operations, and if no row was saved for this number of threads."""
    verb = measured_verb(job)
    rows = [row for row in rows if row.op == WORKLOADS[verb] and row.threads == job.threads]
    return _RATES[verb](job, rows) if job.flops else None


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
        other = (SAMPLED in row.size) != job.figures.get("sampled", False)  # choosing tokens is other work
        found.append(((distance, other, row.rung == REPEATED), Rate(job.flops / flops * row.median_s, row)))
    return min(found, key=lambda one: one[0])[1] if found else None


def _classify(job: Job, rows: list[Row]) -> Rate | None:
    """The time of the sentences with a complete token table, plus the time to build that table once."""
    by_name = {row.rung: row for row in rows}
    if BUILT not in by_name or EXISTS not in by_name:
        return None
    built, exists = by_name[BUILT], by_name[EXISTS]
    scale = job.flops / job.records / TextCNNConfig().flops
    once = max(0.0, built.median_s - exists.median_s)
    return Rate(scale * (job.records / exists.rows * exists.median_s + once), exists)


def _embed(job: Job, rows: list[Row]) -> Rate | None:
    """Take the saved model whose operations per text are nearest to the job's, and its operations per second."""
    found = [row for row in rows if row.rung == "tilewright" and row.gflops]
    own = job.flops / max(job.records, 1)
    row = min(
        found, key=lambda row: abs(math.log((row.gflops or 1) * row.median_s / row.rows * 1e9 / own)), default=None
    )
    return Rate(job.flops / (row.gflops or 1) / 1e9, row) if row else None


def _score(job: Job, rows: list[Row]) -> Rate | None:
    """As for `embed`, from texts that share no context."""
    return _embed(job, [row for row in rows if SHARED not in row.size])


def _draw(job: Job, rows: list[Row]) -> Rate | None:
    for row in rows:
        if row.rung == "tilewright":
            return Rate(job.flops / (DCGANConfig().flops * row.rows) * row.median_s, row)
    return None


def _convolve(job: Job, rows: list[Row]) -> Rate | None:
    """Take the case whose operations per byte are nearest to the job's. Either its operations or its bytes per second
    limit the job."""
    own = job.flops / (8 * job.records)
    found = [(row.gflops, row.gbytes_s, row) for row in rows if row.rung == "tilewright"]
    rated = [(gflops, gbytes, row) for gflops, gbytes, row in found if gflops and gbytes]
    if not rated:
        return None
    gflops, gbytes, row = min(rated, key=lambda one: abs(math.log(one[0] / one[1] / own)))
    return Rate(max(job.flops / gflops, 8 * job.records / gbytes) / 1e9, row)


_RATES: dict[str, Callable[[Job, list[Row]], Rate | None]] = {
    "generate": _generate, "score": _score, "classify": _classify, "embed": _embed, "draw": _draw,
    "convolve": _convolve,
}  # fmt: skip


class Scaling(NamedTuple):
    """workers: the largest number of workers that is worthwhile. faster: their speed-up over one worker. row: the
    measurement; None if the number follows from the rule that workers must not share cores or GPUs."""

    workers: int
    faster: float
    row: Row | None


def scaling(job: Job, rows: list[Row], most: int, units: int) -> Scaling:
    """The number of workers that is worthwhile. most: shards of the job. units: cores or GPUs of this machine.

    It is taken from saved rows of the same kind of job, whose workers had `job.threads` cores each, with the nearest
    number of records. Without such rows a rule gives it: one worker per GPU, or on a CPU as many workers as have
    `job.threads` cores each.
    """
    jobs, rows = SCALED[measured_verb(job)], [row for row in rows if row.threads == job.threads]
    measured = [row for row in rows if row.op == "scaling" and row.size.partition(",")[0] in jobs]
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
    """The accuracy class of the saved rows for a job. The bench of some workloads measures only one 16-bit class."""
    return "bfloat16" if job.dtype == "float16" and measured_verb(job) in ("generate", "classify") else job.dtype


def saving_command(job: Job) -> str | None:
    """The command that measures a rate and saves it. None if the bench cannot measure the job's accuracy class."""
    words = ["tilewright bench", {"volumes": "convolve"}.get(name := WORKLOADS[measured_verb(job)], name)]
    if job.verb != "convolve":
        words += ["--dtype", measured_dtype(job)]
    elif job.dtype != "float32":
        return None
    words += ["--threads", str(job.threads)] if job.threads else ["--device", "cuda"]
    return " ".join([*words, "--save"])
