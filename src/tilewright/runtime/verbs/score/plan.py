"""The plan of `tilewright score`: records, memory and disk of a job. See `runtime.plan`."""

from __future__ import annotations

import math
from contextlib import closing
from itertools import islice, pairwise, takewhile
from typing import NamedTuple

import numpy as np

from tilewright.backends.footprint import CONTEXT_WITHOUT_GRAPHS, PREPARING, RUNNING, Part
from tilewright.errors import ResourceError
from tilewright.formats.record_fields import kept_bytes
from tilewright.generation.attention import BATCH_MEMORY
from tilewright.generation.memory import SHARE, Prompts
from tilewright.generation.scoring import MAX_SLOTS, ROWS, WINDOW, Wanted, slot_length
from tilewright.ops.attention import bytes_a_sequence
from tilewright.ops.logprob.cpu.pieces import LOGITS_BYTES
from tilewright.runtime.begun import Begun
from tilewright.runtime.load import mapped_weights
from tilewright.runtime.plan import (
    Declared,
    JobPlan,
    Outputs,
    Sample,
    file_bytes,
    is_compiled,
    plan_job,
    program,
    widened,
)
from tilewright.runtime.verbs.score.job import ScoreJob
from tilewright.runtime.verbs.score.task import ScoreTask, task_of

DEVICE_LOGITS_BYTES = 256 << 20  # as in `ops.logprob.tile.rows`, which needs Triton
COMPILING = 229 << 20  # bytes that Numba and LLVM hold after compiling the model's kernels, as for generate
SAMPLED = 4096  # the most records of Parquet that are read
RECORD, TOKEN = 2048, 64  # bytes of Python objects per text that is being processed, and per token of it
LINE, ID_BYTES, LOGPROB = 90, 6, 12  # bytes: a line without tokens, a token id, its log-probability


class Seen(NamedTuple):
    """The sample of the input.

    texts: sequences of all good records. in_a_shard: records of the largest shard. records: good and bad ones, and true
    if they were counted and not estimated. scored: tokens with a log-probability. rows: mean rows per text in a pass,
    without the prefix that it shares with the text before it in sorted order. bad: bad records. id_bytes: mean
    bytes of an id and the kept fields as JSON.
    """

    texts: Prompts
    in_a_shard: int
    records: tuple[int, bool]
    scored: int
    rows: float
    bad: int
    id_bytes: float


def plan(job: ScoreJob, gpu_memory: int | None = None) -> JobPlan:
    """The plan of the job, see `plan_job`."""
    return plan_job("score", job, gpu_memory, task_of, _declared)


def _declared(task: ScoreTask, begun: Begun, gpu_memory: int) -> Declared:
    job, config, seen = task.job, task.config, _read(task, Sample(begun.cut))
    sizes, texts = config.sizes, seen.texts
    shard, most = min(seen.in_a_shard, WINDOW), ROWS[job.device]
    length = slot_length(max(texts.longest, 1), sizes.context)
    each = sizes.layers * bytes_a_sequence(sizes.heads, length, sizes.head_size, job.dtype, job.device)
    slots = max(1, min(MAX_SLOTS[job.device], shard + 1, math.ceil(most / seen.rows) + 2))
    mean = texts.tokens / max(texts.count, 1)
    rows = min(most + texts.longest, max(1, round(shard * mean)))
    if job.device == "cpu":
        parts = _on_cpu(task, (slots, each), rows, round(shard * (RECORD + TOKEN * mean)))
    else:
        parts = _on_gpu(task, (slots, each), rows, gpu_memory)
    head = 2.0 * sizes.vocabulary * sizes.width
    flops = config.flops(texts, 1) + head * (seen.scored - texts.count)
    records, counted = seen.records
    size = round(records * (LINE + seen.id_bytes) + seen.scored * (ID_BYTES + LOGPROB))
    return Declared(
        unit="texts", records=records, counted=counted, parts=parts, flops=float(max(flops, 0.0)),
        outputs=Outputs(size, False, size + 8 * records),
        figures={"tokens_read": texts.tokens, "tokens_scored": seen.scored, "longest": texts.longest, "bad": seen.bad,
                 "context": sizes.context},
    )  # fmt: skip


