"""The plan of `tilewright classify`: records, memory and disk of a job. See `runtime.plan`."""

from __future__ import annotations

import math
import os
from contextlib import closing
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from tilewright.backends.footprint import ALWAYS, CONTEXT, PREPARING, RUNNING, Part, cached, element_bytes, record_bytes
from tilewright.errors import ResourceError, UsageError
from tilewright.formats.course import TokenFile
from tilewright.formats.record_fields import kept_bytes
from tilewright.formats.records import RecordError
from tilewright.formats.sentence_encoder import NO_TOKEN
from tilewright.models.bert_config import BertConfig
from tilewright.models.textcnn import SIZES, TextCNNConfig
from tilewright.ops.embedding_conv1d.device_table import PRODUCT_TOKENS, RESERVE
from tilewright.ops.embedding_conv1d.token_table import PRODUCT_ROWS, capacity_of
from tilewright.runtime.begun import Begun
from tilewright.runtime.load import Classifier, mapped_weights
from tilewright.runtime.plan import (
    STRETCHES,
    Declared,
    JobPlan,
    Outputs,
    Sample,
    is_compiled,
    plan_job,
    program,
    share,
    widened,
)
from tilewright.runtime.verbs.classify.job import ClassifyJob
from tilewright.runtime.verbs.classify.task import ClassifyTask, task_of
from tilewright.runtime.verbs.encoders import COMPILING, PAGE, RECORD, encoder_memory

SAMPLED = 1 << 16  # the most sentences of the input whose token ids are read
LINE, LOGIT = 62, 13  # bytes of a JSON line without id and label; bytes per logit in it


class Seen(NamedTuple):
    """The sample of the input.

    ids: int32 (n, L), the token ids of some sentences; n is 0 if all sentences are bad. records: that the sample has.
    errors: of the bad ones among them. id_bytes: mean bytes of an id and the kept fields as JSON.
    """

    ids: np.ndarray
    records: int
    sample: Sample
    id_bytes: float = 0.0
    errors: tuple[RecordError, ...] = ()

    def noticed(self) -> dict[str, Any]:
        """The estimated number of bad records in the whole input, and the sample's first error, without line number."""
        scale = self.sample.records(self.records)[0] / max(self.records, 1)
        first = next((f"{e.field}: {e.message}".removeprefix(": ") for e in self.errors), None)
        return {"bad": round(len(self.errors) * scale), "first_bad": first}


class Table(NamedTuple):
    """The size of the token table. rows: expected rows. capacity: largest number of rows. row_bytes: bytes per row."""

    rows: int
    capacity: int
    row_bytes: int


def plan(job: ClassifyJob, gpu_memory: int | None = None) -> JobPlan:
    """The plan of the job; see `plan_job`. Also raises UsageError if the token table is switched off."""
    if "token-table" in job.settings.without:
        rule = "plan counts the work and the memory of a job with its token table only"
        raise UsageError(parameter="--without", value="token-table", rule=rule, remedy="leave it out")
    return plan_job("classify", job, gpu_memory, task_of, _declared)


def _declared(task: ClassifyTask, begun: Begun, gpu_memory: int) -> Declared:
    job, config, mapped = task.job, task.config, mapped_weights(task.job.model)[1]
    seen = _sample(task, Sample(begun.cut))
    records, counted = seen.sample.records(seen.records)
    batch = min(job.batch, records, seen.sample.in_a_shard())
    if isinstance(config, BertConfig):
        return _declared_bert(task, config, mapped, seen, batch)
    if job.device == "cpu":
        table = _table(task, config, seen.ids, share(records, begun.workers))
        parts = _memory(task, config, mapped, seen.ids, table, batch)
    else:
        table, parts = _on_gpu(task, config, gpu_memory)
    figures = {"table_rows": table.rows, "table_bytes": table.rows * table.row_bytes,
               "table_at_most": table.capacity * table.row_bytes} if table else {}  # fmt: skip
    return Declared(
        unit="sentences", records=records, counted=counted, parts=parts, flops=float(records * config.flops),
        outputs=_outputs(job, config, (records, counted), seen.id_bytes),
        figures={"token_table": table is not None, **figures, "batch": batch, **seen.noticed()},
    )  # fmt: skip


