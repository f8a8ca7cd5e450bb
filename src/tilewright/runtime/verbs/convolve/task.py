"""The shards of `tilewright convolve`, and the checks of a job against its volume."""

from __future__ import annotations

import hashlib
import math
import os
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil

from tilewright.errors import UsageError
from tilewright.formats.kept import lost
from tilewright.formats.names import suffix_of
from tilewright.formats.volume_formats import form_of, open_volume
from tilewright.formats.volumes import MemoryShort, Volume
from tilewright.formats.zarr_volumes import ZarrForm, ZarrVolume
from tilewright.hardware import available_memory
from tilewright.runtime.fingerprint import as_called, fingerprint
from tilewright.runtime.forced_rungs import Idle, check_rungs
from tilewright.runtime.jobs.cut import Cut, Records
from tilewright.runtime.jobs.directory import JobDirectory
from tilewright.runtime.jobs.manifest import Value, file_identity
from tilewright.runtime.jobs.stop import Stop
from tilewright.runtime.jobs.task import Place, Totals
from tilewright.runtime.jobs.unchanged import Tree
from tilewright.runtime.plan import SUPERVISOR
from tilewright.runtime.reports import Say, quiet
from tilewright.runtime.verbs.convolve import volume_shards
from tilewright.runtime.verbs.convolve.job import ConvolveJob, check_paths, least_memory, with_mode
from tilewright.runtime.verbs.convolve.kernels import Kernel, check_fits, kernel_of
from tilewright.runtime.verbs.convolve.memory import program_bytes, tiling_of
from tilewright.runtime.verbs.convolve.tiles import Tile, Tiling
from tilewright.runtime.verbs.convolve.worker import HEADERS, ConvolveWorker
from tilewright.switches import check_switches

if TYPE_CHECKING:
    from tilewright.formats.volume_formats import Form

FREE = 0.8  # fraction of the available memory that a job may use by default
PIECES = 4  # the fewest shards per worker, if there are several workers
WORK = 200_000_000_000  # the most multiplications per shard: a few seconds on two cores
# Two slow cores do fewer multiplications in less than a second. To start a GPU takes about two (64^3: 2.4 s, an H100).
LITTLE = 10_000_000_000


def task_of(job: ConvolveJob, say: Say = quiet, workers: int | None = None, *, program: int = 0) -> ConvolveTask:
    """Check everything that can be checked before the work, and make the task.

    workers: the number of workers that share the job's memory (None: `settings.workers`). program: as in
    `ConvolveTask`. Raises UsageError, InputError and ResourceError. If the memory is too small, the error tells about
    how much is needed.
    """
    sharing = workers or job.settings.workers or 1

    def checked(memory: int) -> None:
        _task_of(replace(job, memory=memory), quiet, sharing, program or max(1, resident)).close()

    resident = _resident()
    try:
        return _task_of(job, say, sharing, program)
    except MemoryShort as short:
        enough = least_memory(job.memory, checked) if job.memory is not None else None
        short.advise(enough=enough)
        raise


