"""`tilewright generate`: a file of prompts in, a file of completions out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from tilewright.cli._jobs import RecordOptions, answers_of, bytes_of, model_rows, of_records, run_job
from tilewright.cli._options import (
    Answers,
    Check,
    Keep,
    PerInput,
    Validate,
    of_batch_memory,
    of_count,
    of_files,
    of_input,
    of_model,
    of_output,
    of_sampling,
    verb,
)
from tilewright.cli._output import say
from tilewright.formats.names import kind_of_records
from tilewright.formats.sampling_fields import DRAWING

if TYPE_CHECKING:
    from tilewright.generation.sampling import SamplingParams
    from tilewright.runtime.verbs.generate import GenerateJob, GenerateReport

PARAMETERS = (
    "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty",
    "bad_words", "max_tokens", "min_tokens", "stop", "stop_token_ids", "ignore_eos", "logprobs",
)  # fmt: skip


@dataclass(kw_only=True)
class Options(RecordOptions):
    """One field per option. The sampling defaults are those of `SamplingParams`, which are vLLM's."""

    model: Annotated[str, of_model(help="A name such as poet, a model directory, or model_parameters.bin.")]
    input: Annotated[
        str,
        of_input(
            help="Prompts: .txt (one per line), .jsonl, .csv, .tsv (these also as .gz or .zst), .parquet; or .bin, "
            "token ids as int32 [n][16]. A directory, a pattern or @LIST means many files."
        ),
    ]
    output: Annotated[
        str,
        of_output(
            help="Completions: .txt (one per line), .jsonl or .parquet; DIR/ for a folder of such files; or .bin, "
            "token ids as int32 [n][tokens]."
        ),
    ]
    count: Annotated[int | None, of_count(help="Continue only the first N prompts.")] = None
    max_tokens: Annotated[int, of_sampling(metavar="N", min=1, help="Generate at most N tokens per completion.")] = 16
    min_tokens: Annotated[int, of_sampling(metavar="N", min=0, help="Generate at least N tokens per completion.")] = 0
    temperature: Annotated[
        float,
        of_sampling(
            metavar="X", help="Randomness of the choice of tokens, from 0 to 2. 0 always takes the likeliest token."
        ),
    ] = 1.0
    top_k: Annotated[
        int | None,
        of_sampling(metavar="K", help="Draw from the K likeliest tokens only; 0 means all.", show_default="0"),
    ] = None
    top_p: Annotated[
        float | None,
        of_sampling(
            metavar="P",
            help="Draw only from the likeliest tokens: the fewest whose total probability is at least P.",
            show_default="1",
        ),
    ] = None
    min_p: Annotated[
        float | None,
        of_sampling(
            metavar="P",
            help="Draw only from tokens that are at least P times as probable as the likeliest token.",
            show_default="0",
        ),
    ] = None
    repetition_penalty: Annotated[
        float,
        of_sampling(
            metavar="X", help="Above 1: make tokens less likely that the prompt or the completion already has."
        ),
    ] = 1.0
    presence_penalty: Annotated[
        float, of_sampling(metavar="X", help="Above 0: make tokens less likely that the completion already has.")
    ] = 0.0
    frequency_penalty: Annotated[
        float,
        of_sampling(metavar="X", help="Above 0: make a token less likely each time that it occurs in the completion."),
    ] = 0.0
    bad_words: Annotated[
        list[str] | None,
        of_sampling("--bad-word", metavar="TEXT", help="Never generate TEXT. Repeat it for several texts."),
    ] = None
    samples: Annotated[int, of_sampling(metavar="N", min=1, help="Number of completions per prompt.")] = 1
    seed: Annotated[
        int | None,
        of_sampling(metavar="N", min=-(2**63), max=2**63 - 1, help="Seed of the random numbers.", show_default="0"),
    ] = None
    stop: Annotated[
        list[str] | None,
        of_sampling(metavar="TEXT", help="End a completion before TEXT. Repeat it for several texts."),
    ] = None
    stop_token_ids: Annotated[
        list[int] | None,
        of_sampling("--stop-id", metavar="ID", help="End a completion at this token. Repeat it for several tokens."),
    ] = None
    ignore_eos: Annotated[
        bool, of_sampling("--ignore-eos", help="Do not end a completion at the end-of-text token.")
    ] = False
    logprobs: Annotated[
        int | None,
        of_sampling(
            metavar="N",
            min=0,
            help="Report the log-probabilities of the N likeliest tokens, up to 20.",
            show_default="none",
        ),
    ] = None
    content_field: Annotated[
        str | None,
        of_files(
            "--prompt-field",
            metavar="NAME",
            help="Name of the field that holds a record's prompt, as text or token ids.",
            show_default="prompt, prompt_token_ids or input_ids",
        ),
    ] = None
    keep: Keep = None
    per_input: PerInput = False
    max_batch_memory: Annotated[str | None, of_batch_memory(show_default="1G, on a GPU most of its memory")] = None
    validate: Validate = None
    answers: Answers = None
    check: Check = False


