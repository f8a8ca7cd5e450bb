"""The options of `tilewright score`, and the checks that need no model."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.errors import UsageError
from tilewright.formats.files import InputFile
from tilewright.formats.scored import ANSWER
from tilewright.runtime.reports import TokensReport
from tilewright.runtime.verbs.model_job import KEEPING, RecordsJob, check_records


@dataclass
class ScoreJob(RecordsJob):
    """The options of a score job.

    input: .jsonl (JSON lines), .csv, .tsv, .parquet (rows with the same fields) or .txt (one text per line). output:
    .jsonl or .parquet. truncate: cut texts that are longer than the context; otherwise such a text is an error.
    prefix_token: the token before a text without context. batch_memory: bytes for keys and values. None for either: see
    `LanguageModel.score`.
    """

    ANSWER = ANSWER

    input: str
    truncate: bool = False
    prefix_token: int | None = None
    batch_memory: int | None = None


@dataclass
class ScoreReport(TokensReport):
    """The report of a score job.

    tokens: scored tokens. read: all tokens that the model has read. cut: texts that were longer than the context.
    """

    read: int = 0


def check_paths(job: ScoreJob) -> None:
    """Raises UsageError or InputError for names and options that do not go together."""
    check_records(job)
    if job.kind == ".bin":
        what = "token ids of texts of one length; score reads pairs and texts of any length"
        raise UsageError(f"a .bin file holds {what}", path=job.input, remedy="give .jsonl, .csv, .parquet or .txt")
    if job.form not in KEEPING:
        raise UsageError("the output cannot hold log-probabilities", path=job.output,
                         remedy="name it .jsonl or .parquet")  # fmt: skip
    if job.answers:
        if job.form == ".parquet":
            raise UsageError("a Parquet output cannot be compared with answers", path=job.output, remedy="write .jsonl")
        InputFile(job.answers, "answers").close()
