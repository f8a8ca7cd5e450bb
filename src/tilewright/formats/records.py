"""What every input gives to a job: sentences or prompts, including bad records. Also what a job gives to its output."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

Id = str | int


class BadLine(Exception):
    """The rule that a line breaks, and the field."""

    def __init__(self, message: str, field: str = "") -> None:
        super().__init__(message)
        self.field = field


class RecordError(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a record has no answer: its line from 1, the field ("tokens[3]"; "" for the whole line), the rule that it
    breaks.

    file: the file with the line, in an input of many files.
    """

    line: int
    field: str
    message: str
    file: str = ""

    def __str__(self) -> str:
        return f"{self.where}{self.message}"

    @property
    def where(self) -> str:
        """The beginning of its text: "a.jsonl, line 4, tokens[3]: "."""
        file = f"{self.file}, " if self.file else ""
        return f"{file}line {self.line}{', ' if self.field else ''}{self.field}: "


def batch_error(error: RecordError) -> dict[str, Any]:
    """The error in the answer to an OpenAI batch line."""
    about = {"code": "invalid_request", "message": str(error), "line": error.line, "param": error.field or None}
    return about | ({"file": error.file} if error.file else {})


def repeated_id(line: int, id: Id | None) -> RecordError:
    """The error for a record whose id an earlier record has."""
    return RecordError(line, "id", f"{id!r} is also the id of an earlier record")


@dataclass(frozen=True, slots=True)
class Record:
    """One record of a JSONL input: its line from 1, its id (None: not readable), its error (None: it is good).

    kept: the fields that are copied to the output, by their names there. Those of a JSON line are text, msgspec.Raw.
    """

    line: int
    id: Id | None
    error: RecordError | None = None
    kept: dict[str, Any] = field(default_factory=dict, kw_only=True)


@dataclass(frozen=True, slots=True)
class Batch:
    """tokens: int32 (n, L), the good records in the order of the input. end: bytes of the input used up to now.

    records: all records in order; as many are good as `tokens` has rows. None for binary files, in which every record
    is good. cut: how many good texts have more tokens than the model takes. seconds: int32 (n,), for pairs of texts the
    index of the first token of the second one, 0 for others; None: there are no pairs.
    """

    tokens: np.ndarray
    end: int
    records: list[Record] | None = None
    cut: int = 0
    seconds: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.tokens) if self.records is None else len(self.records)

    @property
    def errors(self) -> list[RecordError]:
        return [record.error for record in self.records or () if record.error]


@dataclass(frozen=True, slots=True, eq=False)
class Prompt(Record):
    """One prompt. A good one has token_ids, int32 (n,), n > 0. A bad one has an error and no token ids.

    line: in a binary file its number from 1, which is also its id. text: None if the input gave token ids. sampling:
    the sampling fields of the record by their names, as in the JSON (without nulls), not checked. openai: it is a line
    of OpenAI's batch format, and its result is written in that format.
    """

    token_ids: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int32))
    text: str | None = None
    sampling: dict[str, Any] = field(default_factory=dict)
    openai: bool = False


@dataclass(frozen=True, slots=True)
class PromptBatch:
    """Prompts in the order of the input, including bad ones. end: bytes of the input used up to now."""

    prompts: list[Prompt]
    end: int

    def __len__(self) -> int:
        return len(self.prompts)

    @property
    def errors(self) -> list[RecordError]:
        return [prompt.error for prompt in self.prompts if prompt.error]


class Completion(msgspec.Struct, frozen=True, gc=False):
    """The continuation of a prompt. `index` counts the n completions of a prompt from 0.

    text: None without a tokenizer. finish_reason: "stop" or "length". logprobs: for each token the log-probabilities,
    by token id, of the chosen token and of the best ones; None if they were not requested.
    """

    index: int
    token_ids: list[int]
    text: str | None
    finish_reason: str
    logprobs: list[dict[int, float]] | None = None
