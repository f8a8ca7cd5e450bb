"""`tilewright embed`: texts in, one vector per text out, shard by shard."""

from __future__ import annotations

from tilewright.errors import counted
from tilewright.runtime.reports import Say, quiet
from tilewright.runtime.start import start
from tilewright.runtime.verbs.embed.job import EmbedJob, EmbedReport
from tilewright.runtime.verbs.embed.task import task_of

__all__ = ["EmbedJob", "EmbedReport", "embed"]


def embed(job: EmbedJob, say: Say = quiet) -> EmbedReport:
    """Run the job. `say` gets a line for each phase. Everything that can be checked is checked before the work starts.

    Raises UsageError, InputError, ResourceError, InternalError (more bad records than allowed) and Interrupted. In each
    case an earlier output is untouched, finished shards are saved, and the same call resumes the job.
    """
    report = EmbedReport()
    task, figures = start(task_of, job, report, unit="texts", say=say)
    if not report.lead:
        return report
    report.cut, report.dimensions = int(figures.get("cut", 0)), task.size
    report.say_done(say, f"Embedding {counted(report.computed, 'text')}")
    if report.cut:
        say(
            f"{report.cut:,} of {report.records:,} texts are longer than the model's {task.longest} tokens and were cut"
        )
    if report.errors and job.is_array:
        say(f"{report.errors:,} of {report.records:,} rows are NaN: their records are bad, see {job.output}.job/errors")
    return report