def _on_cpu(task: ScoreTask, slots: tuple[int, int], rows: int, records: int) -> tuple[Part, ...]:
    """slots: their number and the bytes of one. rows: of a pass. records: bytes of the texts in flight."""
    job, config, sizes = task.job, task.config, task.config.sizes
    mapped, weights, (count, each) = mapped_weights(job.model)[1], config.memory(job.dtype), slots
    allowed = BATCH_MEMORY if job.batch_memory is None else job.batch_memory
    logits = min(LOGITS_BYTES, 4 * sizes.vocabulary * rows)
    return (
        program("score", job.input, job.output, model=job.model),
        Part("weights, prepared", weights.prepared),
        Part("weights file, while they are prepared", file_bytes(job.model) + widened(mapped) + weights.preparing,
             PREPARING),
        Part("compiling kernels, the first time", 0 if is_compiled(f"attention.*{job.dtype}*") else COMPILING, RUNNING),
        Part("keys and values", max(1, min(count, allowed // each)) * each, RUNNING),
        Part("workspace and records", rows * (config.row_bytes(job.dtype) + 4 * sizes.width) + logits + records,
             RUNNING),
        Part("embedding and output rows, mapped", config.rows_bytes(job.dtype), RUNNING),
    )  # fmt: skip


def _on_gpu(task: ScoreTask, slots: tuple[int, int], rows: int, memory: int) -> tuple[Part, ...]:
    """slots: their number and the bytes of one. rows: of a pass. memory: of the GPU. Raises ResourceError if the keys
    and values of one text do not fit."""
    job, config, sizes, (count, each) = task.job, task.config, task.config.sizes, slots
    table = 4 * sizes.vocabulary * sizes.width
    weights = config.memory(job.dtype, "cuda")
    free = memory - CONTEXT_WITHOUT_GRAPHS - table - weights.prepared
    allowed = int(SHARE * max(free, 0)) if job.batch_memory is None else job.batch_memory
    if allowed < each:
        what = f"the keys and values of one text take {each:,} bytes; {max(allowed, 0):,} of the GPU's are allowed"
        raise ResourceError(what, remedy="allow more memory (--max-batch-memory), or run on the CPU")
    logits = min(DEVICE_LOGITS_BYTES, 4 * sizes.vocabulary * rows)
    return (
        Part("CUDA", CONTEXT_WITHOUT_GRAPHS),
        Part("weights", weights.prepared + table),
        Part("weights, while they are prepared", weights.preparing, PREPARING),
        Part("keys and values", min(count, allowed // each) * each, RUNNING),
        Part("workspace", rows * config.row_bytes(job.dtype, "cuda") + logits, RUNNING),
    )


def _read(task: ScoreTask, sample: Sample) -> Seen:
    """Read the input, or a sample of a long one."""
    with closing(task.reader()) as reader:
        sample = Sample.of(reader.file, sample.cut)
        if sample.spans:
            reader.only(sample.lines(reader.file))
        batches = list(islice(reader.batches(SAMPLED), None if sample.spans else 1))
    found = [content for batch in batches for content in batch.contents if content is not None]
    ids = [len(str(record.id)) + 2 + kept_bytes(record.kept) for batch in batches for record in batch.records]
    records = sample.records(len(ids))
    scale = records[0] / max(len(ids), 1)
    parts = [one for content in found for one in content.wanted]
    read, scored = sum(len(one.tokens) - 1 for one in parts), sum(len(one.tokens) - one.start for one in parts)
    longest = max((len(one.tokens) - 1 for one in parts), default=0)
    return Seen(
        Prompts(round(len(parts) * scale), round(read * scale), longest), sample.in_a_shard(), records,
        round(scored * scale), _rows(parts), round((len(ids) - len(found)) * scale), float(np.mean(ids or [8])),
    )  # fmt: skip


def _rows(texts: list[Wanted]) -> float:
    """See `Seen.rows`; at least 1."""
    ordered = sorted(text.tokens[:-1].tolist() for text in texts)
    pairs = (zip(*pair, strict=False) for pair in pairwise(ordered))
    shared = sum(sum(1 for _ in takewhile(lambda two: two[0] == two[1], pair)) for pair in pairs)
    return max((sum(map(len, ordered)) - shared) / max(len(ordered), 1), 1.0)
