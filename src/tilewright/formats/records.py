"""What every input hands to a job, sentences or prompts, bad records too; and what a job hands to its output."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

Id = str | int


class BadLine(Exception):
    """A rule that a line breaks, and the field."""

    def __init__(self, message: str, field: str = "") -> None:
        super().__init__(message)
        self.field = field


class RecordError(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a record has no answer: its line from 1, the field ("tokens[3]"; "": the whole line), the rule it breaks.

    file: of an input of many files, the one with the line.
    """

    line: int
    field: str
    message: str
    file: str = ""

    def __str__(self) -> str:
        return f"{self.where}{self.message}"

    @property
    def where(self) -> str:
        """The begin of its text: "a.jsonl, line 4, tokens[3]: "."""
        file = f"{self.file}, " if self.file else ""
        return f"{file}line {self.line}{', ' if self.field else ''}{self.field}: "


def batch_error(error: RecordError) -> dict[str, Any]:
    """The error in the answer to an OpenAI batch line."""
    about = {"code": "invalid_request", "message": str(error), "line": error.line, "param": error.field or None}
    return about | ({"file": error.file} if error.file else {})


def repeated_id(line: int, id: Id | None) -> RecordError:
    """The error of a record whose id an earlier record has."""
    return RecordError(line, "id", f"{id!r} is also the id of an earlier record")


@dataclass(frozen=True, slots=True)
class Record:
    """One record of a JSONL input: its line from 1, its id (None: could not be read), its error (None: it is good).

    kept: the fields that pass through to the output, by their names there; of a JSON line as its text, msgspec.Raw.
    """

    line: int
    id: Id | None
    error: RecordError | None = None
    kept: dict[str, Any] = field(default_factory=dict, kw_only=True)


@dataclass(frozen=True, slots=True)
class Batch:
    """tokens: int32 (n, L), the good records in the order of the input. end: bytes of the input used so far.

    records: all records in order, good ones as many as rows of `tokens`; None for binary files, where every record is
    good. cut: of the good ones, how many texts have more tokens than the model takes. seconds: int32 (n,), of pairs of
    texts, index of the first token of the second one, 0 for others; None: there are no pairs.
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
    """One prompt. A good one has token_ids, int32 (n,), n > 0; a bad one has an error and no token ids.

    line: in a binary file its number from 1, which is its id too. text: None where the input gave token ids.
    sampling: the sampling fields that the record gave, by their names, as in the JSON (nulls left out), not checked.
    openai: it came as a line of OpenAI's batch format, and its result goes out as one.
    """

    token_ids: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int32))
    text: str | None = None
    sampling: dict[str, Any] = field(default_factory=dict)
    openai: bool = False


@dataclass(frozen=True, slots=True)
class PromptBatch:
    """Prompts in the order of the input, bad ones too. end: bytes of the input used so far."""

    prompts: list[Prompt]
    end: int

    def __len__(self) -> int:
        return len(self.prompts)

    @property
    def errors(self) -> list[RecordError]:
        return [prompt.error for prompt in self.prompts if prompt.error]


@dataclass(frozen=True, slots=True)
class Completion:
    """What one prompt was continued with; `index` counts the n completions of a prompt from 0.

    text: None without a tokenizer. finish_reason: "stop" or "length". logprobs: for each token the log-probabilities,
    by token id, of the chosen one and of the best ones; None where they were not asked for.
    """

    index: int
    token_ids: list[int]
    text: str | None
    finish_reason: str
    logprobs: list[dict[int, float]] | None = None
