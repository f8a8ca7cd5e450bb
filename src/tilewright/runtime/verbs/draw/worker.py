"""The worker of `tilewright draw`: the noise of a shard -> images."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

import numpy as np

from tilewright.errors import InputError
from tilewright.formats.images import check_finite_images
from tilewright.formats.tables import Rows
from tilewright.models.dcgan import DCGAN
from tilewright.ops.core.memory import empty
from tilewright.runtime.devices import gpu_faults, halving
from tilewright.runtime.jobs import trace
from tilewright.runtime.jobs.cut import Shard
from tilewright.runtime.jobs.directory import Attempt
from tilewright.runtime.jobs.task import Beat
from tilewright.runtime.kernel_cache import compiling_told
from tilewright.runtime.load import place, read_weights
from tilewright.runtime.reports import Report, Say, phase
from tilewright.runtime.staging import Staging
from tilewright.runtime.verbs.draw.noise import open_input

if TYPE_CHECKING:
    from tilewright.runtime.verbs.draw.task import DrawTask


Results = tuple[np.ndarray, ...]


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
            self.reader = stack.enter_context(closing(open_input(self.job, task.config, checked=False)))
            gpu, alone = self.model.gpu, task.images.pixels_alone
            if gpu is None:
                self.kept = empty((self.job.batch or 1, *task.config.image_shape))
            else:  # its memory, which the GPU copies to by itself, serves all shards
                self.staging = Staging([*zip(gpu.pixels if alone else gpu.images, gpu.spoiled, strict=True)])
            self.open = stack.pop_all()

    def _load(self, say: Say) -> DCGAN:
        job, report = self.job, self.report
        with phase(report, "load", say, "Loading weights"):
            config, weights = read_weights(job.model)

        def ready(batch: int) -> DCGAN:
            """The model with all that a batch takes: what does not fit into a GPU's memory fails here."""
            with phase(report, "prepare", say, "Preparing model"):
                size = {} if job.device == "cpu" else {"device": "cuda", "batch": batch}
                model = place(config, weights, dtype=job.dtype, **size)
            with phase(report, "compile", say, "Compiling or loading kernels"):
                if model.gpu:
                    model.gpu.warm_up(pixels=True)
                else:
                    model.generate(np.zeros((1, config.z_size), np.float32))
            return model

        return ready(0) if job.device == "cpu" else halving(ready, job.batch or 1)

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
                    _check_finite(results[0], results[1:], first + done)
                    write(results[0])
                done += len(results[0])
                beat(done)
        out.figures = self.report.take_seconds()
        return len(shard.rows)

    def _drawn(self, shard: Shard, beat: Beat) -> Generator[Results, None, None]:
        """What is drawn of a batch, valid until the next is asked for: images; from a GPU, which images are not finite,
        too, and 8-bit pixels in place of images where they are all that is wanted."""
        gpu = self.model.gpu
        if gpu is None:
            for rows in self._noise(shard, beat, len(self.kept)):
                images = self.kept[: len(rows.values)]
                self.model.generate(rows.values, out=images)
                yield (images,)
            return
        start = lambda slot, rows: gpu.start(slot, self.model.checked(rows.values), pixels=True)  # noqa: E731
        for _, results in self.staging.run(self._noise(shard, beat, gpu.batch), start):
            yield results

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


def _check_finite(images: np.ndarray, spoiled: tuple[np.ndarray, ...], first: int) -> None:
    """Raises InputError naming the first image that is not finite. spoiled: which are not, where the GPU has looked."""
    if spoiled and spoiled[0].any():
        check_finite_images(np.where(spoiled[0], np.nan, 0.0)[:, None, None, None], first)
    elif not spoiled:
        check_finite_images(images, first)
