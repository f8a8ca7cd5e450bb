"""What a job would take, before it takes it: shards, memory, disk, and what of it is there already.

A verb's plan begins as the verb does, with `task_of`, so that what it would refuse is refused, and its shards are those
of the run. Of the input a sample is read, of the weights the header; no kernel is compiled, nothing is written.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from tilewright.formats.atomic import check_writable
from tilewright.formats.files import BLOCK_BYTES, InputFile
from tilewright.ops import matmul
from tilewright.ops.core.ladder import Memory
from tilewright.runtime.jobs import contents, made, trace
from tilewright.runtime.jobs.cut import Cut, Lines, Records, RowGroups, lines_between
from tilewright.runtime.jobs.directory import JobDirectory
from tilewright.runtime.jobs.manifest import Damaged, Manifest
from tilewright.runtime.jobs.pieces import THREADS
from tilewright.runtime.jobs.placed import room
from tilewright.runtime.jobs.run import check_cut, check_part
from tilewright.runtime.jobs.settings import Settings
from tilewright.runtime.jobs.status import status
from tilewright.runtime.jobs.task import Assembling, Reading
from tilewright.runtime.start import VerbTask, engine_of, workers_of
from tilewright.simd import cache

PROGRAM = 178 << 20  # Python, NumPy, Numba, LLVM and the kernels (measured: Numba 0.68 on Linux, x86-64)
SUPERVISOR = 130 << 20  # of a process that hands out shards and merges, and computes nothing (measured there)
KEPT_FREE = 32 << 20  # of what was freed: from larger blocks glibc gives memory back, smaller ones it keeps
SAMPLE, STRETCHES = 512 << 10, 8  # bytes of a text that are looked at, from so many places
TRAILER, NOTE = 640, 84  # bytes of a shard beside its records, and of a piece of the output in its list

REREAD = (
    2 * THREADS * BLOCK_BYTES
)  # of an output whose pieces lie in place: `PlacedFile` hashes some as it reads others

ALWAYS, PREPARING, RUNNING, MERGING = "always", "preparing", "running", "merging"


class Part(NamedTuple):
    """Memory of a worker: bytes that are there `when`, ALWAYS or in one of the phases that follow each other."""

    name: str
    bytes: int
    when: str = ALWAYS


def peak_of(parts: tuple[Part, ...]) -> int:
    """Bytes: what is always there, and the phase that takes most."""
    phases = {part.when: 0 for part in parts}
    for part in parts:
        phases[part.when] += part.bytes
    always = phases.pop(ALWAYS, 0)
    return always + max(phases.values(), default=0)


@dataclass(frozen=True)
class Outputs:
    """bytes: of the outputs; exact: they are known, else estimated; shards: what OUT.job keeps beside them."""

    bytes: int
    exact: bool
    shards: int


@dataclass(frozen=True)
class Begun:
    """cut: of the job, as an earlier run began it or this one would. done: shards that are there. state: "new",
    "running", "stopped" or "finished". touched: files whose time of change is another. workers: that share the input.
    thrown: shards of an earlier job that --restart throws away.
    """

    cut: Cut
    done: int
    state: str
    touched: tuple[str, ...]
    workers: int
    thrown: int = 0


@dataclass(frozen=True)
class JobPlan:
    """What a job would take. records: of all shards, counted or estimated from a sample. parts: a worker's memory,
    none on a GPU. processes: that compute here. disk: bytes that its output and its job may take there. figures: the
    verb's own."""

    verb: str
    model: str
    unit: str
    device: str
    dtype: str
    records: int
    counted: bool
    begun: Begun
    parts: tuple[Part, ...]
    outputs: Outputs
    processes: int
    supervised: bool
    disk: int
    figures: dict[str, Any] = field(default_factory=dict)

    @property
    def peak_memory(self) -> int | None:
        """Bytes of a process that computes; None where that is not known."""
        return peak_of(self.parts) if self.parts else None

    @property
    def total_memory(self) -> int | None:
        """Bytes of all processes on this machine."""
        if self.peak_memory is None:
            return None
        return self.processes * self.peak_memory + self.supervised * SUPERVISOR

    @property
    def needed(self) -> int:
        """Bytes of the disk that the whole job takes until its output is there."""
        return 0 if self.begun.state == "finished" else self.outputs.bytes + self.outputs.shards

    def as_dict(self) -> dict[str, Any]:
        """All figures by name."""
        cut = self.begun.cut
        return {
            "verb": "plan", "job": self.verb, "model": self.model, "device": self.device, "dtype": self.dtype,
            self.unit: self.records, "records": self.records, "counted": self.counted, "shards": cut.shards,
            "shard_size": getattr(cut, "per_shard", None), "workers": self.processes, "state": self.begun.state,
            "shards_done": self.begun.done, "shards_thrown_away": self.begun.thrown,
            "peak_memory": self.peak_memory, "total_memory": self.total_memory,
            "memory": {part.name: part.bytes for part in self.parts}, "output_bytes": self.outputs.bytes,
            "output_exact": self.outputs.exact, "job_bytes": self.outputs.shards, "disk_needed": self.needed,
            "disk_room": self.disk, "fits_on_disk": self.needed <= self.disk, **self.figures,
        }  # fmt: skip


