"""A job of `classify`, `generate` or `draw`: a model, an input, an output, and the fingerprint of its results."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

from tilewright.errors import UsageError
from tilewright.formats.expanded import Source, open_text
from tilewright.formats.files import same_file, spelled
from tilewright.formats.models import CONFIG, GENERATION, table_path
from tilewright.formats.names import check_records_name, kind_of_records, plain_name
from tilewright.formats.parquet import check_installed
from tilewright.formats.record_fields import RecordFields
from tilewright.formats.sharded import INDEX, WEIGHTS
from tilewright.formats.tokenizer_settings import TOKENIZER_CONFIG
from tilewright.runtime.fingerprint import as_called, fingerprint
from tilewright.runtime.jobs.manifest import Value, file_identity
from tilewright.runtime.jobs.settings import Settings
from tilewright.runtime.load import MERGES, TOKENIZER, VOCAB

WITH_FIELDS = (".jsonl", ".csv", ".tsv", ".parquet")  # inputs whose records have named fields
KEEPING = (".jsonl", ".parquet")  # outputs whose records have


@dataclass
class ModelJob:
    """The options that the three verbs share.

    count: records from the start of the input (None: all). answers: a reference to compare the output with. settings:
    how the job is run.
    """

    model: str
    input: str | None
    output: str
    count: int | None = field(default=None, kw_only=True)
    answers: str | None = field(default=None, kw_only=True)
    settings: Settings = field(default_factory=Settings, kw_only=True)

    @property
    def device(self) -> str:
        """ "cpu", "cuda" or "auto"."""
        return self.settings.device

    @property
    def dtype(self) -> str:
        """The accuracy class."""
        return self.settings.dtype or "float32"

    def as_called(self) -> Self:
        """The job with its settings as `as_called` completes them."""
        return replace(self, settings=as_called(self.settings))

    def files(self) -> dict[str, str]:
        """The files that results depend on, name -> path. They include missing files of the model that would be read if
        they existed."""
        files = {"input": self.input} if self.input else {}
        if not os.path.isdir(self.model):
            return files | {"model": self.model}
        table = table_path(self.model)  # changes no bits, and is written by the job itself
        parts = [path for path in model_files(self.model) if path != table]
        return files | {f"model.{spelled(os.path.basename(path))}": path for path in parts}

    def fingerprint(self, verb: str) -> dict[str, Value]:
        """The fields of the fingerprint that all verbs have. Raises InputError for a missing file."""
        fields = fingerprint(verb, self.settings, self.dtype)
        for name, path in self.files().items():
            if not name.startswith("model.") or os.path.exists(path):
                fields |= file_identity(name, path)
        return fields

    def check_output(self) -> None:
        """Raises UsageError if the output's path is that of the input, of the answers or of a file of the model, even
        of a file that does not exist yet."""
        read = {"input": self.input, "answers": self.answers, "model": self.model}
        read |= {f"model's {os.path.basename(path)}": path for path in model_files(self.model)}
        for name, path in read.items():
            if path and (same_file(path, self.output) or os.path.realpath(path) == os.path.realpath(self.output)):
                what = f"the output would overwrite the {name}"
                raise UsageError(what, path=self.output, remedy="choose another output")


@dataclass
class TextJob(ModelJob):
    """A job on a file of records. source: what `measure` has found."""

    source: Source | None = field(default=None, kw_only=True, repr=False, compare=False)

    def measure(self) -> None:
        """Expand a compressed input once, which checks all of it. Raises InputError."""
        if self.input and self.source is None and plain_name(self.input) != self.input:
            with open_text(self.input, "input") as file:
                self.source = Source(self.input, file.size)

    @property
    def text(self) -> str | Source:
        """The input, for its readers."""
        return self.source or self.input or ""

    @property
    def kind(self) -> str:
        """What the input is, by its name: ".jsonl", ".csv", ".tsv", ".txt", ".parquet" or ".bin"."""
        return kind_of_records(self.input or "")

    def fingerprint(self, verb: str) -> dict[str, Value]:
        """Also what is read of the input, if its name says more than the file's bytes."""
        named: dict[str, Value] = {"input.kind": self.kind} if self.kind in (".csv", ".tsv") else {}
        if self.source:
            named["input.expanded"] = self.source.expanded
        return super().fingerprint(verb) | named


