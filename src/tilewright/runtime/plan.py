"""The plan of a job (a dry run): its shards, memory and disk, and the shards that exist already.

A plan begins with the same checks (`task_of`) as the job. So it refuses the same jobs, and has the same shards. Models,
engines and verbs declare their bytes, and this module adds them up. A plan reads a sample of the input and the header
of the weights. It compiles no kernel, and writes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from tilewright.backends.footprint import Part, peak_of
from tilewright.formats.files import BLOCK_BYTES, InputFile
from tilewright.formats.lines import Line, read_lines
from tilewright.formats.many_files import Files
from tilewright.hardware import gpus
from tilewright.runtime.begun import Begun, begun_of
from tilewright.runtime.devices import gpu_elsewhere
from tilewright.runtime.fingerprint import in_force
from tilewright.runtime.jobs.cut import Cut, Lines, Records, RowGroups, lines_between
from tilewright.runtime.jobs.pieces import THREADS
from tilewright.runtime.jobs.placed import room
from tilewright.runtime.trials import Trial, trial_for
from tilewright.simd import cache

# Memory of a process, measured on Linux, x86-64, as the peak of jobs with a tiny model and input
PROGRAM = 153 << 20  # Python, NumPy, Numba, LLVM and kernels that are on disk (Numba 0.68)
KERNELS = {"draw": 2 << 20}  # machine code of a verb's many kernels
PACKAGES = {".parquet": 45 << 20, ".png": 2 << 20}  # imported for files of these names: pyarrow, Pillow
TOKENIZERS, TOKENIZER_TIMES = 5 << 20, 14  # the package tokenizers; bytes in memory per byte of tokenizer.json
SUPERVISOR = 130 << 20  # memory of a process that only hands out shards and merges (measured the same way)
KEPT_FREE = 32 << 20  # freed memory that the process still holds: glibc returns only larger blocks to the system
SAMPLE, STRETCHES = 512 << 10, 8  # bytes of a text that are read, and the number of stretches
TRAILER, NOTE = 640, 84  # bytes of a shard's record, and bytes per piece in its list
REREAD = 2 * THREADS * BLOCK_BYTES  # buffers of `PlacedFile` for an output in place: it hashes some, and reads others


@runtime_checkable
class Closing(Protocol):
    """A task that keeps its input open until `close`."""

    def close(self) -> None: ...


@dataclass(frozen=True)
class Outputs:
    """The size of a job's outputs in bytes. exact: false if it is estimated. shards: further bytes in OUT.job."""

    bytes: int
    exact: bool
    shards: int


@dataclass(frozen=True, kw_only=True)
class Declared:
    """What a verb declares about a job.

    records: of all shards, in `unit`. counted: true if they were counted, false if estimated from a sample. parts: the
    memory of a worker, on its GPU or else on the machine. outputs: without the fixed bytes of every shard. flops:
    operations of all records. figures: further figures of the verb.
    """

    unit: str
    records: int
    counted: bool
    parts: tuple[Part, ...]
    flops: float
    outputs: Outputs | None = None
    figures: dict[str, Any] = field(default_factory=dict)

    @property
    def peak_memory(self) -> int:
        """The peak memory in bytes of a worker process, or of its GPU."""
        return peak_of(self.parts)


@dataclass(frozen=True, kw_only=True)
class JobPlan(Declared):
    """The plan of a job.

    processes: the number that compute on this machine. disk: free bytes for its output and job directory. trial: a
    similar job that has run.
    """

    verb: str
    model: str
    device: str
    dtype: str
    begun: Begun
    outputs: Outputs
    processes: int
    supervised: bool
    disk: int
    trial: Trial | None

    @property
    def total_memory(self) -> int | None:
        """Bytes of all processes on this machine; None for jobs on GPUs."""
        if self.device != "cpu":
            return None
        return self.processes * self.peak_memory + self.supervised * SUPERVISOR

    @property
    def needed(self) -> int:
        """The most disk space in bytes that the job needs until its output exists."""
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
            "disk_room": self.disk, "fits_on_disk": self.needed <= self.disk, "flops": self.flops, **self.figures,
        }  # fmt: skip


def plan_job(
    verb: str,
    job: Any,
    gpu_memory: int | None,
    task_of: Callable[[Any], Any],
    declare: Callable[[Any, Begun, int], Declared],
) -> JobPlan:
    """Make the plan of a verb's job.

    gpu_memory: bytes of a GPU, perhaps of another machine; None: of this machine's GPU, if it has one. declare: returns
    what the task declares, given the memory of its GPU. Raises the errors that the verb raises before its first shard.
    """
    elsewhere = job.device == "cuda" and gpu_memory is not None and not gpus()
    with gpu_elsewhere(elsewhere), in_force(job.settings):
        task = task_of(job)
        try:
            begun = begun_of(task, task.job.settings, task.job.output, task.job.device)
            memory = 0 if task.job.device == "cpu" else gpu_memory or gpus()[0].memory
            return _job_plan(verb, task, begun, declare(task, begun, memory))
        finally:
            if isinstance(task, Closing):
                task.close()


