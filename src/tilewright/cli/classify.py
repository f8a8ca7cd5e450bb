"""`tilewright classify`: a file of sentences in, a file of logits or labels out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from tilewright.cli._jobs import JobOptions, Speaker, device_row, settings_of
from tilewright.cli._options import (
    FILES,
    MACHINE,
    Answers,
    Check,
    Device,
    Dtype,
    Json,
    Keep,
    PerInput,
    Rungs,
    TextField,
    Threads,
    Tolerance,
    Validate,
    parse_bytes,
    parse_keep,
    verb,
)  # fmt: skip
from tilewright.cli._output import banner, show_part, show_report, summary

if TYPE_CHECKING:
    from tilewright.runtime.verbs.classify import ClassifyJob


@dataclass(kw_only=True)
class Options(JobOptions):
    """One field per option."""

    model: Annotated[
        str,
        Option(
            "--model",
            "-p",
            metavar="PATH",
            help="A name such as critic, a model directory, or params.bin.",
            rich_help_panel=FILES,
        ),
    ]
    input: Annotated[
        str,
        Option(
            "--input",
            "-i",
            metavar="FILE",
            help="Sentences: .txt (one per line), .jsonl, .csv, .tsv (these also as .gz or .zst), .parquet; or .bin, "
            "token ids as int32 [n][length]. A directory, a pattern or @LIST means many files.",
            rich_help_panel=FILES,
        ),
    ]
    output: Annotated[
        str,
        Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Labels: .jsonl or .parquet, or DIR/ for a folder of such files. For a .bin input: logits as "
            "float32 [n][labels].",
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
            help="Classify only the first N sentences.",
            show_default="all",
            rich_help_panel=FILES,
        ),
    ] = None
    text_field: TextField = None
    keep: Keep = None
    per_input: PerInput = False
    device: Device = "auto"
    dtype: Dtype = "float32"
    threads: Threads = None
    validate: Validate = None
    answers: Answers = None
    check: Check = False
    tolerance: Tolerance = 1e-3
    table_memory: Annotated[
        str | None,
        Option(
            metavar="SIZE",
            help="Limit the memory of the token table (TextCNN: cached products of tokens and filters), as in 256M. "
            "It changes no result.",
            show_default="no limit",
            rich_help_panel=MACHINE,
        ),
    ] = None
    keep_table: Annotated[
        bool,
        Option(
            "--keep-table", help="Save the token table beside the model. Later runs load it.", rich_help_panel=MACHINE
        ),
    ] = False
    batch_size: Annotated[
        int,
        Option(
            metavar="N", min=1, max=1 << 20, help="Sentences per batch. It changes no result.", rich_help_panel=MACHINE
        ),
    ] = 16384
    rung: Rungs = None
    json: Json = False


def job_of(options: Options) -> ClassifyJob:
    """What the options ask for. Raises BadParameter for those that do not go together."""
    if options.check and not (options.answers or options.validate):
        raise typer.BadParameter("-v compares with the answers of -a; none are given", param_hint="-v")
    if options.answers and not options.check:
        raise typer.BadParameter("-a names the answers that -v compares with; give -v, too", param_hint="-a")
    table_memory = None if options.table_memory is None else parse_bytes(options.table_memory, "--table-memory")

    from tilewright.formats.models import table_path
    from tilewright.runtime.verbs.classify import ClassifyJob

    return ClassifyJob(
        model=options.model,
        input=options.input,
        output=options.output,
        count=options.count,
        table_memory=table_memory,
        table_path=table_path(options.model) if options.keep_table else None,
        answers=options.validate or (options.answers if options.check else None),
        tolerance=options.tolerance,
        content_field=options.text_field,
        keep=parse_keep(options.keep),
        per_input=options.per_input,
        settings=settings_of(options, "classify"),
    )


@verb(Options)
def classify(options: Options) -> None:
    """Classify texts with a BERT, RoBERTa or DistilBERT, or with a TextCNN.

    \b
    tilewright classify --model critic -i reviews.txt -o labels.jsonl
    tilewright classify --model ./distilbert-sst2 -i reviews.jsonl -o labels.jsonl

    Input: each line of a .txt file is a sentence, and its id is the line's number. A blank line is counted but gives no
    line of the output. A .jsonl line is {"id": 7, "text": "..."}, or has "tokens" in place of "text". A line for a BERT
    may also have "text_pair": the model then reads both texts. Lines without an id are counted from 1. A sentence that
    is longer than the model takes is cut, and the summary says how many were.

    Models: a directory from Hugging Face with config.json, model.safetensors and tokenizer.json whose architecture ends
    in ForSequenceClassification (bert, roberta, distilbert; on the CPU), or a textcnn, also on a GPU.

    Errors: a sentence that cannot be used gets an output line with its error, and the summary counts it. A .bin output
    cannot hold errors: there the first bad sentence stops the job with exit code 3.

    Parquet: the id column holds integers if all ids are integers, otherwise strings. Then 5 and "5" are the same id.

    The output appears when it is complete; until then an earlier output stays. Finished shards are saved in OUTPUT.job:
    the same command resumes a job that was stopped, and does nothing for a finished one.
    """
    job = job_of(options)

    from tilewright.runtime.verbs.classify import classify

    say = Speaker(options, lambda: _banner(options))
    report = classify(job, say)
    show_part("classify", options, report)
    if report.lead:
        say(summary(report, report.computed, report.records_per_second, "sentences"))
        if options.json:
            show_report("classify", options, report)
    raise typer.Exit(report.exit_code)


def _banner(options: Options) -> str:
    rows = {
        "Model": options.model,
        "Input": options.input,
        "Output": options.output,
        "Sentences": "all" if options.count is None else f"{options.count:,}",
        "Precision": options.dtype,
        **device_row(options),
    }
    return banner("classify", rows)
