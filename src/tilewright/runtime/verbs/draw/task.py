"""The job of `tilewright draw`: noise in, images out, shard by shard."""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace

import numpy as np

from tilewright.backends import backend
from tilewright.backends.protocol import Arrays
from tilewright.errors import InputError, ResourceError, UsageError
from tilewright.formats.files import InputFile, same_file, spelled
from tilewright.formats.images import check_channels, check_finite_images, check_grid, kind_of
from tilewright.formats.tables import SUFFIXES, Rows, Table, open_table, suffix
from tilewright.formats.validate import TOLERANCE
from tilewright.formats.validate_images import validate_images
from tilewright.hardware import available_memory
from tilewright.models.dcgan import DCGAN, SLOTS, DCGANConfig, noise
from tilewright.runtime.devices import gpu_faults, place_for
from tilewright.runtime.fingerprint import Around, files_of, fingerprint
from tilewright.runtime.inputs import Sizing, cut_rows
from tilewright.runtime.jobs import trace
from tilewright.runtime.jobs.cut import Cut, Shard
from tilewright.runtime.jobs.directory import Attempt, JobDirectory
from tilewright.runtime.jobs.manifest import Value
from tilewright.runtime.jobs.placed import is_finished, room
from tilewright.runtime.jobs.start import Settings, quiet, start
from tilewright.runtime.jobs.stop import Stop
from tilewright.runtime.jobs.task import Beat, Place, Totals
from tilewright.runtime.kernel_cache import compiling_told
from tilewright.runtime.load import config_of, place, read_weights
from tilewright.runtime.outputs import check_output
from tilewright.runtime.reports import Report, Say, phase
from tilewright.runtime.verbs.draw.image_shards import PICTURES, ImageOutputs

BATCH = 256  # images handed to the model at once, 12 MiB at the course's size
BATCH_BYTES = 64 << 20  # of them, where they are larger
SHARD = {"cpu": 16, "cuda": 16}  # batches: some seconds of work on a CPU; on a GPU it waits at a shard's end alone


