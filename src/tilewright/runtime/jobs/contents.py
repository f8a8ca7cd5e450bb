"""Files that have another time of change than when the job was begun: whether they hold the same is known by a hash.

A file of up to 1 MiB is known by its samples, which are all of it. Of a larger one a thread takes the sha256 while the
job runs, and it counts if the file was the manifest's before and after. A file that was only touched, or copied over
with the same bytes, then has this sha256 when the job goes on; one that was edited between its samples has not.
"""

from __future__ import annotations

import hashlib
import shlex
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime

from tilewright.errors import TilewrightError, UsageError
from tilewright.formats.files import InputFile
from tilewright.runtime.jobs.directory import CONTENTS, OTHERWISE, JobDirectory
from tilewright.runtime.jobs.manifest import (
    BYTES,
    CHANGED,
    SAMPLE_BYTES,
    SAMPLES,
    Damaged,
    Manifest,
    Sealed,
    encoded,
    file_identity,
    local_time,
    seal,
)

BLOCK_BYTES = 1 << 19  # read at a time: a quarter of a millisecond, and little memory beside that of a small job
REST = 19  # times as long as it has worked, the thread then rests: a twentieth of a core, and of the disk's time
WAIT_SECONDS = 60.0  # for the thread's end: it is at a block, or an fsync


class Contents(Sealed, frozen=True):
    """manifest: the seal of the job's. sha256: of files, by their names in its fingerprint."""

    manifest: str
    sha256: dict[str, str]


class _Enough(Exception):
    """The job ends before the file."""


def check_touched(
    directory: JobDirectory, now: Manifest, names: list[str], files: dict[str, str], beat: Callable[[], object]
) -> None:
    """Raises UsageError unless each of these files, which have another time of change, holds what it did.

    now: with their fields as they are; who comes so far compares them again at the end, so that a change while they
    are read is found. files: their paths. beat: called with every block.
    """
    known = known_hashes(directory)
    for name in names:
        if _number(now, name + BYTES) <= SAMPLES * SAMPLE_BYTES:
            continue
        path, was = files.get(name), local_time(_number(directory.manifest, name + CHANGED))
        if path is None or name not in known:
            _refuse(directory, now, name, path)
        elif _digest(path, beat) != known[name]:
            raise UsageError(
                f"the job was begun for other results: the content of {name} is not what it was "
                f"at {was}, though it is as large",
                path=directory.path,
                hint=OTHERWISE,
            )


def _refuse(directory: JobDirectory, now: Manifest, name: str, path: str | None) -> None:
    was, is_ = (_number(manifest, name + CHANGED) for manifest in (directory.manifest, now))
    same = ""
    if path is not None:
        at = datetime.fromtimestamp(was // 10**9, UTC).strftime("%FT%T") + f".{was % 10**9:09d}Z"
        same = f"if it holds the same, give it its time back, touch -d {at} {shlex.quote(path)}; else "
    raise UsageError(
        f"{name + CHANGED} was {local_time(was)} and is {local_time(is_)}: its size is the same, and the job has ended "
        "before all of it was hashed, so that nobody knows whether its content is",
        path=directory.path,
        hint=same + OTHERWISE,
    )


@contextmanager
def hashing(directory: JobDirectory, files: dict[str, str]) -> Iterator[None]:
    """Within the block a thread takes the sha256 of those of `files` (name in the fingerprint: path) of which it is
    not known, the smallest first. What fails there costs nothing but that knowledge."""
    known = known_hashes(directory)
    sizes = {name: _number(directory.manifest, name + BYTES) for name in files if name not in known}
    todo = [name for name in sorted(sizes, key=sizes.__getitem__) if sizes[name] > SAMPLES * SAMPLE_BYTES]
    if not todo:
        yield
        return
    end = threading.Event()
    thread = threading.Thread(target=_hash, args=(directory, {n: files[n] for n in todo}, known, end), daemon=True)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join(WAIT_SECONDS)


def _hash(directory: JobDirectory, files: dict[str, str], known: dict[str, str], end: threading.Event) -> None:
    begun = time.perf_counter()

    def rest() -> None:
        nonlocal begun
        if end.wait(REST * (time.perf_counter() - begun)):
            raise _Enough
        begun = time.perf_counter()

    manifest = directory.manifest

    def is_as_begun(name: str) -> bool:
        return all(
            manifest.fingerprint.get(field) == value for field, value in file_identity(name, files[name]).items()
        )

    with suppress(TilewrightError, _Enough):
        for name, path in files.items():
            if is_as_begun(name):
                sha256 = _digest(path, rest)
                if is_as_begun(name):
                    known[name] = sha256
                    directory.root.place(CONTENTS, encoded(seal(Contents(manifest=manifest.seal, sha256=known))))


def _digest(path: str, beat: Callable[[], object]) -> str:
    """The sha256 of a file."""
    digest = hashlib.sha256()
    block = memoryview(bytearray(BLOCK_BYTES))
    with InputFile(path, "file") as file:
        for place in range(0, file.size, BLOCK_BYTES):
            part = block[: min(BLOCK_BYTES, file.size - place)]
            file.read_into(part, place)
            digest.update(part)
            beat()
    return digest.hexdigest()


def known_hashes(directory: JobDirectory) -> dict[str, str]:
    """The sha256 of files, by their names in the fingerprint, as far as a run of this job has come with them."""
    with suppress(Damaged):
        contents = directory.sealed(CONTENTS, Contents)
        if contents.manifest == directory.manifest.seal:
            return dict(contents.sha256)
    return {}


def _number(manifest: Manifest, field: str) -> int:
    value = manifest.fingerprint.get(field)
    return value if isinstance(value, int) else 0
