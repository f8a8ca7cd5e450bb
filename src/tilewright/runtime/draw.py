"""The job of `tilewright draw`: noise streamed in, images out."""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace

import numpy as np

from tilewright.errors import ResourceError, UsageError
from tilewright.formats.atomic import AtomicDirectory, AtomicFile
from tilewright.formats.files import InputFile, same_file
from tilewright.formats.images import (
    ArrayWriter,
    FolderWriter,
    GridWriter,
    TextWriter,
    Writer,
    check_channels,
    check_finite_images,
    check_grid,
    kind_of,
    png_names,
)
from tilewright.formats.tables import SUFFIXES, Rows, Table, open_table, suffix
from tilewright.formats.validate import TOLERANCE
from tilewright.formats.validate_images import validate_images
from tilewright.hardware import available_memory
from tilewright.models import dcgan_device
from tilewright.models.dcgan import DCGAN, DCGANConfig, noise
from tilewright.ops._memory import empty
from tilewright.runtime.devices import gpu_faults, halving, place_for
from tilewright.runtime.load import config_of, place, read_weights
from tilewright.runtime.outputs import check_output
from tilewright.runtime.progress import Progress
from tilewright.runtime.reports import Report, Say, phase
from tilewright.runtime.signals import stoppable
from tilewright.runtime.staging import Staging

BATCH = 256  # images handed to the model at once, 12 MiB at the course's size
BATCH_BYTES = 64 << 20  # of them, where they are larger
PICTURES = (".bmp", ".png")
Results = tuple[np.ndarray, ...]


@dataclass
class DrawJob:
    """What to draw.

    input: noise, .txt or .npy; None: `count` images of random noise from `seed`. output: .txt, .npy, a grid as .png or
    .bmp, or a directory (a trailing slash, or there already), which gets a .png an image. image: a grid besides. count:
    with an input, images from its start (None: all). batch: images at a time (None: BATCH, or the GPU's); it changes no
    bits. device: "cpu", "cuda" or "auto". dtype: accuracy class, "float16" on a GPU alone.
    answers: .txt or .npy to compare a .txt or .npy output with, within `tolerance`.
    """

    model: str
    input: str | None
    output: str
    image: str | None = None
    count: int | None = None
    seed: int = 0
    dtype: str = "float32"
    device: str = "cpu"
    batch: int | None = None
    answers: str | None = None
    tolerance: float = TOLERANCE


class RandomNoise:
    """Noise from a seed, read as a table is."""

    def __init__(self, seed: int, count: int, width: int) -> None:
        self.total, self.bytes = count, 4 * count * width
        self._seed, self._width = seed, width

    def close(self) -> None:
        """Nothing is open."""

    def batches(self, size: int) -> Iterator[Rows]:
        """All rows in order, `size` at a time."""
        for first in range(0, self.total, size):
            n = min(size, self.total - first)
            yield Rows(noise(self._seed, first, n, self._width), 4 * (first + n) * self._width)


Source = Table | RandomNoise


def draw(job: DrawJob, say: Say = lambda text: None) -> Report:
    """Runs the job. `say` gets a line for each phase.

    Raises UsageError, InputError, ResourceError and Interrupted; in each case earlier outputs are untouched. Everything
    that can be checked before the work starts is.
    """
    _check(job)
    job = replace(job, device=place_for(job.device))
    report, start = Report(), time.perf_counter()
    with stoppable() as stop:
        config = config_of(job.model, DCGANConfig)
        with phase(report, "check"):
            reader = _open_input(job, config)
        with closing(reader):
            say(f"Checking input: {reader.total:,} images...Done! ({report.seconds['check']:.3f} sec)")
            batch = min(reader.total, job.batch or _batch(job, config))
            _check_outputs(job, config, reader.total, batch)
            with ExitStack() as outputs:
                writers = _open_outputs(job, config, reader.total, outputs)
                model = _load(job, batch, report, say)
                drawn = _drawn(model, reader, batch, _pictures_alone(job))
                with Progress("images", total=reader.total, size=reader.bytes) as progress, closing(drawn):
                    while True:
                        with phase(report, "run"):  # a GPU works on the next batch meanwhile
                            item = next(drawn, None)
                        if item is None:
                            break
                        rows, results = item
                        stop.check()
                        with phase(report, "write"):
                            _write(report, results[0], results[1:], writers)
                        progress.update(report.records, rows.end)
                say(f"Generating {report.records:,} images...Done! ({report.seconds.get('run', 0.0):.3f} sec)")
                computed = time.perf_counter()
                for writer in writers:
                    writer.finish()
        report.seconds["write"] = report.seconds.get("write", 0.0) + time.perf_counter() - computed  # fsync and rename
        say(f"Writing output...Done! ({report.seconds['write']:.3f} sec)")
    return _finish(job, report, config, start)


def _check(job: DrawJob) -> None:
    """Raises UsageError or InputError for what needs no model to be wrong."""
    if job.input is None and job.count is None:
        raise UsageError("there is no input: name one, or say how many images of random noise to draw (-n)")
    kind = kind_of(job.output)
    if job.image:
        if suffix(job.image) not in PICTURES or kind_of(job.image) == "/":
            raise UsageError(f"the image is no {' or '.join(PICTURES)} file", path=job.image)
        check_output(replace(job, output=job.image))
        if same_file(job.image, job.output) or job.image == job.output:
            raise UsageError("the image would overwrite the output", path=job.image, hint="choose another name")
    check_output(job)
    if job.answers:
        if kind not in SUFFIXES or suffix(job.answers) not in SUFFIXES:
            raise UsageError("this output cannot be compared with that reference", path=job.answers,
                             hint="compare .txt or .npy with .txt or .npy")  # fmt: skip
        InputFile(job.answers, "answers").close()


