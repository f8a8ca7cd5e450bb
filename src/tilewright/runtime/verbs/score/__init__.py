"""`tilewright score`: texts in, log-probabilities of their tokens out, shard by shard."""

from __future__ import annotations

from tilewright.errors import counted
from tilewright.formats.validate import validate
from tilewright.runtime.reports import Say, quiet
from tilewright.runtime.start import start
from tilewright.runtime.verbs.score.job import ScoreJob, ScoreReport
from tilewright.runtime.verbs.score.task import task_of

__all__ = ["ScoreJob", "ScoreReport", "score"]


def score(job: ScoreJob, say: Say = quiet) -> ScoreReport:
    """Run the job. `say` gets a line for each phase. Everything that can be checked is checked before the work starts.

    Raises UsageError, InputError, ResourceError, InternalError (more bad records than allowed) and Interrupted. In each
    case an earlier output is untouched, finished shards are saved, and the same call resumes the job.
    """
    report = ScoreReport()
    task, figures = start(task_of, job, report, unit="texts", say=say)
    if not report.lead:
        return report
    report.read = int(figures.get("read", 0))
    report.say_done(say, f"Scoring {counted(report.count(figures), 'token')}")
    if report.cut:
        context = f"the model's context of {task.config.sizes.context:,} tokens"
        say(f"{report.cut:,} of {report.records:,} texts are longer than {context} and were cut")
    if job.answers:
        report.validation = validate(job.output, job.answers, prefix=job.count is not None)
    return report