def begun_of(task: VerbTask, settings: Settings, output: str, device: str) -> Begun:
    """How the job would begin. Sets the task's workers, on which its cut depends.

    Raises UsageError where it was begun for other results, or the engine cannot be had, ResourceError where the output
    or the trace cannot be written.
    """
    task.workers = workers_of(engine_of(settings, device), settings)
    if not isinstance(task, Assembling):
        check_writable(output)
    manifest = Manifest(fingerprint=task.fingerprint(), cut=check_cut(task.cut(settings.shard_size)))
    check_part(settings)
    begun = Begun(manifest.cut, 0, "new", (), task.workers)
    outputs = task.outputs() if isinstance(task, Assembling) else [os.path.realpath(output)]
    if settings.keep_others:
        if os.path.isdir(f"{os.path.realpath(output)}.job"):
            with JobDirectory(output, look=True) as directory:
                made.check_replaceable(directory, outputs, keep_others=True)
        else:
            made.check_without_job(outputs)
    if os.path.isdir(f"{os.path.realpath(output)}.job"):
        if settings.restart:
            begun = replace(begun, thrown=_shards_in(output))
        else:
            begun = _found(task, output, manifest) or begun
    if settings.trace is not None:
        trace.check_path(settings.trace, output)
        check_writable(settings.trace)
    return begun


def _shards_in(output: str) -> int:
    """How many a job for this output has, whatever it was begun for."""
    with JobDirectory(output, look=True) as directory:
        return sum(1 for _ in directory.committed())


def _found(task: VerbTask, output: str, manifest: Manifest) -> Begun | None:
    """What an earlier run began; None where it has no manifest that can be read. Raises as `begun_of`."""
    with JobDirectory(output, look=True) as directory:
        directory.check_settled()
        try:
            touched = directory.compare(manifest, task.cut)
        except Damaged:
            return None
        files = task.files() if isinstance(task, Reading) else {}
        known = files.keys() & contents.known_hashes(directory).keys()  # the run hashes these, and compares
        unknown = [name for name in touched if name not in known]
        contents.check_touched(directory, manifest, unknown, files, lambda: None)
        cut = directory.manifest.cut
    found = status(output)
    return Begun(cut, found.done, found.state, tuple(touched), task.workers)


def plan_of(
    verb: str, task: Any, unit: str, records: tuple[int, bool], parts: tuple[Part, ...], outputs: Outputs, **more: Any
) -> JobPlan:
    """The plan of a verb's task. records: how many, and whether they were counted. parts: on a CPU. outputs: without
    what each shard takes for itself. more: `begun`, and the verb's figures."""
    job, begun = task.job, more.pop("begun")
    todo = max(begun.cut.shards - begun.done, 1)
    parallel = (job.settings.part or (0, 1))[1]
    kept = outputs.shards + TRAILER * begun.cut.shards
    return JobPlan(
        verb=verb, model=getattr(job, "model", ""), unit=unit, device=job.device,
        dtype=getattr(task, "dtype", job.dtype),
        records=records[0], counted=records[1], begun=begun, parts=parts if job.device == "cpu" else (),
        outputs=Outputs(outputs.bytes, outputs.exact, kept), processes=min(begun.workers // parallel, todo),
        supervised=job.settings.is_supervised, disk=room(job.output), figures=more,
    )  # fmt: skip


def share(records: int, workers: int) -> int:
    """Records that one of the workers may get."""
    return -(-records // max(workers, 1))


def sample_lines(file: InputFile, cut: Cut) -> tuple[Iterator[tuple[int, bytes | None, int]] | None, float]:
    """(number, line, end) of lines of a text that are not blank, and the share of its bytes that they stand for.

    Numbers count the sample. None where it is no text but rows, of which the first serve.
    """
    if not isinstance(cut, Lines):
        return None, 1.0
    size = min(file.size, cut.size)
    if size <= SAMPLE:
        spans = [(0, size)]
    else:
        length = SAMPLE // STRETCHES
        spans = [(first := (size - length) * i // (STRETCHES - 1), first + length) for i in range(STRETCHES)]

    def lines() -> Iterator[tuple[int, bytes | None, int]]:
        number = 0
        for begin, end in spans:
            for line, at in lines_between(file, begin, end):
                if line is None or (line and not line.isspace()):
                    number += 1
                    yield number, line, at

    return lines(), sum(end - begin for begin, end in spans) / max(size, 1)


def counted_in(cut: Cut, seen: int, part: float) -> tuple[int, bool]:
    """(records of the whole input, whether they were counted), of which `seen` were found in `part` of it."""
    if isinstance(cut, Records | RowGroups):
        return cut.count, True
    return round(seen / max(part, 1e-9)), part >= 1.0


def matrix_memory(K: int, N: int, dtype: str, device: str = "cpu") -> Memory:
    """Bytes of a matrix (K, N) as matmul's rung for the class keeps it."""
    problem = matmul.Problem(N, K, dtype, device)
    return matmul.ladder.choose(problem).memory_for(problem)


def is_compiled(*patterns: str) -> bool:
    """Whether this machine has compiled kernels of all these names."""
    return os.environ.get("TILEWRIGHT_CACHE") != "off" and all(any(cache.directory().glob(p)) for p in patterns)