def _job_plan(verb: str, task: Any, begun: Begun, declared: Declared) -> JobPlan:
    job, outputs = task.job, declared.outputs
    assert outputs is not None
    todo = max(begun.cut.shards - begun.done, 1)
    parallel = (job.settings.part or (0, 1))[1]
    return JobPlan(
        **vars(declared) | {"outputs": replace(outputs, shards=outputs.shards + TRAILER * begun.cut.shards)},
        verb=verb, model=getattr(job, "model", ""), device=job.device, dtype=getattr(task, "dtype", job.dtype),
        begun=begun, processes=min(begun.workers // parallel, todo),
        supervised=job.settings.is_supervised, disk=room(job.output),
        trial=trial_for(begun.fingerprint, job.output),
    )  # fmt: skip


def program(verb: str, *paths: str | None, model: str | None = None) -> Part:
    """Memory of a process before it loads a model. paths: its inputs and outputs. model: whose tokenizer it loads."""
    suffixes = {os.path.splitext(path)[1] for path in paths if path}
    packages = sum(nbytes for suffix, nbytes in PACKAGES.items() if suffix in suffixes)
    words = 0
    if model:
        from tilewright.runtime.load import tokenizer_files  # here: it imports all models, which takes 0.1 s

        if files := tokenizer_files(model):
            words = TOKENIZERS + TOKENIZER_TIMES * sum(map(os.path.getsize, files))
    return Part("program", PROGRAM + KERNELS.get(verb, 0) + packages + words)


def file_bytes(model: str) -> int:
    """Bytes of a model's weights on disk."""
    files = sorted(Path(model).glob("*.safetensors")) if os.path.isdir(model) else [Path(model)]
    return sum(file.stat().st_size for file in files)


def widened(mapped: Mapping[str, np.ndarray]) -> int:
    """Bytes of the float32 copies of float16 weights."""
    return sum(4 * array.size for array in mapped.values() if array.dtype == np.float16)


def share(records: int, workers: int) -> int:
    """The largest number of records that one worker computes."""
    return -(-records // max(workers, 1))


def _depends(file: InputFile) -> bool:
    """True if lines can only be found by reading from the start, as in CSV with quotes, or in many files."""
    return file.quoted or isinstance(file, Files)


@dataclass
class Sample:
    """The sample of an input. part: the fraction of its bytes that was read. ends: the last byte of each line read."""

    cut: Cut
    spans: list[tuple[int, int]] = field(default_factory=list)
    part: float = 1.0
    ends: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, file: InputFile, cut: Cut) -> Sample:
        """Choose the sample: several stretches of a long text, or all of a short one.

        For an input of rows, the caller reads the first rows.
        """
        if not isinstance(cut, Lines):
            return cls(cut)
        size = min(file.size, cut.size)
        if size <= SAMPLE or _depends(file):
            return cls(cut, [(0, min(size, SAMPLE))], min(1.0, SAMPLE / size))
        length = SAMPLE // STRETCHES
        spans = [(first := (size - length) * i // (STRETCHES - 1), first + length) for i in range(STRETCHES)]
        return cls(cut, spans, STRETCHES * length / size)

    def lines(self, file: InputFile) -> Iterator[Line]:
        """Yields (number, line, end) of each line that is not blank. The numbers count only lines of the sample."""
        for begin, end in self.spans:
            if _depends(file):
                for _, line, at in read_lines(file):
                    if at > end:
                        break
                    self.ends.append(at)
                    yield len(self.ends), line, at
                continue
            for line, at in lines_between(file, begin, end):
                if line is None or (line and not line.isspace()):
                    self.ends.append(at)
                    yield len(self.ends), line, at

    def records(self, seen: int) -> tuple[int, bool]:
        """(records of the whole input, True if they were counted). seen: records that the sample read."""
        if isinstance(self.cut, Records | RowGroups):
            return self.cut.count, True
        return round(seen / max(self.part, 1e-9)), self.part >= 1.0

    def in_a_shard(self) -> int:
        """Records of the largest shard."""
        cut = self.cut
        if isinstance(cut, Records):
            return cut.span(0)[1]
        if not isinstance(cut, Lines):
            return max(cut.rows) if isinstance(cut, RowGroups) else 1
        window = cut.per_shard if self.part >= 1.0 else min(cut.per_shard, SAMPLE // STRETCHES)
        first = most = 0
        for last, end in enumerate(self.ends):
            while end - self.ends[first] >= window:
                first += 1
            most = max(most, last + 1 - first)
        return max(-(-most * cut.per_shard // window), 1)


def is_compiled(*patterns: str) -> bool:
    """True if this machine has compiled kernels of all these names."""
    return os.environ.get("TILEWRIGHT_CACHE") != "off" and all(any(cache.directory().glob(p)) for p in patterns)
