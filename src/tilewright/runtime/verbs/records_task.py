"""Base of the tasks of `classify` and `generate`: each record gives its answer or its error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar

import msgspec

from tilewright.errors import InputError
from tilewright.formats.atomic import AtomicFile
from tilewright.formats.files import InputFile
from tilewright.formats.kept_types import KeptTypes
from tilewright.formats.parquet import ParquetEncoder, TextIds, kept_columns
from tilewright.runtime.jobs.directory import JobDirectory
from tilewright.runtime.jobs.durable import check_space
from tilewright.runtime.jobs.manifest import Damaged, DamagedShards
from tilewright.runtime.jobs.sinks import FileSink, deliver
from tilewright.runtime.jobs.stop import Stop
from tilewright.runtime.jobs.task import Totals
from tilewright.runtime.verbs.model_job import RecordsJob


class RecordsTask:
    """The part of a `Task` that both verbs share."""

    job: RecordsJob

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

    columns: `ParquetEncoder`'s, which follow "id" and the kept fields. Ids are int64 where all are integers, else
    strings. A kept column of a Parquet input has its type there; of JSON lines it has the narrowest that fits.
    """

    columns: ClassVar[dict[str, str]]

    def outputs(self) -> list[str]:
        return [self.job.output]

    def check_outputs(self) -> None:
        AtomicFile(self.job.output).__enter__().discard()

    def assemble(self, directory: JobDirectory, totals: Totals, stop: Stop) -> list[tuple[int, str]]:
        self.header(totals)
        check_space(directory.output, totals.size)
        columns = self._kept(directory, totals.shards, stop) | self.columns
        for ids in ("int64", "string"):
            sink = FileSink(directory.output, partial(ParquetEncoder, columns=columns, ids=ids))
            with suppress(TextIds):  # in most files the first id already decides
                return deliver(directory, totals.shards, [sink], stop)
        raise AssertionError("strings are never refused")

    def _kept(self, directory: JobDirectory, shards: int, stop: Stop) -> dict[str, Any]:
        """The columns of the kept fields. Raises DamagedShards, Interrupted, and InputError for lines that were
        edited."""
        fields = self.job.fields
        if not fields.keep:
            return {}
        assert self.job.input is not None
        if self.job.kind == ".parquet":
            with InputFile(self.job.input, "input") as file:
                return kept_columns(file, fields)
        found = KeptTypes(tuple(shown for _, shown in fields.keep))
        for number in range(shards):
            try:
                for line in _lines(directory.blocks(number)):
                    stop.check()
                    found.add(line)
            except Damaged as error:
                raise DamagedShards([number]) from error
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                what = f"shard {number} of the job holds lines that are no records: they were edited"
                raise InputError(what, path=directory.path, remedy="give --restart to compute them again") from error
        return found.columns()


def _lines(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """The lines of a shard."""
    rest = b""
    for block in blocks:
        *lines, rest = (rest + block).split(b"\n")
        yield from lines
    if rest:
        yield rest
