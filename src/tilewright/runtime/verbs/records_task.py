"""The base classes of tasks on records: each record gives a result or an error."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar

import msgspec

from tilewright.errors import InputError
from tilewright.formats.atomic import AtomicDirectory, AtomicFile, Headed
from tilewright.formats.inputs import open_text
from tilewright.formats.kept_types import KeptTypes
from tilewright.formats.many_files import FileList, empty_files
from tilewright.formats.parquet import ParquetEncoder, TextIds, kept_columns
from tilewright.runtime.jobs.directory import JobDirectory
from tilewright.runtime.jobs.durable import check_space
from tilewright.runtime.jobs.folder_sink import FolderSink, PartNames
from tilewright.runtime.jobs.manifest import Damaged, DamagedShards
from tilewright.runtime.jobs.sinks import Encoder, FileSink, deliver
from tilewright.runtime.jobs.stop import Stop
from tilewright.runtime.jobs.task import Totals
from tilewright.runtime.text_inputs import absent_fields
from tilewright.runtime.verbs.model_job import RecordsJob


def notices(job: RecordsJob) -> list[str]:
    """Notices about the input before the work: kept fields that no record has, and empty files."""
    empty = empty_files(job.source) if isinstance(job.source, FileList) else ""
    return [notice for notice in (absent_fields(job.text, job.fields), empty) if notice]


class RecordsTask:
    """The part of a `Task` that all verbs on records share."""

    job: RecordsJob

    @property
    def id_names(self) -> tuple[str, ...]:
        """The fields of a line that may hold its id, if the verb also reads lines of OpenAI's batch format."""
        return ("custom_id", "id") if self.job.content_field is None else ("id",)

    def files(self) -> dict[str, str]:
        return self.job.files()

    def header(self, totals: Totals) -> bytes:
        """Returns b"": the output has no header. Raises InputError for an input without records."""
        if totals.records == 0:
            raise InputError("the input holds 0 records", path=self.job.input)
        return b""

    def close(self) -> None:
        """Do nothing, because no file is open."""


class AsFolder(RecordsTask):
    """An `Assembling` task whose output is a folder of files, one per shard or one per input file."""

    def outputs(self) -> list[str]:
        return [os.path.realpath(self.job.output)]

    def check_outputs(self) -> None:
        if self.job.is_folder:
            names = self.job.output_names().values() if self.job.per_input else ()
            AtomicDirectory(self.job.output, PartNames(names), "a job's").check_replaceable()
        else:
            AtomicFile(self.job.output).__enter__().discard()

    def assemble(self, directory: JobDirectory, totals: Totals, stop: Stop) -> list[tuple[int, str]]:
        self.header(totals)
        check_space(directory.output, totals.size)
        return self._delivered(directory, totals, stop, partial(Headed, header=b""))

    def _delivered(
        self, directory: JobDirectory, totals: Totals, stop: Stop, make: Callable[[Any], Encoder]
    ) -> list[tuple[int, str]]:
        """Write the shards to one file or to the files of a folder. make: returns the encoder of a file."""
        job = self.job
        if not job.is_folder:
            return deliver(directory, totals.shards, [FileSink(directory.output, make)], stop)
        if not job.per_input:
            return deliver(directory, totals.shards, [FolderSink(directory.output, job.form, make)], stop)
        names = job.output_names()
        with open_text(job.text, "input") as file:
            only = next(iter(names.values()))

            def of_records(number: int) -> Iterator[str]:
                for line, _, _ in directory.shard(number).lines(file):
                    yield names.get(file.located(line)[0], only)

            sink = FolderSink(directory.output, job.form, make, [*names.values()], of_records)
            return deliver(directory, totals.shards, [sink], stop)


class AsParquet(AsFolder):
    """An `Assembling` task: its shards are JSON lines, and its output is a Parquet file or a folder of Parquet files.

    columns: the columns after "id" and the kept fields, as `ParquetEncoder` takes them. Ids are int64 if all are
    integers, otherwise strings. A kept column of a Parquet input keeps its type. A kept column of JSON lines gets the
    narrowest type that fits all values.
    """

    columns: ClassVar[dict[str, str]]

    def assemble(self, directory: JobDirectory, totals: Totals, stop: Stop) -> list[tuple[int, str]]:
        self.header(totals)
        check_space(directory.output, totals.size)
        columns = self._kept(directory, totals.shards, stop) | self.columns
        if isinstance(self.job.source, FileList):
            columns["error"] = "error in a file"
        for ids in ("int64", "string"):
            make = partial(ParquetEncoder, columns=columns, ids=ids)
            with suppress(TextIds):  # raised at the first id that is no integer: in most files the very first one
                return self._delivered(directory, totals, stop, make)
        raise AssertionError("strings are never refused")

    def _kept(self, directory: JobDirectory, shards: int, stop: Stop) -> dict[str, Any]:
        """The columns of the kept fields. Raises DamagedShards, Interrupted, and InputError for edited lines."""
        fields = self.job.fields
        if not fields.keep:
            return {}
        if self.job.kind == ".parquet":
            with open_text(self.job.text, "input") as file:
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
    """Join blocks of a shard, and yield its lines."""
    rest = b""
    for block in blocks:
        *lines, rest = (rest + block).split(b"\n")
        yield from lines
    if rest:
        yield rest
