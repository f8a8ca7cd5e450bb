"""`tilewright generate`: a file of prompts in, a file of completions out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from typer import Option

from tilewright.cli._jobs import JobOptions, Speaker, device_row, settings_of
from tilewright.cli._options import Device, parse_bytes, verb
from tilewright.cli._output import banner, say, show_part, show_report, summary
from tilewright.formats.sampling_fields import DRAWING

if TYPE_CHECKING:
    from tilewright.generation.sampling import SamplingParams
    from tilewright.runtime.verbs.generate import GenerateJob

SAMPLING = (
    "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty",
    "bad_words", "max_tokens", "min_tokens", "stop", "stop_token_ids", "ignore_eos", "logprobs",
)  # fmt: skip


@dataclass(kw_only=True)
class Options(JobOptions):
    """One field per option. The sampling defaults are those of `SamplingParams`, which are vLLM's."""

    model: Annotated[
        str, Option("--model", "-p", metavar="PATH", help="A name such as poet, a directory, or model_parameters.bin.")
    ]
    input: Annotated[
        str,
        Option(
            "--input",
            "-i",
            metavar="FILE",
            help="Prompts: .txt (one per line), .jsonl, .parquet; .bin: token ids, i32 [n][16].",
        ),
    ]
    output: Annotated[
        str,
        Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Completions: .txt (one per line), .jsonl, .parquet; .bin: token ids, i32 [n][tokens].",
        ),
    ]
    count: Annotated[int | None, Option("--count", "-n", min=1, help="Only the first N prompts.")] = None
    max_tokens: Annotated[int, Option(min=1, help="New tokens per prompt, at most.")] = 16
    min_tokens: Annotated[int, Option(min=0, help="Before this many, nothing ends a text.")] = 0
    temperature: Annotated[float, Option(help="0 takes the likeliest token; more is more random, up to 2.")] = 1.0
    top_k: Annotated[int | None, Option(help="Choose among the K likeliest tokens; 0, the default: all.")] = None
    top_p: Annotated[
        float | None, Option(help="Choose among the likeliest tokens that together have this probability. [default: 1]")
    ] = None
    min_p: Annotated[
        float | None, Option(help="Choose among tokens at least so many times as probable as the best. [default: 0]")
    ] = None
    repetition_penalty: Annotated[float, Option(help="Above 1 makes tokens seen before less likely.")] = 1.0
    presence_penalty: Annotated[float, Option(help="Above 0 makes tokens of the completion less likely.")] = 0.0
    frequency_penalty: Annotated[float, Option(help="The same for each time that a token is in it.")] = 0.0
    bad_words: Annotated[
        list[str] | None, Option("--bad-word", metavar="TEXT", help="Is not written; may be repeated.")
    ] = None
    samples: Annotated[int, Option(min=1, help="Completions of each prompt.")] = 1
    seed: Annotated[
        int | None, Option(min=-(2**63), max=2**63 - 1, help="Seed of the random numbers. [default: 0]")
    ] = None
    stop: Annotated[list[str] | None, Option(metavar="TEXT", help="Ends a completion before it; may be repeated.")] = (
        None
    )
    stop_token_ids: Annotated[
        list[int] | None, Option("--stop-id", metavar="ID", help="Token that ends a completion.")
    ] = None
    ignore_eos: Annotated[bool, Option("--ignore-eos", help="The token end-of-text ends nothing.")] = False
    logprobs: Annotated[int | None, Option(min=0, help="Report log-probabilities of the N best tokens, up to 20.")] = (
        None
    )
    device: Device = "auto"
    dtype: Annotated[Literal["float32", "bfloat16", "float16"], Option(help="Precision; float16 on a GPU only.")] = (
        "float32"
    )
    threads: Annotated[int | None, Option(min=1, help="CPU threads; one a core unless given.")] = None
    max_batch_memory: Annotated[
        str | None,
        Option(metavar="SIZE", help="Keys and values of a batch, as in 512M; unless given 1G, or most of a GPU's."),
    ] = None
    validate: Annotated[str | None, Option("--validate", metavar="FILE", help="Compare with FILE; FAIL exits 1.")] = (
        None
    )
    answers: Annotated[str | None, Option("--answers", "-a", metavar="FILE", help="What -v compares with.")] = None
    check: Annotated[bool, Option("-v", help="Compare with the file of -a, as --validate does.")] = False
    rung: Annotated[list[str] | None, Option(metavar="OP=RUNG", help="Force a kernel; may be repeated.")] = None
    json: Annotated[bool, Option("--json", help="One JSON object on stdout, text on stderr.")] = False


