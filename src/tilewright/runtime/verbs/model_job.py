"""The base classes of jobs with a model: its options, its files, and the fingerprint of its results."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

from tilewright.errors import UsageError
from tilewright.formats.expanded import Source
from tilewright.formats.files import same_file, spelled
from tilewright.formats.inputs import open_text
from tilewright.formats.many_files import FileList, is_many, list_files
from tilewright.formats.models import CONFIG, GENERATION, table_path
from tilewright.formats.names import RECORDS, check_records_name, kind_of_records, plain_name
from tilewright.formats.parquet import check_installed
from tilewright.formats.record_fields import RecordFields
from tilewright.formats.sharded import INDEX, WEIGHTS
from tilewright.formats.tokenizer_older import OLDER_FILES
from tilewright.formats.tokenizer_settings import TOKENIZER_CONFIG
from tilewright.runtime.fingerprint import as_called, fingerprint
from tilewright.runtime.jobs.manifest import Value, file_identity
from tilewright.runtime.jobs.settings import Settings
from tilewright.runtime.load import TOKENIZER

WITH_FIELDS = (".jsonl", ".csv", ".tsv", ".parquet")  # inputs whose records have named fields
KEEPING = (".jsonl", ".parquet")  # outputs whose records have named fields


@dataclass
class ModelJob:
    """The options that all verbs with a model share.

    count: run only the first records of the input (None: all). answers: a reference to compare the output with.
    settings: device, engine and the like.
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
        """The accuracy class, such as "float32"."""
        return self.settings.dtype or "float32"

    def as_called(self) -> Self:
        """The job with the settings that `fingerprint.as_called` returns."""
        return replace(self, settings=as_called(self.settings))

    def files(self) -> dict[str, str]:
        """The files that results depend on: path by name.

        They include missing files of the model that would be read if they existed.
        """
        files = {"input": self.input} if self.input else {}
        if not os.path.isdir(self.model):
            return files | {"model": self.model}
        table = table_path(self.model)  # excluded: it changes no bits, and the job itself writes it
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
        """Raises UsageError if the output is the input, the answers or a file of the model, existing or not."""
        read = {"input": self.input, "answers": self.answers, "model": self.model}
        read |= {f"model's {os.path.basename(path)}": path for path in model_files(self.model)}
        for name, path in read.items():
            if path and (same_file(path, self.output) or os.path.realpath(path) == os.path.realpath(self.output)):
                what = f"the output would overwrite the {name}"
                raise UsageError(what, path=self.output, remedy="choose another output")