@dataclass
class DrawJob:
    """What to draw.

    input: noise, .txt or .npy; None: `count` images of random noise from `seed`. output: .txt, .npy, a grid as .png or
    .bmp, or a directory (a trailing slash, or there already), which gets a .png an image. image: a grid besides. count:
    with an input, images from its start (None: all). batch: images at a time (None: BATCH, or the GPU's); it changes no
    bits. device: "cpu", "cuda" or "auto". dtype: accuracy class, "float16" on a GPU alone.
    answers: .txt or .npy to compare a .txt or .npy output with, within `tolerance`. settings: how it is run.
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
    settings: Settings = field(default_factory=Settings)


class RandomNoise:
    """Noise from a seed, read as a table is."""

    def __init__(self, seed: int, count: int, width: int) -> None:
        self.total, self.bytes = count, 4 * count * width
        self._seed, self._width = seed, width

    def close(self) -> None:
        """Nothing is open."""

    def batches(self, size: int, rows: range) -> Iterator[Rows]:
        """These rows in order, `size` at a time."""
        for first in range(rows.start, rows.stop, size):
            n = min(size, rows.stop - first)
            yield Rows(noise(self._seed, first, n, self._width), 4 * (first + n) * self._width)


Source = Table | RandomNoise


def draw(job: DrawJob, say: Say = quiet) -> Report:
    """Runs the job. `say` gets a line for each phase.

    Raises UsageError, InputError, ResourceError and Interrupted; in each case an earlier output is untouched, what is
    done is kept, and the same call goes on. Everything that can be checked before the work starts is.
    """
    report, made = Report(), []

    def make(speak: Say, _: int) -> DrawTask:
        made.append(task_of(job, speak))
        return made[0]

    start(make, job.output, job.settings, report, device=job.device, unit="images", say=say)
    if not report.lead:
        return report
    spent = report.seconds
    if report.computed:
        say(f"Generating {report.computed:,} images...Done! ({spent.get('run', 0.0):.3f} sec)")
        spent["write"] = spent.get("write", 0.0) + spent["merge"]
        say(f"Writing output...Done! ({spent['write']:.3f} sec)")
    if job.answers:
        with phase(report, "validate"):
            report.validation = validate_images(
                job.output, job.answers, shape=made[0].config.image_shape, tolerance=job.tolerance,
                prefix=job.count is not None,
            )  # fmt: skip
    return report


def task_of(job: DrawJob, say: Say = quiet, *, scan: int | None = None) -> DrawTask:
    """Everything that can be checked before the work is; all noise is read for it, but, where a plan is all that is
    wanted, of a file of more than `scan` bytes its header alone.

    Raises UsageError, InputError and ResourceError.
    """
    _check(job)
    begin, job = time.perf_counter(), replace(job, device=place_for(job.device, job.dtype))
    config = config_of(job.model, DCGANConfig)
    checked = scan is None or job.input is None or not os.path.isfile(job.input) or os.path.getsize(job.input) <= scan
    with closing(_open_input(job, config, checked=checked)) as reader:
        count = reader.total
    say(f"Checking input: {count:,} images...Done! ({time.perf_counter() - begin:.3f} sec)")
    job = replace(job, batch=min(count, job.batch or _batch(job, config)))
    _check_outputs(job, config, count, job.batch or 1)
    return DrawTask(job, config, ImageOutputs(job.output, job.image, count, config.image_shape), Around.here(), say)


@dataclass
class DrawTask:
    """A `Task`. The job's batch is set."""

    job: DrawJob
    config: DCGANConfig
    images: ImageOutputs
    around: Around
    say: Say = quiet
    workers: int = 1

    def fingerprint(self) -> dict[str, Value]:
        """See `task.Task`."""
        job = self.job
        fields = fingerprint("draw", job, self.around)
        fields |= {"count": self.images.count, "output": kind_of(job.output), "image": job.image and spelled(job.image)}
        return fields if job.input else fields | {"seed": job.seed}

    def files(self) -> dict[str, str]:
        """See `task.Reading`."""
        return files_of(self.job)

    def cut(self, shard_size: int | None) -> Cut:
        """Images by number."""
        batch = _batch(self.job, self.config)
        sizing = Sizing(SHARD[self.job.device] * batch, batch).for_workers(self.workers)
        return cut_rows(self.images.count, 0, shard_size, sizing)

    def open(self, place: Place) -> DrawWorker:
        """See `task.Task`."""
        return DrawWorker(self)

    def header(self, totals: Totals) -> bytes:
        """The outputs are no streams of shards."""
        return b""

    def outputs(self) -> list[str]:
        """See `task.Assembling`."""
        return self.images.paths

    def check_outputs(self) -> None:
        """See `task.Assembling`."""
        self.images.check()

    def assemble(self, directory: JobDirectory, totals: Totals, stop: Stop) -> list[tuple[int, str]]:
        """See `task.Assembling`."""
        return self.images.assemble(directory, totals, stop)


