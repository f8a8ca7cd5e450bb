"""`tilewright classify`: sentences in, labels or logits out, shard by shard."""

from __future__ import annotations

from tilewright.errors import counted
from tilewright.formats.validate import validate
from tilewright.runtime.reports import Say, phase, quiet
from tilewright.runtime.start import start
from tilewright.runtime.verbs.classify.job import ClassifyJob, ClassifyReport
from tilewright.runtime.verbs.classify.task import task_of

__all__ = ["ClassifyJob", "ClassifyReport", "classify"]


def classify(job: ClassifyJob, say: Say = quiet) -> ClassifyReport:
    """Run the job. `say` gets a line for each phase. Everything that can be checked is checked before the work starts.

    Raises UsageError, InputError, ResourceError, InternalError (more bad records than allowed) and Interrupted. In each
    case an earlier output is untouched, finished shards are saved, and the same call resumes the job.
    """
    report = ClassifyReport()
    task, figures = start(task_of, job, report, unit="sentences", say=say)
    if not report.lead:
        return report
    report.cut = int(figures.get("cut", 0))
    report.say_done(say, f"Classifying {counted(report.computed, 'sentence')}")
    if report.cut:
        length = f"the model's {task.longest} tokens"
        say(f"{report.cut:,} of {report.records:,} sentences are longer than {length} and were cut")
    if task.kept:  # saved after the output, so that a full disk costs only the table and not the output
        with phase(report, "table", say, "Keeping token table"):
            task.kept.save()
    if job.answers:
        with phase(report, "validate"):
            report.validation = validate(
                job.output,
                job.answers,
                tolerance=job.tolerance,
                columns=task.config.num_labels,
                prefix=job.count is not None,
            )
    return report