def job_of(options: Options) -> GenerateJob:
    """What the options ask for. Raises BadParameter for those that do not go together."""
    answers, memory = answers_of(options), bytes_of(options, "max_batch_memory")

    from tilewright.runtime.verbs.generate import GenerateJob

    return GenerateJob(
        **of_records(options, "generate"),
        params=_params(options),
        seed=options.seed or 0,
        batch_memory=memory,
        answers=answers,
        per_input=options.per_input,
    )


def _params(options: Options) -> SamplingParams:
    """Raises UsageError for a value out of range, by the option's name."""
    from tilewright.generation.sampling import ParameterError, SamplingParams

    try:
        return SamplingParams.of(n=options.samples, **{name: getattr(options, name) for name in PARAMETERS})
    except ParameterError as error:
        raise error.spelled(_flag) from error


def _flag(parameter: str) -> str:
    """The option that gives a sampling parameter."""
    others = {"n": "--samples", "stop_token_ids": "--stop-id", "bad_words": "--bad-word"}
    return others.get(parameter, f"--{parameter.replace('_', '-')}")


def options_without_effect(options: Options) -> str:
    """A sentence that names the sampling options without effect; "" if there are none."""
    given = [_flag(name) for name in DRAWING if getattr(options, name) is not None]
    if options.temperature or not given:
        return ""
    but = (
        ", but for records that give their own" if kind_of_records(options.input or "") not in (".txt", ".bin") else ""
    )
    said = f"the likeliest token is taken, whatever is given as {' and '.join(given)}"
    return f"At --temperature 0 {said}{but}"


@verb(Options)
def generate(options: Options) -> None:
    """Continue prompts with a GPT-2, an OPT, a GPT-NeoX or a Pythia.

    \b
    tilewright generate --model poet -i lines.txt -o verse.txt --max-tokens 64 --temperature 0.7

    Input: each line of a .txt file is a prompt, and its id is the line's number. A blank line is counted but gives no
    line of the output. A .jsonl line is {"id": 7, "prompt": "..."}, or has "prompt_token_ids" in place of "prompt". It
    may have sampling parameters of its own, by vLLM's names. Lines of OpenAI's batch format work as they are.

    Errors: a prompt that cannot be used gets an output line with its error, and the summary counts it. In a .txt output
    that line is empty. A .bin output cannot hold errors: there the first bad prompt stops the job with exit code 3.

    Sampling: without options, at most 16 tokens are drawn at temperature 1, as by vLLM. --temperature 0 always takes
    the likeliest token. Random numbers depend on the seed and on the prompt's id, or on its line number if it has no
    id.

    Parquet: the id column holds integers if all ids are integers, otherwise strings. Then 5 and "5" are the same id.

    The output appears when it is complete; until then an earlier output stays. Finished shards are saved in OUTPUT.job:
    the same command resumes a job that was stopped, and does nothing for a finished one.
    """
    run_job("generate", job_of, options, lambda: _rows(options), "tokens", warnings=_unused_rungs)


def _unused_rungs(report: GenerateReport) -> Iterator[str]:
    """A sentence for each forced rung that no prompt needed."""
    for rung in report.unused_rungs:
        op = rung.partition("=")[0]
        others = "drew tokens" if op == "sample" else "took the likeliest token alone"
        yield f"--rung {rung} had no effect: {op} never ran, as no prompt {others}"


def _drawing(options: Options) -> str:
    """How tokens are chosen, for the banner."""
    return f", temperature {options.temperature:g}, seed {options.seed or 0}" if options.temperature else ", greedy"


def _rows(options: Options) -> dict[str, str]:
    """Of the banner of the one process that speaks; options without effect are told on stderr."""
    if unused := options_without_effect(options):
        say(unused, err=True)
    new = f"at most {options.max_tokens:,}" + _drawing(options)
    return model_rows(options, "Prompts", {"New tokens": new})
