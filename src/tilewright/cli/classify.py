"""`tilewright classify`: a file of sentences in, a file of logits or labels out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from tilewright.cli._jobs import RecordOptions, answers_of, bytes_of, model_rows, of_records, run_job
from tilewright.cli._options import (
    Answers,
    Check,
    Keep,
    PerInput,
    TextField,
    Tolerance,
    Validate,
    of_batch_size,
    of_count,
    of_input,
    of_machine,
    of_model,
    of_output,
    verb,
)

if TYPE_CHECKING:
    from tilewright.runtime.verbs.classify import ClassifyJob


@dataclass(kw_only=True)
class Options(RecordOptions):
    """One field per option."""

    model: Annotated[str, of_model(help="A name such as critic, a model directory, or params.bin.")]
    input: Annotated[
        str,
        of_input(
            help="Sentences: .txt (one per line), .jsonl, .csv, .tsv (these also as .gz or .zst), .parquet; or .bin, "
            "token ids as int32 [n][length]. A directory, a pattern or @LIST means many files."
        ),
    ]
    output: Annotated[
        str,
        of_output(
            help="Labels: .jsonl or .parquet, or DIR/ for a folder of such files. For a .bin input: logits as "
            "float32 [n][labels]."
        ),
    ]
    count: Annotated[int | None, of_count(help="Classify only the first N sentences.")] = None
    content_field: TextField = None
    keep: Keep = None
    per_input: PerInput = False
    validate: Validate = None
    answers: Answers = None
    check: Check = False
    tolerance: Tolerance = 1e-3
    table_memory: Annotated[
        str | None,
        of_machine(
            metavar="SIZE",
            help="Limit the memory of the token table (TextCNN: cached products of tokens and filters), as in 256M. "
            "It changes no result.",
            show_default="no limit",
        ),
    ] = None
    keep_table: Annotated[
        bool, of_machine("--keep-table", help="Save the token table beside the model. Later runs load it.")
    ] = False
    batch_size: Annotated[int, of_batch_size(help="Sentences per batch. It changes no result.")] = 16384


def job_of(options: Options) -> ClassifyJob:
    """What the options ask for. Raises BadParameter for those that do not go together."""
    answers, table_memory = answers_of(options), bytes_of(options, "table_memory")

    from tilewright.formats.models import table_path
    from tilewright.runtime.verbs.classify import ClassifyJob

    return ClassifyJob(
        **of_records(options, "classify"),
        per_input=options.per_input,
        table_memory=table_memory,
        table_path=table_path(options.model) if options.keep_table else None,
        answers=answers,
        tolerance=options.tolerance,
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
    in ForSequenceClassification (bert, roberta, distilbert), or a textcnn.

    Errors: a sentence that cannot be used gets an output line with its error, and the summary counts it. A .bin output
    cannot hold errors: there the first bad sentence stops the job with exit code 3.

    Parquet: the id column holds integers if all ids are integers, otherwise strings. Then 5 and "5" are the same id.

    The output appears when it is complete; until then an earlier output stays. Finished shards are saved in OUTPUT.job:
    the same command resumes a job that was stopped, and does nothing for a finished one.
    """
    run_job("classify", job_of, options, lambda: model_rows(options, "Sentences"), "sentences")
