"""Compares files whose times have changed since the job began: a hash decides if the content is the same. Both mtime
and ctime are compared. An edit always changes the ctime, but so do chmod, a hard link and a move.

The samples of a file of up to 1 MiB cover the whole file. A thread hashes larger files while the job runs. A hash is
saved only if the file matched the manifest before and after hashing. When the job resumes, a file that was only
touched, or overwritten with the same bytes, still has this hash. A file that was edited between the sampled blocks has
another one.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

from tilewright.errors import TilewrightError, UsageError
from tilewright.formats.fetched import STAGED
from tilewright.formats.files import InputFile, naming
from tilewright.runtime.jobs.directory import CONTENTS, JobDirectory
from tilewright.runtime.jobs.manifest import (
    BYTES,
    CHANGED,
    CTIME,
    FILES,
    SAMPLE_BYTES,
    SAMPLES,
    Damaged,
    Manifest,
    Sealed,
    encoded,
    file_identity,
    file_words,
    local_time,
    seal,
)
from tilewright.runtime.jobs.unchanged import Tree, files_below

BLOCK_BYTES = 1 << 19  # read at a time: a quarter of a millisecond, and little memory beside that of a small job
REST = 19  # the thread pauses 19 times as long as it worked: it uses 5 % of a core and of the disk's time
SAME = "same-content"  # a file in the job's directory by which the user vouches for the content
LATER = "start this worker again when the process that started the job has hashed the file; or begin the job with URLs"
WAIT_SECONDS = 60.0  # the most that the job waits for the thread, which may be in a read or an fsync


class Contents(Sealed, frozen=True):
    """manifest: the seal of the job's manifest. sha256: the hashes of files, by their names in the fingerprint."""

    manifest: str
    sha256: dict[str, str]


class _Enough(Exception):
    """Raised in the hashing thread if the job ends before the file is hashed."""


def check_touched(
    directory: JobDirectory, now: Manifest, names: list[str], files: dict[str, str], beat: Callable[[], object]
) -> None:
    """Raises UsageError unless each of these files, whose times have changed, still has its old content.

    now: the new manifest. The run compares it again at its end, so it detects a change during the read. files: the
    paths by name. beat: called for every block.
    """
    known = known_hashes(directory)
    for name in names:
        if not _needs_hash(now, name):
            continue
        path = files.get(name)
        was = "when the job was begun"
        if changed := _number(directory.manifest, name + CHANGED):
            was = f"at {local_time(changed)}"
        if path is None or name not in known:
            _refuse(directory, now, name, path)
        elif _digest(path, beat) != known[name]:
            raise UsageError(
                f"the job was begun with other settings or inputs: {name} has other content than {was}, "
                "and the same size",
                path=directory.path,
                remedy=directory.otherwise,
            )


def _needs_hash(manifest: Manifest, name: str) -> bool:
    """True if size and samples cannot decide, because the file is larger than its samples."""
    if not {name + CHANGED, name + CTIME} & manifest.fingerprint.keys():
        return False  # it has an ETag or a sha256
    return name + FILES in manifest.fingerprint or _number(manifest, name + BYTES) > SAMPLES * SAMPLE_BYTES


def _refuse(directory: JobDirectory, now: Manifest, name: str, path: str | None) -> None:
    """Raises UsageError, unless the user has vouched for the content (SAME) since the last change."""
    if path is None:
        raise UsageError(f"it is not known whether the content of {file_words(name)} has changed", path=directory.path,
                         remedy=directory.otherwise)  # fmt: skip
    if _said_same(directory, path):
        return
    was, is_ = (_number(manifest, name + CHANGED) for manifest in (directory.manifest, now))
    what = (
        f"{file_words(name)} was last changed at {local_time(is_)}; when the job was begun this was {local_time(was)}"
    )
    if was == is_:
        why = "as by an edit that puts the time back, by chmod or by a hard link"
        what = f"the status of {file_words(name)} was changed since the job was begun, {why}"
    if directory.output in STAGED:  # a store has no file that a user could touch
        remedy = LATER if directory.joined else directory.otherwise
    else:
        command = f"touch {shlex.quote(directory.root.where(SAME))}"
        remedy = f"if its content is the same, run `{command}`; else {directory.otherwise}"
    raise UsageError(
        f"{what}. Its size is the same. No earlier run has hashed all of it, so it is not known whether its content "
        "is the same",
        path=directory.path,
        remedy=remedy,
    )


