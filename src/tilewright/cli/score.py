"""`tilewright score`: a file of texts in, the log-probabilities of their tokens out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from tilewright.cli._jobs import RecordOptions, bytes_of, model_rows, of_records, run_job
from tilewright.cli._options import (
    Keep,
    Validate,
    of_batch_memory,
    of_count,
    of_input,
    of_model,
    of_output,
    of_scoring,
    of_text_field,
    verb,
)

if TYPE_CHECKING:
    from tilewright.runtime.verbs.score import ScoreJob


@dataclass(kw_only=True)
class Options(RecordOptions):
    """One field per option."""

    model: Annotated[str, of_model(help="A name such as poet, or a model directory.")]
    input: Annotated[
        str,
        of_input(
            help="Texts: .txt (one per line), .jsonl, .csv, .tsv (these also as .gz or .zst) or .parquet. A directory, "
            "a pattern or @LIST means many files."
        ),
    ]
    output: Annotated[str, of_output(help="Log-probabilities: .jsonl or .parquet.")]
    count: Annotated[int | None, of_count(help="Score only the first N texts.")] = None
    content_field: Annotated[
        str | None,
        of_text_field(
            help="Name of the field that holds a record's text or token ids. The whole text is scored, without a "
            "context.",
            show_default="text, tokens, or context and continuation",
        ),
    ] = None
    keep: Keep = None
    truncate: Annotated[
        bool,
        of_scoring(
            "--truncate", help="Cut texts that are longer than the model's context. Else such a text is an error."
        ),
    ] = False
    prefix_token: Annotated[
        int | None,
        of_scoring(
            "--prefix-token",
            metavar="ID",
            min=0,
            help="The token that is put before a text, or before a continuation, that has no context.",
            show_default="the token that the tokenizer puts before texts, or else the end-of-text token",
        ),
    ] = None
    max_batch_memory: Annotated[str | None, of_batch_memory(show_default="1G, on a GPU most of its memory")] = None
    validate: Validate = None


def job_of(options: Options) -> ScoreJob:
    """What the options ask for. Raises BadParameter for those that do not go together."""
    batch_memory = bytes_of(options, "max_batch_memory")

    from tilewright.runtime.verbs.score import ScoreJob

    return ScoreJob(
        **of_records(options, "score"),
        truncate=options.truncate,
        prefix_token=options.prefix_token,
        batch_memory=batch_memory,
        answers=options.validate,
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
    run_job("score", job_of, options, lambda: model_rows(options, "Texts"), "tokens")
