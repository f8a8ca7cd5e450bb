"""The plan of `tilewright convolve`: voxels, memory and disk of a job. See `runtime.plan`."""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from tilewright.backends.footprint import CONTEXT_WITHOUT_GRAPHS, MERGING, RUNNING, Part, halved, peak_of
from tilewright.formats.files import BLOCK_BYTES
from tilewright.formats.names import suffix_of
from tilewright.formats.raw_volumes import RawForm
from tilewright.formats.zarr_volumes import ZarrForm, ZarrVolume
from tilewright.runtime.begun import Begun
from tilewright.runtime.jobs.cut import Records
from tilewright.runtime.plan import (
    KEPT_FREE,
    NOTE,
    PROGRAM,
    REREAD,
    Declared,
    JobPlan,
    Outputs,
    plan_job,
)
from tilewright.runtime.verbs.convolve.job import ConvolveJob
from tilewright.runtime.verbs.convolve.kernels import Kernel
from tilewright.runtime.verbs.convolve.memory import ZARR, compiling_bytes, reading_bytes, writing_bytes
from tilewright.runtime.verbs.convolve.slabs import planes_of, slabs_bytes
from tilewright.runtime.verbs.convolve.task import ConvolveTask, task_of
from tilewright.runtime.verbs.convolve.tiles import Tile, Tiling, needed_bytes
from tilewright.runtime.verbs.convolve.volume_shards import held_bytes

TEXT_BYTES = 9.5  # bytes of a value as text with six decimals


def plan(job: ConvolveJob, gpu_memory: int | None = None) -> JobPlan:
    """The plan of the job, see `plan_job`. It reads no voxels, even if the job would load the whole volume."""
    return plan_job("convolve", job, gpu_memory, partial(task_of, program=PROGRAM), _declared)


def _declared(task: ConvolveTask, begun: Begun, gpu_memory: int) -> Declared:
    kernel, voxels, cut = task.taps, math.prod(task.shape), begun.cut
    assert kernel is not None and isinstance(cut, Records)
    tiling = task.tiling(cut)
    boxes = [task.box(first, cut.per_shard) for first in range(0, cut.count, cut.per_shard)]
    if task.job.device == "cpu":
        parts = _memory(task, kernel, tiling, cut)
    else:
        planes = planes_of(tiling, kernel.shape)
        parts = _on_gpu(kernel, tiling, halved(lambda some: peak_of(_on_gpu(kernel, tiling, some)), planes, gpu_memory))
    return Declared(
        unit="voxels", records=voxels, counted=True, parts=parts, outputs=_outputs(task),
        flops=2.0 * kernel.taps * voxels,
        figures={
            "shape": list(task.shape), "planes": cut.count, "kernel": task.job.kernel, "tile": list(tiling.tile),
            "tiles": sum(tiling.count(Tile((0, 0, 0), box.shape)) for box in boxes), "memory_allowed": task.memory(),
        },
    )  # fmt: skip


def _on_gpu(kernel: Kernel, tiling: Tiling, planes: int) -> tuple[Part, ...]:
    return Part("CUDA", CONTEXT_WITHOUT_GRAPHS), Part("slabs", slabs_bytes(kernel, tiling, planes), RUNNING)


def _memory(task: ConvolveTask, kernel: Kernel, tiling: Tiling, cut: Records) -> tuple[Part, ...]:
    volume, form, dtype = task.opened(), task.form(), np.dtype(task.dtype)
    spare = kernel.spare_blocks if dtype == np.float64 else 0
    shard = math.prod(task.box(0, cut.per_shard).shape) * dtype.itemsize
    reading = reading_bytes(volume, tiling.block)
    writing = writing_bytes(form, tiling.tile, dtype.itemsize) + held_bytes(form, shard)
    whole = form.size if isinstance(form, RawForm) else 0
    return (
        Part("program", PROGRAM + ZARR * any(isinstance(one, ZarrForm | ZarrVolume) for one in (form, volume))),
        Part("compiling kernels, the first time", compiling_bytes(task.dtype)),
        Part("the whole volume", volume.held),
        Part("tiles and their halo", needed_bytes(tiling, dtype.itemsize, spare), RUNNING),
        Part("reading and writing", reading + writing, RUNNING),
        Part("freed, not returned to the system", min(writing, KEPT_FREE), MERGING),
        Part("the output, read again", min(REREAD, whole), MERGING),
    )


def _outputs(task: ConvolveTask) -> Outputs:
    form, size = task.form(), math.prod(task.shape) * np.dtype(task.dtype).itemsize
    if isinstance(form, RawForm):
        return Outputs(form.size, True, -(-form.size // BLOCK_BYTES) * NOTE)
    if isinstance(form, ZarrForm):
        files = math.prod(-(-n // unit) for n, unit in zip(task.shape, form.unit, strict=True))
        return Outputs(size + sum(map(len, form.metadata.values())), False, files * NOTE)
    if suffix_of(task.job.output) == ".txt":
        text = round(TEXT_BYTES * math.prod(task.shape))
        return Outputs(text, False, text)
    return Outputs(size, False, size)
