"""What `tilewright classify` would take; see `plan`."""

from __future__ import annotations

import math
import os
from contextlib import closing
from itertools import islice, pairwise
from typing import Any

import numpy as np

from tilewright.formats.course import TokenFile
from tilewright.models.textcnn import SIZES, TextCNNConfig
from tilewright.ops import embedding_conv1d
from tilewright.ops.embedding_conv1d.token_table import PRODUCT_ROWS, capacity_of
from tilewright.runtime.load import mapped_weights
from tilewright.runtime.plan import (
    ALWAYS,
    PREPARING,
    PROGRAM,
    RUNNING,
    STRETCHES,
    Begun,
    JobPlan,
    Outputs,
    Part,
    begun_of,
    counted_in,
    is_compiled,
    matrix_memory,
    plan_of,
    sample_lines,
    share,
)  # fmt: skip
from tilewright.runtime.verbs.classify.job import ClassifyJob
from tilewright.runtime.verbs.classify.task import ClassifyTask, task_of

COMPILING = 92 << 20  # what LLVM keeps after it has compiled the verb's kernels (measured: Numba 0.68, x86-64)
SAMPLED = 1 << 16  # sentences whose token ids are looked at, of lines, a binary input or rows of Parquet
RECORD = 1500  # bytes of Python objects for a line on its way
LINE, LOGIT = 62, 13  # bytes of a line of JSON without id and label, and of a logit in it
PAGE = 4096


def plan(job: ClassifyJob) -> JobPlan:
    """What the job would take. Raises what `classify` does before its first shard."""
    task = task_of(job)
    job, config = task.job, task.config
    begun = begun_of(task, job.settings, job.output, job.device)
    weights = mapped_weights(job.model)[1]
    ids, seen, part, id_bytes = _sample(task, begun)
    records = counted_in(begun.cut, seen, part)
    table = _table(task, ids, share(records[0], begun.workers))
    return plan_of(
        "classify", task, "sentences", records, _memory(task, weights, ids, table, records[0]),
        _outputs(job, config, records, id_bytes), begun=begun, token_table=table is not None,
        **({"table_rows": table[0], "table_bytes": table[0] * table[2], "table_at_most": table[1] * table[2]} if table
           else {}), batch=min(job.batch, records[0]),
    )  # fmt: skip