@dataclass
class RecordsJob(ModelJob):
    """A job on records of one or many input files.

    content_field: the field with a record's text or token ids; None: the verb's usual names. keep: (name in the input,
    name in the output) of the fields that are copied. per_input: an output folder gets one file per input file, instead
    of one per shard. source: the input as `list_input` and `measure` have found it.
    """

    FOLDERS: ClassVar[bool] = False  # True if the output may be a folder of files
    FORMS: ClassVar[tuple[str, ...]] = RECORDS  # the formats that the output may have
    ANSWER: ClassVar[frozenset[str]] = frozenset()  # the fields of the verb's own output
    FIELD_OPTION: ClassVar[str] = "--text-field"

    content_field: str | None = field(default=None, kw_only=True)
    keep: tuple[tuple[str, str], ...] = field(default=(), kw_only=True)
    per_input: bool = field(default=False, kw_only=True)
    source: Source | FileList | None = field(default=None, kw_only=True, repr=False, compare=False)

    def list_input(self) -> None:
        """List the files of an input with many files. Raises InputError, UsageError."""
        if self.input and self.source is None and is_many(self.input):
            self.source = list_files(self.input)

    def measure(self) -> None:
        """Decompress compressed inputs once, to check them and to learn their size. Raises InputError."""
        if isinstance(self.source, FileList):
            self.source = self.source.measured()
        elif self.input and self.source is None and plain_name(self.input) != self.input:
            with open_text(self.input, "input") as file:
                self.source = Source(self.input, file.size)

    @property
    def fields(self) -> RecordFields:
        """The fields that the user has named."""
        return RecordFields(self.content_field, self.keep)

    @property
    def text(self) -> str | Source | FileList:
        """The input in the form that readers take."""
        return self.source or self.input or ""

    @property
    def is_folder(self) -> bool:
        """True if the output is a folder of files: its name ends with a slash."""
        return self.output.endswith("/")

    @property
    def form(self) -> str:
        """The output's format, one of FORMS. A folder's name may end with the suffix, too."""
        name = self.output.rstrip("/")
        found = next((form for form in self.FORMS if name.endswith(form)), "")
        return found or (".jsonl" if self.is_folder else ".bin")

    def output_names(self) -> dict[str, str]:
        """With per_input, the output's name for each input file. Raises UsageError if two names are equal."""
        files = [file.name for file in self.source.files] if isinstance(self.source, FileList) else []
        files = files or [os.path.basename(self.input or "")]
        found: dict[str, str] = {}
        for name in files:
            shown = os.path.splitext(plain_name(name))[0] + self.form
            if "/" in shown:
                raise UsageError(f"--per-input: {name} is in a directory of its own; files of one directory are wanted",
                                 remedy="give a pattern, as in 'data/*.jsonl'")  # fmt: skip
            if shown in found.values():
                raise UsageError(f"--per-input: two inputs have the output {shown}",
                                 remedy="rename one of them, or leave out --per-input")  # fmt: skip
            found[name] = shown
        return found

    @property
    def kind(self) -> str:
        """The input's format, by its name: ".jsonl", ".csv", ".tsv", ".txt", ".parquet" or ".bin"."""
        return kind_of_records(self.source or self.input or "")

    def fingerprint(self, verb: str) -> dict[str, Value]:
        """As the base class's, the input's format if it depends on the name and not only on the bytes, and the named
        fields, if any. So jobs of earlier versions without them can resume."""
        named: dict[str, Value] = {"input.kind": self.kind} if self.kind in (".csv", ".tsv") else {}
        if self.per_input:
            named["per_input"] = True
        if isinstance(self.source, FileList):
            self.source.check()
            named = {**self.source.fields(), **named}
        elif self.source:
            named["input.expanded"] = self.source.expanded
        if self.content_field is not None:
            named["content_field"] = self.content_field
        if self.keep:
            named["keep"] = [f"{name} as {shown}" for name, shown in self.keep]
        return super().fingerprint(verb) | named

    def files(self) -> dict[str, str]:
        """As the base class's, without an input of many files: the fingerprint has the identities of its list."""
        found = super().files()
        if isinstance(self.source, FileList):
            del found["input"]
        return found

    def check_output(self) -> None:
        """As the base class's. The output and the job's directory must also not be among many input files."""
        super().check_output()
        if not isinstance(self.source, FileList):
            return
        output = os.path.realpath(self.output)
        for file in self.source.files:
            path = os.path.realpath(file.path)
            if path == output or path.startswith(f"{output}{os.sep}"):
                raise UsageError("the output would overwrite an input", path=file.path,
                                 remedy="choose another output")  # fmt: skip
        folder = os.path.realpath(self.source.path)
        given = self.settings.job_dir
        if given and f"{os.path.realpath(given)}{os.sep}".startswith(f"{folder}{os.sep}"):
            raise UsageError("--job-dir is inside the input, and would be an input of the next run", path=given,
                             remedy="give --job-dir a directory outside")  # fmt: skip
        if os.path.isdir(self.source.path) and output.startswith(f"{folder}{os.sep}"):
            raise UsageError("the output is inside the input, and would be an input of the next run", path=self.output,
                             remedy="choose an output outside, or give a pattern as the input")  # fmt: skip

    def check_fields(self) -> None:
        """Raises UsageError for named fields if the input cannot have, or the output cannot hold, named fields."""
        given = (self.FIELD_OPTION, self.content_field), ("--keep", ",".join(name for name, _ in self.keep) or None)
        for option, value in given:
            if value is not None and self.kind not in WITH_FIELDS:
                raise UsageError(f"{option} names {value!r}, and the input has no fields", path=self.input,
                                 remedy=f"give {', '.join(WITH_FIELDS)}, or leave out {option}")  # fmt: skip
        if self.content_field in ("", "id"):
            raise UsageError(f"{self.FIELD_OPTION} is {self.content_field!r}; a field besides the id is wanted")
        if self.keep and self.form not in KEEPING:
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


def check_records(job: RecordsJob) -> None:
    """Call `check_output` and `check_fields`, and check the file names of a job on records.

    Raises UsageError for a name without a known suffix, and ResourceError for Parquet if PyArrow is not installed.
    """
    job.list_input()
    job.check_output()
    job.check_fields()
    check_records_name(job.input or "", "input")
    if job.is_folder:
        _check_folder(job)
    else:
        folders = job.FOLDERS and job.kind != ".bin"
        check_records_name(job.output, "output", job.FORMS, folders=folders)
        if folders and not job.output.endswith(job.FORMS) and os.path.isdir(job.output):
            raise UsageError("the output is a folder, and its name does not end with a slash", path=job.output,
                             remedy=f"write {job.output}/ for a folder of files")  # fmt: skip
        if job.per_input:
            raise UsageError("--per-input needs an output that is a folder", path=job.output,
                             remedy="end its name with a slash, as in -o out/")  # fmt: skip
    if job.answers:
        check_records_name(job.answers, "answers", (".bin",) if job.output.endswith(".bin") else (".jsonl",))
    if job.form == ".parquet":
        check_installed(job.output)


def _check_folder(job: RecordsJob) -> None:
    """Raises UsageError for options that an output folder does not support."""
    if not job.FOLDERS:
        raise UsageError("the output of this verb is one file, and the name is that of a folder", path=job.output,
                         remedy="give the name of a file")  # fmt: skip
    if job.kind == ".bin":
        raise UsageError("a binary input has one output, and the output is a folder", path=job.output,
                         remedy="name the output .bin")  # fmt: skip
    if job.answers:
        raise UsageError("a folder cannot be compared with answers", path=job.output, remedy="write one .jsonl file")
    if job.per_input:
        job.output_names()


def model_files(path: str) -> list[str]:
    """All files of the model at `path`, including files that do not exist but would be read if they did."""
    if not os.path.isdir(path):
        return [table_path(path)]
    weights = [name for name in sorted(os.listdir(path)) if name.endswith(".safetensors")]
    older = () if os.path.isfile(os.path.join(path, TOKENIZER)) else OLDER_FILES
    names = dict.fromkeys((CONFIG, GENERATION, TOKENIZER, TOKENIZER_CONFIG, *older, WEIGHTS, INDEX, *weights))
    return [*(os.path.join(path, name) for name in names), table_path(path)]