def _task_of(job: ConvolveJob, say: Say, workers: int, program: int) -> ConvolveTask:
    job = with_mode(job)
    check_paths(job)
    begin, settings = time.perf_counter(), as_called(job.settings)
    task = ConvolveTask(job, say, workers=workers, program=program)
    try:
        volume, kernel = task.opened(), kernel_of(job.kernel)
        check_fits(kernel, volume.shape, job.input)
        task.dtype = str(_dtype(job, volume))
        device = _place(job, settings.device, np.dtype(task.dtype))
        check_switches("convolve", settings.without, device, task.dtype)
        check_rungs("convolve", settings.rungs, device, _idle(task.dtype))
        task.job = replace(job, settings=replace(settings, device=device))
        task.shape, task.unit, task.kernel, task.taps = volume.shape, volume.unit, _digest(kernel), kernel
        volume_shards.check_room(job.output, volume.shape, np.dtype(task.dtype))
        if isinstance(volume, ZarrVolume):
            chunks = volume.layout.chunks
            volume_shards.check_chunks(job.input, volume.shape, chunks, np.dtype(task.dtype), "input")
        form = task.form()
        if isinstance(form, ZarrForm):
            volume_shards.check_chunks(job.output, volume.shape, form.unit, np.dtype(task.dtype), "output")
        task.axis, task.out_unit = form.axis, form.unit[form.axis]
        most = WORK // kernel.taps * np.dtype(task.dtype).itemsize
        task.best = min(volume_shards.shard_bytes(form), most)
        task.tile = task.tiling(task.cut(job.settings.shard_size)).tile
    except BaseException:
        task.close()
        raise
    if gone := lost(job.output, volume, np.dtype(task.dtype)):
        say(gone)
    if device != "cpu" and (work := kernel.taps * math.prod(volume.shape)) < LITTLE:
        say(f"This job has {work:,} multiplications, and a GPU takes about 2 s to start: --device cpu is faster")
    size = " x ".join(map(str, volume.shape))
    say(f"Checking input: {size} voxels of {volume.dtype}...Done! ({time.perf_counter() - begin:.3f} sec)")
    return task


