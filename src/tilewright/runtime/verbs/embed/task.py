"""The shards of `tilewright embed`, and the checks of a job against its model."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from tilewright.errors import InputError, counted
from tilewright.formats.embedding_lines import EmbeddingLines, error_line, error_row, open_texts
from tilewright.formats.embedding_modules import EmbeddingModules, embedding_modules
from tilewright.formats.images import array_header
from tilewright.formats.sentence_encoder import RaggedEncoder
from tilewright.models.bert_config import BertConfig
from tilewright.models.text_vectors import checked_size
from tilewright.runtime.forced_rungs import Idle, check_rungs
from tilewright.runtime.inputs import cut_lines
from tilewright.runtime.jobs.cut import Cut
from tilewright.runtime.jobs.directory import JobDirectory
from tilewright.runtime.jobs.ids import settle_ids
from tilewright.runtime.jobs.manifest import Value
from tilewright.runtime.jobs.stop import Stop
from tilewright.runtime.jobs.task import Place, Totals
from tilewright.runtime.load import config_of, encoder_tokenizer
from tilewright.runtime.reports import Say, quiet
from tilewright.runtime.verbs.embed.job import BATCH, EmbedJob, check_paths
from tilewright.runtime.verbs.embed.worker import EmbedWorker
from tilewright.runtime.verbs.encoders import check_encoder, encoder_sizing
from tilewright.runtime.verbs.records_task import AsParquet, RecordsTask, notices
from tilewright.switches import check_switches

NO_MEAN = {"pool": Idle("for a model whose vectors are no means", "its own pooling", "leave it out")}


def task_of(job: EmbedJob, say: Say = quiet, workers: int = 1) -> EmbedTask:
    """Check everything that can be checked before the work. Raises UsageError, InputError and ResourceError."""
    job = job.as_called()
    check_paths(job)
    check_switches("embed", job.settings.without, job.device, job.dtype)
    config = config_of(job.model, BertConfig)
    check_encoder(job, config)
    modules = embedding_modules(job.model, config.hidden_size)
    check_rungs("embed", job.settings.rungs, job.device, {} if "mean" in modules.poolings else NO_MEAN, config.calls)
    size = checked_size(job.dimensions, modules.size(config.hidden_size), "--dimensions")
    job.measure()
    kind = RowsTask if job.form == ".parquet" else ArrayTask if job.is_array else EmbedTask
    task = kind(job, config, modules, size, modules.prompt_of(job.prompt_name, job.prompt), say, workers)
    with closing(task.reader()) as reader:
        total = reader.total
        task.longest = task.encoder().length
        say(f"Checking input: {counted(*((reader.bytes, 'byte') if total is None else (total, 'text')))}...Done!")
    for notice in notices(job):
        say(notice)
    return task


@dataclass
class EmbedTask(RecordsTask):
    """The `Task` of an embed job.

    size: elements per vector. prompt: the text before each text. longest: the most tokens of a text.
    """

    job: EmbedJob
    config: BertConfig
    modules: EmbeddingModules
    size: int
    prompt: str
    say: Say = quiet
    workers: int = 1
    longest: int = 0

    def encoder(self) -> RaggedEncoder:
        """The encoder that turns the job's texts into token ids."""
        tokenizer = encoder_tokenizer(self.job.model, self.modules)
        found = self.config.encoder(tokenizer, prompt=self.prompt, longest=self.modules.longest)
        assert found is not None
        return found

    def reader(self, encoder: RaggedEncoder | None = None) -> EmbeddingLines:
        return open_texts(self.job.text, encoder=encoder or self.encoder(), vocabulary=self.config.vocab_size,
                          size=self.size, one_size=self.job.form != ".jsonl", count=self.job.count,
                          fields=self.job.fields)  # fmt: skip

    def fingerprint(self) -> dict[str, Value]:
        own = {"count": self.job.count, "dimensions": self.size, "prompt": self.prompt, "array": self.job.is_array}
        return self.job.fingerprint("embed") | own

    def cut(self, shard_size: int | None) -> Cut:
        sizing = encoder_sizing(self.config, self.job.device, BATCH).for_workers(self.workers)
        return cut_lines(self.job.text, self.job.count, shard_size, sizing)

    def open(self, place: Place) -> EmbedWorker:
        return EmbedWorker(self)

    def settle(self, directory: JobDirectory, stop: Stop) -> None:
        with closing(self.reader()) as reader:
            settle_ids(directory, reader, self.id_names, error_line, stop)


class RowsTask(AsParquet, EmbedTask):
    """An embed task with a Parquet output."""

    columns: ClassVar = {"embedding": "list<float32>", "error": "error"}


class ArrayTask(EmbedTask):
    """An embed task whose output is a .npy: one row per record; NaN for a bad record."""

    def header(self, totals: Totals) -> bytes:
        start = super().header(totals)
        if totals.size != 4 * self.size * totals.records:
            what = (
                f"the job's shards hold {totals.size:,} bytes, and {totals.records:,} rows of {self.size} were computed"
            )
            raise InputError(what, path=self.job.output, remedy="give --restart to compute them again")
        return start + array_header(totals.records, (self.size,))

    def settle(self, directory: JobDirectory, stop: Stop) -> None:
        with closing(self.reader()) as reader:
            settle_ids(directory, reader, self.id_names, error_row, stop, partial(_rows, 4 * self.size))


def _rows(row_bytes: int, shard: bytes) -> list[bytes]:
    return [shard[first : first + row_bytes] for first in range(0, len(shard), row_bytes)]
