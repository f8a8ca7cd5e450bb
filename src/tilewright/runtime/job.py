"""A job: input streamed in batches, one pure function, output that appears when it is whole."""

from __future__ import annotations

import time
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace

import numpy as np

from tilewright.errors import UsageError
from tilewright.formats.atomic import AtomicFile
from tilewright.formats.course import LogitsWriter, TokenFile
from tilewright.formats.files import InputFile
from tilewright.formats.jsonl import LabelWriter, TokenLines
from tilewright.formats.records import Batch
from tilewright.formats.validate import TOLERANCE, validate
from tilewright.models.textcnn import TextCNN, TextCNNConfig
from tilewright.runtime.devices import gpu_faults, halving, place_for
from tilewright.runtime.kept_table import KeptTable
from tilewright.runtime.load import config_of, place, read_weights
from tilewright.runtime.outputs import check_output
from tilewright.runtime.progress import Progress
from tilewright.runtime.reports import Report, Say, count_errors, phase
from tilewright.runtime.signals import stoppable

BATCH = 16384  # sentences handed to the model at once: rows of the token table are then computed in large products


@dataclass
class ClassifyJob:
    """What to classify. Files named .jsonl hold JSON lines, all others the course's layout; input and output agree.

    count: sentences from the start (None: all). batch: sentences a batch; it changes no bits. max_errors: bad records
    allowed, None: any number; a binary file has no place for an error, so its first bad record ends the job.
    device: "cpu", "cuda" or "auto". table_memory: bytes. table_path: where to keep the token table. answers: a
    reference to compare the output with, within `tolerance`.
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
    max_errors: int | None = None
    answers: str | None = None
    tolerance: float = TOLERANCE

    @property
    def is_jsonl(self) -> bool:
        return self.input.endswith(".jsonl")


def classify(job: ClassifyJob, say: Say = lambda text: None) -> Report:
    """Runs the job. `say` gets a line for each phase.

    Raises UsageError, InputError, ResourceError, InternalError (more bad records than `max_errors`) and Interrupted;
    in each case an earlier output is untouched. Everything that can be checked before the work starts is.
    """
    job = replace(job, device=place_for(job.device))
    _check_paths(job)
    report, start = Report(), time.perf_counter()
    with stoppable() as stop, nullcontext() if job.device == "cpu" else gpu_faults():
        config = config_of(job.model, TextCNNConfig)
        with phase(report, "check"):
            reader = _open_input(job, config)
        say(f"Checking input: {_described(reader)}...Done! ({report.seconds['check']:.3f} sec)")
        with closing(reader), AtomicFile(job.output) as file:
            model = _load(job, report, say)
            kept = _open_table(job, report, model, say)
            writer = LabelWriter(file, model.answer) if job.is_jsonl else LogitsWriter(file)
            with Progress("sentences", total=reader.total, size=reader.bytes) as progress:
                for batch in reader.batches(job.batch):
                    stop.check()
                    _run(job, report, model, writer, batch)
                    progress.update(report.records, batch.end)
            say(f"Classifying {report.records:,} sentences...Done! ({report.seconds.get('run', 0.0):.3f} sec)")
            computed = time.perf_counter()
        report.seconds["write"] = report.seconds.get("write", 0.0) + time.perf_counter() - computed  # fsync and rename
        say(f"Writing output...Done! ({report.seconds['write']:.3f} sec)")
        if kept:  # after the output: a full disk here costs the table, not the answers
            with phase(report, "table", say, "Keeping token table"):
                kept.save()
    return _finish(job, report, config.num_labels, start)


def _check_paths(job: ClassifyJob) -> None:
    if job.is_jsonl != job.output.endswith(".jsonl"):
        kind = "JSON lines" if job.is_jsonl else "binary"
        raise UsageError(
            f"the input is {kind} and the output would not be; name both .jsonl or neither", path=job.output
        )
    check_output(job)
    if job.table_path and job.device != "cpu":
        raise UsageError(
            "--keep-table is for the CPU's token table: a GPU's is made again in less time than it is read"
        )
    if job.max_errors and not job.is_jsonl:
        raise UsageError("--max-errors needs a .jsonl input: a binary output has no place for the error of a record")


def _open_input(job: ClassifyJob, config: TextCNNConfig) -> TokenFile | TokenLines:
    kind = TokenLines if job.is_jsonl else TokenFile
    if job.answers:
        InputFile(job.answers, "answers").close()
    return kind(job.input, length=config.sequence_length, vocabulary=config.vocab_size, count=job.count)


def _described(reader: TokenFile | TokenLines) -> str:
    return f"{reader.bytes:,} bytes" if reader.total is None else f"{reader.total:,} sentences"


def _load(job: ClassifyJob, report: Report, say: Say) -> TextCNN:
    with phase(report, "load", say, "Loading weights"):
        config, weights = read_weights(job.model)
    with phase(report, "prepare", say, "Preparing model"):
        model = place(config, weights, dtype=job.dtype, device=job.device, table_memory=job.table_memory)
    with phase(report, "compile", say, "Compiling kernels"):  # or fetching them from the disk
        model.logits(np.zeros((1, config.sequence_length), np.int32))
    return model


def _open_table(job: ClassifyJob, report: Report, model: TextCNN, say: Say) -> KeptTable | None:
    if not job.table_path:
        return None
    with phase(report, "table", say, "Loading token table"):
        return KeptTable(model, job.table_path)


def _run(job: ClassifyJob, report: Report, model: TextCNN, writer: LogitsWriter | LabelWriter, batch: Batch) -> None:
    report.records += len(batch)
    count_errors(job, report, batch.errors)
    with phase(report, "run"):
        logits = _logits(job, model, batch.tokens)
    with phase(report, "write"):
        count_errors(job, report, writer.write(batch, logits))


def _logits(job: ClassifyJob, model: TextCNN, tokens: np.ndarray) -> np.ndarray:
    """The batch's logits; on a GPU without memory for what it takes, in smaller parts."""
    if job.device == "cpu" or not len(tokens):
        return model.logits(tokens)

    def parts(size: int) -> np.ndarray:
        return np.concatenate([model.logits(tokens[first : first + size]) for first in range(0, len(tokens), size)])

    return halving(parts, len(tokens))


def _finish(job: ClassifyJob, report: Report, columns: int, start: float) -> Report:
    if job.answers:
        with phase(report, "validate"):
            report.validation = validate(
                job.output, job.answers, tolerance=job.tolerance, columns=columns, prefix=job.count is not None
            )
    report.finish(start)
    return report
