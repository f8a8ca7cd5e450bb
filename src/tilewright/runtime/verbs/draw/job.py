"""The options of `tilewright draw`, and the checks that need no image."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from tilewright.errors import ResourceError, UsageError
from tilewright.formats.files import InputFile, same_file
from tilewright.formats.images import check_channels, check_grid, kind_of
from tilewright.formats.tables import SUFFIXES, suffix
from tilewright.formats.validate import TOLERANCE
from tilewright.hardware import available_memory
from tilewright.models.dcgan import SLOTS, DCGANConfig
from tilewright.runtime.jobs.placed import is_finished, room
from tilewright.runtime.verbs.draw.image_shards import PICTURES
from tilewright.runtime.verbs.model_job import ModelJob

BATCH = 256  # images per call of the model: 12 MiB at the course's size
BATCH_BYTES = 64 << 20  # the most bytes of a batch; larger images get a smaller batch


@dataclass
class DrawJob(ModelJob):
    """The options of a draw job.

    input: noise, .txt or .npy; None: `count` images of random noise from `seed`. output: .txt, .npy, a grid as .png or
    .bmp, or a directory for one .png per image: a name with a trailing slash, or an existing directory. image: path of
    an additional grid. count: with an input, the first images of it (None: all). answers: .txt or .npy to compare a
    .txt or .npy output with, within `tolerance`.
    """

    image: str | None = None
    seed: int = 0
    tolerance: float = TOLERANCE

    @property
    def batch(self) -> int | None:
        """Images per batch; it changes no bits of the output. None until `task_of` has chosen a number."""
        return self.settings.batch_size


def check(job: DrawJob) -> None:
    """Raises UsageError or InputError for options that are wrong for every model."""
    if job.input is None and job.count is None:
        raise UsageError("there is no input", remedy="name one, or say how many images of random noise to draw (-n)")
    kind = kind_of(job.output)
    if job.image:
        if suffix(job.image) not in PICTURES or kind_of(job.image) == "/":
            raise UsageError(f"the image is no {' or '.join(PICTURES)} file", path=job.image)
        replace(job, output=job.image).check_output()
        if same_file(job.image, job.output) or job.image == job.output:
            raise UsageError("the image would overwrite the output", path=job.image, remedy="choose another name")
    job.check_output()
    if job.answers:
        if kind not in SUFFIXES or suffix(job.answers) not in SUFFIXES:
            raise UsageError("this output cannot be compared with that reference", path=job.answers,
                             remedy="compare .txt or .npy with .txt or .npy")  # fmt: skip
        InputFile(job.answers, "answers").close()


def batch_of(job: DrawJob, config: DCGANConfig) -> int:
    """The default number of images per batch."""
    if job.device == "cuda":
        return config.batch_on("cuda")
    return max(1, min(BATCH, BATCH_BYTES // (4 * _floats(config))))


def _floats(config: DCGANConfig) -> int:
    height, width, channels = config.image_shape
    return height * width * channels


def check_outputs(job: DrawJob, config: DCGANConfig, count: int, batch: int) -> None:
    """Raises UsageError if an output's format cannot hold the images, and ResourceError if the memory cannot."""
    images = 4 * batch * _floats(config)
    needed = images + config.work_bytes if job.device == "cpu" else SLOTS * images
    for path in filter(None, (job.output, job.image)):
        kind = kind_of(path)
        if kind not in SUFFIXES:
            check_channels(path, config.image_shape[2])
        if kind in PICTURES:
            needed += check_grid(path, count, config.image_shape, kind)
    _check_disk(job, 4 * count * _floats(config))
    free = available_memory()
    if needed > free:
        raise ResourceError(
            f"{count:,} images, {batch:,} at a time, take {needed:,} bytes of memory; {free:,} are free",
            path=job.output,
            remedy="give a smaller -n or --batch-size, or write .npy or .txt: a grid holds all pixels in memory",
        )


def _check_disk(job: DrawJob, floats: int) -> None:
    """Raises ResourceError if the disk cannot hold the values. In text a value takes at least 7 bytes ("0.0000 ")."""
    kind = kind_of(job.output)
    least = {".npy": floats, ".txt": floats // 4 * 7}.get(kind, 0)
    there = os.path.isdir(os.path.dirname(os.path.realpath(job.output)))
    if least and there and not is_finished(job.output) and least > (free := room(job.output)):
        raise ResourceError(f"the images take {least:,} bytes or more; the disk has {free:,} left",
                            path=job.output, remedy="ask for fewer (-n) or write to another disk")  # fmt: skip
