"""What a job reads: where its output must not go, and what its results depend on."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar

from tilewright.errors import UsageError
from tilewright.formats.atomic import AtomicFile
from tilewright.formats.files import same_file
from tilewright.formats.models import CONFIG, GENERATION, table_path
from tilewright.formats.names import check_records_name
from tilewright.formats.parquet import ParquetEncoder, TextIds, check_installed
from tilewright.formats.sharded import INDEX, WEIGHTS
from tilewright.runtime.jobs.directory import JobDirectory
from tilewright.runtime.jobs.durable import check_space
from tilewright.runtime.jobs.sinks import FileSink, deliver
from tilewright.runtime.jobs.stop import Stop
from tilewright.runtime.jobs.task import Totals
from tilewright.runtime.load import MERGES, TOKENIZER, VOCAB


def check_output(job: Any) -> None:
    """Raises UsageError if the job's output is its input, its answers, or a file of its model, there or not yet, or if
    the name of a file of records does not say what it holds; ResourceError for Parquet where nothing here writes it."""
    read = {name: getattr(job, name) for name in ("input", "answers", "model")}
    read |= {f"model's {os.path.basename(path)}": path for path in model_files(job.model)}
    for name, path in read.items():
        if path and (same_file(path, job.output) or os.path.realpath(path) == os.path.realpath(job.output)):
            raise UsageError(f"the output would overwrite the {name}", path=job.output, remedy="choose another output")
    if hasattr(job, "is_binary"):  # records: text, or numbers in .bin files
        check_records_name(job.input, "input")
        check_records_name(job.output, "output")
        if job.answers:
            check_records_name(job.answers, "answers", (".bin",) if job.output.endswith(".bin") else (".jsonl",))
    if job.output.endswith(".parquet"):
        check_installed(job.output)


class AsParquet:
    """Mixed into a `Task` whose shards are JSON lines: an `Assembling` one, whose output is a Parquet file of them.

    columns: `ParquetEncoder`'s, which come behind "id". Ids are int64 where all are integers, else strings.
    """

    job: Any
    columns: ClassVar[dict[str, str]]
    header: Any  # the task's own

    def outputs(self) -> list[str]:
        """The one there is."""
        return [self.job.output]

    def check_outputs(self) -> None:
        """Raises ResourceError where it cannot be written."""
        AtomicFile(self.job.output).__enter__().discard()

    def assemble(self, directory: JobDirectory, totals: Totals, stop: Stop) -> list[tuple[int, str]]:
        """Writes it; its bytes and sha256."""
        self.header(totals)  # refuses an input without records
        check_space(directory.output, totals.size)
        for ids in ("int64", "string"):
            sink = FileSink(directory.output, partial(ParquetEncoder, columns=self.columns, ids=ids))
            with suppress(TextIds):  # in most files the first id says so
                return deliver(directory, totals.shards, [sink], stop)
        raise AssertionError("strings are never refused")


def model_files(path: str) -> list[str]:
    """Every file that is, or would be taken for, a part of the model at `path`."""
    if not os.path.isdir(path):
        return [table_path(path)]
    weights = [name for name in sorted(os.listdir(path)) if name.endswith(".safetensors")]
    older = () if os.path.isfile(os.path.join(path, TOKENIZER)) else (VOCAB, MERGES)
    names = dict.fromkeys((CONFIG, GENERATION, TOKENIZER, *older, WEIGHTS, INDEX, *weights))
    return [*(os.path.join(path, name) for name in names), table_path(path)]
