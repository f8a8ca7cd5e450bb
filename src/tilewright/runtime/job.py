"""A job: input streamed in batches, one pure function, output that appears when it is whole."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from tilewright.errors import InternalError, UsageError
from tilewright.formats.atomic import AtomicFile
from tilewright.formats.course import LogitsWriter, TokenFile
from tilewright.formats.files import InputFile, same_file
from tilewright.formats.jsonl import LabelWriter, TokenLines
from tilewright.formats.records import Batch, RecordError
from tilewright.formats.validate import TOLERANCE, Validation, validate
from tilewright.models.textcnn import TextCNN, TextCNNConfig
from tilewright.runtime.kept_table import KeptTable
from tilewright.runtime.load import config_of, place, read_weights
from tilewright.runtime.progress import Progress
from tilewright.runtime.signals import stoppable

BATCH = 16384  # sentences handed to the model at once: rows of the token table are then computed in large products
SHOWN_ERRORS = 5

Say = Callable[[str], None]


@dataclass
class ClassifyJob:
    """What to classify. Files named .jsonl hold JSON lines, all others the course's layout; input and output agree.

    count: sentences from the start (None: all). batch: sentences a batch; it changes no bits. max_errors: bad records
    allowed, None: any number; a binary file has no place for an error, so its first bad record ends the job.
    table_memory: bytes. table_path: where to keep the token table. answers: a reference to compare the output with,
    within `tolerance`.
    """

    model: str
    input: str
    output: str
    count: int | None = None
    dtype: str = "float32"
    table_memory: int | None = None
    table_path: str | None = None
    batch: int = BATCH
    max_errors: int | None = None
    answers: str | None = None
    tolerance: float = TOLERANCE

    @property
    def is_jsonl(self) -> bool:
        return self.input.endswith(".jsonl")


@dataclass
class Report:
    """What a job did. seconds: by phase and in "total"; "run" is the model's. peak_memory: bytes, with mapped files."""

    records: int = 0
    errors: int = 0
    first_errors: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    records_per_second: float = 0.0
    peak_memory: int = 0
    validation: Validation | None = None

    @property
    def exit_code(self) -> int:
        """0, or 1 where records failed or the validation did."""
        return int(self.errors > 0 or (self.validation is not None and not self.validation.passed))

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def classify(job: ClassifyJob, say: Say = lambda text: None) -> Report:
    """Runs the job. `say` gets a line for each phase.

    Raises UsageError, InputError, ResourceError, InternalError (more bad records than `max_errors`) and Interrupted;
    in each case an earlier output is untouched. Everything that can be checked before the work starts is.
    """
    _check_paths(job)
    report, start = Report(), time.perf_counter()
    with stoppable() as stop:
        config = config_of(job.model)
        with _phase(report, "check"):
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
            with _phase(report, "table", say, "Keeping token table"):
                kept.save()
    return _finish(job, report, config.num_labels, start)


def _check_paths(job: ClassifyJob) -> None:
    if job.is_jsonl != job.output.endswith(".jsonl"):
        kind = "JSON lines" if job.is_jsonl else "binary"
        raise UsageError(
            f"the input is {kind} and the output would not be; name both .jsonl or neither", path=job.output
        )
    for name in ("input", "answers", "model"):
        path = getattr(job, name)
        if path and same_file(path, job.output):
            raise UsageError(f"the output would overwrite the {name}", path=job.output, hint="choose another output")
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
    with _phase(report, "load", say, "Loading weights"):
        config, weights = read_weights(job.model)
    with _phase(report, "prepare", say, "Preparing model"):
        model = place(config, weights, dtype=job.dtype, table_memory=job.table_memory)
    with _phase(report, "compile", say, "Compiling kernels"):  # or fetching them from the disk
        model.logits(np.zeros((1, config.sequence_length), np.int32))
    return model


def _open_table(job: ClassifyJob, report: Report, model: TextCNN, say: Say) -> KeptTable | None:
    if not job.table_path:
        return None
    with _phase(report, "table", say, "Loading token table"):
        return KeptTable(model, job.table_path)


def _run(job: ClassifyJob, report: Report, model: TextCNN, writer: LogitsWriter | LabelWriter, batch: Batch) -> None:
    report.records += len(batch)
    _count_errors(job, report, batch.errors)
    with _phase(report, "run"):
        logits = model.logits(batch.tokens)
    with _phase(report, "write"):
        _count_errors(job, report, writer.write(batch, logits))


def _count_errors(job: ClassifyJob, report: Report, errors: list[RecordError]) -> None:
    report.errors += len(errors)
    report.first_errors += map(str, errors[: SHOWN_ERRORS - len(report.first_errors)])
    if job.max_errors is not None and report.errors > job.max_errors:
        raise InternalError(
            f"{report.errors:,} of the first {report.records:,} records are bad and {job.max_errors:,} are allowed; "
            f"the first is {report.first_errors[0]}",
            path=job.input,
            hint="correct them or allow more",
        )


def _finish(job: ClassifyJob, report: Report, columns: int, start: float) -> Report:
    if job.answers:
        with _phase(report, "validate"):
            report.validation = validate(
                job.output, job.answers, tolerance=job.tolerance, columns=columns, prefix=job.count is not None
            )
    report.seconds["total"] = time.perf_counter() - start
    report.records_per_second = report.records / max(report.seconds["run"], 1e-9)
    report.peak_memory = peak_memory()
    return report


@contextmanager
def _phase(report: Report, name: str, say: Say = lambda text: None, doing: str = "") -> Iterator[None]:
    """Adds the block's time to `report.seconds[name]`, and says "doing...Done!" at its end."""
    start = time.perf_counter()
    yield
    spent = time.perf_counter() - start
    report.seconds[name] = report.seconds.get(name, 0.0) + spent
    if doing:
        say(f"{doing}...Done! ({spent:.3f} sec)")


def peak_memory() -> int:
    """Bytes: the largest resident size of this process so far, with the pages of mapped files that were touched."""
    try:
        with open("/proc/self/status", encoding="ascii") as status:  # getrusage would count what was before exec, too
            return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
