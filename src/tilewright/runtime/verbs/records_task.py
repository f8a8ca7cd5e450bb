"""Base of the tasks of `classify` and `generate`: each record gives its answer or its error."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import ClassVar

from tilewright.errors import InputError
from tilewright.formats.atomic import AtomicFile
from tilewright.formats.parquet import ParquetEncoder, TextIds
from tilewright.runtime.jobs.directory import JobDirectory
from tilewright.runtime.jobs.durable import check_space
from tilewright.runtime.jobs.sinks import FileSink, deliver
from tilewright.runtime.jobs.stop import Stop
from tilewright.runtime.jobs.task import Totals
from tilewright.runtime.verbs.model_job import ModelJob


class RecordsTask:
    """The part of a `Task` that both verbs share."""

    job: ModelJob

    def files(self) -> dict[str, str]:
        return self.job.files()

    def header(self, totals: Totals) -> bytes:
        """The bytes before the first record: none. Raises InputError for an input without records."""
        if totals.records == 0:
            raise InputError("the input holds 0 records", path=self.job.input)
        return b""

    def close(self) -> None:
        """Nothing is open."""


class AsParquet(RecordsTask):
    """An `Assembling` task: its shards are JSON lines, its output is a Parquet file.

    columns: `ParquetEncoder`'s, which follow "id". Ids are int64 where all are integers, else strings.
    """

    columns: ClassVar[dict[str, str]]

    def outputs(self) -> list[str]:
        return [self.job.output]

    def check_outputs(self) -> None:
        AtomicFile(self.job.output).__enter__().discard()

    def assemble(self, directory: JobDirectory, totals: Totals, stop: Stop) -> list[tuple[int, str]]:
        self.header(totals)
        check_space(directory.output, totals.size)
        for ids in ("int64", "string"):
            sink = FileSink(directory.output, partial(ParquetEncoder, columns=self.columns, ids=ids))
            with suppress(TextIds):  # in most files the first id already decides
                return deliver(directory, totals.shards, [sink], stop)
        raise AssertionError("strings are never refused")
