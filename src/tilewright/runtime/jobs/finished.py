"""The report of a finished job. Its hashes let a later run recognise the outputs."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from typing import Any

import msgspec

from tilewright.formats.files import BLOCK_BYTES, InputFile, naming
from tilewright.runtime.jobs.directory import REPORT, JobDirectory
from tilewright.runtime.jobs.manifest import Sealed, encoded, seal


class Report(Sealed, frozen=True):
    """The report of a finished job. size: bytes of the output; others: further outputs, (bytes, sha256) by path.
    computed: shards that the last run computed; earlier runs computed the others. seconds: of the last run, by phase
    and in "total". figures: added up over all shards. facts: what the engine reports about its workers.
    """

    manifest: str
    output: str
    size: int
    sha256: str
    records: int
    errors: int
    shards: int
    others: dict[str, tuple[int, str]] = msgspec.field(default_factory=dict)
    computed: int = 0
    seconds: dict[str, float] = msgspec.field(default_factory=dict)
    figures: dict[str, float] = msgspec.field(default_factory=dict)
    facts: dict[str, Any] = msgspec.field(default_factory=dict)


def digest_of(path: str, beat: Callable[[], object]) -> tuple[int, str]:
    """(bytes, sha256) of a file, or of all files below a directory with their names. beat: called for every block."""
    digest = hashlib.sha256()
    if not os.path.isdir(path):
        with InputFile(path, "output") as file:
            for place in range(0, file.size, BLOCK_BYTES):
                block = bytearray(min(BLOCK_BYTES, file.size - place))
                file.read_into(block, place)
                digest.update(block)
                beat()
            return file.size, digest.hexdigest()
    total = 0
    with naming(path, "list"):
        names = sorted(os.listdir(path))
    for name in names:
        size, sha256 = digest_of(os.path.join(path, name), beat)
        digest.update(f"{name!r} {size} {sha256}\n".encode())
        total += size
    return total, digest.hexdigest()


def save_report(directory: JobDirectory, report: Report) -> Report:
    """Seal and save the report of a job whose output exists."""
    report = seal(report)
    directory.root.place(REPORT, encoded(report))
    return report
