"""`tilewright generate`: prompts in, completions out, shard by shard, in the order of the input."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.errors import counted
from tilewright.formats.sampling_fields import DRAWING
from tilewright.formats.validate import validate, validate_tokens
from tilewright.runtime.reports import Say, quiet
from tilewright.runtime.start import start
from tilewright.runtime.verbs.generate.job import GenerateJob, GenerateReport, beyond_context
from tilewright.runtime.verbs.generate.task import task_of
from tilewright.runtime.verbs.generate.worker import CHOOSING, FIRST_UNDRAWN, IDLE, UNDRAWN

__all__ = ["GenerateJob", "GenerateReport", "generate"]


def generate(job: GenerateJob, say: Say = quiet) -> GenerateReport:
    """Run the job. `say` gets a line for each phase.

    Raises UsageError, InputError, ResourceError, InternalError (more bad records than allowed) and Interrupted. In each
    case an earlier output is untouched, finished shards are saved, and the same call resumes the job.
    """
    report = GenerateReport()
    task, figures = start(task_of, job, report, unit="prompts", say=say)
    if not report.lead:
        return report
    report.prompt_tokens, report.undrawn = (int(figures.get(name, 0)) for name in ("prompt_tokens", UNDRAWN))
    if job.has_own_params:
        report.unused_rungs = unused_rungs(task.job.settings.rungs, figures, report.job["shards"])
    report.say_done(say, f"Generating {counted(report.count(figures), 'token')}")
    if report.cut and not beyond_context(job.params.max_tokens, task.config):  # else a notice at the start has told it
        context = f"the model's context of {task.config.context:,} tokens was full"
        say(f"{report.cut:,} of {report.records:,} prompts got fewer tokens than were asked for: {context}")
    if report.undrawn:
        what = f"{', '.join(DRAWING[:-1])} or {DRAWING[-1]} of {report.undrawn:,} of {report.records:,} prompts"
        why = "at temperature 0 the likeliest token is taken"
        say(f"{what}, the first in line {int(figures[FIRST_UNDRAWN]):,}, had no effect: {why}")
    if job.answers:
        if job.is_binary:
            report.validation = validate_tokens(job.output, job.answers, tokens=job.params.max_tokens, prefix=True)
        else:
            report.validation = validate(job.output, job.answers, prefix=job.count is not None)
    return report


def unused_rungs(rungs: Mapping[str, str], figures: dict[str, float], shards: int) -> list[str]:
    """The forced rungs of operations that choose tokens, if no prompt of any shard used them.

    figures: the totals over all shards. Shards of an earlier version lack these figures; then the result is empty.
    """
    return [f"{op}={rung}" for op, rung in rungs.items() if op in CHOOSING and figures.get(f"{IDLE}{op}") == shards]