def _said_same(directory: JobDirectory, path: str) -> bool:
    """True if the file SAME exists and is newer than the last change of `path`, or of any file below it."""
    if SAME not in directory.root.names():
        return False
    with naming(path, "look at"):
        newest = max(Tree.of(path).newest.values()) if os.path.isdir(path) else os.stat(path).st_ctime_ns
        return os.stat(directory.root.where(SAME), follow_symlinks=False).st_ctime_ns > newest


@contextmanager
def hashing(
    directory: JobDirectory, files: dict[str, str], noted: Callable[[], object] = lambda: None
) -> Iterator[None]:
    """Within the block a thread hashes the files whose sha256 is not known, the smallest first.

    files: the paths by their names in the fingerprint. noted: called when contents.json has another hash. If the thread
    fails, the sha256 stays unknown.
    """
    known = known_hashes(directory)
    sizes = {name: _number(directory.manifest, name + BYTES) for name in files if name not in known}
    todo = [name for name in sorted(sizes, key=sizes.__getitem__) if _needs_hash(directory.manifest, name)]
    if not todo:
        yield
        return
    end = threading.Event()
    each = {name: files[name] for name in todo}
    thread = threading.Thread(target=_hash, args=(directory, each, known, end, noted), daemon=True)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join(WAIT_SECONDS)


class _Rest:
    """Pauses the hashing thread: each pause lasts `rest` times as long as the work since the last pause. Raises _Enough
    once `end` is set."""

    def __init__(self, end: threading.Event, rest: int) -> None:
        self._end, self._rest, self._begun = end, rest, time.perf_counter()

    def __call__(self) -> None:
        if self._end.wait(self._rest * (time.perf_counter() - self._begun)):
            raise _Enough
        self._begun = time.perf_counter()


def _hash(
    directory: JobDirectory,
    files: dict[str, str],
    known: dict[str, str],
    end: threading.Event,
    noted: Callable[[], object] = lambda: None,
) -> None:
    # workers that join a job in a store wait for the hash
    manifest, rest = directory.manifest, _Rest(end, 0 if directory.output in STAGED else REST)

    def is_as_begun(name: str) -> bool:
        path = files[name]
        fields = Tree.of(path).fields(name) if os.path.isdir(path) else file_identity(name, path)
        known = manifest.fingerprint
        older = {field for field in fields if field.endswith(CTIME)} - known.keys()  # of an older version's job
        return all(known.get(field) == value for field, value in fields.items() if field not in older)

    with suppress(TilewrightError, _Enough):
        for name, path in files.items():
            if is_as_begun(name):
                sha256 = _digest(path, rest)
                if is_as_begun(name):
                    known[name] = sha256
                    directory.root.place(CONTENTS, encoded(seal(Contents(manifest=manifest.seal, sha256=known))))
                    noted()


def _digest(path: str, beat: Callable[[], object]) -> str:
    """The sha256 of a file. For a directory: of the names, sizes and bytes of its files, in a fixed order."""
    digest = hashlib.sha256()
    block = memoryview(bytearray(BLOCK_BYTES))
    if not os.path.isdir(path):
        _add(path, digest, block, beat)
        return digest.hexdigest()
    for name in files_below(path):
        where = os.path.join(path, name)
        with naming(where, "look at"):  # it may be gone by now
            size = os.path.getsize(where)
        digest.update(f"{name!r} {size}\n".encode(errors="surrogateescape"))
        _add(where, digest, block, beat)
    return digest.hexdigest()


class Digest(Protocol):
    """A hash of `hashlib`."""

    def update(self, data: memoryview, /) -> None: ...


def _add(path: str, digest: Digest, block: memoryview, beat: Callable[[], object]) -> None:
    with InputFile(path, "file") as file:
        for place in range(0, file.size, BLOCK_BYTES):
            part = block[: min(BLOCK_BYTES, file.size - place)]
            file.read_into(part, place)
            digest.update(part)
            beat()


def known_hashes(directory: JobDirectory) -> dict[str, str]:
    """The sha256 of the files that runs of this job have hashed so far, by their names in the fingerprint."""
    with suppress(Damaged):
        contents = directory.sealed(CONTENTS, Contents)
        if contents.manifest == directory.manifest.seal:
            return dict(contents.sha256)
    return {}


def _number(manifest: Manifest, field: str) -> int:
    value = manifest.fingerprint.get(field)
    return value if isinstance(value, int) else 0
