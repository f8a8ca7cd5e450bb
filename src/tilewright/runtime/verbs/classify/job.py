"""The options of `tilewright classify`, and the checks that need no model."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.errors import UsageError
from tilewright.formats.files import InputFile
from tilewright.formats.jsonl import ANSWER
from tilewright.formats.validate import TOLERANCE
from tilewright.runtime.reports import Report
from tilewright.runtime.verbs.model_job import RecordsJob, check_records

BATCH = 16384  # sentences per call of the model: many, so that rows of the token table are computed in large products


@dataclass
class ClassifyJob(RecordsJob):
    """The options of a classify job.

    input: .jsonl (JSON lines), .csv, .tsv, .txt (one sentence per line), .parquet, or .bin (token ids in the course's
    layout). output: JSON lines, Parquet, or binary for a .bin input. A binary file cannot hold errors, so there the
    first bad record stops the job. table_memory: the most bytes of the token table. table_path: where to save the token
    table. tolerance: of the comparison with the answers.
    """

    ANSWER = ANSWER
    FOLDERS = True

    input: str
    table_memory: int | None = None
    table_path: str | None = None
    tolerance: float = TOLERANCE

    @property
    def batch(self) -> int:
        """Sentences per batch. It changes no bits of the output."""
        return self.settings.batch_size or BATCH

    @property
    def is_binary(self) -> bool:
        return self.kind == ".bin"


@dataclass
class ClassifyReport(Report):
    """The report of a classify job. cut: texts that were longer than the model takes, and were therefore cut."""

    cut: int = 0


def check_paths(job: ClassifyJob) -> None:
    """Raises UsageError or InputError for names and options that do not go together."""
    check_records(job)
    if job.form == ".txt" or job.is_binary == (job.form in (".jsonl", ".parquet")):
        text = ".jsonl or .parquet"
        if job.is_binary:
            raise UsageError("the input is binary by its name, and the output is not", path=job.input,
                             remedy=f"name text .txt, {text}; for binary token ids, name the output .bin")  # fmt: skip
        raise UsageError("the input is text, and the output is not", path=job.output, remedy=f"name it {text}")
    if job.table_path and job.device != "cpu":
        raise UsageError(
            "--keep-table is for the CPU's token table: a GPU's is made again in less time than it is read"
        )
    if "token-table" in job.settings.without:
        for option, value in (("--table-memory", job.table_memory), ("--keep-table", job.table_path)):
            if value is not None:
                rule = f"{option} has no effect without the token table"
                raise UsageError(parameter="--without", value="token-table", rule=rule, remedy=f"leave out {option}")
    if job.settings.max_errors and job.is_binary:
        raise UsageError("--max-errors needs a .jsonl input: a binary output cannot hold the error of a record")
    if job.answers and job.form == ".parquet":
        raise UsageError("a Parquet output cannot be compared with answers", path=job.output, remedy="write .jsonl")
    if job.answers:
        InputFile(job.answers, "answers").close()
