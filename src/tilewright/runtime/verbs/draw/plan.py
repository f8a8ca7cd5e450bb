"""The plan of `tilewright draw`: images, memory and disk of a job. See `runtime.plan`."""

from __future__ import annotations

import math

import numpy as np

from tilewright.backends.footprint import CONTEXT, MERGING, PREPARING, RUNNING, Part, halved, peak_of
from tilewright.formats.files import BLOCK_BYTES
from tilewright.formats.images import array_header, bmp_bytes, check_grid, grid, kind_of, text_header
from tilewright.runtime.begun import Begun
from tilewright.runtime.load import mapped_weights
from tilewright.runtime.plan import (
    KEPT_FREE,
    NOTE,
    REREAD,
    Declared,
    JobPlan,
    Outputs,
    is_compiled,
    plan_job,
    program,
    widened,
)
from tilewright.runtime.verbs.draw.image_shards import PICTURES
from tilewright.runtime.verbs.draw.job import DrawJob
from tilewright.runtime.verbs.draw.task import DrawTask, task_of

COMPILING = 153 << 20  # bytes that Numba and LLVM hold after compiling the kernels (measured: Numba 0.68, x86-64)
NOISE = 16 << 20  # the largest noise file that a plan reads completely: as text, this takes two seconds
TEXT_BYTES = 7.5  # mean bytes of a value as text: "0.1234 " or "-0.1234 "
PNG_BYTES = 128  # bytes of a picture in addition to its pixels


def plan(job: DrawJob, gpu_memory: int | None = None) -> JobPlan:
    """The plan of the job, see `plan_job`. Of a noise file with more than NOISE bytes, it reads only the header."""
    return plan_job("draw", job, gpu_memory, _task, _declared)


def _task(job: DrawJob) -> DrawTask:
    task = task_of(job, scan=NOISE)
    task.images.check(write=False)
    return task


def _declared(task: DrawTask, begun: Begun, gpu_memory: int) -> Declared:
    images, batch, mapped = task.images, task.job.batch or 1, mapped_weights(task.job.model)[1]
    if task.job.device == "cpu":
        parts = _memory(task, mapped)
    else:
        batch = halved(lambda size: peak_of(_on_gpu(task, size)), batch, gpu_memory)
        parts = _on_gpu(task, batch)
    return Declared(
        unit="images", records=images.count, counted=True, parts=parts, outputs=_outputs(task),
        flops=float(images.count * task.config.flops), figures={"batch": batch, "image": list(images.shape)},
    )  # fmt: skip


def _memory(task: DrawTask, mapped: dict[str, np.ndarray]) -> tuple[Part, ...]:
    job, config, images = task.job, task.config, task.images
    weights, stored = config.memory(job.dtype), sum(array.nbytes for array in mapped.values()) + widened(mapped)
    batch = 4 * (job.batch or 1) * math.prod(images.shape)
    pictures = [path for path in (job.output, job.image) if path and kind_of(path) in PICTURES]
    grids = [check_grid(path, images.count, images.shape, kind_of(path)) for path in pictures]
    text = kind_of(job.output) == ".txt" and images.keeps_pixels
    pixels = images.pixel_bytes * getattr(task.cut(job.settings.shard_size), "per_shard", 1) if text else 0
    again = min(REREAD, _size(job.output, task)[0]) if kind_of(job.output) == ".npy" else 0
    return (
        program("draw", job.input, job.output, job.image),
        Part("compiling kernels, the first time", 0 if _compiled(job) else COMPILING),
        Part("weights, prepared", weights.prepared),
        Part("weights, while they are prepared", weights.preparing + stored, PREPARING),
        Part("freed, not returned to the system", min(weights.preparing, KEPT_FREE), RUNNING),
        Part("between the layers", config.work_bytes, RUNNING),
        Part("images of a batch", batch + batch // 4 + pixels, RUNNING),  # a shard stores pixels after its text
        Part("pictures of all images", sum(grids), MERGING),
        Part("the output, read again", again, MERGING),
    )


def _on_gpu(task: DrawTask, batch: int) -> tuple[Part, ...]:
    dtype, weights = task.job.dtype, task.config.memory(task.job.dtype, "cuda")
    each = task.config.gpu_bytes(dtype, ("pixels" if task.images.pixels_alone else "images", "invalid"))
    return (
        Part("CUDA", CONTEXT),
        Part("weights", weights.prepared),
        Part("weights, while they are prepared", weights.preparing, PREPARING),
        Part("images of a batch", batch * each, RUNNING),
    )


def _compiled(job: DrawJob) -> bool:
    return is_compiled("conv_transpose2d.*", f"gemm.pack_{'panels' if job.dtype == 'float32' else 'words'}.*")


def _outputs(task: DrawTask) -> Outputs:
    images, job = task.images, task.job
    size, exact = _size(job.output, task)
    kind, files = kind_of(job.output), images.count
    lists = {"/": files * NOTE, ".npy": -(-size // BLOCK_BYTES) * NOTE}  # bytes of the lists of pieces (in place)
    shards = lists.get(kind, 0) + (size if kind == ".txt" else 0)
    shards += images.keeps_pixels * images.count * images.pixel_bytes
    if job.image:
        more, also = _size(job.image, task)
        size, exact = size + more, exact and also
    return Outputs(size, exact, shards)


def _size(path: str, task: DrawTask) -> tuple[int, bool]:
    """(size of an output in bytes, True if it is exact). If it is not exact, it is an upper limit or an estimate."""
    images = task.images
    count, (height, width, channels), kind = images.count, images.shape, kind_of(path)
    if kind == ".npy":
        return len(array_header(count, images.shape)) + 4 * count * images.pixel_bytes, True
    if kind == ".txt":
        return len(text_header(count)) + round(count * (TEXT_BYTES * images.pixel_bytes + 1)), False
    if kind == "/":
        return count * (images.pixel_bytes + PNG_BYTES), False
    rows, across = grid(count, kind)
    if kind == ".bmp":
        return bmp_bytes(count, images.shape), True
    return rows * height * across * width * channels, False
