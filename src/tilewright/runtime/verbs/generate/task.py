"""The job of `tilewright generate`: prompts in, completions out, shard by shard, in the order of the input."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar

from tilewright.errors import InputError, UsageError
from tilewright.formats.completions import empty_line, error_line
from tilewright.formats.files import InputFile
from tilewright.formats.models import eos_token_ids
from tilewright.formats.prompts import PromptReader, open_prompts
from tilewright.formats.sampling_fields import DRAWING
from tilewright.formats.tokenizer import Tokenizer
from tilewright.formats.validate import validate, validate_tokens
from tilewright.generation.sampling import SamplingParams
from tilewright.models.gpt2 import GPT2Config
from tilewright.runtime.devices import place_for
from tilewright.runtime.fingerprint import Around, files_of, fingerprint
from tilewright.runtime.inputs import SCAN_BYTES, Sizing, cut_lines, cut_rows
from tilewright.runtime.jobs.cut import Cut, Records
from tilewright.runtime.jobs.directory import JobDirectory
from tilewright.runtime.jobs.ids import settle_ids
from tilewright.runtime.jobs.manifest import Value
from tilewright.runtime.jobs.start import Settings, quiet, start
from tilewright.runtime.jobs.stop import Stop
from tilewright.runtime.jobs.task import Place, Totals
from tilewright.runtime.load import config_of, tokenizer_of
from tilewright.runtime.outputs import AsParquet, check_output
from tilewright.runtime.reports import Report, Say
from tilewright.runtime.text_inputs import check_has_ids
from tilewright.runtime.verbs.generate.worker import DEFAULTS, FIRST_UNDRAWN, UNDRAWN, GenerateWorker

ADDED = (  # parameters that earlier jobs' manifests do not name
    "presence_penalty", "frequency_penalty", "logit_bias", "bad_words", "allowed_token_ids", "suppress_tokens",
    "no_repeat_ngram_size", "include_stop_str_in_output",
)  # fmt: skip
COURSE_PROMPT = 16  # token ids of a prompt in a binary file
TEXT = (".jsonl", ".txt", ".parquet")  # of all others, a file holds the course's binary tokens


@dataclass
class GenerateJob:
    """What to generate. Files named .jsonl hold JSON lines, .txt a prompt or completion a line, others i32 tokens.

    params: of all prompts; a JSON line may give its own. seed: where neither gives one. device: "cpu", "cuda" or
    "auto". batch_memory: bytes for keys and values, None: see `GPT2.generate`. answers: a reference; of binary outputs
    up to 0.05 % of the tokens may differ, others must be equal. settings: how it is run; a binary file has no place for
    an error.
    """

    model: str
    input: str
    output: str
    params: SamplingParams = field(default_factory=lambda: SamplingParams(temperature=0, max_tokens=8))
    count: int | None = None
    dtype: str = "float32"
    device: str = "cpu"
    seed: int = 0
    batch_memory: int | None = None
    answers: str | None = None
    settings: Settings = field(default_factory=Settings)

    @property
    def is_binary(self) -> bool:
        """Whether the output has no place for errors, and as many tokens for each prompt."""
        return not self.output.endswith(TEXT)


@dataclass
class GenerateReport(Report):
    """tokens: generated; prompt_tokens: read, in all; cut: prompts with completions that the context had no room for.
    undrawn: prompts at temperature 0 with a seed, top_k, top_p or min_p of their own, which change nothing there.
    tokens_per_second: of this run."""

    tokens: int = 0
    prompt_tokens: int = 0
    cut: int = 0
    undrawn: int = 0
    tokens_per_second: float = 0.0


def generate(job: GenerateJob, say: Say = quiet) -> GenerateReport:
    """Runs the job. `say` gets a line for each phase.

    Raises UsageError, InputError, ResourceError, InternalError (more bad records than allowed) and Interrupted; in each
    case an earlier output is untouched, what is done is kept, and the same call goes on.
    """
    report = GenerateReport()
    made: list[GenerateTask] = []

    def make(speak: Say, _: int) -> GenerateTask:
        made.append(task_of(job, speak))
        return made[0]

    figures = start(make, job.output, job.settings, report, device=job.device, unit="prompts", say=say)
    if not report.lead:
        return report
    names = ("tokens", "prompt_tokens", "cut", UNDRAWN)
    report.tokens, report.prompt_tokens, report.cut, report.undrawn = (int(figures.get(name, 0)) for name in names)
    new, run_s = report.figures.get("tokens", 0), report.seconds.get("run", 0.0)
    report.tokens_per_second = new / max(run_s, 1e-9)
    if report.computed:
        say(f"Generating {int(new):,} tokens...Done! ({run_s:.3f} sec)")
        say(f"Writing output...Done! ({report.seconds.get('write', 0.0) + report.seconds['merge']:.3f} sec)")
    if report.cut and not beyond_context(job.params.max_tokens, made[0].config):  # else it was said at the start
        context = f"the model's context of {made[0].config.n_positions:,} tokens was full"
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


def task_of(job: GenerateJob, say: Say = quiet) -> GenerateTask:
    """Everything that can be checked before the work is. Raises UsageError, InputError and ResourceError."""
    job = replace(job, device=place_for(job.device, job.dtype))
    _check(job)
    config, tokenizer = config_of(job.model, GPT2Config), tokenizer_of(job.model)
    eos_token_ids(job.model)  # refuses wrong ones before the weights are read
    _check_model(job, config, tokenizer is not None)
    if tokenizer is None:
        check_has_ids(job.input, job.model, '{"id": 7, "prompt_token_ids": [1, 2]}')
    if job.is_binary:
        job.params = replace(job.params, ignore_eos=True)
    kind = RowsTask if job.output.endswith(".parquet") else GenerateTask
    task = kind(job, config, Around.here(), say, tokenizer=tokenizer)
    with closing(task.reader(SCAN_BYTES)) as reader:
        task.size = reader.bytes
    if notice := beyond_context(job.params.max_tokens, config):
        say(notice)
    return task


def beyond_context(max_tokens: int, config: GPT2Config) -> str:
    """What is to be said of more new tokens than any prompt can get; empty where some can."""
    if max_tokens < config.n_positions:
        return ""
    room = f"the model's context of {config.n_positions:,} tokens, which holds the prompt, too"
    return f"{max_tokens:,} new tokens (--max-tokens) are more than fit: completions end at the end of {room}"


@dataclass
class GenerateTask:
    """A `Task`. tokenizer: where it was made; workers in other processes read their own."""

    job: GenerateJob
    config: GPT2Config
    around: Around
    say: Say = quiet
    workers: int = 1
    size: int = 0
    tokenizer: Tokenizer | None = None

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"tokenizer": None}

    def reader(self, scan: int = 0) -> PromptReader:
        """scan: bytes of a binary input that are checked now."""
        config, encode = self.config, self.tokenizer.encode if self.tokenizer else None
        return open_prompts(self.job.input, encode=encode, vocabulary=config.vocab_size,
                            max_length=config.n_positions - 1, length=COURSE_PROMPT, count=self.job.count,
                            scan=scan)  # fmt: skip

    def fingerprint(self) -> dict[str, Value]:
        job = self.job
        given = {one.name: getattr(job.params, one.name) for one in fields(job.params)}
        new = {name for name in ADDED if given[name] == getattr(DEFAULTS, name)}  # jobs without them go on
        sampling = {f"sampling.{name}": value for name, value in given.items() if name not in new}
        own = {name: _sealed(value) for name, value in sampling.items()}
        form = job.output.rpartition(".")[2] if job.output.endswith(TEXT) else "binary"
        return fingerprint("generate", job, self.around) | {"count": job.count, "seed": job.seed, "output": form} | own

    def files(self) -> dict[str, str]:
        return files_of(self.job)

    def cut(self, shard_size: int | None) -> Cut:
        sizing = sizing_for(self.job.device, self.job.params).for_workers(self.workers)
        if self.job.input.endswith(TEXT):
            return cut_lines(self.job.input, self.job.count, shard_size, sizing)
        return cut_rows(self.size // (4 * COURSE_PROMPT), 4 * COURSE_PROMPT, shard_size, sizing)

    def open(self, place: Place) -> GenerateWorker:
        return GenerateWorker(self)

    def header(self, totals: Totals) -> bytes:
        if totals.records == 0:
            raise InputError("the input holds 0 records", path=self.job.input)
        return b""

    def settle(self, directory: JobDirectory, stop: Stop) -> None:
        if not isinstance(directory.manifest.cut, Records):
            line = empty_line if self.job.output.endswith(".txt") else error_line
            with InputFile(self.job.input, "input") as file:
                settle_ids(directory, file, ("custom_id", "id"), line, stop)


def _sealed(value: Any) -> Value:
    """A parameter as the manifest keeps it."""
    if isinstance(value, tuple):
        return [f"{each[0]}: {each[1]!r}" if isinstance(each, tuple) else each for each in value]
    return value


class RowsTask(AsParquet, GenerateTask):
    """Whose output is a Parquet file, a row a completion."""

    columns: ClassVar = {
        "index": "int32", "text": "string", "token_ids": "list<int32>", "finish_reason": "string",
        "logprobs": "logprobs", "error": "error",
    }  # fmt: skip


def sizing_for(device: str, params: SamplingParams) -> Sizing:
    """Prompts a shard: at most about a minute of the 124M model on two cores, some seconds on a GPU; and enough of them
    for its batches to be full. On an H200 a shard costs 0.1 s beside what its tokens do, and 3 << 19 of these take 3 s.
    A small job's are smaller, where that costs little: poet took as long for 1,536 prompts of up to 64 new tokens in
    shards of 256 as of 1,024 (two cores of a Xeon), and a quarter longer in shards of 128; 124M in bfloat16 on AMX
    tiles a tenth longer for 1,536 of 8 tokens in shards of 512 than in one."""
    each = params.max_tokens * params.n
    if device == "cpu":
        return Sizing(min(max(65536 // each, 256), 8192), 128, most_bytes=2 << 20, alone=max(8192 // each, 512))
    return Sizing(min(max((8 << 20) // each, 5120), 1 << 18), max((3 << 19) // each, 2560), most_bytes=128 << 20)


def _check(job: GenerateJob) -> None:
    check_output(job)
    if job.dtype == "float16" and job.device == "cpu":
        raise UsageError("dtype is 'float16', which the CPU has not", hint="write bfloat16, or --device cuda")
    if job.is_binary:
        if job.input.endswith(TEXT):
            raise UsageError("tokens of prompts with text have no place in a binary output", path=job.output,
                             hint="name the output .jsonl or .txt")  # fmt: skip
        if job.params.n > 1 or job.params.logprobs is not None or job.params.stop or job.params.stop_token_ids:
            what = "--samples, --logprobs, --stop and --stop-id need .jsonl"
            raise UsageError(f"a binary output holds --max-tokens tokens a prompt: {what}")
    if job.output.endswith(".txt") and job.params.n > 1:
        raise UsageError("a text output holds one completion a prompt: several need .jsonl", path=job.output)
    if job.output.endswith(".txt") and job.params.logprobs is not None:
        raise UsageError("a text output has no place for log-probabilities: they need .jsonl", path=job.output)
    if job.answers:
        _check_answers(job, job.answers)


def _check_answers(job: GenerateJob, answers: str) -> None:
    """Raises UsageError or InputError for a reference that no output of this job could be compared with."""
    with InputFile(answers, "answers") as file:
        if answers.endswith(".jsonl") != job.output.endswith(".jsonl") or job.output.endswith((".txt", ".parquet")):
            raise UsageError("this output cannot be compared with that reference", path=answers,
                             hint="compare .jsonl with .jsonl, and binary tokens with binary tokens")  # fmt: skip
        if job.is_binary and file.size % (4 * job.params.max_tokens):
            what = f"the answers have {file.size:,} bytes; a prompt takes {4 * job.params.max_tokens}"
            raise InputError(what, path=answers, hint="--max-tokens says how many tokens a prompt has")


def _check_model(job: GenerateJob, config: GPT2Config, has_tokenizer: bool) -> None:
    """Raises UsageError for what this model cannot do with any prompt."""
    if not has_tokenizer and (job.output.endswith(".txt") or job.params.stop):
        what = "--stop has text" if job.params.stop else "the output is text"
        raise UsageError(f"{what}, and the model has no tokenizer.json", path=job.model,
                         hint="write token ids to a .jsonl file, and stop at token ids")  # fmt: skip
    if beyond := [token for token in job.params.stop_token_ids if token >= config.vocab_size]:
        raise UsageError(f"--stop-id is {beyond[0]}; the model's tokens are 0 to {config.vocab_size - 1}")
    job.params.check_for(vocabulary=config.vocab_size, context=config.n_positions, has_tokenizer=has_tokenizer)
    length = COURSE_PROMPT + job.params.max_tokens
    if job.is_binary and length > config.n_positions:
        raise UsageError(
            f"{COURSE_PROMPT} tokens of a prompt and {job.params.max_tokens} new ones are {length}; the context of the "
            f"model is {config.n_positions}",
            path=job.model,
            hint="ask for fewer --max-tokens",
        )
