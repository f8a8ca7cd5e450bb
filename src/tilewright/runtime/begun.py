"""The state of a job before it runs: its cut and its committed shards. Nothing is written."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace

from tilewright.formats.atomic import check_writable
from tilewright.formats.destinations import resolved
from tilewright.runtime.jobs import contents, made, trace
from tilewright.runtime.jobs.cut import Cut
from tilewright.runtime.jobs.directory import LEASE, MANIFEST, JobDirectory
from tilewright.runtime.jobs.durable import Folder, check_makeable
from tilewright.runtime.jobs.location import check_free, chosen
from tilewright.runtime.jobs.manifest import Damaged, Manifest, Value
from tilewright.runtime.jobs.run import check_cut, check_part
from tilewright.runtime.jobs.settings import Settings
from tilewright.runtime.jobs.status import status
from tilewright.runtime.jobs.task import Assembling, Reading
from tilewright.runtime.start import VerbTask, engine_of, workers_of
from tilewright.runtime.stores.lead import check_replaceable
from tilewright.runtime.stores.remote import Remote
from tilewright.runtime.stores.stage import url_of
from tilewright.runtime.stores.views import mirror


@dataclass(frozen=True)
class Begun:
    """The state of a job before it runs.

    cut: of the earlier run, or the one that this run would make. done: committed shards. state: "new", "running",
    "stopped" or "finished". touched: files whose times have changed. workers: the number that share the input. thrown:
    the number of shards that --restart would remove. fingerprint: of this run.
    """

    cut: Cut
    done: int
    state: str
    touched: tuple[str, ...]
    workers: int
    fingerprint: Mapping[str, Value]
    thrown: int = 0


def begun_of(task: VerbTask, settings: Settings, output: str, device: str) -> Begun:
    """Read the state of the job. It also sets the task's number of workers, on which the cut depends.

    Raises UsageError if the job was started with another fingerprint, or if the engine is not available. Raises
    ResourceError if the output or the trace cannot be written.
    """
    task.workers = workers_of(engine_of(settings, device), settings)
    if not isinstance(task, Assembling):
        check_writable(output)
    manifest = Manifest(fingerprint=task.fingerprint(), cut=check_cut(task.cut(settings.shard_size)))
    check_part(settings)
    begun = Begun(manifest.cut, 0, "new", (), task.workers, manifest.fingerprint)
    url, remote = url_of(output), mirror(output, job_dir=settings.job_dir)
    path = chosen(resolved(output), None if url else settings.job_dir)
    if not url:
        _check_place(path, output)
    outputs = task.outputs() if isinstance(task, Assembling) else [os.path.realpath(output)]
    if url and settings.keep_others:
        remote = remote or Remote(url, output, settings.job_dir)
        check_replaceable(remote, remote.delivered())
    elif settings.keep_others:
        if os.path.isdir(path):
            with JobDirectory(output, look=True) as directory:
                made.check_replaceable(directory, outputs, keep_others=True)
        else:
            made.check_without_job(outputs)
    if os.path.isdir(path):
        if settings.restart:
            begun = replace(begun, thrown=_shards_in(output))
        else:
            begun = _found(task, output, manifest) or begun
    if settings.trace is not None:
        trace.check_path(settings.trace, output)
        check_writable(settings.trace)
    return begun


def _check_place(path: str, output: str) -> None:
    """Raises ResourceError or UsageError if the job's state cannot be stored in the directory `path`."""
    output = resolved(output)
    if not os.path.lexists(path):
        check_makeable(path)
    elif path != f"{output}.job":
        root = Folder(path)
        try:
            check_free(root, output, {MANIFEST, LEASE})
        finally:
            root.close()


def _shards_in(output: str) -> int:
    """The number of shards in the job directory of this output, even if they belong to another job."""
    with JobDirectory(output, look=True) as directory:
        return sum(1 for _ in directory.committed())


def _found(task: VerbTask, output: str, manifest: Manifest) -> Begun | None:
    """The state of the earlier run's job; None if its manifest cannot be read. Raises as `begun_of`."""
    with JobDirectory(output, look=True) as directory:
        directory.check_settled()
        try:
            touched = directory.compare(manifest, task.cut)
        except Damaged:
            return None
        files = task.files() if isinstance(task, Reading) else {}
        known = files.keys() & contents.known_hashes(directory).keys()  # the run compares the hashes of these
        unknown = [name for name in touched if name not in known]
        contents.check_touched(directory, manifest, unknown, files, lambda: None)
        cut = directory.manifest.cut
    found = status(output)
    return Begun(cut, found.done, found.state, tuple(touched), task.workers, manifest.fingerprint)
