"""`tilewright draw`: noise in, images out, shard by shard."""

from __future__ import annotations

from tilewright.errors import counted
from tilewright.formats.validate_images import validate_images
from tilewright.runtime.reports import Report, Say, phase, quiet
from tilewright.runtime.start import start
from tilewright.runtime.verbs.draw.job import DrawJob
from tilewright.runtime.verbs.draw.task import task_of

__all__ = ["DrawJob", "draw"]


def draw(job: DrawJob, say: Say = quiet) -> Report:
    """Run the job. `say` gets a line for each phase. Everything that can be checked is checked before the work starts.

    Raises UsageError, InputError, ResourceError and Interrupted. In each case an earlier output is untouched, finished
    shards are saved, and the same call resumes the job.
    """
    report = Report()
    task, _ = start(task_of, job, report, unit="images", say=say)
    if not report.lead:
        return report
    report.say_done(say, f"Generating {counted(report.computed, 'image')}")
    if job.answers:
        with phase(report, "validate"):
            report.validation = validate_images(
                job.output, job.answers, shape=task.config.image_shape, tolerance=job.tolerance,
                prefix=job.count is not None,
            )  # fmt: skip
    return report
