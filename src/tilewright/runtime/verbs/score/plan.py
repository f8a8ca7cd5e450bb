"""The plan of `tilewright score`: records, memory and disk of a job. See `runtime.plan`."""

from __future__ import annotations

import math
from contextlib import closing
from itertools import islice
from typing import NamedTuple

import numpy as np

from tilewright.backends.footprint import PREPARING, RUNNING, Part
from tilewright.formats.record_fields import kept_bytes
from tilewright.generation.attention import BATCH_MEMORY
from tilewright.generation.memory import Prompts
from tilewright.generation.scoring import MAX_SLOTS, ROWS, WINDOW, slot_length
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

COMPILING = 190 << 20  # bytes that LLVM still holds after it has compiled the model's kernels, as for generate
SAMPLED = 4096  # the most records of Parquet that are read
RECORD, TOKEN = 2048, 64  # bytes of Python objects per text that is being processed, and per token of it
LINE, ID_BYTES, LOGPROB = 90, 6, 12  # bytes: a line without tokens, a token id, its log-probability


class Seen(NamedTuple):
    """The sample of the input.

    texts: sequences of all good records. in_a_shard: records of the largest shard. records: good and bad ones, and true
    if they were counted and not estimated. scored: tokens with a log-probability. bad: bad records. id_bytes: mean
    bytes of an id and the kept fields as JSON.
    """

    texts: Prompts
    in_a_shard: int
    records: tuple[int, bool]
    scored: int
    bad: int
    id_bytes: float


def plan(job: ScoreJob, gpu_memory: int | None = None) -> JobPlan:
    """The plan of the job, see `plan_job`."""
    return plan_job("score", job, gpu_memory, task_of, _declared)


def _declared(task: ScoreTask, begun: Begun, gpu_memory: int) -> Declared:
    job, config, seen = task.job, task.config, _read(task, Sample(begun.cut))
    sizes, texts, mapped = config.sizes, seen.texts, mapped_weights(job.model)[1]
    shard = min(seen.in_a_shard, WINDOW)
    length = slot_length(max(texts.longest, 1), sizes.context)
    each = sizes.layers * bytes_a_sequence(sizes.heads, length, sizes.head_size, job.dtype)
    allowed = BATCH_MEMORY if job.batch_memory is None else job.batch_memory
    own = max(seen.scored / max(texts.count, 1), 1.0)  # tokens per text after a shared context
    slots = max(1, min(allowed // each, MAX_SLOTS, shard + 1, math.ceil(ROWS / own) + 2))
    mean = texts.tokens / max(texts.count, 1)
    rows = min(ROWS + texts.longest, max(1, round(shard * mean)))
    logits = min(LOGITS_BYTES, 4 * sizes.vocabulary * rows)
    weights = config.memory(job.dtype)
    parts = (
        program("score", job.input, job.output, model=job.model),
        Part("weights, prepared", weights.prepared),
        Part("weights file, while they are prepared", file_bytes(job.model) + widened(mapped) + weights.preparing,
             PREPARING),
        Part("compiling kernels, the first time", 0 if is_compiled(f"attention.*{job.dtype}*") else COMPILING, RUNNING),
        Part("keys and values", slots * each, RUNNING),
        Part("workspace and records", rows * (config.row_bytes(job.dtype) + 4 * sizes.width) + logits
             + round(shard * (RECORD + TOKEN * mean)), RUNNING),
        Part("embedding rows, mapped", 4 * sizes.vocabulary * sizes.width, RUNNING),
    )  # fmt: skip
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
        round(scored * scale), round((len(ids) - len(found)) * scale), float(np.mean(ids or [8])),
    )  # fmt: skip
