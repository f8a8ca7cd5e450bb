"""What a job's results depend on, and how its input is cut: two runs of one manifest give the same bytes.

Everything a job keeps is sealed: it carries the sha256 of all its other fields, so that a changed bit is found.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Container
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from tilewright.errors import InputError
from tilewright.formats.files import InputFile, naming
from tilewright.runtime.jobs.cut import Cut

VERSION = 1
SAMPLES, SAMPLE_BYTES = 16, 65536  # of an input that is identified without being read: 1 MiB, some milliseconds
BYTES, SAMPLE, CHANGED = ".bytes", ".sample", ".changed"  # what a file's fields in a fingerprint end with

Scalar = str | int | float | bool | None
Value = Scalar | list[Scalar]


class Damaged(ValueError):
    """A sealed file is not what was written."""


class DamagedShards(Exception):
    """numbers: of shards that are not what was committed."""

    def __init__(self, numbers: list[int]) -> None:
        super().__init__(numbers)
        self.numbers = numbers


class Sealed(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """seal: the sha256 of everything else, set by `seal`."""

    seal: str = ""


S = TypeVar("S", bound=Sealed)


def seal(content: S) -> S:
    """The same with its seal."""
    bare = msgspec.structs.replace(content, seal="")
    return msgspec.structs.replace(content, seal=hashlib.sha256(encoded(bare)).hexdigest())


def encoded(content: Sealed) -> bytes:
    """One line of JSON, with one spelling for each content."""
    return msgspec.json.encode(content, order="deterministic") + b"\n"


def unseal(raw: bytes, kind: type[S]) -> S:
    """What `encoded(seal(...))` was made of. Raises Damaged for anything else."""
    try:
        content = msgspec.json.decode(raw, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Damaged(str(error)) from error
    if encoded(seal(content)) != raw:
        raise Damaged("the seal does not fit")
    return content


class Manifest(Sealed, frozen=True):
    """fingerprint: everything that changes results, field -> value. cut: how the input becomes shards."""

    fingerprint: dict[str, Value]
    cut: Cut
    version: int = VERSION

    def differs(self, other: Manifest, but: Container[str] = ()) -> str | None:
        """The first field in which `other`, the new one, asks for other results: "seed was 3 and is 4"; or None.

        but: names of files whose time of change does not count.
        """
        if self.version != other.version:
            return f"the version of the job's files was {self.version} and is {other.version}"
        missing = object()
        for name in dict.fromkeys((*self.fingerprint, *other.fingerprint)):
            was, is_ = self.fingerprint.get(name, missing), other.fingerprint.get(name, missing)
            if name.endswith(CHANGED) and name.removesuffix(CHANGED) in but:
                continue
            if was != is_ or type(was) is not type(is_):
                old, new = ("not there" if value is missing else _told(name, value) for value in (was, is_))
                return f"{name} was {old} and is {new}"
        return None

    def touched(self, other: Manifest) -> list[str]:
        """Names of files that differ from those of `other` in their time of change, but not in size and samples."""
        mine, others = self.fingerprint, other.fingerprint
        names = [field.removesuffix(CHANGED) for field in mine if field.endswith(CHANGED)]
        return [
            name
            for name in names
            if mine[name + CHANGED] != others.get(name + CHANGED)
            and all(mine.get(name + part) == others.get(name + part) for part in (BYTES, SAMPLE))
        ]


def _told(field: str, value: object) -> str:
    """A value of a fingerprint as a user reads it: a time of change (ns) as local time, the beginning of a hash."""
    if isinstance(value, str) and field.endswith((SAMPLE, ".files")):
        return f"sha256 {value[:12]}"
    return local_time(value) if isinstance(value, int) and field.endswith(CHANGED) else repr(value)


def local_time(ns: int) -> str:
    """Nanoseconds since 1970 as "2026-01-31 23:59:59.123"."""
    seconds, rest = divmod(ns, 10**9)
    return f"{time.strftime('%F %T', time.localtime(seconds))}.{rest // 10**6:03d}"


def file_identity(name: str, path: str) -> dict[str, Value]:
    """What tells this version of a file from others without reading it all: fingerprint fields that begin with `name`.

    They are its bytes, when it was changed (ns), and the sha256 of 16 pieces of 64 KiB, which are all of a file of up
    to 1 MiB. Raises InputError.
    """
    with InputFile(path, name) as file:
        changed = os.fstat(file.fd).st_mtime_ns
        digest, size = hashlib.sha256(), min(SAMPLE_BYTES, file.size)
        places = sorted({(file.size - size) * i // (SAMPLES - 1) for i in range(SAMPLES)})
        for place in places:
            piece = bytearray(size)
            file.read_into(piece, place)
            digest.update(piece)
        return {name + BYTES: file.size, name + SAMPLE: digest.hexdigest(), name + CHANGED: changed}


def check_unchanged(manifest: Manifest, fingerprint: dict[str, Value]) -> None:
    """Raises InputError naming the field, where what the results depend on has changed while the job ran."""
    if what := manifest.differs(Manifest(fingerprint=fingerprint, cut=manifest.cut)):
        raise _changed(what)


def _changed(what: str) -> InputError:
    return InputError(
        f"what the job reads was changed while it ran: {what}",
        hint="put back what was there and run again; or let whatever writes it finish, and run again with --restart",
    )


@dataclass(frozen=True)
class AsBegun:
    """The files that a run reads, by their names in the fingerprint: (path, time of change (ns) as the run began).

    A shard is committed only if they are as they were: it outlives the run, and a file that is put back later would
    vouch for what was computed from another content.
    """

    files: dict[str, tuple[str, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, manifest: Manifest, files: dict[str, str]) -> AsBegun:
        """manifest: with their times as this run has found them; files: their paths."""
        times = {name: manifest.fingerprint.get(name + CHANGED) for name in files}
        return cls({name: (path, t) for name, path in files.items() if isinstance(t := times[name], int)})

    def check(self) -> None:
        """Raises InputError, naming the file."""
        for name, (path, was) in self.files.items():
            with naming(path, "look at"):
                now = os.stat(path).st_mtime_ns
            if now != was:
                raise _changed(f"{name + CHANGED} was {local_time(was)} and is {local_time(now)}")
