"""The options of `tilewright embed`, and the checks that need no model."""

from __future__ import annotations

import os
from dataclasses import dataclass

from tilewright.errors import UsageError
from tilewright.formats.embedding_lines import ANSWER, OUTPUTS
from tilewright.formats.embedding_modules import embedding_files
from tilewright.formats.files import spelled
from tilewright.runtime.reports import Report
from tilewright.runtime.verbs.model_job import RecordsJob, check_records

BATCH = 4096  # texts per call of the model: many, so that texts of similar length can share a pass


@dataclass
class EmbedJob(RecordsJob):
    """The options of an embed job.

    input: .jsonl, .csv, .tsv, .txt or .parquet. output: .npy, .jsonl or .parquet; in a .npy, a bad record is a row of
    NaN. dimensions, prompt_name, prompt: as for `Bert.embed`.
    """

    ANSWER = ANSWER
    FORMS = OUTPUTS

    input: str
    dimensions: int | None = None
    prompt_name: str | None = None
    prompt: str | None = None

    @property
    def batch(self) -> int:
        """Texts per batch. It changes no bits of the output."""
        return self.settings.batch_size or BATCH

    @property
    def is_array(self) -> bool:
        return self.form == ".npy"

    def files(self) -> dict[str, str]:
        """As `RecordsJob.files`, and the files of the modules after the encoder (pooling, dense layers)."""
        files = super().files()
        if os.path.isdir(self.model):
            more = {os.path.relpath(path, self.model): path for path in embedding_files(self.model)}
            files |= {f"model.{spelled(name)}": path for name, path in more.items()}
        return files


@dataclass
class EmbedReport(Report):
    """The report of an embed job.

    cut: texts that were longer than the model takes, and were therefore cut. dimensions: elements per vector.
    """

    cut: int = 0
    dimensions: int = 0


def check_paths(job: EmbedJob) -> None:
    """Raises UsageError or InputError for names and options that do not go together."""
    check_records(job)
    if job.kind == ".bin":
        raise UsageError("a .bin file holds token ids of texts of one length; embed reads texts of any length",
                         path=job.input, remedy="give .jsonl, .csv, .parquet or .txt")  # fmt: skip
    if job.form not in OUTPUTS:
        raise UsageError("the output cannot hold vectors", path=job.output, remedy=f"name it {' or '.join(OUTPUTS)}")
