"""The shards of `tilewright draw`, and the checks of a job against its model."""

from __future__ import annotations

import os
import time
from contextlib import closing
from dataclasses import dataclass, replace

from tilewright.errors import counted
from tilewright.formats.files import spelled
from tilewright.formats.images import kind_of
from tilewright.models.dcgan import DCGANConfig
from tilewright.runtime.forced_rungs import Idle, check_rungs
from tilewright.runtime.inputs import Sizing, cut_rows
from tilewright.runtime.jobs.cut import Cut
from tilewright.runtime.jobs.directory import JobDirectory
from tilewright.runtime.jobs.manifest import Value
from tilewright.runtime.jobs.stop import Stop
from tilewright.runtime.jobs.task import Place, Totals
from tilewright.runtime.load import config_of
from tilewright.runtime.reports import Say, quiet
from tilewright.runtime.verbs.draw.image_shards import ImageOutputs
from tilewright.runtime.verbs.draw.job import DrawJob, batch_of, check, check_outputs
from tilewright.runtime.verbs.draw.noise import open_input
from tilewright.runtime.verbs.draw.worker import DrawWorker
from tilewright.switches import check_switches

FOLDED = Idle(
    "while batch norm is folded into the weights", "conv_transpose2d", "give --without folding, too, or leave it out"
)
SHARD = {"cpu": 16, "cuda": 16}  # batches per shard: some seconds on a CPU; a GPU is idle only between shards


def task_of(job: DrawJob, say: Say = quiet, workers: int = 1, *, scan: int | None = None) -> DrawTask:
    """Check everything that can be checked before the work, and make the task. It reads the whole noise file.

    scan: for a plan: of a file with more bytes than this, only the header is read. Raises UsageError, InputError and
    ResourceError.
    """
    check(job)
    begin, job = time.perf_counter(), job.as_called()
    config = config_of(job.model, DCGANConfig)
    check_switches("draw", job.settings.without, job.device, job.dtype)
    idle = {} if "folding" in job.settings.without else {"batchnorm": FOLDED}
    check_rungs("draw", job.settings.rungs, job.device, idle, config.calls)
    checked = scan is None or job.input is None or not os.path.isfile(job.input) or os.path.getsize(job.input) <= scan
    with closing(open_input(job, config, checked=checked)) as reader:
        count = reader.total
    say(f"Checking input: {counted(count, 'image')}...Done! ({time.perf_counter() - begin:.3f} sec)")
    batch = min(count, job.batch or batch_of(job, config))
    job = replace(job, settings=replace(job.settings, batch_size=batch))
    check_outputs(job, config, count, batch or 1)
    return DrawTask(job, config, ImageOutputs(job.output, job.image, count, config.image_shape), say, workers)


@dataclass
class DrawTask:
    """The `Assembling` task of a draw job, whose batch has been chosen."""

    job: DrawJob
    config: DCGANConfig
    images: ImageOutputs
    say: Say = quiet
    workers: int = 1

    def fingerprint(self) -> dict[str, Value]:
        job = self.job
        fields = job.fingerprint("draw")
        fields |= {"count": self.images.count, "output": kind_of(job.output), "image": job.image and spelled(job.image)}
        return fields if job.input else fields | {"seed": job.seed}

    def files(self) -> dict[str, str]:
        return self.job.files()

    def cut(self, shard_size: int | None) -> Cut:
        """Divide the images into shards by their numbers."""
        batch = batch_of(self.job, self.config)
        sizing = Sizing(SHARD[self.job.device] * batch, batch).for_workers(self.workers)
        return cut_rows(self.images.count, 0, shard_size, sizing)

    def open(self, place: Place) -> DrawWorker:
        return DrawWorker(self)

    def close(self) -> None:
        """As `start.VerbTask.close`."""

    def header(self, totals: Totals) -> bytes:
        """Returns b"", because the outputs are not streams of shards."""
        return b""

    def outputs(self) -> list[str]:
        return self.images.paths

    def check_outputs(self) -> None:
        self.images.check()

    def assemble(self, directory: JobDirectory, totals: Totals, stop: Stop) -> list[tuple[int, str]]:
        return self.images.assemble(directory, totals, stop)