@dataclass
class ConvolveTask:
    """The `Assembling` task of a convolve job.

    kernel: the sha256 of the kernel's weights. taps: the kernel, read once. unit: the number of voxels that are read
    together along each axis. out_unit: the number of voxels that are written together along `axis`. best: the desired
    bytes of voxels per shard. tile: the tile that this process would choose. program: for a plan, which reads only the
    input's header: the bytes of a worker without the input and the tiles; otherwise 0. trees: a Zarr input as
    `fingerprint` found it.
    """

    job: ConvolveJob
    say: Say = quiet
    dtype: str = ""
    kernel: str = ""
    taps: Kernel | None = None
    shape: tuple[int, ...] = ()
    unit: tuple[int, ...] = ()
    axis: int = 0
    out_unit: int = 1
    best: int = volume_shards.SHARD_BYTES
    tile: tuple[int, ...] = ()
    workers: int = 1
    program: int = 0
    trees: dict[str, Tree] = field(default_factory=dict)
    _volume: Volume | None = None
    _form: Form | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_volume": None, "_form": None}  # workers open their own files

    def opened(self) -> Volume:
        """The input, opened once in this process."""
        if self._volume is None:
            left = self.memory() - self.resident()
            self._volume = open_volume(self.job.input, memory=left, headers=self.program > 0)
        return self._volume

    def resident(self) -> int:
        """Bytes that a worker uses besides the tiles, including the input if the worker holds it in memory."""
        held = self._volume.held if self._volume else 0
        dtype = self.dtype or self.job.dtype or "float32"
        least = program_bytes(dtype, self.job.input, self.job.output) + held
        return max(self.program + held if self.program else _resident(), least)

    def close(self) -> None:
        """Close the input."""
        volume, self._volume = self._volume, None
        if volume is not None:
            volume.close()

    def memory(self) -> int:
        """Bytes that a process of this job may use."""
        if self.job.memory is not None:
            return (self.job.memory - self.job.settings.is_supervised * SUPERVISOR) // self.workers
        return int((self.program or _resident()) + FREE * available_memory() / self.workers)

    def fingerprint(self) -> dict[str, Value]:
        job = self.job
        fields = fingerprint("convolve", job.settings, self.dtype)
        fields |= {"format": suffix_of(job.output), "kernel": self.kernel, "mode": job.mode, "cval": job.cval}
        if not os.path.isdir(job.input):
            return fields | file_identity("input", job.input)
        self.trees = {"input": Tree.of(job.input, HEADERS)}
        return fields | self.trees["input"].fields("input")

    def files(self) -> dict[str, str]:
        return {"input": self.job.input}

    def cut(self, shard_size: int | None) -> Cut:
        """Divide the output into slabs of `shard_size` planes, rounded up to whole chunks of the output."""
        count = self.shape[self.axis]
        plane = math.prod(self.shape) // count * np.dtype(self.dtype).itemsize
        step, workers = self.out_unit, self.workers
        if shard_size is None:
            both = math.lcm(step, self.unit[self.axis])  # so that no chunk of the input is decoded twice
            step = both if both * plane <= self.best else step
            shard_size = min(max(1, self.best // plane), -(-count // (PIECES * workers)) if workers > 1 else count)
        return Records(0, count, min(max(1, -(-shard_size // step)) * step, -(-count // step) * step))

    def box(self, first: int, count: int) -> Tile:
        """The box of a slab. first: its first plane. count: the number of planes."""
        start, shape = [0, 0, 0], list(self.shape)
        start[self.axis], shape[self.axis] = first, min(count, self.shape[self.axis] - first)
        return Tile(tuple(start), tuple(shape))  # type: ignore[arg-type]

    def tiling(self, cut: Cut, *, at_work: bool = False) -> Tiling:
        """The tiling of a shard, see `memory.tiling_of`. Raises MemoryShort if no tiles fit."""
        assert isinstance(cut, Records) and self.taps is not None
        box, left = self.box(0, cut.per_shard).shape, self.memory() - self.resident()
        return tiling_of(
            self.opened(), self.form(), self.taps, box, np.dtype(self.dtype),
            path=self.job.output, left=left, at_work=at_work,
        )  # fmt: skip

    def open(self, place: Place) -> ConvolveWorker:
        return ConvolveWorker(self)

    def header(self, totals: Totals) -> bytes:
        """Returns b"", because the output is not a stream of shards."""
        return b""

    def outputs(self) -> list[str]:
        return [self.job.output]

    def check_outputs(self) -> None:
        volume_shards.check_output(self.job.output, self.shape, np.dtype(self.dtype))  # type: ignore[arg-type]

    def assemble(self, directory: JobDirectory, totals: Totals, stop: Stop) -> list[tuple[int, str]]:

        def box(rows: range) -> Tile:
            return self.box(rows.start, len(rows))

        return volume_shards.assemble(self.form(), directory, totals, stop, box)

    def form(self) -> Form:
        """The storage form of the output."""
        if self._form is None:
            dtype, shape = np.dtype(self.dtype), self.shape
            self._form = form_of(self.job.output, shape, dtype, self.opened())  # type: ignore[arg-type]
        return self._form


def _digest(kernel: Kernel) -> str:
    digest = hashlib.sha256()
    for array in kernel.lines or (kernel.weights,):
        digest.update(f"{array.shape}".encode() + np.ascontiguousarray(array, "<f8").tobytes())  # type: ignore
    return digest.hexdigest()


def _dtype(job: ConvolveJob, volume: Volume) -> np.dtype:
    return np.dtype(job.dtype or ("float64" if volume.wide else "float32"))


def _idle(dtype: str) -> dict[str, Idle]:
    """The operation that volumes of this dtype do not use, for checks of --rung."""
    remedy = "force a rung of {}, or choose another --dtype"
    if dtype == "float32":
        return {"correlate": Idle("on float32", "conv3d", remedy.format("conv3d"))}
    return {"conv3d": Idle(f"on {dtype}", "correlate", remedy.format("correlate"))}


def _place(job: ConvolveJob, place: str, dtype: np.dtype) -> str:
    """The device that computes. As `place_for`, but "auto" keeps float64 on the CPU.

    Raises UsageError for float64 on a GPU.
    """
    if place == "cpu" or dtype == np.float32:
        return place
    if job.device == "auto":
        return "cpu"
    remedy = "use --dtype float32, or compute on the CPU (--device cpu)"
    raise UsageError(f"the volume would be computed in {dtype}, and a GPU computes in float32", remedy=remedy)


def _resident() -> int:
    return psutil.Process().memory_info().rss