def _declared_bert(
    task: ClassifyTask, config: BertConfig, mapped: dict[str, np.ndarray], seen: Seen, batch: int
) -> Declared:
    job, (records, counted) = task.job, seen.sample.records(seen.records)
    lengths = (seen.ids != NO_TOKEN).sum(axis=1)
    tokens, words = float(lengths.mean()) if len(lengths) else 0.0, len(np.unique(seen.ids))
    parts = (
        program("classify", job.input, job.output, model=job.model),
        *encoder_memory(job, config, mapped, batch, lengths, words),
    )
    return Declared(
        unit="sentences", records=records, counted=counted, parts=parts,
        flops=float(records * config.flops(round(tokens))),
        outputs=_outputs(job, config, (records, counted), seen.id_bytes),
        figures={"token_table": False, "batch": batch, "tokens_per_text": round(tokens, 1), **seen.noticed()},
    )  # fmt: skip


def _sample(task: ClassifyTask, sample: Sample) -> Seen:
    with closing(task.reader(0)) as reader:
        if isinstance(reader, TokenFile):
            count = min(reader.total, SAMPLED)
            each, stretches = -(-count // STRETCHES), STRETCHES if count < reader.total else 1
            spans = [(reader.total - each) * i // (STRETCHES - 1) for i in range(stretches)] if stretches > 1 else [0]
            each = each if stretches > 1 else count
            batches = [b.tokens for first in spans for b in reader.batches(each, range(first, first + each))]
            ids = np.concatenate(batches)
            return Seen(ids, len(ids), sample)
        sample = Sample.of(reader.file, sample.cut)
        if sample.spans:
            reader.only(sample.lines(reader.file))
        all_batches = reader.batches(4096)
        found = list(islice(all_batches, SAMPLED // 4096))
        more = [record for batch in all_batches for record in batch.records or ()] if sample.spans else []
    records = [record for batch in found for record in batch.records or ()]
    errors = tuple(record.error for record in (*records, *more) if record.error is not None)
    said = [len(str(r.id)) + 2 * isinstance(r.id, str) + kept_bytes(r.kept) for r in records]
    bad = len(records) - sum(len(batch.tokens) for batch in found)
    widest = max((batch.tokens.shape[1] for batch in found), default=task.config.sequence_length)
    ids = np.concatenate([_wide(batch.tokens, widest) for batch in found] or [np.zeros((0, widest), np.int32)])
    ids = np.pad(ids, ((0, bad), (0, 0)), mode="edge") if len(ids) else ids
    return Seen(ids, len(records) + len(more), sample, float(np.mean(said or [8])), errors)


def _wide(tokens: np.ndarray, columns: int) -> np.ndarray:
    """Pad rows of token ids, int32 (n, L), to (n, columns) with NO_TOKEN."""
    return np.pad(tokens, ((0, 0), (0, columns - tokens.shape[1])), constant_values=NO_TOKEN)


def _table(task: ClassifyTask, config: TextCNNConfig, ids: np.ndarray, records: int) -> Table | None:
    """The size of the token table on a CPU; None if the forced rung does not use one.

    The number of rows is that of the sample plus an estimate for the rest of the input: the Good-Turing estimate, which
    uses the number of rows that occur once in the sample. Raises ResourceError if the table's memory does not hold the
    rows of one sentence.
    """
    job = task.job
    if not config.memory(job.dtype).entry:
        return None
    capacity, row_bytes = capacity_of(
        config.vocab_size, config.num_filters, tuple(config.kernel_sizes), length=config.sequence_length,
        memory=job.table_memory,
    )  # fmt: skip
    rows = 0.0
    ids = ids[:records]
    for K in config.kernel_sizes:
        positions = config.sequence_length - K + 1
        for tap in range(K):
            counts = np.bincount(ids[:, tap : tap + positions].reshape(-1), minlength=config.vocab_size)
            unread = (records - len(ids)) / max(len(ids), 1)
            rows += min(config.vocab_size, int((counts > 0).sum()) + int((counts == 1).sum()) * unread)
    saved = os.path.getsize(job.table_path) // row_bytes if job.table_path and os.path.isfile(job.table_path) else 0
    return Table(min(capacity, int(rows) + saved), capacity, row_bytes)


def _memory(
    task: ClassifyTask,
    config: TextCNNConfig,
    mapped: dict[str, np.ndarray],
    ids: np.ndarray,
    table: Table | None,
    batch: int,
) -> tuple[Part, ...]:
    job = task.job
    C, V, L, prepared = config.hidden_size, config.vocab_size, config.sequence_length, config.memory(job.dtype).prepared
    first = {name: array for name, array in mapped.items() if not name.startswith("linears.")}
    copies = sum(4 * array.size for array in first.values() if array.dtype != np.float32)
    stored = {name: array.nbytes for name, array in mapped.items()}
    embedding = 0 if copies else min(4 * V * C, len(np.unique(ids)) * max(4 * C, PAGE) + PAGE)
    products = min(V, PRODUCT_ROWS) * 4 * config.num_filters + sum(config.kernel_sizes) * V * 15
    work = min(*SIZES["cpu"], batch) * config.between_bytes(job.dtype) + batch * L * 12 + products
    lines = 0 if job.is_binary else batch * (RECORD + 12 * L)
    rest = sum(stored.values()) - stored["embedding.weight"]
    return (
        program("classify", job.input, job.output, model=None if job.is_binary else job.model),
        Part("compiling kernels, the first time", 0 if _compiled(job) else COMPILING),
        Part("weights, prepared", prepared + copies + widened(mapped), ALWAYS),
        Part("weights file, while they are prepared", max(rest, max(stored.values()) - prepared), PREPARING),
        Part("token table", table.rows * table.row_bytes if table else 0, RUNNING),
        Part("embedding rows, mapped", embedding, RUNNING),
        Part("batch and records", work + lines, RUNNING),
    )


def _on_gpu(task: ClassifyTask, config: TextCNNConfig, memory: int) -> tuple[Table, tuple[Part, ...]]:
    """The token table on a GPU, which allocates all rows at once, and the GPU's memory.

    Raises ResourceError if the memory does not hold the rows of one sentence.
    """
    job = task.job
    V, O, taps = config.vocab_size, config.num_filters, sum(config.kernel_sizes)
    weights = config.memory(job.dtype, "cuda")
    embedding = 4 * V * config.hidden_size
    free = memory - CONTEXT - embedding - weights.prepared
    most = max(free - RESERVE, free // 2) if job.table_memory is None else job.table_memory
    capacity = max(0, min(V, most // weights.entry))
    if capacity < min(config.sequence_length, V):
        raise ResourceError(
            f"a token table of {max(0, most):,} bytes holds the rows of {capacity} tokens; a sentence has "
            f"{config.sequence_length}",
            remedy=f"allow at least {config.sequence_length * weights.entry:,} bytes (--table-memory), or take a GPU "
            "with more memory",
        )
    products = min(PRODUCT_TOKENS, V) * taps * O * element_bytes(job.dtype)  # of new tokens with all filters
    left = free - capacity * weights.entry
    sizes = SIZES["cuda"]
    while len(sizes) > 1 and _graphs(config, job.dtype, sizes) > left:  # the backend omits batch sizes in the same way
        sizes = sizes[:-1]
    return Table(capacity, capacity, weights.entry), (
        Part("CUDA", CONTEXT),
        Part("weights", weights.prepared + embedding),
        Part("weights, while they are prepared", weights.preparing, PREPARING),
        Part("token table", capacity * weights.entry, RUNNING),
        Part("batches", _graphs(config, job.dtype, sizes), RUNNING),
        Part("products for new tokens", products, RUNNING),
    )


def _graphs(config: TextCNNConfig, dtype: str, sizes: tuple[int, ...]) -> int:
    """Bytes for the batches on a GPU, by batch size: inputs and outputs (a slot), and the buffers of its CUDA graph.

    They include what PyTorch's allocator keeps of the calls that compiled the kernels, before the graphs were captured.
    """
    inputs, outputs = config.operands
    between = [size * config.between_bytes(dtype, "cuda") for size in sizes]
    return sum(sizes) * record_bytes([*inputs, *outputs]) + sum(between) + cached(between)


def _compiled(job: ClassifyJob) -> bool:
    return is_compiled("embedding_conv1d.*", f"gemm.pack_{'panels' if job.dtype == 'float32' else 'words'}.*")


def _outputs(job: ClassifyJob, config: Classifier, records: tuple[int, bool], id_bytes: float) -> Outputs:
    count, counted = records
    if job.is_binary:
        size = 4 * config.num_labels * count
        return Outputs(size, counted, size)
    labels = [len(config.label(i)) for i in range(config.num_labels)]
    line = LINE + LOGIT * config.num_labels + math.ceil(sum(labels) / len(labels)) + id_bytes
    size = round(count * line)
    return Outputs(size, False, size + 8 * count)