def job_of(options: Options) -> GenerateJob:
    """What the options ask for. Raises BadParameter for those that do not go together."""
    if options.check != bool(options.answers) and not (options.check and options.validate):
        raise typer.BadParameter("-v and -a FILE go together", param_hint="-v")
    memory = None if options.max_batch_memory is None else parse_bytes(options.max_batch_memory, "--max-batch-memory")

    from tilewright.runtime.verbs.generate import GenerateJob

    return GenerateJob(
        model=options.model,
        input=options.input,
        output=options.output,
        params=_params(options),
        count=options.count,
        seed=options.seed or 0,
        batch_memory=memory,
        answers=options.validate or options.answers,
        settings=settings_of(options, "generate"),
    )


def _params(options: Options) -> SamplingParams:
    """Raises UsageError for a value out of range, by the option's name."""
    from tilewright.generation.sampling import ParameterError, SamplingParams

    try:
        return SamplingParams.of(n=options.samples, **{name: getattr(options, name) for name in SAMPLING})
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
    but = ", but for records that give their own" if (options.input or "").endswith((".jsonl", ".parquet")) else ""
    said = f"the likeliest token is taken, whatever is given as {' and '.join(given)}"
    return f"At --temperature 0 {said}{but}"


@verb(Options)
def generate(options: Options) -> None:
    """Continue prompts with a GPT-2.

    \b
    tilewright generate --model poet -i lines.txt -o verse.txt --max-tokens 64 --temperature 0.7

    A prompt or row that cannot be used becomes a line with its error; the summary counts them. A file of token ids
    cannot hold errors: its first bad prompt stops the job with exit code 3. A .jsonl line is {"id": 7, "prompt": "..."}
    or has "prompt_token_ids". It may give its own sampling parameters, by vLLM's names; OpenAI batch lines are taken as
    they are. In .txt files a blank line is no prompt and has no line in the output; the line of a bad prompt stays
    empty. Random numbers belong to a record's id, or to its line where it has none. In Parquet, ids are integers where
    all are, else strings: then 5 and "5" become the same.

    The output appears when it is whole; until then an earlier one stays. What is done is kept in OUTPUT.job: the same
    command goes on where a stopped one was, and does nothing where all is there.
    """
    job = job_of(options)

    from tilewright.runtime.verbs.generate import generate

    speak = Speaker(options, lambda: _banner(options))
    report = generate(job, speak)
    show_part("generate", options, report)
    if report.lead:
        speak(summary(report, int(report.figures.get("tokens", 0)), report.tokens_per_second, "tokens"))
        if options.json:
            show_report("generate", options, report)
    raise typer.Exit(report.exit_code)


def _drawing(options: Options) -> str:
    """How tokens are chosen, for the banner."""
    return f", temperature {options.temperature:g}, seed {options.seed or 0}" if options.temperature else ", greedy"


def _banner(options: Options) -> str:
    """Of the one process that speaks; options without effect are told on stderr."""
    if unused := options_without_effect(options):
        say(unused, err=True)
    rows = {
        "Model": f"GPT-2, {options.model}",
        "Input": options.input,
        "Output": options.output,
        "Prompts": "all" if options.count is None else f"{options.count:,}",
        "New tokens": f"at most {options.max_tokens:,}" + _drawing(options),
        "Precision": options.dtype,
        **device_row(options),
    }
    return banner("generate", rows)
