"""What `tilewright convolve` would take; see `plan`."""

from __future__ import annotations

import math

import numpy as np

from tilewright.formats.files import BLOCK_BYTES
from tilewright.formats.names import suffix_of
from tilewright.formats.raw_volumes import RawForm
from tilewright.formats.zarr_volumes import ZarrForm, ZarrVolume
from tilewright.runtime.jobs.cut import Records
from tilewright.runtime.plan import (
    KEPT_FREE,
    MERGING,
    NOTE,
    PROGRAM,
    REREAD,
    RUNNING,
    JobPlan,
    Outputs,
    Part,
    begun_of,
    plan_of,
)  # fmt: skip
from tilewright.runtime.verbs.convolve.job import ConvolveJob
from tilewright.runtime.verbs.convolve.kernels import Kernel, kernel_of
from tilewright.runtime.verbs.convolve.memory import ZARR, compiling_bytes, reading_bytes, writing_bytes
from tilewright.runtime.verbs.convolve.task import ConvolveTask, task_of
from tilewright.runtime.verbs.convolve.tiles import Tile, Tiling, needed_bytes
from tilewright.runtime.verbs.convolve.volume_shards import held_bytes

TEXT_BYTES = 9.5  # of a value with six decimals


def plan(job: ConvolveJob) -> JobPlan:
    """What the job would take. Raises what `convolve` does before its first shard, but of values that are held in
    memory, which are not read."""
    kernel = kernel_of(job.kernel)
    task = task_of(job, program=PROGRAM)
    try:
        begun = begun_of(task, job.settings, job.output, task.job.device)
        assert isinstance(begun.cut, Records)
        tiling = task.tiling(begun.cut)
        voxels = math.prod(task.shape)
        boxes = [task.box(first, begun.cut.per_shard) for first in range(0, begun.cut.count, begun.cut.per_shard)]
        return plan_of(
            "convolve", task, "voxels", (voxels, True), _memory(task, kernel, tiling, begun.cut), _outputs(task),
            begun=begun, shape=list(task.shape), planes=begun.cut.count, kernel=job.kernel, tile=list(tiling.tile),
            tiles=sum(tiling.count(Tile((0, 0, 0), box.shape)) for box in boxes), memory_allowed=task.memory(),
        )  # fmt: skip
    finally:
        task.close()


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
        Part("the volume, held", volume.held),
        Part("tiles and their halo", needed_bytes(tiling, dtype.itemsize, spare), RUNNING),
        Part("reading and writing", reading + writing, RUNNING),
        Part("freed and not given back", min(writing, KEPT_FREE), MERGING),
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
