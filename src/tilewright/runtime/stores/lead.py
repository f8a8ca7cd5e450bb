"""Jobs whose output is a URL: this process plans, works, merges and uploads the output. Other processes may join."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from tilewright.errors import ResourceError, TilewrightError, UsageError
from tilewright.formats.files import naming
from tilewright.runtime.devices import place_for
from tilewright.runtime.jobs.directory import CONTENTS, REPORT, JobDirectory, Record
from tilewright.runtime.jobs.finished import Report
from tilewright.runtime.jobs.manifest import Damaged, Manifest
from tilewright.runtime.jobs.record import part_name
from tilewright.runtime.jobs.run import check_cut, run_within
from tilewright.runtime.jobs.settings import Settings
from tilewright.runtime.jobs.task import DOUBTED, Engine, Job, Task, Watch
from tilewright.runtime.reports import SHOWN_ERRORS
from tilewright.runtime.stores.board import TAKEN_OVER, Board, SharedShards
from tilewright.runtime.stores.objects import Stat
from tilewright.runtime.stores.place import settle
from tilewright.runtime.stores.remote import SHARDS, Publishing, Remote

JOIN = "wait for it, or join it with `tilewright work {}`"


def run_at(
    url: str,
    task: Task,
    output: str,
    engine: Engine,
    settings: Settings,
    watch: Watch,
    request: bytes = b"{}",
    *,
    reads_output: bool = True,
) -> Report:
    """Run a job whose output is a URL. output: the local path that stands for it during the run.

    request: the content of job.json, which workers read. reads_output: the caller reads the file at `output` after the
    run, so the output of a finished job is downloaded. Raises what `run_within` raises, and ResourceError if the store
    fails.
    """
    remote = Remote(url, output, settings.job_dir)
    with Board(remote.store, device_word(settings)) as board, board.leading(JOIN.format(url)):
        settle(remote.store, url)
        done, is_new = _run(remote, board, task, engine, replace(settings, job_dir=None), watch, request)
        if reads_output and not is_new:
            remote.result.download()
        return done


def device_word(settings: Settings) -> str:
    """ "GPU" or "CPU": what `tilewright status` says about a process of a job in a store."""
    return "GPU" if place_for(settings.device) == "cuda" else "CPU"


def check_engine(settings: Settings) -> None:
    """Raises UsageError for an engine or a setting that needs a local output."""
    if settings.engine not in (None, "inline", "local"):
        raise UsageError(f"the engine {settings.engine} needs a local output, and the output is a URL",
                         remedy="leave out --engine, and run `tilewright work URL` on each further node")  # fmt: skip
    if settings.part is not None:
        raise UsageError("--part needs a local output, and the output is a URL",
                         remedy="leave it out, and run `tilewright work URL` on each further node")  # fmt: skip


def _run(remote: Remote, board: Board, task: Task, engine: Engine, settings: Settings, watch: Watch,
         request: bytes) -> tuple[Report, bool]:  # fmt: skip
    """(the report, true if this run has written the output)."""
    found, earlier = remote.manifest(), remote.store.stat(REPORT)
    delivered = remote.delivered() if found else False
    finished = delivered and not settings.retry_failed
    if settings.keep_others:
        check_replaceable(remote, delivered)
    if settings.restart:
        remote.may_replace()  # before delivered.json is removed
        remote.clear()
        found, finished = None, False
    if found:
        _check_same(remote, task, settings)
        if finished and (report := _finished(remote, engine)):
            return report, False
        remote.pull()
    if not delivered:  # the output is there with --force, or was being replaced
        remote.may_replace()
    shared = _Shared(engine, remote, board, request)
    done = run_within(task, remote.output, shared, replace(settings, restart=False), watch)
    _check_leads(remote, board, earlier)
    with JobDirectory(remote.output) as directory:
        remote.deliver(directory)
    return done, True


def _check_leads(remote: Remote, board: Board, earlier: Stat | None) -> None:
    """Raises ResourceError if another run has taken over, also if that has ended; UsageError if it has begun the job
    anew with other settings. earlier: the report in the store when this run began, which only a run that ends replaces.
    """
    if (report := remote.store.stat(REPORT)) and report != earlier:
        raise ResourceError(f"{TAKEN_OVER}, and has written the output", path=remote.url,
                            remedy="use that output; this run has written none")  # fmt: skip
    board.check_leads()
    remote.check_same()


def check_replaceable(remote: Remote, delivered: bool) -> None:
    """Raises ResourceError for a folder, or UsageError for an object, at the output's URL that this job has not made.

    delivered: as `remote.delivered()`.
    """
    if not delivered and not remote.delivering() and remote.result.tag():
        raise _foreign(remote)


def _foreign(remote: Remote) -> TilewrightError:
    """The error for an output that this job has not made; its kind is that of a local file or folder."""
    remedy = "choose another output, or give --force to replace all that is there"
    if name := remote.result.newest():
        return ResourceError(f"holds objects that this job has not made, such as {name!r}", path=f"{remote.url}/",
                             remedy=remedy)  # fmt: skip
    return UsageError("there is an object at the output's URL that this job has not made", path=remote.url,
                      remedy=remedy)  # fmt: skip


def _check_same(remote: Remote, task: Task, settings: Settings) -> None:
    """Raises UsageError if the job in the store has another fingerprint. It runs before any shard is copied."""
    manifest = Manifest(fingerprint=task.fingerprint(), cut=check_cut(task.cut(settings.shard_size)))
    with JobDirectory(remote.output, make=True) as directory, suppress(Damaged):
        directory.compare(manifest, task.cut)


def _finished(remote: Remote, engine: Engine) -> Report | None:
    """The report of a finished job whose output is in the store; None if the job must run.

    One listing shows whether each shard is there. Nothing of them is read: a run removes the report before it replaces
    one, so the report counts what is there.
    """
    if not remote.pull_report():
        return None
    names = remote.store.names()
    try:
        with JobDirectory(remote.output) as directory:
            report = directory.sealed(REPORT, Report)
            shards = (f"{SHARDS}/{part_name(number)}" for number in range(directory.manifest.cut.shards))
            whole = report.manifest == directory.manifest.seal and all(shard in names for shard in shards)
    except Damaged:
        whole = False
    if not whole or (report.figures.get(DOUBTED) and engine.watches):
        os.unlink(os.path.join(remote.path, REPORT))
        return None
    remote.sweep(names)
    if report.errors:
        remote.pull_errors(names, SHOWN_ERRORS)
    return msgspec.structs.replace(report, computed=0, seconds={})


class _Shared(Engine):
    """An engine that shares the shards of a job with other processes through a store."""

    def __init__(self, engine: Engine, remote: Remote, board: Board, request: bytes) -> None:
        self._engine, self._remote, self._board, self._request = engine, remote, board, request
        self.watches = engine.watches

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def run(self, job: Job) -> None:
        """Run until every shard is committed, by this process or by others."""
        remote = self._remote
        self._board.check_leads()
        remote.begin(job.directory, self._request)
        # They were downloaded, and are damaged or run again. Others were committed since then by workers.
        old = remote.had(set(job.todo) & remote.committed())
        remote.forget(old)
        self._board.forget(sorted(old))
        share(job, self._engine, self._board, remote.committed, lambda numbers: self._elsewhere(job, numbers), remote)

    def hashed(self) -> None:
        with suppress(ResourceError):  # then workers cannot join until the next hash, or need files of the same time
            store, path = self._remote.store, os.path.join(self._remote.path, CONTENTS)
            with naming(path, "read"):
                store.put(CONTENTS, Path(path).read_bytes())

    def kept(self, directory: JobDirectory) -> int:
        """As `Engine.kept`, with the shards of workers that joined."""
        return len(self._remote.committed())

    def _elsewhere(self, job: Job, numbers: list[int]) -> list[int]:
        bad = self._remote.pull_shards(numbers, job.directory)
        for number in numbers:
            record = None if number in bad else job.directory.record(number)
            if record:
                job.other(record)
        return bad


def share(
    job: Job,
    engine: Engine,
    board: Board,
    done: Callable[[Collection[int] | None], set[int]],
    elsewhere: Callable[[list[int]], list[int]],
    remote: Remote | None,
) -> None:
    """Run the shards of `job.todo` that no other process runs.

    done, elsewhere: as for `SharedShards`. remote: the store to which shards are copied; None for a local directory.
    """
    source = SharedShards(board, job.todo, done, elsewhere, supervised=engine.watches)

    def committed(record: Record) -> None:
        source.done(record.shard, record.records)

    def without_copy(record: Record, worker: int) -> None:
        committed(record)
        job.done(record, worker)

    if remote is None:
        shared = replace(job, source=source, done=without_copy)
        engine.run(shared)
        job.facts |= shared.facts
        return
    try:
        with Publishing(remote, committed) as publish:
            source.check = publish.check

            def copied(record: Record, worker: int) -> None:
                publish(record)
                job.done(record, worker)

            shared = replace(job, source=source, done=copied)
            engine.run(shared)
            job.facts |= shared.facts
    finally:
        with suppress(ResourceError):
            remote.push_logs(board.id, msgspec.json.encode(board.member))
