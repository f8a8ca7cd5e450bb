"""What `tilewright classify` is asked for, and the checks that need no model."""

from __future__ import annotations

from dataclasses import dataclass, field

from tilewright.errors import UsageError
from tilewright.formats.files import InputFile
from tilewright.formats.validate import TOLERANCE
from tilewright.runtime.jobs.settings import Settings
from tilewright.runtime.outputs import check_output
from tilewright.runtime.reports import Report

BATCH = 16384  # sentences handed to the model at once: rows of the token table are then computed in large products
TEXT = (".jsonl", ".txt", ".parquet")  # of all others, a file holds the course's binary tokens


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


def check_paths(job: ClassifyJob) -> None:
    """Raises UsageError or InputError for names and options that do not go together."""
    check_output(job)
    if job.output.endswith(".txt") or job.is_binary == job.output.endswith((".jsonl", ".parquet")):
        text = ".jsonl or .parquet"
        if job.is_binary:
            raise UsageError("the input is binary by its name, and the output is not", path=job.input,
                             remedy=f"name text .txt, {text}; for binary token ids, name the output .bin")  # fmt: skip
        raise UsageError("the input is text, and the output is not", path=job.output, remedy=f"name it {text}")
    if job.table_path and job.device != "cpu":
        raise UsageError(
            "--keep-table is for the CPU's token table: a GPU's is made again in less time than it is read"
        )
    if job.settings.max_errors and job.is_binary:
        raise UsageError("--max-errors needs a .jsonl input: a binary output cannot hold the error of a record")
    if job.answers and job.output.endswith(".parquet"):
        raise UsageError("a Parquet output cannot be compared with answers", path=job.output, remedy="write .jsonl")
    if job.answers:
        InputFile(job.answers, "answers").close()
