"""The plan of `tilewright embed`: records, memory and disk of a job. See `runtime.plan`."""

from __future__ import annotations

from contextlib import closing
from itertools import islice
from typing import NamedTuple

import numpy as np

from tilewright.backends.footprint import ALWAYS, RUNNING, Part
from tilewright.formats.embedding_lines import TextBatch
from tilewright.formats.images import array_header
from tilewright.formats.record_fields import kept_bytes
from tilewright.formats.sentence_encoder import NO_TOKEN
from tilewright.runtime.begun import Begun
from tilewright.runtime.load import dense_weights, mapped_weights
from tilewright.runtime.plan import Declared, JobPlan, Outputs, Sample, plan_job, program
from tilewright.runtime.verbs.embed.job import EmbedJob
from tilewright.runtime.verbs.embed.task import EmbedTask, task_of
from tilewright.runtime.verbs.encoders import encoder_memory

SAMPLED = 1 << 16  # the most texts of the input whose token ids are read
LINE, NUMBER = 24, 12.5  # bytes of a JSON line without its id and elements; bytes per element


class Seen(NamedTuple):
    """The sample of the input.

    lengths: tokens per text. words: the number of different tokens. ids: mean bytes of an id and the kept fields as
    JSON.
    """

    lengths: np.ndarray
    words: int
    records: int
    sample: Sample
    ids: float


def plan(job: EmbedJob, gpu_memory: int | None = None) -> JobPlan:
    """The plan of the job; see `plan_job`."""
    return plan_job("embed", job, gpu_memory, task_of, _declared)


def _declared(task: EmbedTask, begun: Begun, gpu_memory: int) -> Declared:
    job, config, mapped = task.job, task.config, mapped_weights(task.job.model)[1]
    seen = _sample(task, Sample(begun.cut))
    records, counted = seen.sample.records(seen.records)
    batch = min(job.batch, records, seen.sample.in_a_shard())
    tokens = float(seen.lengths.mean()) if len(seen.lengths) else 0.0
    dense = sum(4 * array.size for array in dense_weights(task.modules).values())
    vectors = batch * 4 * (2 * task.modules.size(config.hidden_size) + task.size)
    text = 0 if job.is_array else batch * NUMBER * task.size
    parts = (
        program("embed", job.input, job.output, model=job.model),
        *encoder_memory(job, config, mapped, batch, seen.lengths, seen.words),
        Part("dense layers", dense, ALWAYS),
        Part("vectors of a batch", int(vectors + 2 * text), RUNNING),
    )
    return Declared(
        unit="texts", records=records, counted=counted, parts=parts,
        flops=float(records * config.flops(round(tokens))), outputs=_outputs(task, records, counted, seen.ids),
        figures={"batch": batch, "tokens_per_text": round(tokens, 1), "dimensions": task.size},
    )  # fmt: skip


def _sample(task: EmbedTask, sample: Sample) -> Seen:
    with closing(task.reader()) as reader:
        sample = Sample.of(reader.file, sample.cut)
        if sample.spans:
            reader.only(sample.lines(reader.file))
        batches = reader.batches(4096)
        found: list[TextBatch] = list(islice(batches, SAMPLED // 4096))
        rest = sum(len(batch) for batch in batches) if sample.spans else 0
    records = [record for batch in found for record in batch.records]
    said = [len(str(r.id)) + 2 * isinstance(r.id, str) + kept_bytes(r.kept) for r in records]
    lengths = np.concatenate([(batch.tokens != NO_TOKEN).sum(axis=1) for batch in found] or [np.zeros(0, int)])
    words = len(np.unique(np.concatenate([batch.tokens.ravel() for batch in found] or [np.zeros(0, np.int32)])))
    return Seen(lengths, words, len(records) + rest, sample, float(np.mean(said or [8])))


def _outputs(task: EmbedTask, records: int, counted: bool, ids: float) -> Outputs:
    """The bytes of the output and of its shards. A shard has 8 bytes per record to find repeated ids."""
    if task.job.is_array:
        size = 4 * task.size * records
        return Outputs(len(array_header(records, (task.size,))) + size, counted, size + 8 * records)
    lines = int(records * (LINE + ids + NUMBER * task.size))
    output = records * 4 * task.size if task.job.output.endswith(".parquet") else lines
    return Outputs(output, False, lines + 8 * records)
