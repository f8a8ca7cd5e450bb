"""What every input of sentences hands to a job: batches of token ids, and the records that could not be read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

Id = str | int


@dataclass(frozen=True, slots=True)
class RecordError:
    """Why a record has no answer: its line from 1, the field ("tokens[3]"; "": the whole line), the rule it breaks."""

    line: int
    field: str
    message: str

    def __str__(self) -> str:
        return f"line {self.line}{', ' if self.field else ''}{self.field}: {self.message}"


@dataclass(frozen=True, slots=True)
class Record:
    """One record of a JSONL input: its line from 1, its id (None: could not be read), its error (None: it is good)."""

    line: int
    id: Id | None
    error: RecordError | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """tokens: int32 (n, L), the good records in the order of the input. end: bytes of the input used so far.

    records: all records in order, good ones as many as rows of `tokens`; None for binary files, where every record is
    good.
    """

    tokens: np.ndarray
    end: int
    records: list[Record] | None = None

    def __len__(self) -> int:
        return len(self.tokens) if self.records is None else len(self.records)

    @property
    def errors(self) -> list[RecordError]:
        return [record.error for record in self.records or () if record.error]
