"""The course's comparison of files. A float passes if its absolute or its relative error is within the tolerance; NaN
fails. Files of tokens pass if few enough tokens differ."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest
from typing import Any

import msgspec
import numpy as np

from tilewright.errors import InputError, UsageError
from tilewright.formats.files import InputFile
from tilewright.formats.json_keys import check_keys
from tilewright.formats.lines import json_error, read_lines
from tilewright.formats.names import check_records_name

TOLERANCE = 1e-3
SMALL = 1e-8  # for values up to this size only the absolute error counts
EXACT = (  # fields of JSON lines
    "id", "custom_id", "label", "error", "token_ids", "text", "finish_reason", "is_greedy", "cut", "choices",
    "response",
)  # fmt: skip
NUMBERS = {  # fields that are compared by the tolerance -> the word for one number
    "logits": "logit", "logprob": "logprob", "token_logprobs": "token_logprob", "logprobs": "logprob",
    "embedding": "element",
}  # fmt: skip
COURSE_DIFFERING = 5  # tokens in 10,000 that may differ
EXAMPLES = 3  # records that the result for JSON lines names
BLOCK = 1 << 18  # elements that are compared at a time


@dataclass
class Validation:
    """The result of a comparison. `first` is the first element that fails, with the reason; `worst` has the largest
    error.

    checked: number of elements or records. error: the largest min(absolute, relative) error; NaN counts as infinite.
    """

    passed: bool = True
    checked: int = 0
    first: str | None = None
    error: float = 0.0
    worst: str | None = None

    def fail(self, reason: str) -> None:
        """Store the reason, if it is the first one."""
        self.passed = False
        self.first = self.first or reason

    @property
    def detail(self) -> str:
        """One line: the first failure, how much was compared, and the worst element."""
        return f"{self.first + '; ' if self.first else ''}{self.compared}"

    @property
    def compared(self) -> str:
        """How much was compared, and the worst element."""
        where = f" {self.worst}" if self.error else ""
        worst = f"; the largest error is {self.error:.3g}{where}" if self.worst else ""
        return f"{self.checked:,} compared{worst}"


@dataclass
class LineValidation(Validation):
    """The result for JSON lines. differing: number of records that fail. reasons: of the first EXAMPLES of them, and
    one if a file has fewer records than the other."""

    differing: int = 0
    reasons: list[str] = field(default_factory=list)

    def add(self, record: Validation) -> None:
        """Add the result for one record."""
        self.checked += 1
        if record.worst and (self.worst is None or record.error > self.error):
            self.error, self.worst = record.error, record.worst
        if record.first:
            self.differing += 1
            if self.differing <= EXAMPLES:
                self.fail(record.first)

    def fail(self, reason: str) -> None:
        super().fail(reason)
        self.reasons.append(reason)

    @property
    def detail(self) -> str:
        """One line: how many records differ, the first of them, how many were compared, and the worst logit."""
        counts = f"{self.differing:,} of {self.checked:,} records differ, counted from 0"
        return "; ".join([*([counts] if self.differing else []), *self.reasons, self.compared])


@dataclass
class TokenValidation(Validation):
    """The result for tokens. `differing` of `checked` tokens differ, and `allowed` may. `first` is the first that
    differs."""

    differing: int = 0
    allowed: int = 0

    @property
    def detail(self) -> str:
        """One line: how many tokens were compared, how many differ and how many may, and the first that differs."""
        counts = f"{self.differing:,} of {self.checked:,} tokens differ, {self.allowed:,} may"
        return f"{counts}{'; ' + self.first if self.first else ''}"


def validate_tokens(
    output: str | os.PathLike[str],
    reference: str | os.PathLike[str],
    *,
    tokens: int,
    allowed: int | None = None,
    prefix: bool = False,
) -> TokenValidation:
    """Compare two files of i32 [n][tokens]. Differences are named by prompt and position.

    allowed: tokens that may differ; None: the course's floor(0.0005 * n * tokens). prefix: the reference may be longer
    than the output. Raises InputError for a file that is not a whole number of prompts.
    """
    with InputFile(output, "output") as a, InputFile(reference, "reference") as b:
        for file in (a, b):
            if file.size == 0 or file.size % (4 * tokens):
                wanted = f"whole prompts of {4 * tokens} bytes are wanted, for {tokens} tokens"
                what = f"the {file.what} has {file.size} bytes; {wanted}"
                remedy = "compare files with as many tokens per prompt, each an int32: --max-tokens sets their number"
                raise InputError(what, path=file.path, remedy=remedy)
        result = TokenValidation()
        result.checked = min(a.size, b.size) // 4
        result.allowed = result.checked * COURSE_DIFFERING // 10_000 if allowed is None else allowed
        for first in range(0, result.checked, BLOCK):
            pair = np.empty((2, min(BLOCK, result.checked - first)), "<i4")
            a.read_into(pair[0].data, 4 * first)
            b.read_into(pair[1].data, 4 * first)
            _count_differing(result, pair, first, tokens)
        result.passed = result.differing <= result.allowed
        if a.size > b.size or (a.size < b.size and not prefix):
            sizes = [file.size // (4 * tokens) for file in (a, b)]
            result.passed = False
            result.first = f"the output has {sizes[0]:,} prompts and the reference {sizes[1]:,}"
    return result


def _count_differing(result: TokenValidation, pair: np.ndarray, first: int, tokens: int) -> None:
    """Add pair (2, n), found and expected tokens from index `first` on, to the result."""
    indices = np.flatnonzero(pair[0] != pair[1])
    if indices.size and result.first is None:
        prompt, position = divmod(first + int(indices[0]), tokens)
        found, wanted = pair[:, indices[0]]
        where = f"prompt {prompt}, token {position} (both from 0)"
        result.first = f"{where} is {found} and {wanted} is wanted"
    result.differing += indices.size


def validate(
    output: str | os.PathLike[str],
    reference: str | os.PathLike[str],
    *,
    tolerance: float = TOLERANCE,
    columns: int | None = None,
    prefix: bool = False,
) -> Validation:
    """Compare two files of f32 logits, or two of JSON lines (the fields of NUMBERS by the tolerance, those of EXACT
    exactly).

    Two binary files of token ids are compared exactly, as by `validate_tokens` with one token per prompt and none
    allowed to differ, because as floats all ids would be within the tolerance. columns: values per sentence, to name
    elements by sentence. prefix: the reference may be longer than the output. Raises InputError for a file that is
    neither, UsageError for other names, or if only one of the two is `.jsonl`.
    """
    jsonl = [os.fspath(path).endswith(".jsonl") for path in (output, reference)]
    if jsonl[0] != jsonl[1]:
        raise UsageError("one file is .jsonl and the other is not", remedy="compare two files of one kind")
    for path, what in ((output, "output"), (reference, "reference")):
        check_records_name(path, what, (".jsonl", ".bin"))
    with InputFile(output, "output") as a, InputFile(reference, "reference") as b:
        if jsonl[0]:
            return _compare_lines(a, b, tolerance, prefix)
        if _holds_ids(a) and _holds_ids(b):
            return validate_tokens(output, reference, tokens=1, allowed=0, prefix=prefix)
        return _compare_floats(a, b, tolerance, columns, prefix)


def _holds_ids(file: InputFile) -> bool:
    """Whether the first numbers are integers from 0 to 2**23, not all zero. As floats they would be subnormal, and
    logits never are."""
    words = np.empty(min(file.size // 4, BLOCK), "<i4")
    if file.size % 4 or not words.size:
        return False
    file.read_into(words.data, 0)
    return bool((words >= 0).all() and (words < 1 << 23).all() and words.any())


def errors(found: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """min(absolute, relative) error of each element in float64; NaN if either is NaN or both are infinite."""
    with np.errstate(invalid="ignore", over="ignore"):  # also for a signalling NaN
        found, expected = found.astype(np.float64), expected.astype(np.float64)
        size = np.abs(expected)
        absolute = np.abs(found - expected)
        return np.minimum(absolute, absolute / np.where(size <= SMALL, 1.0, size))


def largest_error(found: np.ndarray, expected: np.ndarray) -> float:
    """The largest of `errors`; NaN counts as infinite."""
    return float(np.nan_to_num(errors(found, expected), nan=np.inf, posinf=np.inf).max(initial=0.0))


def _compare_floats(a: InputFile, b: InputFile, tolerance: float, columns: int | None, prefix: bool) -> Validation:
    for file in (a, b):
        if file.size == 0 or file.size % 4:
            raise InputError(
                f"the {file.what} has {file.size} bytes; 32-bit floats of 4 bytes are wanted", path=file.path
            )
    result = Validation()
    if a.size > b.size or (a.size < b.size and not prefix):
        result.fail(f"the output has {a.size // 4:,} elements and the reference {b.size // 4:,}")
    total = min(a.size, b.size) // 4
    for first in range(0, total, BLOCK):
        pair = np.empty((2, min(BLOCK, total - first)), "<f4")
        a.read_into(pair[0].data, 4 * first)
        b.read_into(pair[1].data, 4 * first)
        judge(result, pair, errors(*pair), tolerance, partial(_name, first, columns))
    return result


def judge(
    result: Validation, pair: np.ndarray, error: np.ndarray, allowed: float, name_of: Callable[[int], str]
) -> None:
    """Add the elements of `pair` (2, n), found and expected, to the result.

    error: (n,), of each element. NaN and an error above `allowed` fail.
    """
    result.checked += error.size
    failed = ~(error <= allowed)
    if failed.any():
        i = int(np.argmax(failed))
        result.fail(f"{name_of(i)} is {pair[0, i]:.9g} and {pair[1, i]:.9g} is wanted")
    ranked = np.where(np.isnan(error), np.inf, error)
    worst = int(np.argmax(ranked)) if error.size else 0
    if error.size and (result.worst is None or ranked[worst] > result.error):
        result.error = float(ranked[worst])
        result.worst = f"at {name_of(worst)} ({pair[0, worst]:.9g} for {pair[1, worst]:.9g})"


def _name(first: int, columns: int | None, i: int) -> str:
    i += first
    return f"element {i}" if columns is None else f"sentence {i // columns}, logit {i % columns}"


def _compare_lines(a: InputFile, b: InputFile, tolerance: float, prefix: bool) -> LineValidation:
    result = LineValidation()
    for i, (ours, theirs) in enumerate(zip_longest(_objects(a), _objects(b))):
        if ours is None and prefix:
            break
        if ours is None or theirs is None:
            result.fail(f"the {'output' if ours is None else 'reference'} ends after {i} records")
            break
        result.add(_compare_records(ours, theirs, tolerance, f"record {i} (id {ours.get('id')!r})"))
    if result.passed and not result.checked:
        raise InputError(f"the {a.what} holds no records", path=a.path)
    return result


def _compare_records(ours: dict[str, Any], theirs: dict[str, Any], tolerance: float, where: str) -> Validation:
    result = Validation()
    for name in EXACT:
        if ours.get(name) != theirs.get(name):
            found, wanted = (_short(line.get(name)) for line in (ours, theirs))
            result.fail(f"{where}: {name} is {found} and {wanted} is wanted")
    for name in NUMBERS:
        if name in ours and name in theirs:
            _judge_numbers(result, name, (ours[name], theirs[name]), tolerance, where)
        elif name in theirs:
            result.fail(f"{where}: the reference has {name} and the output has none")
    return result


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:97]}..."


def _judge_numbers(result: Validation, name: str, values: tuple[Any, Any], tolerance: float, where: str) -> None:
    """values: of the output and of the reference. For `logprobs` each token's log-probabilities, by their order."""
    try:
        pair = [msgspec.convert(_flat(value), list[float]) for value in values]
    except msgspec.ValidationError as error:
        if values[0] != values[1]:
            result.fail(f"{where}: {name} are no list of numbers ({json_error(error)})")
        return
    if len(pair[0]) != len(pair[1]):
        result.fail(f"{where}: {len(pair[0])} {name}, and {len(pair[1])} are wanted")
        return
    numbers = np.array(pair, np.float64)  # (2, n)
    judge(result, numbers, errors(*numbers), tolerance, lambda i: f"{where}, {NUMBERS[name]} {i}")


def _flat(value: Any) -> list[Any]:
    """The numbers of a field: one, a list, or for each token an object."""
    items = value if isinstance(value, list) else [value]
    return [number for item in items for number in (item.values() if isinstance(item, dict) else [item])]


def _objects(file: InputFile) -> Iterator[dict[str, Any]]:
    for number, line, _ in read_lines(file):
        try:
            if line is None:
                raise InputError("is longer than 16 MiB", path=file.path, where=f"line {number}")
            record = msgspec.json.decode(line, type=dict[str, Any])
            check_keys(line, len(record))
            yield record
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise InputError(
                f"no JSON object: {json_error(error, line or b'')}", path=file.path, where=f"line {number}"
            ) from error
