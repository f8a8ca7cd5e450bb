"""The worker of `tilewright convolve`: slabs of the output, computed in tiles from blocks of the input."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

import numpy as np

from tilewright.backends import Backend, backend
from tilewright.errors import InputError
from tilewright.formats.volumes import Volume
from tilewright.formats.zarr_volumes import ZarrForm, ZarrVolume, chunk_names
from tilewright.runtime.devices import gpu_faults
from tilewright.runtime.fingerprint import in_force
from tilewright.runtime.jobs import trace
from tilewright.runtime.jobs.cut import Cut, Shard
from tilewright.runtime.jobs.directory import Attempt
from tilewright.runtime.jobs.task import Beat
from tilewright.runtime.jobs.unchanged import AsBegun, changed_while_running
from tilewright.runtime.kernel_cache import compiling_told
from tilewright.runtime.reports import COMPILE, Report, phase
from tilewright.runtime.verbs.convolve import volume_shards
from tilewright.runtime.verbs.convolve.kernels import Kernel, applied, prepared_float32
from tilewright.runtime.verbs.convolve.memory import free_at_once
from tilewright.runtime.verbs.convolve.slabs import through
from tilewright.runtime.verbs.convolve.tiles import Blocks, Tile, overlapped

if TYPE_CHECKING:
    from tilewright.runtime.verbs.convolve.job import ConvolveJob
    from tilewright.runtime.verbs.convolve.task import ConvolveTask

HEADERS = ("zarr.json", ".zarray", ".zattrs")  # metadata files of a Zarr array, which describe its other files


class ConvolveWorker:
    """A `Worker`: opens the input and prepares the kernel, then computes slabs."""

    def __init__(self, task: ConvolveTask) -> None:
        self.task, self.report, self.dtype = task, Report(), np.dtype(task.dtype)
        job = task.job
        self.backend = backend(task.job.device, without=job.settings.without)
        with ExitStack() as stack:
            stack.enter_context(in_force(task.job.settings))
            stack.callback(task.close)
            if job.device != "cpu":
                stack.enter_context(gpu_faults())
            self.volume, kernel, self.form = task.opened(), task.taps, task.form()
            assert kernel is not None
            if job.memory is not None and (isinstance(self.volume, ZarrVolume) or isinstance(self.form, ZarrForm)):
                free_at_once()
            self.watched = Watched(self.volume)
            with compiling_told(task.say), phase(self.report, COMPILE, task.say, "Compiling or loading kernels"):
                self.compute = _compute(kernel, self.dtype, self.backend)
                self.compute(np.zeros(kernel.shape, self.dtype), np.empty((1, 1, 1), self.dtype))
            self.blocks: Blocks | None = None
            self.all_open = stack.pop_all()

    def run(self, shard: Shard, out: Attempt, beat: Beat) -> int:
        if out.directory.manifest.fingerprint.get("kernel") != self.task.kernel:  # each MPI rank reads the file
            raise changed_while_running(f"{self.task.job.kernel} is another kernel than the job's")
        self.watched.began = out.directory.began
        self._plan(shard.cut)
        assert self.blocks is not None
        box = self.task.box(shard.rows.start, len(shard.rows))
        tiles = list(self.tiling.tiles(box))
        plane, done = math.prod(box.shape) // len(shard.rows), 0
        begin, before = time.perf_counter(), self._computed()
        with volume_shards.writing(self.form, out, box, self.dtype) as put:

            def write(tile: Tile, numbers: np.ndarray) -> None:
                _check_finite(self.task.job, tile.start, numbers)
                with trace.span(trace.WRITE):
                    put(tile, numbers)

            with closing(overlapped(tiles, self.buffers, self.blocks.read, write)) as blocks:
                for tile, block, numbers in blocks:
                    with trace.span(trace.COMPUTE), phase(self.report, "run"):
                        self.compute(block, numbers)
                    done += math.prod(tile.shape)
                    beat(done // plane)
        waited = time.perf_counter() - begin - (self._computed() - before)
        self.report.seconds["wait"] = self.report.seconds.get("wait", 0.0) + waited
        out.figures = self.report.take_seconds() | {"tiles": len(tiles)}
        return len(shard.rows)

    def _computed(self) -> float:
        """The seconds spent so far on computing, including compiling kernels."""
        return sum(self.report.seconds.get(name, 0.0) for name in ("run", COMPILE))

    def _plan(self, cut: Cut) -> None:
        """Choose the tiles. Called for the first shard, because an earlier run may have set the size of shards."""
        if self.blocks is None:
            job, task = self.task.job, self.task
            assert job.mode is not None  # `task_of` has filled it in
            self.tiling = task.tiling(cut, at_work=True)
            self.blocks = Blocks(
                self.watched, self.tiling, mode=job.mode, cval=job.cval, dtype=self.dtype, allocate=self.backend.host
            )
            self.buffers = [self.backend.host(math.prod(self.tiling.tile), self.dtype) for _ in range(2)]

    def close(self) -> None:
        self.all_open.close()


class Watched:
    """A worker's input, which also checks that the files of each box have not changed since the run began."""

    def __init__(self, volume: Volume) -> None:
        self._volume, self.began = volume, AsBegun()

    def read_into(self, start: tuple[int, int, int], target: np.ndarray) -> None:
        """As `Volume.read_into`. Also raises InputError if a file of a Zarr array has changed since the run began. For
        other formats, the file is checked before each commit."""
        self._volume.read_into(start, target)
        tree = self.began.trees.get("input")
        if tree and isinstance(self._volume, ZarrVolume):
            layout = self._volume.layout
            tree.check(chunk_names(self._volume.header, layout.shards or layout.chunks, start, target.shape))


def _check_finite(job: ConvolveJob, start: tuple[int, ...], out: np.ndarray) -> None:
    """Raises InputError if a sum of finite values overflowed its dtype."""
    with np.errstate(all="ignore"):
        if np.isfinite(out.sum()) or np.isfinite(out).all():
            return
    index = np.unravel_index(int(np.argmin(np.isfinite(out))), out.shape)
    place = [int(a + b) for a, b in zip(start, index, strict=True)]
    remedy = "scale the volume or the kernel" + (", or use --dtype float64" if out.dtype == np.float32 else "")
    raise InputError(f"the result is too large for {out.dtype}", path=job.input, where=f"voxel {place}", remedy=remedy)


def _compute(kernel: Kernel, dtype: np.dtype, on: Backend) -> Callable[[np.ndarray, np.ndarray], None]:
    """Returns f(block, out), as `kernels.applied` describes it."""
    return applied(kernel, dtype) if on.name == "cpu" else through(prepared_float32(kernel, on.device), on)
