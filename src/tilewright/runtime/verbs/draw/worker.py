"""The worker of `tilewright draw`: the noise of a shard -> images."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

import numpy as np

from tilewright.backends import backend
from tilewright.backends.protocol import Arrays
from tilewright.errors import InputError
from tilewright.formats.images import check_finite_images
from tilewright.formats.tables import Rows
from tilewright.models.dcgan import DCGAN, DCGANConfig
from tilewright.runtime.devices import gpu_faults
from tilewright.runtime.fingerprint import in_force
from tilewright.runtime.jobs import trace
from tilewright.runtime.jobs.cut import Shard
from tilewright.runtime.jobs.directory import Attempt
from tilewright.runtime.jobs.task import Beat
from tilewright.runtime.kernel_cache import compiling_told
from tilewright.runtime.load import build, read_weights
from tilewright.runtime.reports import Report, Say, phase
from tilewright.runtime.verbs.draw.noise import open_input

if TYPE_CHECKING:
    from tilewright.runtime.verbs.draw.task import DrawTask


class DrawWorker:
    """A `Worker`: loads the model, then draws shards with it."""

    def __init__(self, task: DrawTask) -> None:
        self.task, self.job, self.report = task, task.job, Report()
        with ExitStack() as stack:
            stack.enter_context(in_force(task.job.settings))
            if self.job.device != "cpu":
                stack.enter_context(gpu_faults())
            with compiling_told(task.say):
                self.model = self._load(task.say)
            self.reader = stack.enter_context(closing(open_input(self.job, task.config, checked=False)))
            self.open = stack.pop_all()

    def _load(self, say: Say) -> DCGAN:
        job, report = self.job, self.report
        with phase(report, "load", say, "Loading weights"):
            config, weights = read_weights(job.model, DCGANConfig)

        def ready(batch: int) -> DCGAN:
            """Load the model and allocate the memory of a batch.

            So a GPU with too little memory raises an error before the first shard.
            """
            with phase(report, "prepare", say, "Preparing model"):
                together = None if job.device == "cpu" else batch  # None: the CPU's caches hold only a few images
                model = build(
                    config, weights, dtype=job.dtype, device=job.device, batch=together, without=job.settings.without
                )
            with phase(report, "compile", say, "Compiling or loading kernels"):
                model.warm_up(pixels=self.task.images.pixels_alone)
            self.batch = batch
            return model

        return backend(job.device, job.dtype).halving(ready, job.batch or 1)

    def run(self, shard: Shard, out: Attempt, beat: Beat) -> int:
        first, done = shard.rows.start, 0
        with self.task.images.writing(out, first) as write, closing(self._drawn(shard, beat)) as drawn:
            while True:
                with trace.span(trace.COMPUTE), phase(self.report, "run"):  # meanwhile a GPU computes the next batch
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
        """Yield (images, invalid) of each batch, see `DCGAN.stream`. Images may be 8-bit pixels (`pixels_alone`)."""
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
        self.open.close()
