"""`status`, `verify` and `plan` of a job in a store: the job's files, or only the records in them, are downloaded."""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from tilewright.errors import UsageError
from tilewright.runtime.jobs import made, merge
from tilewright.runtime.jobs import status as local
from tilewright.runtime.jobs.directory import JobDirectory
from tilewright.runtime.jobs.lease import Holder
from tilewright.runtime.jobs.workers import WorkerDone
from tilewright.runtime.stores.board import FEW, LEAD, WORKERS, Board, Keys, Member, member_of
from tilewright.runtime.stores.folder import FolderKeys, joined
from tilewright.runtime.stores.remote import LOGS, Remote
from tilewright.runtime.stores.stage import url_of


def mirror(output: str, *, whole: bool = False, job_dir: str | None = None) -> Remote | None:
    """Download the state of a job in a store; None for a local output and for a job that has not started.

    output: the staged path. whole: also the bytes of the shards and of the output. job_dir: the value of --job-dir, for
    a plan. Raises ResourceError, and UsageError if the state is not there.
    """
    url = url_of(output)
    if url is None:
        return None
    remote = Remote(url, output, job_dir)
    there = remote.result.download(hole=not whole)
    if remote.manifest() is None:
        return None
    remote.pull(records_alone=not whole)
    if remote.pull_report() and there and remote.delivered():
        fd = os.open(output, os.O_RDONLY | os.O_CLOEXEC)
        try:
            with JobDirectory(output, make=True) as directory:
                made.note(directory, [fd])  # marks the copy as this job's output, so that it may be replaced
        finally:
            os.close(fd)
    return remote


def _found(output: str, *, whole: bool) -> Remote | None:
    remote = mirror(output, whole=whole)
    if remote is None and (url := url_of(output)):
        raise UsageError("there is no job for this output: it has no manifest there", path=f"{url}.job",
                         remedy="give the URL after -o of a job that has started")  # fmt: skip
    return remote


def status(output: str) -> local.Status:
    """As `jobs.status.status`, also for the staged path of an output in a store."""
    remote = _found(output, whole=False)
    found = local.status(output)
    if remote:
        return _with_workers(found, remote.store, ended=True)
    with JobDirectory(output, look=True) as directory:
        if not joined(directory.root):
            return found
        keys = FolderKeys(directory.root, look=True)
        try:
            return _with_workers(found, keys, ended=False)
        finally:
            keys.close()


def _with_workers(found: local.Status, keys: Keys, *, ended: bool) -> local.Status:
    """The status, with the processes that work on the job. ended: whether to list also processes that have ended."""
    board = Board(keys).watched()
    names = [name.partition("/")[2] for name in sorted(keys.names(WORKERS))]
    members = {name: who for name in names if board.alive(name) and (who := member_of(keys, name))}
    if found.state not in ("stopped", "running"):
        members = {}
    listed = _ended(keys, members) if ended else []
    listed = sorted([*listed, *(one for one in members.values() if one.device)], key=lambda one: one.since)
    done = [WorkerDone(number, one.host, one.device, one.shards, one.records) for number, one in enumerate(listed)]
    found = replace(found, workers=[*found.workers, *done])
    if not members:
        return found
    lead = keys.get(LEAD)
    who = members.get(lead[0].decode(errors="replace")) if lead else None
    holder = Holder(who.host, who.pid, 0, who.since) if who else found.holder
    gone = found.state == "stopped" and who is None
    return replace(found, state="running", holder=holder, starter_gone=gone)


def _ended(keys: Keys, members: Iterable[str]) -> list[Member]:
    """What each process that has ended did. members: the processes that still work."""
    workers = [name.partition("/")[2].removesuffix(".json") for name in keys.names(LOGS) if name.endswith(".json")]
    with ThreadPoolExecutor(FEW, "tilewright-status") as pool:
        found = pool.map(lambda worker: member_of(keys, f"{worker}.json", LOGS), {*workers}.difference(members))
        return [one for one in found if one]


def verify(output: str) -> merge.Verified:
    """As `jobs.merge.verify`, also for the staged path of an output in a store."""
    _found(output, whole=True)
    return merge.verify(output)
