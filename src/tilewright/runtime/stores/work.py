"""`tilewright work`: a process that joins a running job and claims shards until none is left or a signal stops it."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from tilewright.errors import Interrupted, ResourceError, UsageError
from tilewright.runtime.jobs import contents
from tilewright.runtime.jobs.directory import (
    CONTENTS,
    MANIFEST,
    MOST_BYTES,
    REPORT,
    REQUEST,
    JobDirectory,
    Record,
    begun_anew,
)
from tilewright.runtime.jobs.manifest import Damaged, Manifest
from tilewright.runtime.jobs.merge import check_job
from tilewright.runtime.jobs.settings import Settings
from tilewright.runtime.jobs.stop import Stop, stopping
from tilewright.runtime.jobs.task import Engine, Job, Reading, Task
from tilewright.runtime.jobs.unchanged import AsBegun
from tilewright.runtime.reports import Say, quiet
from tilewright.runtime.start import engine_of
from tilewright.runtime.stores.board import Board, Keys
from tilewright.runtime.stores.folder import FolderKeys
from tilewright.runtime.stores.lead import device_word, share
from tilewright.runtime.stores.remote import Remote
from tilewright.runtime.stores.request import job_of, settings_for
from tilewright.runtime.stores.stage import url_of

START = "start the job first, or wait until it has begun"


@dataclass
class Worked:
    """The result of `work`.

    shards: of the job. done: shards that all processes together have committed. mine, records, errors: shards, records
    and failed records of this process.
    """

    shards: int
    done: int = 0
    mine: int = 0
    records: int = 0
    errors: int = 0

    @property
    def exit_code(self) -> int:
        """0 if all shards are committed, 75 if the worker was stopped before."""
        return 0 if self.done >= self.shards else Interrupted.exit_code


def work(output: str, settings: Settings, say: Say = quiet) -> Worked:
    """Join the job of an output and run shards until none is left. output: a local path, or one staged for a URL.

    settings: engine, threads and the like of this process; settings that may change results come from the job.
    Raises UsageError if there is no job, if another version of tilewright started it, if it cannot be shared, or if it
    is begun anew meanwhile; InputError if an input has changed; ResourceError if the store, the disk or the machine
    fails. A signal stops the work: committed shards stay, and other workers may run the rest.
    """
    with stopping() as stop, opened(output) as place:
        raw = place.request()
        job, task_of = job_of(raw, place.where, output)
        job = replace(job, settings=settings_for(job, settings))
        with engine_of(job.settings, job.settings.device) as engine:
            task = task_of(job, quiet, 1)
            try:
                return work_at(place, task, engine, job.settings, stop, say)
            finally:
                task.close()


@dataclass
class Place:
    """The location of a job's state. where: its name in errors. remote: None for a local directory."""

    where: str
    directory: JobDirectory
    remote: Remote | None

    def request(self) -> bytes:
        """The content of job.json. Raises UsageError if the job has none."""
        if self.remote:
            got = self.remote.store.get(REQUEST)
            raw = got[0] if got else None
        else:
            raw = self.directory.root.read(REQUEST, MOST_BYTES)
        if raw is None:
            raise UsageError(f"the job has no {REQUEST}: it has not begun, or cannot be joined", path=self.where,
                             remedy=START)  # fmt: skip
        return raw

    def committed(self, among: Collection[int] | None = None) -> set[int]:
        """The numbers of the committed shards. among: as for `Remote.committed`."""
        return self.remote.committed(among) if self.remote else set(self.directory.committed())

    def missing(self, shards: int) -> list[int]:
        """The numbers of the other shards, in random order, so that workers seldom try to claim the same one."""
        done = self.committed()
        todo = [number for number in range(shards) if number not in done]
        random.shuffle(todo)
        return todo

    def check_same(self) -> None:
        """Raises UsageError if the job has been begun anew with another manifest, or removed."""
        if self.remote:
            self.remote.check_same()
            if self.remote.store.stat(MANIFEST) is None:
                raise begun_anew(self.where)


@contextmanager
def opened(output: str) -> Iterator[Place]:
    """Open the state of a job that has started. Raises UsageError if there is none."""
    url = url_of(output)
    if url is None:
        check_job(output)
        with JobDirectory(output) as directory:
            yield Place(directory.path, directory, None)
        return
    remote = Remote(url, output)
    if remote.manifest() is None:
        raise UsageError("there is no job for this output: it has no manifest there", path=remote.store.url,
                         remedy=START)  # fmt: skip
    with JobDirectory(output, make=True) as directory:
        yield Place(remote.store.url, directory, remote)


def work_at(place: Place, task: Task, engine: Engine, settings: Settings, stop: Stop, say: Say = quiet) -> Worked:
    """As `work`, for a task and an engine that are open."""
    directory = place.directory
    directory.joined = True
    _check(place, task, stop)
    worked = Worked(directory.manifest.cut.shards)

    def count(record: Record, worker: int) -> None:
        worked.mine, worked.records, worked.errors = (
            worked.mine + 1, worked.records + record.records, worked.errors + record.errors
        )  # fmt: skip

    joined = False
    while todo := place.missing(worked.shards):
        if joined:  # --restart of the same command has deleted shards that were there
            place.check_same()
        joined = True
        say(f"Joined: {worked.shards - len(todo):,} of {worked.shards:,} shards are there")
        job = Job(task, directory, settings, stop, todo, count, lambda *about: None)
        try:
            with _keys(place) as keys, Board(keys, device_word(settings)) as board:
                share(job, engine, board, place.committed, lambda numbers: [], place.remote)
        except Interrupted:
            break
        except ResourceError:  # allowed if the run has finished the job meanwhile and removed the leases
            if place.remote or REPORT not in directory.root.names():
                raise
        if place.remote is None:
            break
    worked.done = len(place.committed())
    return worked


@contextmanager
def _keys(place: Place) -> Iterator[Keys]:
    if place.remote:
        yield place.remote.store
        return
    keys = FolderKeys(place.directory.root)
    try:
        yield keys
    finally:
        keys.close()


def _check(place: Place, task: Task, stop: Stop) -> None:
    """Raises UsageError if input, model or kind of hardware differ from those with which the job was started."""
    directory = place.directory
    files = task.files() if isinstance(task, Reading) else {}
    began = AsBegun.of(files)
    try:
        cut = directory.manifest.cut
        manifest = Manifest(fingerprint=task.fingerprint(), cut=cut)
        touched = directory.compare(manifest, task.cut)
    except Damaged as error:
        raise UsageError(f"the job's manifest is damaged: {error}", path=place.where,
                         remedy="run the job's own command again") from error  # fmt: skip
    if touched and place.remote and (hashes := place.remote.store.get(CONTENTS)):
        directory.root.place(CONTENTS, hashes[0])
    if touched and len(place.committed()) >= cut.shards:  # nothing is left, and a short run has hashed nothing
        touched = [name for name in touched if name in contents.known_hashes(directory)]
    contents.check_touched(directory, manifest, touched, files, stop.check)
    directory.began = began.also(getattr(task, "trees", {}))
    directory.began.check()