def _open_input(job: DrawJob, config: DCGANConfig) -> Source:
    if job.input is None:
        return RandomNoise(job.seed, job.count or 0, config.z_size)
    return open_table(job.input, shape=(config.z_size,), count=job.count)


def _batch(job: DrawJob, config: DCGANConfig) -> int:
    """Images at a time, where the job does not say."""
    if job.device == "cuda":
        return dcgan_device.batch_for(config)
    return max(1, min(BATCH, BATCH_BYTES // (4 * _floats(config))))


def _floats(config: DCGANConfig) -> int:
    height, width, channels = config.image_shape
    return height * width * channels


def _check_outputs(job: DrawJob, config: DCGANConfig, count: int, batch: int) -> None:
    """Raises UsageError for images that an output cannot hold, ResourceError where memory cannot hold them."""
    images = 4 * batch * _floats(config)
    needed = images + config.work_bytes if job.device == "cpu" else dcgan_device.SLOTS * images
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
            hint="ask for fewer (-n) or smaller batches (--batch-size), or write .npy or .txt: a grid keeps all pixels",
        )


def _check_disk(job: DrawJob, floats: int) -> None:
    """Raises ResourceError where the disk cannot hold the values; as text one takes at least 7 bytes, "0.0000 "."""
    kind = kind_of(job.output)
    least = {".npy": floats, ".txt": floats // 4 * 7}.get(kind, 0)
    folder = os.path.dirname(os.path.realpath(job.output))
    if least and os.path.isdir(folder):
        disk = os.statvfs(folder)
        if least > (free := disk.f_bavail * disk.f_frsize):
            raise ResourceError(f"the images take at least {least:,} bytes and the disk has {free:,} left",
                                path=job.output, hint="ask for fewer (-n) or write to another disk")  # fmt: skip


def _open_outputs(job: DrawJob, config: DCGANConfig, count: int, outputs: ExitStack) -> list[Writer]:
    """The output last to appear: where it is, the image is."""
    writers: list[Writer] = []
    for path in filter(None, (job.output, job.image)):
        kind = kind_of(path)
        if kind == "/":
            directory = AtomicDirectory(path, png_names(path), "a run's numbered .png")
            writers.append(FolderWriter(outputs.enter_context(directory)))
            continue
        file = outputs.enter_context(AtomicFile(path))
        if kind == ".txt":
            writers.append(TextWriter(file, count))
        elif kind == ".npy":
            writers.append(ArrayWriter(file, count, config.image_shape))
        else:
            writers.append(GridWriter(file, count, config.image_shape, kind))
    return writers


def _load(job: DrawJob, batch: int, report: Report, say: Say) -> DCGAN:
    with phase(report, "load", say, "Loading weights"):
        config, weights = read_weights(job.model)
    with phase(report, "prepare", say, "Preparing model"):
        if job.device == "cpu":
            model = place(config, weights, dtype=job.dtype)
        else:
            model = halving(lambda n: place(config, weights, dtype=job.dtype, device="cuda", batch=n), max(1, batch))
    with phase(report, "compile", say, "Compiling kernels"):  # or fetching them from the disk
        model.generate(np.zeros((1, config.z_size), np.float32))
    return model


def _pictures_alone(job: DrawJob) -> bool:
    """Whether 8-bit pixels are all that is wanted of the images."""
    return all(kind_of(path) not in SUFFIXES for path in filter(None, (job.output, job.image)))


def _drawn(model: DCGAN, reader: Source, batch: int, pixels: bool) -> Generator[tuple[Rows, Results], None, None]:
    """(noise, results) a batch at a time, valid until the next is asked for.

    Results are images; with pixels, from a GPU, 8-bit pixels and which images hold a NaN.
    """
    if model.gpu is not None:
        gpu = model.gpu
        slots = list(zip(gpu.pixels, gpu.spoiled, strict=True)) if pixels else [(images,) for images in gpu.images]
        start = lambda slot, rows: gpu.start(slot, model.checked(rows.values), pixels=pixels)  # noqa: E731
        with gpu_faults():
            yield from Staging(slots).run(reader.batches(gpu.batch), start)
        return
    kept = empty((batch, *model.config.image_shape))
    for rows in reader.batches(batch):
        images = kept[: len(rows.values)]
        model.generate(rows.values, out=images)
        yield rows, (images,)


def _write(report: Report, images: np.ndarray, spoiled: tuple[np.ndarray, ...], writers: list[Writer]) -> None:
    if spoiled and spoiled[0].any():
        check_finite_images(np.where(spoiled[0], np.nan, 0.0)[:, None, None, None], report.records)
    elif not spoiled:
        check_finite_images(images, report.records)
    for writer in writers:
        writer.write(images)
    report.records += len(images)


def _finish(job: DrawJob, report: Report, config: DCGANConfig, start: float) -> Report:
    if job.answers:
        with phase(report, "validate"):
            report.validation = validate_images(
                job.output, job.answers, shape=config.image_shape, tolerance=job.tolerance,
                prefix=job.count is not None,
            )  # fmt: skip
    report.finish(start)
    return report
