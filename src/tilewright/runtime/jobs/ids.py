"""Finds ids that occur again in a later shard, and turns the later records into errors. It runs after all shards, in
bounded memory.

A shard's notes hold one 64-bit hash per record, in order: of the record's id, or 0 without an id. In a file of a
million ids, two different ids have the same hash with a probability of one in 40 million. If an id occurs again, the
later record gets the same error as in a job of one shard.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from itertools import zip_longest
from typing import Protocol

import msgspec
import numpy as np

from tilewright.formats.files import InputFile
from tilewright.formats.lines import Row, Table
from tilewright.formats.records import Id, RecordError, repeated_id
from tilewright.runtime.jobs.directory import Attempt, JobDirectory
from tilewright.runtime.jobs.manifest import Damaged, DamagedShards
from tilewright.runtime.jobs.stop import Stop

MOST_HASHES = 1 << 20  # hashes sorted at a time: 16 MB, under a tenth of the memory of the smallest job

ErrorLine = Callable[[bytes, RecordError], bytes]  # (the output's line of a record, its error) -> the line with it
Parts = Callable[[bytes], Iterable[bytes]]  # the output of a shard -> the bytes of each record

Fields = tuple[str, ...]  # names of an input line's fields that may hold the id; the first one that exists counts


def lines_of(shard: bytes) -> list[bytes]:
    """The lines of a shard's output, with their line ends."""
    return shard.splitlines(keepends=True)


class Input(Protocol):
    """The input as the job's readers read it."""

    file: InputFile
    table: Table | None

    def located(self, error: RecordError) -> RecordError: ...


def settle_ids(
    directory: JobDirectory,
    input: Input,
    fields: Fields,
    error_line: ErrorLine,
    stop: Stop,
    parts: Parts = lines_of,
) -> None:
    """If a record has an id that occurred in an earlier shard, commit its shard again with an error for this record.

    Takes 8 bytes of memory per repeated id. parts: splits a shard's output into records, if they are not lines. Raises
    DamagedShards, Interrupted.
    """
    for number, places in given_before(directory, stop):
        stop.check()
        try:
            _mark(directory, number, set(places.tolist()), input, fields, error_line, parts)
        except Damaged as error:
            raise DamagedShards([number]) from error


def given_before(directory: JobDirectory, stop: Stop) -> Iterator[tuple[int, np.ndarray]]:
    """(shard, indices of its records) for records whose id occurred before, in this shard or an earlier one."""
    numbers = list(range(directory.manifest.cut.shards))
    ends = np.cumsum(_noted(directory, numbers))
    parts = -(-int(ends[-1]) // MOST_HASHES) if numbers else 0
    found = []
    for part in range(parts):
        kept = []
        for number in numbers:
            stop.check()
            hashes = _hashes(directory, number)
            kept.append(hashes[(hashes % np.uint64(parts) == part) & (hashes != 0)])
        twice = _twice(kept)
        if len(twice):  # most files have none, and no indices are stored
            found.append(_repeated(directory, twice, zip(numbers, ends.tolist(), strict=True)))
    later = np.sort(np.concatenate(found)) if found else np.zeros(0, np.int64)
    for number, end, size in zip(numbers, ends.tolist(), np.diff(ends, prepend=0).tolist(), strict=True):
        inside = later[np.searchsorted(later, end - size) : np.searchsorted(later, end)]
        if len(inside):
            yield number, inside - (end - size)


def _twice(kept: list[np.ndarray]) -> np.ndarray:
    """The hashes that occur more than once, sorted and without repeats. Empties the list."""
    hashes = np.concatenate(kept)
    kept.clear()
    hashes.sort()
    return np.unique(hashes[1:][hashes[1:] == hashes[:-1]])


def _repeated(directory: JobDirectory, twice: np.ndarray, shards: Iterable[tuple[int, int]]) -> np.ndarray:
    """The indices of the hashes `twice`, except the first of each. shards: (number, index at which it ends)."""
    found, places = [], []
    for number, end in shards:
        hashes = _hashes(directory, number)
        at = np.minimum(np.searchsorted(twice, hashes), len(twice) - 1)
        mine = np.flatnonzero(twice[at] == hashes)
        found.append(at[mine])
        places.append(mine + (end - len(hashes)))
    which, where = np.concatenate(found), np.concatenate(places)
    order = np.argsort(which, kind="stable")
    again = which[order[1:]] == which[order[:-1]]
    return where[order[1:][again]]


def _noted(directory: JobDirectory, numbers: list[int]) -> list[int]:
    """The number of records of each shard. Raises DamagedShards for shards without a hash per record."""
    records = [directory.record(number) for number in numbers]
    bad = [
        number
        for number, record in zip(numbers, records, strict=True)
        if record is None or record.notes_size != 8 * record.records
    ]
    if bad:
        raise DamagedShards(bad)
    return [record.records for record in records if record]


def _hashes(directory: JobDirectory, number: int) -> np.ndarray:
    try:
        return np.frombuffer(directory.notes(number), "<u8")
    except Damaged as error:
        raise DamagedShards([number]) from error


def _mark(
    directory: JobDirectory,
    number: int,
    places: set[int],
    input: Input,
    fields: Fields,
    error_line: ErrorLine,
    parts: Parts,
) -> None:
    """Commit a shard with errors for the records at these indices, unless they have errors already."""
    errors = {(error.file, error.line): error for error in _errors(directory, number)}
    failed = len(errors)
    with directory.attempt(number) as out:
        found = parts(b"".join(directory.blocks(number)))
        lines = zip_longest(directory.shard(number).lines(input.file), found)
        for place, (read, said) in enumerate(lines):
            if read is None or said is None:
                raise Damaged("its lines are more or fewer than those of the input")
            line, given, _ = read
            if place in places and (where := input.file.located(line)) not in errors:
                row = input.table.row(given) if input.table and isinstance(given, bytes) else given
                errors[where] = input.located(repeated_id(line, _id(row, fields)))
                said = error_line(said, errors[where])
            out.write(said)
        if len(errors) > failed:
            for where in sorted(errors):
                out.error(errors[where])
            _commit(directory, out, number)


def _errors(directory: JobDirectory, number: int) -> list[RecordError]:
    """The errors of a shard. Raises Damaged if they differ from what was written."""
    record = directory.checked_record(number)
    raw = directory.errors_of(record) if record.errors else b""
    if hashlib.sha256(raw).hexdigest() != record.error_sha256:
        raise Damaged("its file of errors has changed")
    try:
        return [msgspec.json.decode(line, type=RecordError) for line in raw.splitlines()]
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Damaged("its file of errors holds no errors") from error


def _id(line: bytes | Row | None, fields: Fields) -> Id | None:
    """The id of a valid line of the input."""
    record = line if isinstance(line, dict) else msgspec.json.decode(line or b"{}")
    return next((record[field] for field in fields if field in record), None)


def _commit(directory: JobDirectory, out: Attempt, number: int) -> None:
    record = directory.checked_record(number)
    out.notes += directory.notes(number)
    out.figures, out.again = record.figures, True
    out.commit(record.records)
