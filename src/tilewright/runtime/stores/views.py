"""`status`, `verify` and `plan` of a job in a store: its files, or their records alone, are copied and then read."""

from __future__ import annotations

from dataclasses import replace

from tilewright.errors import UsageError
from tilewright.formats.files import InputFile
from tilewright.runtime.jobs import made, merge
from tilewright.runtime.jobs import status as local
from tilewright.runtime.jobs.directory import JobDirectory
from tilewright.runtime.jobs.lease import Holder
from tilewright.runtime.jobs.workers import WorkerDone
from tilewright.runtime.stores.board import LEAD, WORKERS, Board, member_of
from tilewright.runtime.stores.remote import Remote
from tilewright.runtime.stores.stage import url_of


def mirror(output: str, *, whole: bool = False) -> Remote | None:
    """Copy the state of the job for which a local output stands; None for a local output and for a job that has not
    begun. whole: with the bytes of its shards and of the output. Raises ResourceError."""
    url = url_of(output)
    if url is None:
        return None
    remote = Remote(url, output)
    there = remote.pull_output(hole=not whole)
    if remote.manifest() is None:
        return None
    remote.pull(records_alone=not whole)
    if remote.pull_report() and there and remote.delivered():
        with JobDirectory(output, make=True) as directory, InputFile(output, "output") as file:
            made.note(directory, [file.fd])  # it may be replaced
    return remote


def _found(output: str, *, whole: bool) -> Remote | None:
    remote = mirror(output, whole=whole)
    if remote is None and (url := url_of(output)):
        raise UsageError("there is no job for this output: it has no manifest there", path=f"{url}.job",
                         remedy="give the URL after -o of a job that has started")  # fmt: skip
    return remote


def status(output: str) -> local.Status:
    """As `jobs.status.status`, also for an output that stands for one in a store."""
    remote = _found(output, whole=False)
    found = local.status(output)
    if remote is None:
        return found
    workers = [name.partition("/")[2] for name in sorted(remote.store.names(WORKERS))]
    with Board(remote.store) as board:  # to know the time of the store
        living = [worker for worker in workers if board.alive(worker)]
        lead = remote.store.get(LEAD)
        holder = lead[0].decode(errors="replace") if lead else ""
        leads = holder in living
    members = {worker: member for worker in living if (member := member_of(remote.store, worker))}
    done = [WorkerDone(number, member.host, member.device or "CPU", member.shards, member.records)
            for number, member in enumerate(members.values()) if member.device]  # fmt: skip
    if not living:
        return replace(found, workers=done)
    who = members.get(holder)
    return replace(
        found,
        state="running" if found.state == "stopped" else found.state,
        holder=Holder(who.host, who.pid, 0, who.since) if leads and who else None,
        workers=done,
    )


def verify(output: str) -> merge.Verified:
    """As `jobs.merge.verify`, also for an output that stands for one in a store."""
    _found(output, whole=True)
    return merge.verify(output)
