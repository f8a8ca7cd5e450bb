"""The job of `tilewright classify`: sentences in, labels or logits out, shard by shard."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from typing import ClassVar

import msgspec
import numpy as np

from tilewright.errors import InputError, UsageError
from tilewright.formats.course import LogitsWriter, TokenFile
from tilewright.formats.files import InputFile
from tilewright.formats.jsonl import LabelWriter
from tilewright.formats.records import Batch, RecordError
from tilewright.formats.sentence_encoder import encoder_for
from tilewright.formats.sentences import SentenceReader, open_sentences
from tilewright.formats.validate import TOLERANCE, validate
from tilewright.models.textcnn import TextCNN, TextCNNConfig
from tilewright.runtime.devices import gpu_faults, place_for
from tilewright.runtime.fingerprint import Around, files_of, fingerprint
from tilewright.runtime.inputs import SCAN_BYTES, Sizing, cut_lines, cut_rows
from tilewright.runtime.jobs import trace
from tilewright.runtime.jobs.cut import Cut, Records, Shard
from tilewright.runtime.jobs.directory import Attempt, JobDirectory
from tilewright.runtime.jobs.ids import settle_ids
from tilewright.runtime.jobs.manifest import Value
from tilewright.runtime.jobs.start import Settings, quiet, start
from tilewright.runtime.jobs.stop import Stop
from tilewright.runtime.jobs.task import Beat, Place, Totals
from tilewright.runtime.jobs.unchanged import AsBegun
from tilewright.runtime.kernel_cache import compiling_told
from tilewright.runtime.load import config_of, has_tokenizer, read_weights, tokenizer_of
from tilewright.runtime.load import place as placed
from tilewright.runtime.outputs import AsParquet, check_output
from tilewright.runtime.reports import Report, Say, phase
from tilewright.runtime.text_inputs import check_has_ids
from tilewright.runtime.verbs.classify.saved_table import KeptTable

BATCH = 16384  # sentences handed to the model at once: rows of the token table are then computed in large products
TEXT = (".jsonl", ".txt", ".parquet")  # of all others, a file holds the course's binary tokens
SIZING = {  # sentences a shard: a second or two of work; and the fewest, where there are many workers
    "cpu": Sizing(4 * BATCH, BATCH),
    "cuda": Sizing(1 << 21, BATCH),
}


@dataclass
class ClassifyJob:
    """What to classify. Files named .jsonl hold JSON lines, .txt a sentence a line, all others the course's layout; an
    output is JSON lines where the input is text, else binary.

    count: sentences from the start (None: all). batch: sentences a batch; it changes no bits. A binary file has no
    place for an error, so its first bad record ends the job. device: "cpu", "cuda" or "auto". table_memory: bytes.
    table_path: where to keep the token table. answers: a reference to compare the output with, within `tolerance`.
    settings: how it is run.
    """

    model: str
    input: str
    output: str
    count: int | None = None
    dtype: str = "float32"
    device: str = "cpu"
    table_memory: int | None = None
    table_path: str | None = None
    batch: int = BATCH
    answers: str | None = None
    tolerance: float = TOLERANCE
    settings: Settings = field(default_factory=Settings)

    @property
    def is_binary(self) -> bool:
        return not self.input.endswith(TEXT)


@dataclass
class ClassifyReport(Report):
    """cut: texts that have more tokens than the model takes: what is behind those was not read."""

    cut: int = 0


def classify(job: ClassifyJob, say: Say = quiet) -> ClassifyReport:
    """Runs the job. `say` gets a line for each phase.

    Raises UsageError, InputError, ResourceError, InternalError (more bad records than allowed) and Interrupted; in each
    case an earlier output is untouched, what is done is kept, and the same call goes on. Everything that can be checked
    before the work starts is.
    """
    report = ClassifyReport()
    made: list[ClassifyTask] = []

    def make(speak: Say, _: int) -> ClassifyTask:
        made.append(task_of(job, speak))
        return made[0]

    figures = start(make, job.output, job.settings, report, device=job.device, unit="sentences", say=say)
    if not report.lead:
        return report
    report.cut = int(figures.get("cut", 0))
    spent = report.seconds
    if report.computed:
        say(f"Classifying {report.computed:,} sentences...Done! ({spent.get('run', 0.0):.3f} sec)")
        say(f"Writing output...Done! ({spent.get('write', 0.0) + spent['merge']:.3f} sec)")
    if report.cut:
        length = f"the model's {made[0].config.sequence_length} tokens"
        say(f"{report.cut:,} of {report.records:,} sentences are longer than {length} and were cut")
    if made[0].kept:  # after the output: a full disk here costs the table, not the answers
        with phase(report, "table", say, "Keeping token table"):
            made[0].kept.save()
    if job.answers:
        with phase(report, "validate"):
            report.validation = validate(
                job.output,
                job.answers,
                tolerance=job.tolerance,
                columns=made[0].config.num_labels,
                prefix=job.count is not None,
            )
    return report


def task_of(job: ClassifyJob, say: Say = quiet) -> ClassifyTask:
    """Everything that can be checked before the work is. Raises UsageError, InputError and ResourceError."""
    job = replace(job, device=place_for(job.device, job.dtype))
    _check_paths(job)
    kind = RowsTask if job.output.endswith(".parquet") else ClassifyTask
    task = kind(job, config_of(job.model, TextCNNConfig), Around.here(), say)
    if not job.is_binary and not has_tokenizer(job.model):
        check_has_ids(job.input, job.model, '{"id": 7, "tokens": [1, 2]}')
    with closing(task.reader(SCAN_BYTES)) as reader:
        task.size, total = reader.bytes, reader.total
    say(f"Checking input: {f'{task.size:,} bytes' if total is None else f'{total:,} sentences'}...Done!")
    return task


def _check_paths(job: ClassifyJob) -> None:
    check_output(job)
    if job.output.endswith(".txt") or job.is_binary == job.output.endswith((".jsonl", ".parquet")):
        text = ".jsonl or .parquet"
        if job.is_binary:
            raise UsageError("an input of that name is binary, and the output would not be", path=job.input,
                             hint=f"name text .txt, {text}; of binary token ids the output is no {text}")  # fmt: skip
        raise UsageError("the input is text and the output would not be", path=job.output, hint=f"name it {text}")
    if job.table_path and job.device != "cpu":
        raise UsageError(
            "--keep-table is for the CPU's token table: a GPU's is made again in less time than it is read"
        )
    if job.settings.max_errors and job.is_binary:
        raise UsageError("--max-errors needs a .jsonl input: a binary output has no place for the error of a record")
    if job.answers and job.output.endswith(".parquet"):
        raise UsageError("a Parquet output is compared with nothing", path=job.output, hint="write .jsonl")
    if job.answers:
        InputFile(job.answers, "answers").close()


@dataclass
class ClassifyTask:
    """A `Task`. kept: the token table of an inline worker, to be saved at the end."""

    job: ClassifyJob
    config: TextCNNConfig
    around: Around
    say: Say = quiet
    workers: int = 1
    size: int = 0
    kept: KeptTable | None = None

    def reader(self, scan: int = 0) -> SentenceReader:
        """scan: bytes of a binary input that are checked now."""
        config, job = self.config, self.job
        encoder = None if job.is_binary else encoder_for(tokenizer_of(job.model), config)
        return open_sentences(job.input, encoder=encoder, length=config.sequence_length, vocabulary=config.vocab_size,
                              count=job.count, scan=scan)  # fmt: skip

    def fingerprint(self) -> dict[str, Value]:
        return fingerprint("classify", self.job, self.around) | {"count": self.job.count}

    def files(self) -> dict[str, str]:
        return files_of(self.job)

    def cut(self, shard_size: int | None) -> Cut:
        sizing = SIZING[self.job.device].for_workers(self.workers)
        if not self.job.is_binary:
            return cut_lines(self.job.input, self.job.count, shard_size, sizing)
        row = 4 * self.config.sequence_length
        return cut_rows(self.size // row, row, shard_size, sizing)

    def open(self, place: Place) -> ClassifyWorker:
        return ClassifyWorker(self, place)

    def header(self, totals: Totals) -> bytes:
        if totals.records == 0:
            raise InputError("the input holds 0 records", path=self.job.input)
        return b""

    def settle(self, directory: JobDirectory, stop: Stop) -> None:
        if not isinstance(directory.manifest.cut, Records):
            with InputFile(self.job.input, "input") as file:
                settle_ids(directory, file, ("id",), _error_line, stop)


class RowsTask(AsParquet, ClassifyTask):
    """Whose output is a Parquet file."""

    columns: ClassVar = {
        "label": "string", "score": "float64", "logits": "list<float32>", "error": "error",
    }  # fmt: skip


def _error_line(said: bytes, error: RecordError) -> bytes:
    return msgspec.json.encode({"id": msgspec.json.decode(said)["id"], "error": error}) + b"\n"


class ClassifyWorker:
    """Loads the model, then classifies shards with it."""

    def __init__(self, task: ClassifyTask, at: Place) -> None:
        self.task, self.job, self.at = task, task.job, at
        self.report = Report()
        self.kept: KeptTable | None = None
        with ExitStack() as stack:
            stack.enter_context(task.around.entered())
            if self.job.device != "cpu":
                stack.enter_context(gpu_faults())
            self.reader = stack.enter_context(closing(task.reader()))
            with compiling_told(task.say):
                self.model = self._load(task.say)
            self.open = stack.pop_all()

    def _load(self, say: Say) -> TextCNN:
        job, report = self.job, self.report
        began = AsBegun.of({name: path for name, path in files_of(job).items() if name != "input"})
        with phase(report, "load", say, "Loading weights"):
            config, weights = read_weights(job.model)
        with phase(report, "prepare", say, "Preparing model"):
            model = placed(config, weights, dtype=job.dtype, device=job.device, table_memory=job.table_memory)
        with phase(report, "compile", say, "Compiling or loading kernels"):
            model.logits(np.zeros((1, config.sequence_length), np.int32))
        if job.table_path:
            with phase(report, "table", say, "Loading token table"):
                self.kept = KeptTable(model, job.table_path, began)
            if job.settings.is_inline:
                self.task.kept = self.kept
        return model

    def run(self, shard: Shard, out: Attempt, beat: Beat) -> int:
        """See `task.Worker`."""
        first = shard.rows.start if isinstance(shard.cut, Records) else 0
        writer = LogitsWriter(out, first) if self.job.is_binary else LabelWriter(out, self.model.answer)
        records, cut, share = 0, 0, None
        for batch in self._batches(shard, beat):
            beat(records, share)
            with trace.span(trace.COMPUTE), phase(self.report, "run"):
                logits = self._logits(batch.tokens)
            with trace.span(trace.WRITE), phase(self.report, "write"):
                for error in [*batch.errors, *writer.write(batch, logits)]:
                    out.error(error)
            records, cut, share = records + len(batch), cut + batch.cut, shard.share(batch.end)
        if not isinstance(self.reader, TokenFile):
            out.notes += b"".join(hashes.tobytes() for hashes in self.reader.hashes)
        out.figures = self.report.take_seconds() | {"cut": cut}
        return records

    def _batches(self, shard: Shard, beat: Beat) -> Iterator[Batch]:
        size = 1 if shard.alone else self.job.batch
        if isinstance(self.reader, TokenFile):
            found = self.reader.batches(size, shard.rows)
        else:
            self.reader.only(shard.lines(self.reader.file))
            found = self.reader.batches(size)
        skip, row = dict(shard.skip), shard.rows.start if isinstance(shard.cut, Records) else 0
        while True:
            with trace.span(trace.READ), phase(self.report, "read"):
                batch = next(found, None)
            if batch is None:
                return
            if shard.alone:
                record = batch.records[0].line if batch.records else row
                batch, row = self._alone(batch, record, skip, beat), row + 1
            yield batch

    def _alone(self, batch: Batch, record: int, skip: dict[int, str], beat: Beat) -> Batch:
        """A batch of one record, of which a worker may have died."""
        if record not in skip:
            beat.at(record)
            return batch
        if batch.records is None:
            raise InputError(f"sentence {record} (from 0) cannot be classified: {skip[record]}", path=self.job.input)
        bad = replace(batch.records[0], error=batch.records[0].error or RecordError(record, "", skip[record]))
        return Batch(batch.tokens[:0], batch.end, [bad])

    def _logits(self, tokens: np.ndarray) -> np.ndarray:
        """The batch's logits, in smaller parts if a GPU's memory does not suffice."""
        if not len(tokens):
            return self.model.logits(tokens)

        def parts(size: int) -> np.ndarray:
            ends = range(0, len(tokens), size)
            return np.concatenate([self.model.logits(tokens[first : first + size]) for first in ends])

        return self.model.backend.halving(parts, len(tokens))

    def close(self) -> None:
        """No more shards come."""
        self.open.close()
        if self.kept and not self.job.settings.is_inline and self.at.number == 0:
            self.kept.save()
