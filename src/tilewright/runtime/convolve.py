"""The job of `tilewright convolve`: a volume in, the volume filtered with a kernel out, in tiles where it is large."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import psutil

from tilewright.errors import InputError, UsageError
from tilewright.formats.files import same_file
from tilewright.formats.validate_volumes import TOLERANCE, validate_volumes
from tilewright.formats.volumes import Output, Volume, check_memory, check_suffix, create_volume, open_volume
from tilewright.hardware import available_memory
from tilewright.ops._memory import empty
from tilewright.ops.conv3d import conv3d
from tilewright.runtime.devices import place_for
from tilewright.runtime.kernels import Kernel, applied, check_fits, kernel_of, prepared_float32
from tilewright.runtime.progress import Progress
from tilewright.runtime.reports import Report, Say, phase
from tilewright.runtime.signals import Stop, stoppable
from tilewright.runtime.slabs import pinned, through
from tilewright.runtime.tiles import MODES, Allocate, Blocks, Tile, plan, run

SLACK = 32 << 20  # bytes: threads, and what the allocator keeps
FREE = 0.8  # of the available memory that a job may take where nothing is said


@dataclass
class ConvolveJob:
    """What to convolve. Formats follow from the names; see formats/volumes.py.

    kernel: a name or a file, see runtime/kernels.py; it is not flipped. mode, cval: what stands outside the volume, as
    in scipy.ndimage. dtype: "float32" or "float64", of the sums and the output; None: as the input needs. memory: bytes
    that the process may take; None: most of what is free. answers: a volume to compare the output with. device:
    "cpu", "cuda" or "auto"; a GPU computes in float32.
    """

    input: str
    kernel: str
    output: str
    mode: str = "constant"
    cval: float = 0.0
    dtype: str | None = None
    memory: int | None = None
    answers: str | None = None
    tolerance: float = TOLERANCE
    device: str = "cpu"


@dataclass
class ConvolveReport(Report):
    """records: voxels. tiles: how many the volume was computed in; 0: as a whole. tile: their shape."""

    tiles: int = 0
    tile: tuple[int, ...] = ()


def convolve(job: ConvolveJob, say: Say = lambda text: None) -> ConvolveReport:
    """Runs the job. `say` gets a line for each phase.

    Raises UsageError, InputError, ResourceError and Interrupted; in each case an earlier output is untouched. The
    result's bits depend neither on the memory nor on the tiles that follow from it.
    """
    _check_paths(job)
    report, start = ConvolveReport(), time.perf_counter()
    place, memory = place_for(job.device), _memory(job)
    with stoppable() as stop:
        with phase(report, "check"):
            kernel = kernel_of(job.kernel)
            volume = open_volume(job.input, memory=memory - _resident())
        with volume:
            check_fits(kernel, volume.shape, job.input)
            dtype = _dtype(job, volume)
            place = _place(job, place, dtype)
            size = " x ".join(map(str, volume.shape))
            say(f"Checking input: {size} voxels of {volume.dtype}...Done! ({report.seconds['check']:.3f} sec)")
            output = create_volume(job.output, volume.shape, dtype, volume)
            check_memory(job.output, output.held, memory - _resident())
            with output:
                with phase(report, "compile", say, "Compiling kernels"):  # or fetching them from the disk
                    compute = _compute(kernel, dtype, place)
                    compute(np.zeros(kernel.shape, dtype), np.empty((1, 1, 1), dtype))
                if volume.held and output.held and dtype == np.float32 and place == "cpu":
                    _whole(job, report, kernel, (volume, output), memory)
                else:
                    allocate = empty if place == "cpu" else pinned
                    _tiled(job, report, kernel, (volume, output), Means(compute, allocate, memory, stop))
                report.records = math.prod(volume.shape)
                tiles = (
                    f"{report.tiles:,} tiles of {' x '.join(map(str, report.tile))}" if report.tiles else "one piece"
                )
                say(f"Convolving {report.records:,} voxels in {tiles}...Done! ({report.seconds['run']:.3f} sec)")
                computed = time.perf_counter()
            report.seconds["write"] = time.perf_counter() - computed
            say(f"Writing output...Done! ({report.seconds['write']:.3f} sec)")
    if job.answers:
        with phase(report, "validate"):
            report.validation = validate_volumes(job.output, job.answers, tolerance=job.tolerance)
    report.finish(start)
    return report


def _whole(job: ConvolveJob, report: ConvolveReport, kernel: Kernel, ends: tuple[Volume, Any], memory: int) -> None:
    """The volume as a whole, where both ends hold it in memory anyway."""
    volume, output = ends
    check_memory(job.input, output.held, memory - _resident())
    with phase(report, "read"):
        array = volume.load(output.array.dtype)
    prepared = prepared_float32(kernel)
    with phase(report, "run"):
        conv3d(array, prepared, mode=job.mode, cval=job.cval, out=output.array)
    _check_finite(job, (0, 0, 0), output.array)


@dataclass(frozen=True)
class Means:
    """What tiles are computed with. memory: bytes that the process may take."""

    compute: Callable[[np.ndarray, np.ndarray], None]
    allocate: Allocate
    memory: int
    stop: Stop


def _tiled(job: ConvolveJob, report: ConvolveReport, kernel: Kernel, ends: tuple[Volume, Output], means: Means) -> None:
    """The volume tile by tile; "run" are the seconds of the computation, "wait" those it waited for the disk."""
    volume, output = ends
    dtype = _dtype(job, volume)
    left = means.memory - _resident() - volume.working - output.working - SLACK
    spare = kernel.spare_blocks if dtype == np.float64 else 0
    units = volume.unit, output.unit
    tiling = plan(volume.shape, kernel.halo, units, itemsize=dtype.itemsize, memory=left, spare_blocks=spare)
    blocks = Blocks(volume, tiling, mode=job.mode, cval=job.cval, dtype=dtype, allocate=means.allocate)
    report.tiles, report.tile = tiling.count, tiling.tile
    spent = [0.0]

    def timed(block: np.ndarray, out: np.ndarray) -> None:
        start = time.perf_counter()
        means.compute(block, out)
        spent[0] += time.perf_counter() - start

    def write(tile: Tile, out: np.ndarray) -> None:
        _check_finite(job, tile.start, out)
        output.write(tile.start, out)

    with Progress("voxels", total=math.prod(volume.shape), size=1) as progress, phase(report, "tiles"):

        def done(tile: Tile) -> None:
            means.stop.check()
            report.records += math.prod(tile.shape)
            progress.update(report.records, 0)

        run(tiling, blocks.read, timed, write, dtype, done, means.allocate)
    report.seconds["run"] = spent[0]
    report.seconds["wait"] = report.seconds.pop("tiles") - spent[0]


def _check_finite(job: ConvolveJob, start: tuple[int, ...], out: np.ndarray) -> None:
    """Raises InputError where a sum of finite numbers was too large for its dtype."""
    with np.errstate(all="ignore"):
        if np.isfinite(out.sum()) or np.isfinite(out).all():
            return
    index = np.unravel_index(int(np.argmin(np.isfinite(out))), out.shape)
    place = [int(a + b) for a, b in zip(start, index, strict=True)]
    hint = "scale the volume or the kernel" + (", or use --dtype float64" if out.dtype == np.float32 else "")
    raise InputError(f"the result is too large for {out.dtype}", path=job.input, where=f"voxel {place}", hint=hint)


def _dtype(job: ConvolveJob, volume: Volume) -> np.dtype:
    return np.dtype(job.dtype or ("float64" if volume.wide else "float32"))


def _place(job: ConvolveJob, place: str, dtype: np.dtype) -> str:
    """Where it is computed: what `place_for` found, but "auto" keeps float64 on the CPU. Raises UsageError for float64
    that is to be computed on a GPU."""
    if place == "cpu" or dtype == np.float32:
        return place
    if job.device == "auto":
        return "cpu"
    hint = "use --dtype float32, or leave --device out"
    raise UsageError(f"the volume would be computed in {dtype}, and a GPU computes in float32", hint=hint)


def _compute(kernel: Kernel, dtype: np.dtype, place: str) -> Callable[[np.ndarray, np.ndarray], None]:
    """f(block, out), as `kernels.applied` says."""
    return applied(kernel, dtype) if place == "cpu" else through(prepared_float32(kernel, place), place)


def _memory(job: ConvolveJob) -> int:
    return job.memory if job.memory is not None else int(_resident() + FREE * available_memory())


def _resident() -> int:
    return psutil.Process().memory_info().rss


def _check_paths(job: ConvolveJob) -> None:
    """Everything that the words of the command alone can tell."""
    check_suffix(job.input, "input")
    check_suffix(job.output, "output")
    if job.mode not in MODES:
        raise UsageError(f"mode is {job.mode!r}", hint=f"there are {', '.join(MODES)}")
    if not math.isfinite(job.cval):
        raise UsageError(f"cval is {job.cval}; a finite number is wanted")
    if job.dtype != "float64" and abs(job.cval) > float(np.finfo(np.float32).max):
        raise UsageError(f"cval is {job.cval}; it is too large for float32", hint="use --dtype float64")
    for what, path in (("input", job.input), ("kernel", job.kernel), ("answers", job.answers)):
        if path and _overlap(path, job.output):
            raise UsageError(f"the output would overwrite the {what}", path=job.output, hint="choose another output")
    if job.answers:
        check_suffix(job.answers, "answers")
        if not os.path.exists(job.answers):
            raise InputError("no such answers", path=job.answers, hint="check the path")


def _overlap(path: str, output: str) -> bool:
    """They are one file, or one lies in the other, which is a directory."""
    if same_file(path, output):
        return True
    a, b = os.path.realpath(path), os.path.realpath(output)
    return a == b or a.startswith(b + os.sep) or b.startswith(a + os.sep)
