"""The manifest of a job: everything that its results depend on, and the cut of its input into shards.

Two runs with the same manifest give the same bytes. The JSON files of a job directory are sealed: each contains the
sha256 of its other fields, so a changed bit is detected.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Container
from typing import TypeVar

import msgspec

from tilewright.errors import InputError
from tilewright.formats.fetched import origin
from tilewright.formats.files import InputFile, naming
from tilewright.runtime.jobs.cut import Cut, Lines, Records
from tilewright.runtime.named_models import is_shipped

VERSION = 1
MOST_TOLD = 300  # characters of a name or a value that an error quotes
SAMPLES, SAMPLE_BYTES = 16, 65536  # blocks of a file that identify it: reading 1 MiB takes some milliseconds
# what the fields of a file (SAMPLE) or a directory (FILES) in a fingerprint end with
BYTES, SAMPLE, FILES, CHANGED, CTIME = ".bytes", ".sample", ".files", ".changed", ".ctime"
ETAG = ".etag"  # of the local copy of an object: used instead of the times, which differ between machines
SHA256 = ".sha256"  # of a file of a named model: used instead of the times, which differ between installations

Scalar = str | int | float | bool | None
Value = Scalar | list[Scalar]


OPTIONS = {"content_field": "--text-field", "keep": "--keep", "per_input": "--per-input"}  # of fields with other names
SWITCHES = "switches"  # field with the optimisations that are switched off: it changes the speed, not the results


class Damaged(ValueError):
    """A sealed file is missing or its content has changed."""


class DamagedShards(Exception):
    """Shards are missing or their content has changed. numbers: of these shards."""

    def __init__(self, numbers: list[int]) -> None:
        super().__init__(numbers)
        self.numbers = numbers


class Sealed(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """The base class of sealed files. seal: the sha256 of all other fields, set by `seal`."""

    seal: str = ""


S = TypeVar("S", bound=Sealed)


def seal(content: S) -> S:
    """The content with its seal."""
    bare = msgspec.structs.replace(content, seal="")
    return msgspec.structs.replace(content, seal=hashlib.sha256(encoded(bare)).hexdigest())


def encoded(content: Sealed) -> bytes:
    """The content as one line of JSON. Equal contents give equal bytes."""
    return msgspec.json.encode(content, order="deterministic") + b"\n"


def unseal(raw: bytes, kind: type[S]) -> S:
    """The inverse of `encoded(seal(...))`. Raises Damaged for any other bytes."""
    try:
        content = msgspec.json.decode(raw, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Damaged(str(error)[:MOST_TOLD]) from error
    if encoded(seal(content)) != raw:
        raise Damaged("its checksum does not match")
    return content


class Manifest(Sealed, frozen=True):
    """The manifest. fingerprint: everything that changes results, by field. cut: divides the input into shards."""

    fingerprint: dict[str, Value]
    cut: Cut
    version: int = VERSION

    def differs(self, other: Manifest, but: Container[str] = ()) -> str | None:
        """The first difference from `other`, the new manifest, that changes results: "seed was 3 and is 4"; or None.

        but: names of files whose times are ignored. SWITCHES and ctimes that an earlier version did not record are
        ignored, too.
        """
        if self.version != other.version:
            return f"the version of the job's files was {self.version} and is {other.version}"
        missing = object()
        names = dict.fromkeys((*self.fingerprint, *other.fingerprint))
        # times last: a file may be touched; ctimes tell least
        for name in sorted(names, key=lambda name: (name.endswith(CTIME), name.endswith(CHANGED))):
            was, is_ = self.fingerprint.get(name, missing), other.fingerprint.get(name, missing)
            if name == SWITCHES or _timed(name) in but or (name.endswith(CTIME) and was is missing):
                continue
            if was != is_ or type(was) is not type(is_):
                if name.endswith(SAMPLE) and missing not in (was, is_):
                    return f"{file_words(name.removesuffix(SAMPLE))} has other content, and the same size"[:MOST_TOLD]
                option = OPTIONS.get(name)
                absent = "not given" if option else "not there"
                old, new = (absent if value is missing else _told(name, value) for value in (was, is_))
                if name == "content_field" and self.fingerprint.get("verb") == "generate":
                    option = "--prompt-field"
                return f"{(option or field_words(name))[:MOST_TOLD]} was {old} and is {new}"
        return None

    def touched(self, other: Manifest) -> list[str]:
        """Names of files whose times (mtime, ctime) differ from those in `other` while size and samples are equal.

        For directories: only the ctimes differ.
        """
        mine, others = self.fingerprint, other.fingerprint
        names = dict.fromkeys(name for field in mine if (name := _timed(field)))
        return [
            name
            for name in names
            if any(part in mine and mine[part] != others.get(part) for part in (name + CHANGED, name + CTIME))
            and all(mine.get(name + part) == others.get(name + part) for part in (BYTES, SAMPLE, FILES))
        ]

    def flaw(self) -> str:
        """The reason why the cut does not fit the fingerprint, such as an edited manifest; "" if it fits.

        The seal does not prevent edits: it is a checksum, which an editor can compute again. This check does not need
        the input. A run also divides its input again and compares the cuts (`JobDirectory.compare`).
        """
        cut, size, count = self.cut, self.fingerprint.get("input.bytes"), self.fingerprint.get("count")
        size = self.fingerprint.get("input.expanded", size)  # of a compressed input
        if (
            isinstance(cut, Lines)
            and isinstance(size, int)
            and (cut.size > size or (count is None and cut.size < size))
        ):
            return f"the shards end at byte {cut.size:,}, the input at {size:,}"
        if isinstance(cut, Records):
            end = cut.offset + cut.count * cut.record_bytes
            most = isinstance(count, int) and cut.count > count
            if most or (cut.count != count and cut.record_bytes and isinstance(size, int) and end != size):
                return (
                    f"the shards end at record {cut.count:,}, byte {end:,}; the input has {size} bytes, {count} records"
                )
        return ""


def _timed(field: str) -> str:
    """The name of the file if the field holds its time; "" for other fields."""
    return field.rpartition(".")[0] if field.endswith((CHANGED, CTIME)) else ""


def _told(field: str, value: object) -> str:
    """A fingerprint's value for a message: a time (ns) as local time, a hash as its first digits."""
    if isinstance(value, str) and field.endswith((SAMPLE, FILES, CTIME, SHA256)):
        return f"sha256 {value[:12]}"
    if isinstance(value, int) and field.endswith(BYTES):
        return f"{value:,} bytes"
    return local_time(value) if isinstance(value, int) and _timed(field) else repr(value)[:MOST_TOLD]


