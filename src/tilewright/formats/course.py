"""The course's files without a header, little-endian: weights f32, sentences or prompts i32 [n][length], logits f32
[n][labels], completions i32 [n][tokens]."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack

import numpy as np

from tilewright.errors import InputError, counted
from tilewright.formats.atomic import AtomicFile
from tilewright.formats.blocks import write_blocks
from tilewright.formats.files import InputFile, Writable
from tilewright.formats.records import Batch, Completion, Prompt, RecordError

SCAN_RECORDS = 1 << 16  # number of sentences whose ids are checked at a time: 4 MiB at 16 tokens


def map_weights(file: InputFile, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """Read-only float32 views of the mapped file, one tensor after another in the order of `shapes`.

    Raises InputError unless the file has exactly the bytes of these shapes.
    """
    expected = 4 * sum(math.prod(shape) for shape in shapes.values())
    if file.size != expected:
        difference = f"{abs(file.size - expected):,} {'too many' if file.size > expected else 'missing'}"
        raise InputError(
            f"the weights have {file.size:,} bytes; the course's model takes exactly {expected:,} ({difference})",
            path=file.path,
            remedy="give a model of other sizes as a directory with config.json and model.safetensors",
        )
    mapped, views, begin = file.map(), {}, 0
    for name, shape in shapes.items():
        views[name] = np.frombuffer(mapped, "<f4", math.prod(shape), begin).reshape(shape)
        begin += views[name].nbytes
    return views


def write_weights(
    path: str | os.PathLike[str], tensors: Iterable[tuple[str, tuple[int, ...], Iterable[np.ndarray]]]
) -> None:
    """Write (name, shape, float32 blocks) one after another. The file appears when it is complete. Raises
    ResourceError."""
    with AtomicFile(path) as file:
        for name, shape, blocks in tensors:
            write_blocks(file, name, shape, blocks)


class TokenFile:
    """Sentences of a binary file, read by position in batches. what: the word for one of them in messages.

    count: how many to use from the start; None: all. The ids of the first `scan` bytes (None: of all) are checked once
    before any work. All ids are checked when they are used. Raises InputError for an empty file, for a size that is not
    a whole number of sentences, for fewer than `count`, or for an id outside the vocabulary, with its sentence and
    position, from 0.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        length: int,
        vocabulary: int,
        count: int | None = None,
        what: str = "sentence",
        scan: int | None = None,
    ) -> None:
        self._vocabulary = vocabulary
        self.length = self._length = length
        self._what = what
        with ExitStack() as failing:
            self.file = failing.enter_context(InputFile(path, "input"))
            self.total = self._sentences(count)
            self.bytes = self.total * 4 * length
            scanned = self.total if scan is None else min(self.total, scan // (4 * length))
            for _ in self.batches(SCAN_RECORDS, range(scanned)):
                pass
            failing.pop_all()

    def located(self, error: RecordError) -> RecordError:
        """The error unchanged, because there is only one file."""
        return error

    def close(self) -> None:
        self.file.close()

    def batches(self, size: int, rows: range | None = None) -> Iterator[Batch]:
        """All sentences in order, or those of `rows`, `size` at a time."""
        row = 4 * self._length
        rows = range(self.total) if rows is None else rows
        for first in range(rows.start, rows.stop, size):
            tokens = np.empty((min(size, rows.stop - first), self._length), "<i4")
            self.file.read_into(tokens.data, first * row)
            self._check(tokens, first)
            yield Batch(tokens, (first + len(tokens)) * row)

    def _sentences(self, count: int | None) -> int:
        file, row = self.file, 4 * self._length
        if file.size == 0:
            remedy = f"write {self._length} token ids of 4 bytes per {self._what}"
            raise InputError("the input is empty", path=file.path, remedy=remedy)
        sentences, rest = divmod(file.size, row)
        if rest:
            raise InputError(
                f"the input has {file.size:,} bytes: {counted(sentences, self._what)} of {row} bytes and {rest} more",
                path=file.path,
                remedy=f"check the file: it was cut short, is for another {self._what} length, or is text. Name text "
                ".txt, .jsonl or .parquet",
            )
        if count is not None and count > sentences:
            what = f"the input holds {sentences:,} {self._what}s; {count:,} were asked for"
            raise InputError(what, path=file.path, remedy="lower -n")
        return sentences if count is None else count

    def _check(self, tokens: np.ndarray, first: int) -> None:
        if tokens.min() >= 0 and tokens.max() < self._vocabulary:
            return
        sentence, position = np.argwhere((tokens < 0) | (tokens >= self._vocabulary))[0]
        raise InputError(
            f"token id {tokens[sentence, position]} is outside the vocabulary (ids 0 to {self._vocabulary - 1})",
            path=self.file.path,
            where=f"{self._what} {first + sentence}, position {position} (both from 0)",
            remedy="check that it holds 32-bit token ids, made with this model's vocabulary",
        )


class LogitsWriter:
    """Writes logits as f32 [n][labels] to an open AtomicFile. Raises InputError for logits that are not finite.

    first: the number of the first sentence, from 0.
    """

    def __init__(self, file: Writable, first: int = 0) -> None:
        self.file = file
        self._written = first

    def write(self, batch: Batch, logits: np.ndarray) -> list[RecordError]:
        """logits: float32 (n, labels) of the batch's n sentences. Returns no errors of records."""
        finite = np.isfinite(logits).all(axis=1)
        if not finite.all():
            raise InputError(
                f"the logits of sentence {self._written + int(np.argmin(finite))} (from 0) are not finite",
                remedy="use another checkpoint: its weights are too large for the sums to stay in range",
            )
        self.file.write(np.ascontiguousarray(logits, "<f4"))
        self._written += len(logits)
        return []


class TokenWriter:
    """Writes completions as i32 [n][tokens] to an open AtomicFile. The format has no field for anything else."""

    def __init__(self, file: Writable, tokens: int) -> None:
        self.file = file
        self._tokens = tokens

    def write(self, results: Iterable[tuple[Prompt, Sequence[Completion]]]) -> None:
        """results: prompts and their completions, in the order of the input.

        Raises InputError, which names the prompt, if a prompt has an error, several completions, or one of another
        length.
        """
        rows = [self._row(prompt, completions) for prompt, completions in results]
        self.file.write(np.array(rows, "<i4").tobytes())

    def _row(self, prompt: Prompt, completions: Sequence[Completion]) -> list[int]:
        if prompt.error is not None:
            what = str(prompt.error)
        elif len(completions) != 1:
            what = f"prompt {prompt.id!r} has {len(completions)} completions; a binary file holds one per prompt"
        elif len(completions[0].token_ids) != self._tokens:
            count, reason = len(completions[0].token_ids), completions[0].finish_reason
            what = f"prompt {prompt.id!r} has {count} new tokens ({reason}); the file holds {self._tokens} per prompt"
        else:
            return completions[0].token_ids
        raise InputError(what, path=self.file.path, remedy="write to a .jsonl file, which holds any number of both")
