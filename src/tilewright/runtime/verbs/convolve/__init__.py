"""`tilewright convolve`: a volume in, the volume filtered with a kernel out.

A shard is a slab of the output: adjacent planes along the axis in which the format stores slabs contiguously. A worker
computes a shard in tiles, and reads each tile with its halo (tiles.py). The result's bits depend neither on the slabs
nor on the tiles.
"""

from __future__ import annotations

import math
import time

from tilewright.errors import counted
from tilewright.formats.validate_volumes import validate_volumes
from tilewright.runtime.reports import Say, phase, quiet
from tilewright.runtime.start import start
from tilewright.runtime.verbs.convolve.job import ConvolveJob, ConvolveReport
from tilewright.runtime.verbs.convolve.task import task_of

__all__ = ["ConvolveJob", "ConvolveReport", "convolve"]


def convolve(job: ConvolveJob, say: Say = quiet) -> ConvolveReport:
    """Run the job. `say` gets a line for each phase.

    Raises UsageError, InputError, ResourceError and Interrupted. In each case an earlier output is untouched, finished
    shards are saved, and the same call resumes the job. The result's bits depend neither on the memory limit nor on the
    tiles.
    """
    report, start_time = ConvolveReport(), time.perf_counter()
    task, figures = start(task_of, job, report, unit="planes", say=say)
    if not report.lead:
        return report
    plane = math.prod(task.shape) // task.shape[task.axis]
    report.records, report.computed = report.records * plane, report.computed * plane
    report.tiles, report.tile = int(figures.get("tiles", 0)), task.tile
    tiles = f"{counted(int(report.figures.pop('tiles', 0)), 'tile')} of {' x '.join(map(str, report.tile))}"
    report.say_done(say, f"Convolving {counted(report.computed, 'voxel')} in {tiles}")
    if job.answers:
        with phase(report, "validate"):
            report.validation = validate_volumes(job.output, job.answers, tolerance=job.tolerance)
    report.finish(start_time)
    return report
