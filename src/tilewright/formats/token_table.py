"""A token table that is stored beside a model. It has rows that earlier runs computed, so later runs only look them up.

Layout: MAGIC, the header's length (u64), the header (JSON), then `row_of` i32 [groups][vocabulary], then the table's
slices f32 [slices][rows][columns]. The header has the sizes, a sha256 of each part, and the fingerprint of everything
that the rows depend on. So a damaged table, or a table of something else, is never used.
"""

from __future__ import annotations

import hashlib
import os
import stat
from concurrent.futures import ThreadPoolExecutor

import msgspec
import numpy as np

from tilewright.errors import InputError
from tilewright.formats.atomic import AtomicFile
from tilewright.formats.files import InputFile
from tilewright.formats.lines import json_words

MAGIC = b"TWTABLE1"
MAX_HEADER_BYTES = 1 << 20


class Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """fingerprint: of weights, dtype, kernels and CPU. digests: sha256 of row_of, then of each slice."""

    fingerprint: str
    groups: int
    vocabulary: int
    slices: int
    rows: int
    columns: int
    digests: list[str]


def write_table(path: str | os.PathLike[str], fingerprint: str, row_of: np.ndarray, slices: list[np.ndarray]) -> None:
    """Write row_of int32 (groups, vocabulary) and slices, float32 (rows, columns) each. Raises ResourceError."""
    parts = [np.ascontiguousarray(part) for part in (row_of, *slices)]
    rows, columns = parts[1].shape
    digests = _digests(parts)
    header = msgspec.json.encode(
        Header(fingerprint, row_of.shape[0], row_of.shape[1], len(slices), rows, columns, digests)
    )
    with AtomicFile(path) as file:
        file.write(MAGIC + len(header).to_bytes(8, "little") + header)
        for part in parts:
            file.write(part)


def read_table(path: str | os.PathLike[str], fingerprint: str, row_of: np.ndarray, slices: np.ndarray) -> int | None:
    """Fill row_of int32 (groups, vocabulary) and slices float32 (slices, capacity, columns) from a stored table.

    Returns the number of rows. Returns None, and fills nothing, if the table belongs to other weights, kernels or
    another CPU, or has more rows than `capacity`. Raises InputError for a damaged file, and for a file that another
    user wrote or may write, because its checksums do not show who computed its rows.
    """
    with InputFile(path, "token table") as file:
        _check_owner(file)
        header, begin = _read_header(file)
        fits = (header.groups, header.vocabulary, header.slices, header.columns) == (
            *row_of.shape, slices.shape[0], slices.shape[2]
        )  # fmt: skip
        if header.fingerprint != fingerprint or not fits or header.rows > slices.shape[1]:
            return None
        found = np.empty_like(row_of)
        parts = [found, *(one_slice[: header.rows] for one_slice in slices)]
        if begin + sum(part.nbytes for part in parts) != file.size or len(header.digests) != len(parts):
            raise _damaged(path, "its size does not fit its header")
        offsets = np.cumsum([begin, *(part.nbytes for part in parts[:-1])])
        with ThreadPoolExecutor(max_workers=2) as pool:
            list(pool.map(lambda at, part: file.read_into(memoryview(part).cast("B"), int(at)), offsets, parts))
        if _digests(parts) != header.digests or int(found.max()) >= header.rows:
            raise _damaged(path, "its checksums do not match")
    row_of[...] = found
    return header.rows


def _check_owner(file: InputFile) -> None:
    """Raises InputError unless the open file belongs to this user, to root or to the owner of its directory, and nobody
    else may write to it."""
    found, folder = os.fstat(file.fd), os.stat(os.path.dirname(os.path.abspath(file.path)))
    why = None
    if found.st_uid not in (0, os.geteuid(), folder.st_uid):
        why = f"belongs to user {found.st_uid}, and this process is user {os.geteuid()}"
    elif found.st_mode & stat.S_IWOTH:
        why = f"may be written by others (mode {stat.S_IMODE(found.st_mode):04o})"
    if why:
        remedy = "remove it: the next run with --keep-table makes a new one; or leave out --keep-table"
        raise InputError(
            f"the token table {why}; a file that others may change must not decide the results",
            path=file.path,
            remedy=remedy,
        )


def _read_header(file: InputFile) -> tuple[Header, int]:
    """The header, and the offset of the data."""
    start = bytearray(16)
    if file.size >= 16:
        file.read_into(start, 0)
    length = int.from_bytes(start[8:], "little")
    if start[:8] != MAGIC or length > min(MAX_HEADER_BYTES, file.size - 16):
        raise _damaged(file.path, "it does not start as a token table does")
    text = bytearray(length)
    file.read_into(text, 16)
    try:
        return msgspec.json.decode(text, type=Header), 16 + length
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise _damaged(file.path, f"its header cannot be read ({json_words(error, text)})") from error


def _digests(parts: list[np.ndarray]) -> list[str]:
    """The sha256 of each part. Two are computed at a time, because hashing releases the GIL."""
    with ThreadPoolExecutor(max_workers=2) as pool:
        return list(pool.map(lambda part: hashlib.sha256(memoryview(part).cast("B")).hexdigest(), parts))


def _damaged(path, why: str) -> InputError:
    return InputError(
        f"not a complete token table: {why}",
        path=path,
        remedy="remove it: the next run with --keep-table makes a new one",
    )
