"""What `tilewright draw` would take; see `plan`."""

from __future__ import annotations

import math
from typing import Any

from tilewright.formats.files import BLOCK_BYTES
from tilewright.formats.images import array_header, bmp_bytes, check_grid, grid, kind_of, text_header
from tilewright.models.dcgan import DCGANConfig
from tilewright.ops import conv_transpose2d
from tilewright.ops.conv_transpose2d.arguments import axes
from tilewright.ops.core.ladder import Memory
from tilewright.runtime.load import mapped_weights
from tilewright.runtime.plan import (
    KEPT_FREE,
    MERGING,
    NOTE,
    PREPARING,
    PROGRAM,
    REREAD,
    RUNNING,
    JobPlan,
    Outputs,
    Part,
    begun_of,
    is_compiled,
    matrix_memory,
    plan_of,
)  # fmt: skip
from tilewright.runtime.verbs.draw.image_shards import PICTURES
from tilewright.runtime.verbs.draw.job import DrawJob
from tilewright.runtime.verbs.draw.task import DrawTask, task_of

COMPILING = 121 << 20  # what LLVM keeps after it has compiled the verb's kernels (measured: Numba 0.68, x86-64)
NOISE = 16 << 20  # bytes of a file of noise that is read as the job reads it: text takes two seconds
TEXT_BYTES = 7.5  # of a value as text: "0.1234 " or "-0.1234 "
PNG_BYTES = 128  # of a picture beside its pixels


def plan(job: DrawJob) -> JobPlan:
    """What the job would take. Raises what `draw` does before its first shard; of more noise than NOISE bytes it looks
    at the header alone."""
    task = task_of(job, scan=NOISE)
    job, images = task.job, task.images
    images.check(write=False)
    weights = mapped_weights(job.model)[1]
    begun = begun_of(task, job.settings, job.output, job.device)
    return plan_of(
        "draw", task, "images", (images.count, True), _memory(task, weights), _outputs(task), begun=begun,
        batch=job.batch, image=list(images.shape),
    )  # fmt: skip


def _memory(task: DrawTask, weights: Any) -> tuple[Part, ...]:
    job, config, images = task.job, task.config, task.images
    layers = [_layer(config, i, job.dtype) for i in range(len(config.layers))]
    projection = matrix_memory(config.z_size, config.size**2 * config.channels, job.dtype)
    prepared = projection.prepared + sum(layer.prepared for layer in layers)
    stored = sum(array.nbytes for array in weights.values())
    later = [sum(layer.prepared for layer in layers[i + 1 :]) for i in range(len(layers))]  # not there yet
    most = max(layer.preparing - rest for layer, rest in zip(layers, later, strict=True))
    batch = 4 * (job.batch or 1) * math.prod(images.shape)
    pictures = [path for path in (job.output, job.image) if path and kind_of(path) in PICTURES]
    grids = [check_grid(path, images.count, images.shape, kind_of(path)) for path in pictures]
    text = kind_of(job.output) == ".txt" and images.keeps_pixels
    kept = images.pixel_bytes * task_shard(task) if text else 0  # behind the text of a shard
    return (
        Part("program", PROGRAM),
        Part("compiling kernels, the first time", 0 if _compiled(job) else COMPILING),
        Part("weights, prepared", prepared),
        Part("weights, while they are prepared", max(0, most) + stored, PREPARING),
        Part("freed and not given back", min(max(0, most), KEPT_FREE), RUNNING),
        Part("between the layers", config.work_bytes, RUNNING),
        Part("images of a batch", batch + batch // 4 + kept, RUNNING),
        Part("pictures of all images", sum(grids), MERGING),
        Part(
            "the output, read again", min(REREAD, _size(job.output, task)[0]) * (kind_of(job.output) == ".npy"), MERGING
        ),
    )


def task_shard(task: DrawTask) -> int:
    """Images of a shard."""
    return getattr(task.cut(task.job.settings.shard_size), "per_shard", 1)


def _layer(config: DCGANConfig, i: int, dtype: str) -> Memory:
    """Bytes of a layer's weights."""
    layer = config.layers[i]
    C = config.channels if i == 0 else config.layers[i - 1].channels
    rows, columns = axes((layer.kernel,) * 2, layer.stride, (layer.padding,) * 2)
    problem = conv_transpose2d.Problem(layer.channels, C, rows, columns, dtype)
    return conv_transpose2d.ladder.choose(problem).memory_for(problem)


def _compiled(job: DrawJob) -> bool:
    return is_compiled("conv_transpose2d.*", f"gemm.pack_{'panels' if job.dtype == 'float32' else 'words'}.*")


def _outputs(task: DrawTask) -> Outputs:
    images, job = task.images, task.job
    size, exact = _size(job.output, task)
    kind, files = kind_of(job.output), images.count
    lists = {"/": files * NOTE, ".npy": -(-size // BLOCK_BYTES) * NOTE}  # of pieces, which lie where the output will
    shards = lists.get(kind, 0) + (size if kind == ".txt" else 0)
    shards += images.keeps_pixels * images.count * images.pixel_bytes
    if job.image:
        more, also = _size(job.image, task)
        size, exact = size + more, exact and also
    return Outputs(size, exact, shards)


def _size(path: str, task: DrawTask) -> tuple[int, bool]:
    """(bytes of an output, whether they are known, else at most or about so many)."""
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