class DrawWorker:
    """Loads the model, then draws shards with it."""

    def __init__(self, task: DrawTask) -> None:
        self.task, self.job, self.report = task, task.job, Report()
        with ExitStack() as stack:
            stack.enter_context(task.around.entered())
            if self.job.device != "cpu":
                stack.enter_context(gpu_faults())
            with compiling_told(task.say):
                self.model = self._load(task.say)
            self.reader = stack.enter_context(closing(_open_input(self.job, task.config, checked=False)))
            self.open = stack.pop_all()

    def _load(self, say: Say) -> DCGAN:
        job, report = self.job, self.report
        with phase(report, "load", say, "Loading weights"):
            config, weights = read_weights(job.model)

        def ready(batch: int) -> DCGAN:
            """The model with all that a batch takes: what does not fit into a GPU's memory fails here."""
            with phase(report, "prepare", say, "Preparing model"):
                together = None if job.device == "cpu" else batch  # the CPU's caches hold fewer
                model = place(config, weights, dtype=job.dtype, device=job.device, batch=together)
            with phase(report, "compile", say, "Compiling or loading kernels"):
                model.warm_up(pixels=self.task.images.pixels_alone)
            self.batch = batch
            return model

        return backend(job.device, job.dtype).halving(ready, job.batch or 1)

    def run(self, shard: Shard, out: Attempt, beat: Beat) -> int:
        """See `task.Worker`."""
        first, done = shard.rows.start, 0
        with self.task.images.writing(out, first) as write, closing(self._drawn(shard, beat)) as drawn:
            while True:
                with trace.span(trace.COMPUTE), phase(self.report, "run"):  # a GPU works on the next batch meanwhile
                    results = next(drawn, None)
                if results is None:
                    break
                with trace.span(trace.WRITE), phase(self.report, "write"):
                    images, invalid = results
                    if invalid.any():
                        check_finite_images(np.where(invalid, np.nan, 0.0)[:, None, None, None], first + done)
                    write(images)
                done += len(images)
                beat(done)
        out.figures = self.report.take_seconds()
        return len(shard.rows)

    def _drawn(self, shard: Shard, beat: Beat) -> Generator[Arrays, None, None]:
        """(images, invalid) of each batch, see `DCGAN.stream`; 8-bit pixels if images are wanted as these alone."""
        noise = (rows.values for rows in self._noise(shard, beat, self.batch))
        yield from self.model.stream(noise, pixels=self.task.images.pixels_alone, span=trace.device_span)

    def _noise(self, shard: Shard, beat: Beat, size: int) -> Iterator[Rows]:
        skip = dict(shard.skip)
        if skip:
            image, why = next(iter(skip.items()))
            raise InputError(f"image {image} (from 0) cannot be drawn: {why}", path=self.job.input or self.job.model)
        if not shard.alone:
            yield from self.reader.batches(size, shard.rows)
            return
        for row in shard.rows:
            beat.at(row)
            yield from self.reader.batches(1, range(row, row + 1))

    def close(self) -> None:
        """See `task.Worker`."""
        self.open.close()


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


def _open_input(job: DrawJob, config: DCGANConfig, *, checked: bool) -> Source:
    if job.input is None:
        return RandomNoise(job.seed, job.count or 0, config.z_size)
    return open_table(job.input, shape=(config.z_size,), count=job.count, checked=checked)


def _batch(job: DrawJob, config: DCGANConfig) -> int:
    """Images at a time, where the job does not say."""
    if job.device == "cuda":
        return config.batch_on("cuda")
    return max(1, min(BATCH, BATCH_BYTES // (4 * _floats(config))))


def _floats(config: DCGANConfig) -> int:
    height, width, channels = config.image_shape
    return height * width * channels


def _check_outputs(job: DrawJob, config: DCGANConfig, count: int, batch: int) -> None:
    """Raises UsageError for images that an output cannot hold, ResourceError where memory cannot hold them."""
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
            hint="ask for fewer (-n) or smaller batches (--batch-size), or write .npy or .txt: a grid keeps all pixels",
        )


def _check_disk(job: DrawJob, floats: int) -> None:
    """Raises ResourceError where the disk cannot hold the values; as text one takes at least 7 bytes, "0.0000 "."""
    kind = kind_of(job.output)
    least = {".npy": floats, ".txt": floats // 4 * 7}.get(kind, 0)
    there = os.path.isdir(os.path.dirname(os.path.realpath(job.output)))
    if least and there and not is_finished(job.output) and least > (free := room(job.output)):
        raise ResourceError(f"the images take at least {least:,} bytes and the disk has {free:,} left",
                            path=job.output, hint="ask for fewer (-n) or write to another disk")  # fmt: skip
