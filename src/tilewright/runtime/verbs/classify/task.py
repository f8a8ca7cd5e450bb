"""The shards of `tilewright classify`, and the checks of a job against its model."""

from __future__ import annotations

from contextlib import closing, suppress
from dataclasses import dataclass, replace
from typing import ClassVar

from tilewright.errors import InputError, UsageError, counted
from tilewright.formats.course import TokenFile
from tilewright.formats.jsonl import error_line
from tilewright.formats.sentences import SentenceReader, open_sentences
from tilewright.models.bert_config import BertConfig
from tilewright.runtime.forced_rungs import Idle, check_rungs
from tilewright.runtime.inputs import SCAN_BYTES, Sizing, cut_lines, cut_rows
from tilewright.runtime.jobs.cut import Cut, Records
from tilewright.runtime.jobs.directory import JobDirectory
from tilewright.runtime.jobs.ids import settle_ids
from tilewright.runtime.jobs.manifest import Value
from tilewright.runtime.jobs.stop import Stop
from tilewright.runtime.jobs.task import Place
from tilewright.runtime.load import Classifier, config_of, has_tokenizer, tokenizer_of
from tilewright.runtime.reports import Say, quiet
from tilewright.runtime.text_inputs import check_has_ids
from tilewright.runtime.verbs.classify.job import BATCH, ClassifyJob, check_paths
from tilewright.runtime.verbs.classify.saved_table import KeptTable
from tilewright.runtime.verbs.classify.worker import ClassifyWorker
from tilewright.runtime.verbs.encoders import check_encoder, encoder_sizing
from tilewright.runtime.verbs.records_task import AsFolder, AsParquet, RecordsTask, notices
from tilewright.switches import check_switches

SIZING = {  # sentences per shard (a second or two of work), and the fewest with many workers
    "cpu": Sizing(4 * BATCH, BATCH),
    "cuda": Sizing(1 << 21, BATCH),
}
IDLE = {op: Idle("for a TextCNN", "embedding_conv1d and matmul", "leave it out, or use a BERT")
        for op in ("embedding", "layernorm", "attention")}  # fmt: skip
IDLE_BERT = {"embedding_conv1d": Idle("for a BERT", "embedding, layernorm, attention and matmul",
                                      "leave it out, or use a TextCNN")}  # fmt: skip


def task_of(job: ClassifyJob, say: Say = quiet, workers: int = 1) -> ClassifyTask:
    """Check everything that can be checked before the work. Raises UsageError, InputError and ResourceError."""
    job = _on_its_device(job).as_called()
    check_paths(job)
    kind = RowsTask if job.form == ".parquet" else FolderTask if job.is_folder else ClassifyTask
    check_switches("classify", job.settings.without, job.device, job.dtype)
    config = config_of(job.model, Classifier)
    idle = IDLE_BERT if isinstance(config, BertConfig) else IDLE
    check_rungs("classify", job.settings.rungs, job.device, idle, config.calls)
    if isinstance(config, BertConfig):
        check_classifier(job, config)
    job.measure()
    task = kind(job, config, say, workers)
    if not job.is_binary and not has_tokenizer(job.model):
        check_has_ids(job.text, job.model, '{"id": 7, "tokens": [1, 2]}', job.content_field)
    with closing(task.reader(SCAN_BYTES)) as reader:
        task.size, total, task.longest = reader.bytes, reader.total, reader.length
    say(f"Checking input: {counted(*((task.size, 'byte') if total is None else (total, 'sentence')))}...Done!")
    for notice in notices(job):
        say(notice)
    return task


def _on_its_device(job: ClassifyJob) -> ClassifyJob:
    """The job; if its device is "auto" and its model a BERT, with the device "cpu"."""
    if job.settings.device == "auto":
        with suppress(InputError, UsageError):  # later checks raise these again
            if isinstance(config_of(job.model), BertConfig):
                return replace(job, settings=replace(job.settings, device="cpu"))
    return job


def check_classifier(job: ClassifyJob, config: BertConfig) -> None:
    """For a BERT: raises UsageError or InputError for options of a TextCNN, and for missing files of the tokenizer."""
    config.check_classifier()
    if job.table_memory is not None or job.table_path:
        option = "--table-memory" if job.table_memory is not None else "--keep-table"
        raise UsageError(f"{option} is for a TextCNN's token table, and the model is a {config.model_type}",
                         remedy="leave it out")  # fmt: skip
    if job.settings.without:
        raise UsageError(parameter="--without", value=", ".join(sorted(job.settings.without)),
                         rule=f"it has no effect on a {config.model_type}", remedy="leave it out")  # fmt: skip
    if job.is_binary:
        raise UsageError(f"a {config.model_type} takes texts of any length, and a binary input has a fixed one",
                         path=job.input, remedy="give .txt, .jsonl or .parquet")  # fmt: skip
    check_encoder(job, config)


@dataclass
class ClassifyTask(RecordsTask):
    """The `Task` of a classify job.

    kept: the token table of an inline worker, which is saved at the end. longest: the most tokens of a text that the
    model reads.
    """

    job: ClassifyJob
    config: Classifier
    say: Say = quiet
    workers: int = 1
    size: int = 0
    kept: KeptTable | None = None
    longest: int = 0

    def reader(self, scan: int = 0) -> SentenceReader:
        """Open the input. scan: bytes of a binary input that are checked now."""
        config, job = self.config, self.job
        encoder = None if job.is_binary else config.encoder(tokenizer_of(job.model))
        return open_sentences(job.text, encoder=encoder, length=config.sequence_length, vocabulary=config.vocab_size,
                              count=job.count, scan=scan, fields=job.fields)  # fmt: skip

    def fingerprint(self) -> dict[str, Value]:
        return self.job.fingerprint("classify") | {"count": self.job.count}

    def cut(self, shard_size: int | None) -> Cut:
        sizing = SIZING[self.job.device]
        if isinstance(self.config, BertConfig):
            sizing = encoder_sizing(self.config, BATCH)
        sizing = sizing.for_workers(self.workers)
        if not self.job.is_binary:
            return cut_lines(self.job.text, self.job.count, shard_size, sizing)
        row = 4 * self.config.sequence_length
        return cut_rows(self.size // row, row, shard_size, sizing)

    def open(self, place: Place) -> ClassifyWorker:
        return ClassifyWorker(self, place)

    def settle(self, directory: JobDirectory, stop: Stop) -> None:
        if not isinstance(directory.manifest.cut, Records):
            with closing(self.reader()) as reader:
                assert not isinstance(reader, TokenFile)
                settle_ids(directory, reader, ("id",), error_line, stop)


class FolderTask(AsFolder, ClassifyTask):
    """A classify task whose output is a folder of JSON lines."""


class RowsTask(AsParquet, ClassifyTask):
    """A classify task with a Parquet output."""

    columns: ClassVar = {
        "label": "string", "score": "float64", "logits": "list<float32>", "error": "error",
    }  # fmt: skip
