"""`tilewright embed`: a file of texts in, a file of vectors out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from tilewright.cli._jobs import JobOptions, Speaker, device_row, settings_of
from tilewright.cli._options import FILES, MACHINE, Device, Dtype, Json, Rungs, Threads, verb
from tilewright.cli._output import banner, show_part, show_report, summary

if TYPE_CHECKING:
    from tilewright.runtime.verbs.embed import EmbedJob


@dataclass(kw_only=True)
class Options(JobOptions):
    """One field per option."""

    model: Annotated[
        str,
        Option(
            "--model",
            "-p",
            metavar="PATH",
            help="The directory of a BERT, RoBERTa or DistilBERT.",
            rich_help_panel=FILES,
        ),
    ]
    input: Annotated[
        str,
        Option(
            "--input",
            "-i",
            metavar="FILE",
            help="Texts: .txt (one per line), .jsonl, .csv, .tsv or .parquet.",
            rich_help_panel=FILES,
        ),
    ]
    output: Annotated[
        str,
        Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Vectors: .npy (one row per text), .jsonl or .parquet.",
            rich_help_panel=FILES,
        ),
    ]
    count: Annotated[
        int | None,
        Option(
            "--count",
            "-n",
            metavar="N",
            min=1,
            help="Embed only the first N texts.",
            show_default="all",
            rich_help_panel=FILES,
        ),
    ] = None
    dimensions: Annotated[
        int | None,
        Option(
            metavar="N",
            min=1,
            help="Keep only the first N elements of each vector. If the model scales vectors to length 1, the shorter "
            "vector is scaled again.",
            show_default="all",
            rich_help_panel=FILES,
        ),
    ] = None
    prompt_name: Annotated[
        str | None,
        Option(
            metavar="NAME",
            help="Put the model's prompt with this name before each text.",
            show_default="the model's default prompt, if it has one",
            rich_help_panel=FILES,
        ),
    ] = None
    prompt: Annotated[
        str | None,
        Option(
            metavar="TEXT",
            help='Put this prompt before each text; "" for no prompt.',
            show_default="as --prompt-name",
            rich_help_panel=FILES,
        ),
    ] = None
    device: Device = "auto"
    dtype: Dtype = "float32"
    threads: Threads = None
    batch_size: Annotated[
        int,
        Option(metavar="N", min=1, max=1 << 20, help="Texts per batch. It changes no result.", rich_help_panel=MACHINE),
    ] = 4096
    rung: Rungs = None
    json: Json = False


def job_of(options: Options) -> EmbedJob:
    """What the options ask for. Raises BadParameter for those that do not go together."""
    if options.prompt is not None and options.prompt_name is not None:
        raise typer.BadParameter("the prompt or its name is wanted, not both", param_hint="--prompt-name")

    from tilewright.runtime.verbs.embed import EmbedJob

    return EmbedJob(
        model=options.model,
        input=options.input,
        output=options.output,
        count=options.count,
        dimensions=options.dimensions,
        prompt_name=options.prompt_name,
        prompt=options.prompt,
        settings=settings_of(options, "embed"),
    )


@verb(Options)
def embed(options: Options) -> None:
    """Turn texts into vectors with a BERT, RoBERTa or DistilBERT, on the CPU.

    \b
    tilewright embed --model ./all-MiniLM-L6-v2 -i texts.jsonl -o vectors.npy
    tilewright embed --model ./e5 -i queries.txt -o queries.parquet --prompt-name query

    Input: each line of a .txt file is a text, and its id is the line's number. A .jsonl line is {"id": 7, "text":
    "..."}, or has "tokens" in place of "text". A line of OpenAI's batch format for /v1/embeddings is answered in that
    format. A text that is too long for the model is cut, and the summary counts such texts.

    Output: a .npy is float32 (texts, elements). Its row i is the vector of text i, counted from 0 without blank lines.
    A .jsonl line is {"id": 7, "embedding": [0.12, -0.03]}.

    Models: a directory of sentence-transformers defines how a vector is computed: pooling, dense layers, scaling to
    length 1, prompts. For any other directory, a vector is the mean over all tokens.

    Errors: a text that cannot be used, such as an empty one, gets an output line with its error, and a row of NaN in a
    .npy. The summary counts them.

    The output appears when it is complete; until then an earlier output stays. Finished shards are saved in OUTPUT.job:
    the same command resumes a job that was stopped, and does nothing for a finished one.
    """
    job = job_of(options)

    from tilewright.runtime.verbs.embed import embed

    say = Speaker(options, lambda: _banner(options))
    report = embed(job, say)
    show_part("embed", options, report)
    if report.lead:
        say(summary(report, report.computed, report.records_per_second, "texts"))
        if options.json:
            show_report("embed", options, report)
    raise typer.Exit(report.exit_code)


def _banner(options: Options) -> str:
    rows = {
        "Model": options.model,
        "Input": options.input,
        "Output": options.output,
        "Texts": "all" if options.count is None else f"{options.count:,}",
        "Precision": options.dtype,
        **({} if options.dimensions is None else {"Elements": f"{options.dimensions:,}"}),
        **device_row(options),
    }
    return banner("embed", rows)
