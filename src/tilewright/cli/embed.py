"""`tilewright embed`: a file of texts in, a file of vectors out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.cli._jobs import RecordOptions, model_rows, of_records, run_job
from tilewright.cli._options import (
    Keep,
    TextField,
    of_batch_size,
    of_count,
    of_files,
    of_input,
    of_model,
    of_output,
    verb,
)

if TYPE_CHECKING:
    from tilewright.runtime.verbs.embed import EmbedJob


@dataclass(kw_only=True)
class Options(RecordOptions):
    """One field per option."""

    model: Annotated[str, of_model(help="The directory of a BERT, RoBERTa or DistilBERT.")]
    input: Annotated[
        str,
        of_input(
            help="Texts: .txt (one per line), .jsonl, .csv, .tsv (these also as .gz or .zst) or .parquet. A directory, "
            "a pattern or @LIST means many files."
        ),
    ]
    output: Annotated[str, of_output(help="Vectors: .npy (one row per text), .jsonl or .parquet.")]
    count: Annotated[int | None, of_count(help="Embed only the first N texts.")] = None
    dimensions: Annotated[
        int | None,
        of_files(
            metavar="N",
            min=1,
            help="Keep only the first N elements of each vector. If the model scales vectors to length 1, the shorter "
            "vector is scaled again.",
            show_default="all",
        ),
    ] = None
    prompt_name: Annotated[
        str | None,
        of_files(
            metavar="NAME",
            help="Put the model's prompt with this name before each text.",
            show_default="the model's default prompt, if it has one",
        ),
    ] = None
    prompt: Annotated[
        str | None,
        of_files(
            metavar="TEXT", help='Put this prompt before each text; "" for no prompt.', show_default="as --prompt-name"
        ),
    ] = None
    content_field: TextField = None
    keep: Keep = None
    batch_size: Annotated[int, of_batch_size(help="Texts per batch. It changes no result.")] = 4096


def job_of(options: Options) -> EmbedJob:
    """What the options ask for. Raises BadParameter for those that do not go together."""
    if options.prompt is not None and options.prompt_name is not None:
        raise typer.BadParameter("the prompt or its name is wanted, not both", param_hint="--prompt-name")

    from tilewright.runtime.verbs.embed import EmbedJob

    return EmbedJob(
        **of_records(options, "embed"),
        dimensions=options.dimensions,
        prompt_name=options.prompt_name,
        prompt=options.prompt,
    )


@verb(Options)
def embed(options: Options) -> None:
    """Turn texts into vectors with a BERT, RoBERTa or DistilBERT.

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
    more = {} if options.dimensions is None else {"Elements": f"{options.dimensions:,}"}
    run_job("embed", job_of, options, lambda: model_rows(options, "Texts", more), "texts")