def _sample(task: ClassifyTask, begun: Begun) -> tuple[np.ndarray, int, float, float]:
    """(ids int32 (n, L) of some sentences, the records looked at, the share of the input that these are, bytes of an id
    as JSON). n is 0 where all that were looked at are bad, and less than the records where there are very many."""
    with closing(task.reader(0)) as reader:
        if isinstance(reader, TokenFile):
            count = min(reader.total, SAMPLED)
            each, places = -(-count // STRETCHES), STRETCHES if count < reader.total else 1
            spans = [(reader.total - each) * i // (STRETCHES - 1) for i in range(places)] if places > 1 else [0]
            each = each if places > 1 else count
            batches = [b.tokens for first in spans for b in reader.batches(each, range(first, first + each))]
            ids = np.concatenate(batches)
            return ids, len(ids), len(ids) / reader.total, 0.0
        lines, part = sample_lines(reader.file, begun.cut)
        if lines is not None:
            reader.only(lines)
        all_batches = reader.batches(4096)
        found = list(islice(all_batches, SAMPLED // 4096))
        rest = 0 if lines is None else sum(len(batch.records or ()) for batch in all_batches)
    records = [record for batch in found for record in batch.records or ()]
    said = [2 + len(record.id) if isinstance(record.id, str) else len(str(record.id)) for record in records]
    bad = len(records) - sum(len(batch.tokens) for batch in found)
    ids = np.concatenate([batch.tokens for batch in found] or [np.zeros((0, task.config.sequence_length), np.int32)])
    ids = np.pad(ids, ((0, bad), (0, 0)), mode="edge") if len(ids) else ids
    return ids, len(records) + rest, part, float(np.mean(said or [8]))


def _table(task: ClassifyTask, ids: np.ndarray, records: int) -> tuple[int, int, int] | None:
    """(rows that the token table will have, most rows that it holds, bytes of a row); None: the rung has none.

    Rows are those of the sample, and those that the rest may bring: as likely as one that the sample has once (Good and
    Turing's estimate). Raises ResourceError as `TokenTable` does.
    """
    config, job = task.config, task.job
    problem = _problem(task)
    if job.device != "cpu" or embedding_conv1d.ladder.choose(problem).name == "cpu.gather":
        return None
    capacity, row_bytes = capacity_of(
        config.vocab_size, config.num_filters, problem.kernels, length=config.sequence_length, memory=job.table_memory
    )
    rows = 0.0
    ids = ids[:records]
    for K in config.kernel_sizes:
        positions = config.sequence_length - K + 1
        for tap in range(K):
            counts = np.bincount(ids[:, tap : tap + positions].reshape(-1), minlength=config.vocab_size)
            unread = (records - len(ids)) / max(len(ids), 1)
            rows += min(config.vocab_size, int((counts > 0).sum()) + int((counts == 1).sum()) * unread)
    kept = os.path.getsize(job.table_path) // row_bytes if job.table_path and os.path.isfile(job.table_path) else 0
    return min(capacity, int(rows) + kept), capacity, row_bytes


def _problem(task: ClassifyTask) -> embedding_conv1d.Problem:
    """The first layer's problem on the CPU."""
    config = task.config
    return embedding_conv1d.Problem(config.hidden_size, config.num_filters, tuple(config.kernel_sizes), task.job.dtype)


def _memory(task: ClassifyTask, weights: Any, ids: np.ndarray, table: Any, records: int) -> tuple[Part, ...]:
    config, job = task.config, task.job
    C, O, V, L = config.hidden_size, config.num_filters, config.vocab_size, config.sequence_length
    groups, batch = sum(config.kernel_sizes), min(job.batch, records)
    widths = (O * len(config.kernel_sizes), *config.hidden_sizes, config.num_labels)
    linears = sum(matrix_memory(K, N, job.dtype).prepared for K, N in pairwise(widths))
    filters = embedding_conv1d.ladder.choose(_problem(task)).memory_for(_problem(task)).prepared
    first = {name: array for name, array in weights.items() if not name.startswith("linears.")}
    copies = sum(4 * array.size for array in first.values() if array.dtype != np.float32)
    widened = sum(4 * array.size for array in weights.values() if array.dtype == np.float16)
    stored = {name: array.nbytes for name, array in weights.items()}
    embedding = 0 if copies else min(4 * V * C, len(np.unique(ids)) * max(4 * C, PAGE) + PAGE)
    work = min(*SIZES["cpu"], batch) * 4 * sum(widths) + batch * L * 12 + min(V, PRODUCT_ROWS) * 4 * O + groups * V * 15
    lines = 0 if job.is_binary else batch * (RECORD + 12 * L)
    rest = sum(stored.values()) - stored["embedding.weight"]
    return (
        Part("program", PROGRAM),
        Part("compiling kernels, the first time", 0 if _compiled(job) else COMPILING),
        Part("weights, prepared", filters + linears + copies + widened, ALWAYS),
        Part("weights file, while they are prepared", max(rest, max(stored.values()) - filters - linears), PREPARING),
        Part("token table", table[0] * table[2] if table else 0, RUNNING),
        Part("embedding rows, mapped", embedding, RUNNING),
        Part("batch and records", work + lines, RUNNING),
    )


def _compiled(job: ClassifyJob) -> bool:
    return is_compiled("embedding_conv1d.*", f"gemm.pack_{'panels' if job.dtype == 'float32' else 'words'}.*")


def _outputs(job: ClassifyJob, config: TextCNNConfig, records: tuple[int, bool], id_bytes: float) -> Outputs:
    count, counted = records
    if job.is_binary:
        size = 4 * config.num_labels * count
        return Outputs(size, counted, size)
    labels = [len(config.label(i)) for i in range(config.num_labels)]
    line = LINE + LOGIT * config.num_labels + math.ceil(sum(labels) / len(labels)) + id_bytes
    size = round(count * line)
    return Outputs(size, False, size + 8 * count)
