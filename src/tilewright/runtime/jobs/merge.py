"""Merges the shards into the output, and verifies a job: its shards, errors and outputs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial

from tilewright.errors import Interrupted, UsageError
from tilewright.formats.atomic import Headed
from tilewright.formats.files import path_of, spelled
from tilewright.runtime.jobs.directory import MANIFEST, REPORT, JobDirectory
from tilewright.runtime.jobs.durable import check_space
from tilewright.runtime.jobs.finished import Report, digest_of
from tilewright.runtime.jobs.location import job_path
from tilewright.runtime.jobs.manifest import Damaged, DamagedShards
from tilewright.runtime.jobs.pieces import damage
from tilewright.runtime.jobs.sinks import FileSink, deliver
from tilewright.runtime.jobs.stop import Stop
from tilewright.runtime.jobs.task import Assembling, Task, Totals, add_figures

NAMED = 5  # the most jobs that a message lists
HASHERS = 4  # threads: hashlib releases the GIL, and one thread hashes 0.4 to 2 GB/s


@dataclass(frozen=True)
class Verified:
    """The result of `verify`.

    damaged: messages about files that are missing or have changed, "shard 42: ...". checked: files that were read.
    finished: true if the job has written its output. shards: of the job. done: committed shards.
    """

    damaged: list[str]
    checked: int
    bad_shards: list[int] = field(default_factory=list)
    finished: bool = False
    shards: int = 0
    done: int = 0

    @property
    def intact(self) -> bool:
        return not self.damaged

    @property
    def exit_code(self) -> int:
        """0 if intact, 1 if damaged, 75 if not finished: then run the job's command again."""
        return 1 if self.damaged else 0 if self.finished else Interrupted.exit_code


def merge(task: Task, directory: JobDirectory, stop: Stop) -> Report:
    """Write the output from the shards in order, or let the task do it. After an error an earlier output is unchanged.

    Raises DamagedShards and Interrupted. Raises ResourceError before it writes anything if the disk has too little
    space.
    """
    count = directory.manifest.cut.shards
    totals, bad = _totals(directory, count)
    if bad:
        raise DamagedShards(bad)
    if isinstance(task, Assembling):
        (size, sha256), *others = task.assemble(directory, totals, stop)
    else:
        header = task.header(totals)
        check_space(directory.output, len(header) + totals.size)
        joined = FileSink(directory.output, partial(Headed, header=header))
        (size, sha256), *others = deliver(directory, count, [joined], stop)
    return Report(
        manifest=directory.manifest.seal,
        output=spelled(os.path.basename(directory.output)),
        size=size,
        sha256=sha256,
        others=dict(zip(map(spelled, task.outputs()[1:]), others, strict=True)) if isinstance(task, Assembling) else {},
        records=totals.records,
        errors=totals.errors,
        shards=count,
        figures=totals.figures,
    )


def _totals(directory: JobDirectory, count: int) -> tuple[Totals, list[int]]:
    """(totals of all shards, missing shards)."""
    records = errors = size = 0
    figures: dict[str, float] = {}
    bad = []
    for number in range(count):
        record = directory.record(number)
        if record is None:
            bad.append(number)
        else:
            records, errors, size = records + record.records, errors + record.errors, size + record.size
            add_figures(figures, record.figures)
    return Totals(records, errors, size, count, figures), bad


def check_job(output: str) -> None:
    """Raises UsageError unless there is a job for this output."""
    path = job_path(output)
    if not os.path.isdir(path):
        folder = os.path.dirname(os.path.realpath(output))
        remedy = f"give the file after -o of a job that has started{_jobs_in(folder)}"
        raise UsageError("there is no job for this output: it has no such directory", path=path, remedy=remedy)


def _jobs_in(folder: str) -> str:
    """The outputs of jobs in a folder, to add to a remedy; "" if there are none."""
    try:
        names = sorted(name.removesuffix(".job") for name in os.listdir(folder) if name.endswith(".job"))
    except OSError:
        return ""
    more = f" and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
    return f", such as {', '.join(names[:NAMED])}{more}" if names else ""


def verify(output: str) -> Verified:
    """Read the manifest, every shard, every file of errors and the output again, and compare their hashes.

    Raises UsageError if there is no job for this output, or if a run with --restart has not committed a shard yet.
    Raises ResourceError if a file cannot be read.
    """
    check_job(output)
    with JobDirectory(output, look=True) as directory:
        directory.check_settled()
        return check(directory)


def check(directory: JobDirectory, beat: Callable[[], object] = lambda: None) -> Verified:
    """As `verify`, for an open directory. beat: called for every block, by several threads."""
    try:
        manifest = directory.manifest
        if flaw := manifest.flaw():
            raise Damaged(flaw)
    except Damaged as error:
        return Verified([f"{MANIFEST}: {error}"], 1)
    shards = manifest.cut.shards
    there = list(directory.committed())
    finished = REPORT in directory.root.names()

    def look(number: int) -> str:
        return _shard(directory, number, beat, in_place=not finished)  # else _report checks the output

    with ThreadPoolExecutor(HASHERS) as pool:
        found = [(n, what) for n, what in zip(there, pool.map(look, there), strict=True) if what]
    damaged = [f"shard {number}: {what}" for number, what in found]
    bad = [number for number, _ in found]
    if finished:
        damaged += _report(directory, beat)
        missing = shards - len([number for number in there if number < shards])
        if missing:
            damaged.append(f"shards: {missing:,} of {shards:,} are not there")
    return Verified(damaged, 1 + len(there) + 2 * finished, bad, finished, shards, len(there))


def _shard(directory: JobDirectory, number: int, beat: Callable[[], object], *, in_place: bool) -> str:
    """Describe the damage of a shard and of the pieces that it wrote in place; "" if there is none."""
    try:
        with closing(directory.blocks(number)) as blocks:
            for _ in blocks:
                beat()
        directory.notes(number)
        record = directory.checked_record(number)
        if in_place and (what := damage(directory, number, beat)):
            return what
    except Damaged as error:
        return str(error)
    return directory.wrong_errors(record)


def _report(directory: JobDirectory, beat: Callable[[], object]) -> Iterator[str]:
    """Yield descriptions of the damage of the report and the output."""
    try:
        report = directory.sealed(REPORT, Report)
    except Damaged as error:
        yield f"{REPORT}: {error}"
        return
    if report.manifest != directory.manifest.seal:
        yield f"{REPORT}: it is of another job"
    shards = directory.manifest.cut.shards
    found, missing = _totals(directory, shards)
    said = report.records, report.errors, report.shards
    if not missing and said != (found.records, found.errors, shards):
        counted = f"{found.records:,} records, {found.errors:,} errors in {shards:,} shards"
        yield f"{REPORT}: it counts {said[0]:,} records, {said[1]:,} errors in {said[2]:,} shards; there are {counted}"
    outputs = {directory.output: (report.size, report.sha256)}
    outputs |= {path_of(path): written for path, written in report.others.items()}
    for path, written in outputs.items():
        name = "output" if path == directory.output else f"output {path}"
        there = digest_of(path, beat) if os.path.lexists(path) else None
        if there is None:
            yield f"{name}: it is not there"
        elif there != written:
            yield f"{name}: its {there[0]:,} bytes are not the {written[0]:,} that were written"