def file_words(name: str) -> str:
    """A file's name in the fingerprint as words for a message: "model.config.json" is "the model's config.json"."""
    return f"the model's {part}" if (part := name.removeprefix("model.")) != name else f"the {name}"


def field_words(field: str) -> str:
    """A fingerprint's field for a message: "input.bytes" is "the size of the input". Other fields stay as they are."""
    name = field.removesuffix(BYTES)
    return field if name == field else f"the size of {file_words(name)}"


def local_time(ns: int) -> str:
    """Nanoseconds since 1970 as "2026-01-31 23:59:59.123"."""
    seconds, rest = divmod(ns, 10**9)
    return f"{time.strftime('%F %T', time.localtime(seconds))}.{rest // 10**6:03d}"


def file_identity(name: str, path: str) -> dict[str, Value]:
    """Fingerprint fields that identify this version of a file without reading it all. Their names begin with `name`.

    The fields are size, mtime (ns), ctime (ns) and the sha256 of 16 blocks of 64 KiB. A user can set the mtime but not
    the ctime. The blocks cover a file of up to 1 MiB completely. For the local copy of an object, the object's ETag
    replaces the times; for a file of a named model, the sha256 of the whole file does. Raises InputError.
    """
    with InputFile(path, name) as file:
        status = os.fstat(file.fd)
        digest, size = hashlib.sha256(), min(SAMPLE_BYTES, file.size)
        places = sorted({(file.size - size) * i // (SAMPLES - 1) for i in range(SAMPLES)})
        for place in places:
            piece = bytearray(size)
            file.read_into(piece, place)
            digest.update(piece)
        times: dict[str, Value] = {name + CHANGED: status.st_mtime_ns, name + CTIME: status.st_ctime_ns}
        if copied := origin(path):
            times = {name + ETAG: copied.etag}
        elif is_shipped(path):
            times = {name + SHA256: _sha256(os.path.realpath(path), status)}
        return times | {name + BYTES: file.size, name + SAMPLE: digest.hexdigest()}


_hashed: dict[tuple[int, ...], str] = {}  # sha256 of files of named models, by what `os.stat` says about them


def _sha256(path: str, status: os.stat_result) -> str:
    key = status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
    if key not in _hashed:
        with naming(path, "read"), open(path, "rb") as file:
            _hashed[key] = hashlib.file_digest(file, "sha256").hexdigest()
    return _hashed[key]


def check_unchanged(manifest: Manifest, fingerprint: dict[str, Value]) -> None:
    """Raises InputError with the field's name if the fingerprint has changed while the job ran."""
    if what := manifest.differs(Manifest(fingerprint=fingerprint, cut=manifest.cut)):
        raise changed_while_running(what)


def changed_while_running(what: str) -> InputError:
    """The error for a file that changed after the job began."""
    return InputError(
        f"what the job reads was changed while it ran: {what}",
        remedy="let whatever writes it finish, then run the same command again: it keeps the shards unless it finds "
        "other content",
    )
