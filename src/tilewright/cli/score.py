"""`tilewright score`: a file of texts in, the log-probabilities of their tokens out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from tilewright.cli._jobs import JobOptions, Speaker, device_row, settings_of
from tilewright.cli._options import (
    FILES,
    MACHINE,
    SCORING,
    Device,
    Dtype,
    Json,
    Rungs,
    Threads,
    Validate,
    parse_bytes,
    verb,
)  # fmt: skip
from tilewright.cli._output import banner, show_part, show_report, summary

if TYPE_CHECKING:
    from tilewright.runtime.verbs.score import ScoreJob


@dataclass(kw_only=True)
class Options(JobOptions):
    """One field per option."""

    model: Annotated[
        str,
        Option("--model", "-p", metavar="PATH", help="A name such as poet, or a model directory.",
               rich_help_panel=FILES),
    ]  # fmt: skip
    input: Annotated[
        str,
        Option("--input", "-i", metavar="FILE", help="Texts: .jsonl or .parquet; or .txt, one text per line.",
               rich_help_panel=FILES),
    ]  # fmt: skip
    output: Annotated[
        str,
        Option("--output", "-o", metavar="FILE", help="Log-probabilities: .jsonl or .parquet.", rich_help_panel=FILES),
    ]
    count: Annotated[
        int | None,
        Option("--count", "-n", metavar="N", min=1, help="Score only the first N texts.", show_default="all",
               rich_help_panel=FILES),
    ] = None  # fmt: skip
    truncate: Annotated[
        bool,
        Option("--truncate", help="Cut texts that are longer than the model's context. Else such a text is an error.",
               rich_help_panel=SCORING),
    ] = False  # fmt: skip
    prefix_token: Annotated[
        int | None,
        Option("--prefix-token", metavar="ID", min=0, show_default="the model's end-of-text token",
               help="The token that is put before a text, or before a continuation, that has no context.",
               rich_help_panel=SCORING),
    ] = None  # fmt: skip
    device: Device = "auto"
    dtype: Dtype = "float32"
    threads: Threads = None
    max_batch_memory: Annotated[
        str | None,
        Option(metavar="SIZE", help="Memory for the keys and values of a batch, as in 512M. It changes no result.",
               show_default="1G", rich_help_panel=MACHINE),
    ] = None  # fmt: skip
    validate: Validate = None
    rung: Rungs = None
    json: Json = False


def job_of(options: Options) -> ScoreJob:
    """What the options ask for. Raises BadParameter for those that do not go together."""
    memory = None if options.max_batch_memory is None else parse_bytes(options.max_batch_memory, "--max-batch-memory")

    from tilewright.runtime.verbs.score import ScoreJob

    return ScoreJob(
        model=options.model,
        input=options.input,
        output=options.output,
        count=options.count,
        truncate=options.truncate,
        prefix_token=options.prefix_token,
        batch_memory=memory,
        answers=options.validate,
        settings=settings_of(options, "score"),
    )


@verb(Options)
def score(options: Options) -> None:
    """Score texts with a GPT-2, an OPT, a GPT-NeoX or a Pythia: the log-probability of each given token.

    \b
    tilewright score --model poet -i questions.jsonl -o scores.jsonl

    Input: a .jsonl line is {"id": 7, "context": "...", "continuation": "..."}, whose continuation is scored, or
    {"id": 7, "text": "..."}, whose tokens are all scored. Each part is text or a list of token ids; "prompt" is another
    name of "context". A line of a .txt file counts as "text". Lines without an id are counted from 1.

    Output: {"id", "logprob", "is_greedy", "token_ids", "token_logprobs"}. logprob is the sum over the scored tokens.
    is_greedy says whether each of them is the likeliest one. Contexts that several lines share are computed once.

    Errors: a text that cannot be scored gets an output line with its error, and the summary counts it. Without
    --truncate, a text that is longer than the model's context is such an error.

    Parquet: the id column holds integers if all ids are integers, otherwise strings. Then 5 and "5" are the same id.

    The output appears when it is complete; until then an earlier output stays. Finished shards are saved in OUTPUT.job:
    the same command resumes a job that was stopped, and does nothing for a finished one.
    """
    job = job_of(options)

    from tilewright.runtime.verbs.score import score

    say = Speaker(options, lambda: _banner(options))
    report = score(job, say)
    show_part("score", options, report)
    if report.lead:
        say(summary(report, int(report.figures.get("tokens", 0)), report.tokens_per_second, "tokens"))
        if options.json:
            show_report("score", options, report)
    raise typer.Exit(report.exit_code)


def _banner(options: Options) -> str:
    rows = {
        "Model": options.model,
        "Input": options.input,
        "Output": options.output,
        "Texts": "all" if options.count is None else f"{options.count:,}",
        "Precision": options.dtype,
        **device_row(options),
    }
    return banner("score", rows)