@dataclass
class RecordsJob(TextJob):
    """The options that verbs on records share.

    content_field: the field of a record with its text, or its token ids; None: the names that the verb knows. keep:
    (name in the input, name in the output) of the fields that pass through.
    """

    ANSWER: ClassVar[frozenset[str]] = frozenset()  # the fields of the verb's own output
    FIELD_OPTION: ClassVar[str] = "--text-field"

    content_field: str | None = field(default=None, kw_only=True)
    keep: tuple[tuple[str, str], ...] = field(default=(), kw_only=True)

    @property
    def fields(self) -> RecordFields:
        """The fields that the user names."""
        return RecordFields(self.content_field, self.keep)

    def fingerprint(self, verb: str) -> dict[str, Value]:
        """Also the named fields, where there are any: jobs without them go on."""
        named: dict[str, Value] = {} if self.content_field is None else {"content_field": self.content_field}
        if self.keep:
            named["keep"] = [f"{name} as {shown}" for name, shown in self.keep]
        return super().fingerprint(verb) | named

    def check_fields(self) -> None:
        """Raises UsageError for named fields that the input cannot have, or the output cannot hold."""
        given = (self.FIELD_OPTION, self.content_field), ("--keep", ",".join(name for name, _ in self.keep) or None)
        for option, value in given:
            if value is not None and self.kind not in WITH_FIELDS:
                raise UsageError(f"{option} names {value!r}, and the input has no fields", path=self.input,
                                 remedy=f"give {', '.join(WITH_FIELDS)}, or leave out {option}")  # fmt: skip
        if self.content_field in ("", "id"):
            raise UsageError(f"{self.FIELD_OPTION} is {self.content_field!r}; a field besides the id is wanted")
        if self.keep and not self.output.endswith(KEEPING):
            raise UsageError("--keep needs an output with fields", path=self.output,
                             remedy=f"name it {' or '.join(KEEPING)}, or leave out --keep")  # fmt: skip
        shown = [name for _, name in self.keep]
        for name, told in self.keep:
            if told in self.ANSWER:
                raise UsageError(f"--keep names {told!r}, which is a field of the output, too",
                                 remedy=f"rename it: --keep {name}=input_{told}")  # fmt: skip
            if not name or not told or shown.count(told) > 1:
                rule = "two kept fields have this name" if name and told else "a field has a name"
                raise UsageError(f"--keep has the field {told!r}; {rule}", remedy="rename one, as in --keep meta=tags")


def check_records(job: TextJob) -> None:
    """`check_output` for a job on records (text, or numbers in .bin files). Also raises UsageError for a file name
    without a known suffix, and ResourceError for Parquet if PyArrow is not installed."""
    job.check_output()
    if isinstance(job, RecordsJob):
        job.check_fields()
    check_records_name(job.input or "", "input")
    check_records_name(job.output, "output")
    if job.answers:
        check_records_name(job.answers, "answers", (".bin",) if job.output.endswith(".bin") else (".jsonl",))
    if job.output.endswith(".parquet"):
        check_installed(job.output)


def model_files(path: str) -> list[str]:
    """All files of the model at `path`, including missing ones that a load would read."""
    if not os.path.isdir(path):
        return [table_path(path)]
    weights = [name for name in sorted(os.listdir(path)) if name.endswith(".safetensors")]
    older = () if os.path.isfile(os.path.join(path, TOKENIZER)) else (VOCAB, MERGES)
    names = dict.fromkeys((CONFIG, GENERATION, TOKENIZER, TOKENIZER_CONFIG, *older, WEIGHTS, INDEX, *weights))
    return [*(os.path.join(path, name) for name in names), table_path(path)]
