"""`tilewright classify`: a file of sentences in, a file of logits or labels out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from typer import Option

from tilewright.cli._jobs import JobOptions, Speaker, device_row, settings_of
from tilewright.cli._options import Device, parse_bytes, verb
from tilewright.cli._output import banner, show_part, show_report, summary

if TYPE_CHECKING:
    from tilewright.runtime.verbs.classify import ClassifyJob


@dataclass(kw_only=True)
class Options(JobOptions):
    """One field an option."""

    model: Annotated[
        str, Option("--model", "-p", metavar="PATH", help="A name such as critic, a directory, or params.bin.")
    ]
    input: Annotated[
        str,
        Option(
            "--input",
            "-i",
            metavar="FILE",
            help="Sentences: .txt (one per line), .jsonl, .parquet; .bin: token ids, i32 [n][length].",
        ),
    ]
    output: Annotated[
        str,
        Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Labels: .jsonl, .parquet; of an input of token ids: logits, f32 [n][labels].",
        ),
    ]
    count: Annotated[int | None, Option("--count", "-n", min=1, help="Only the first N sentences.")] = None
    device: Device = "auto"
    dtype: Annotated[Literal["float32", "bfloat16", "float16"], Option(help="Precision; float16 on a GPU only.")] = (
        "float32"
    )
    threads: Annotated[int | None, Option(min=1, help="CPU threads; one a core unless given.")] = None
    validate: Annotated[str | None, Option(metavar="FILE", help="Compare the output with FILE; FAIL exits 1.")] = None
    answers: Annotated[str | None, Option("--answers", "-a", metavar="FILE", help="What -v compares with.")] = None
    check: Annotated[bool, Option("-v", help="Compare with the file of -a, as --validate does.")] = False
    tolerance: Annotated[float, Option(min=0, help="Largest min(absolute, relative) error that passes.")] = 1e-3
    table_memory: Annotated[str | None, Option(metavar="SIZE", help="Most that the token table takes, as in 256M.")] = (
        None
    )
    keep_table: Annotated[bool, Option("--keep-table", help="Keep the token table for later runs.")] = False
    batch_size: Annotated[int, Option(min=1, max=1 << 20, help="Sentences a batch; changes no bits.")] = 16384
    rung: Annotated[list[str] | None, Option(metavar="OP=RUNG", help="Force a kernel; may be repeated.")] = None
    json: Annotated[bool, Option("--json", help="One JSON object on stdout, text on stderr.")] = False


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
        settings=settings_of(options, "classify"),
    )


@verb(Options)
def classify(options: Options) -> None:
    """Classify sentences with a TextCNN.

    \b
    tilewright classify --model critic -i reviews.txt -o labels.jsonl

    A sentence or row that cannot be used becomes a line with its error; the summary counts them. A file of token ids
    cannot hold errors: its first bad sentence stops the job with exit code 3. A text that is longer than the model
    takes is cut, and the summary says how many were. A .jsonl line is {"id": 7, "text": "..."} or has "tokens"; without
    ids, lines are counted from 1. In .txt files a blank line is no sentence and has no line in the output. In Parquet,
    ids are integers where all are, else strings: then 5 and "5" become the same.

    The output appears when it is whole; until then an earlier one stays. What is done is kept in OUTPUT.job: the same
    command goes on where a stopped one was, and does nothing where all is there.
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
        "Model": f"TextCNN, {options.model}",
        "Input": options.input,
        "Output": options.output,
        "Sentences": "all" if options.count is None else f"{options.count:,}",
        "Precision": options.dtype,
        **device_row(options),
    }
    return banner("classify", rows)
