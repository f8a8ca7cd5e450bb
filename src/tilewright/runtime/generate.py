"""The job of `tilewright generate`: prompts streamed in, completions out, in the order of the input."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import closing, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tilewright.errors import InputError, UsageError
from tilewright.formats.atomic import AtomicFile
from tilewright.formats.completions import CompletionWriter, TextWriter
from tilewright.formats.course import TokenWriter
from tilewright.formats.files import InputFile
from tilewright.formats.models import eos_token_ids
from tilewright.formats.prompts import open_prompts
from tilewright.formats.records import Completion, Prompt, RecordError
from tilewright.formats.validate import validate, validate_tokens
from tilewright.models.generation import WINDOW, Generated, Request
from tilewright.models.gpt2 import GPT2, GPT2Config
from tilewright.models.sampling import SamplingParams
from tilewright.runtime.devices import gpu_faults, place_for
from tilewright.runtime.load import config_of, place, read_weights, tokenizer_of
from tilewright.runtime.outputs import check_output
from tilewright.runtime.progress import Progress
from tilewright.runtime.reports import Report, Say, count_errors, phase
from tilewright.runtime.signals import stoppable

COURSE_PROMPT = 16  # token ids of a prompt in a binary file
READ = 256  # prompts read at a time
WRITTEN = 64  # results written at a time
PENDING = 2 * WINDOW  # prompts read and not yet written: the engine's, and bad ones between them
TEXT = (".jsonl", ".txt")  # of all others, a file holds the course's binary tokens


@dataclass
class GenerateJob:
    """What to generate. Files named .jsonl hold JSON lines, .txt a prompt or completion a line, others i32 tokens.

    params: of all prompts; a JSON line may give its own. seed: where neither gives one. device: "cpu", "cuda" or
    "auto". batch_memory: bytes for keys and values, None: see `GPT2.generate`. max_errors: bad records allowed, None:
    any number; a binary file has no place for an error. answers: a reference; of binary outputs up to 0.05 % of the
    tokens may differ, others must be equal.
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
    max_errors: int | None = None
    answers: str | None = None

    @property
    def is_binary(self) -> bool:
        """Whether the output has no place for errors, and as many tokens for each prompt."""
        return not self.output.endswith(TEXT)


@dataclass
class GenerateReport(Report):
    """tokens: generated, in all. prompt_tokens: read. passes: of the model."""

    tokens: int = 0
    prompt_tokens: int = 0
    tokens_per_second: float = 0.0


def generate(job: GenerateJob, say: Say = lambda text: None) -> GenerateReport:
    """Runs the job. `say` gets a line for each phase.

    Raises UsageError, InputError, ResourceError, InternalError (more bad records than `max_errors`) and Interrupted; in
    each case an earlier output is untouched.
    """
    _check(job)
    report, start = GenerateReport(), time.perf_counter()
    with stoppable() as stop:
        config = config_of(job.model, GPT2Config)
        tokenizer = tokenizer_of(job.model)
        _check_model(job, config, tokenizer is not None)
        with phase(report, "check"):
            reader = open_prompts(
                job.input,
                encode=tokenizer.encode if tokenizer else None,
                vocabulary=config.vocab_size,
                max_length=config.n_positions - 1,
                length=COURSE_PROMPT,
                count=job.count,
            )
        with closing(reader), AtomicFile(job.output) as file:
            model = _load(job, report, say)
            model.tokenizer = tokenizer
            model.stop_ids = eos_token_ids(job.model) or config.stop_ids
            faults = gpu_faults() if job.device == "cuda" else nullcontext()
            with faults, Progress("prompts", total=reader.total, size=reader.bytes) as progress:
                _Stream(job, report, model, reader, _writer(job, file), progress, stop).run()
            say(f"Generating {report.tokens:,} tokens...Done! ({report.seconds.get('run', 0.0):.3f} sec)")
            computed = time.perf_counter()
        report.seconds["write"] = report.seconds.get("write", 0.0) + time.perf_counter() - computed
        say(f"Writing output...Done! ({report.seconds['write']:.3f} sec)")
    return _finish(job, report, start)


class _Stream:
    """Prompts on their way to the model, and back in the order of the input."""

    def __init__(self, job, report, model, reader, writer, progress, stop):
        self.job, self.report, self.model, self.reader = job, report, model, reader
        self.writer, self.progress, self.stop = writer, progress, stop
        self.pending: deque[Prompt] = deque()  # read and not yet written
        self.results: list[tuple[Prompt, list[Completion]]] = []
        self.end, self.most_pending = 0, PENDING

    def run(self) -> None:
        """The whole input."""
        memory = self.model.place.memory if self.job.batch_memory is None else self.job.batch_memory
        generator = self.model.generator(seed=self.job.seed, memory=memory)
        self.most_pending += 2 * (generator.window - WINDOW)
        found = generator.run(self.requests())
        while True:
            with phase(self.report, "run"):
                completions = next(found, None)
            self.stop.check()
            self.skip_bad()
            if completions is None:
                break
            self.keep(self.pending.popleft(), completions)
        self.write()

    def requests(self) -> Iterator[Request | None]:
        """The good prompts; bad ones wait in `pending` for their turn to be written. None: too many do."""
        for batch in self.reader.batches(READ):
            self.skip_bad()
            while len(self.pending) > self.most_pending:
                yield None
                self.skip_bad()
            self.stop.check()
            self.end = batch.end
            for prompt in batch.prompts:
                params, prompt = self.parameters(prompt)
                self.pending.append(prompt)
                self.report.records += 1
                if prompt.error is None:
                    self.report.prompt_tokens += len(prompt.token_ids)
                    yield Request(prompt.line if prompt.id is None else prompt.id, prompt.token_ids, params)
                else:
                    count_errors(self.job, self.report, [prompt.error])

    def parameters(self, prompt: Prompt) -> tuple[SamplingParams, Prompt]:
        """The prompt's sampling parameters, or the prompt with what is wrong with them."""
        if prompt.error is not None or not prompt.sampling:
            return self.job.params, prompt
        try:
            params = self.job.params.merged(prompt.sampling)
            if params.stop and self.model.tokenizer is None:
                raise UsageError("stop has strings, and the model has no tokenizer.json")
            return params, prompt
        except UsageError as error:
            field = next((name for name in prompt.sampling if error.message.startswith(f"{name} is ")), "")
            message = error.message.removeprefix(field).lstrip()
            return self.job.params, replace(prompt, error=RecordError(prompt.line, field, message))

    def skip_bad(self) -> None:
        """Move bad prompts at the front of `pending` to the results, and write those when they are many."""
        while self.pending and self.pending[0].error is not None:
            self.results.append((self.pending.popleft(), []))
        if len(self.results) >= WRITTEN:
            self.write()

    def keep(self, prompt: Prompt, completions: list[Generated]) -> None:
        """One prompt's completions, or the error that its logits are."""
        if any(one.failed for one in completions):
            error = RecordError(prompt.line, "", "the logits are not finite: the weights are too large")
            if self.job.is_binary:
                raise InputError(f"prompt {prompt.line}: {error.message}", path=self.job.input)
            count_errors(self.job, self.report, [error])
            self.results.append((replace(prompt, error=error), []))
            return
        self.report.tokens += sum(len(one.token_ids) for one in completions)
        self.results.append((prompt, [self.model.completion(one) for one in completions]))

    def write(self) -> None:
        """Everything kept so far."""
        with phase(self.report, "write"):
            self.writer.write(self.results)
        self.results = []
        self.progress.update(self.report.records - len(self.pending), self.end)


def _check(job: GenerateJob) -> None:
    check_output(job)
    job.device = place_for(job.device)
    if job.dtype == "float16" and job.device == "cpu":
        raise UsageError("dtype is 'float16', which the CPU has not", hint="write bfloat16, or --device cuda")
    if job.is_binary:
        if job.input.endswith(TEXT):
            raise UsageError("tokens of prompts with text have no place in a binary output", path=job.output,
                             hint="name the output .jsonl or .txt")  # fmt: skip
        if job.params.n > 1 or job.params.logprobs is not None or job.params.stop or job.params.stop_token_ids:
            raise UsageError("a binary output holds max_tokens tokens a prompt: n, logprobs and stop need .jsonl")
        job.params = replace(job.params, ignore_eos=True)
    if job.output.endswith(".txt") and job.params.n > 1:
        raise UsageError("a text output holds one completion a prompt: several need .jsonl", path=job.output)
    if job.answers:
        _check_answers(job, job.answers)


def _check_answers(job: GenerateJob, answers: str) -> None:
    """Raises UsageError or InputError for a reference that no output of this job could be compared with."""
    with InputFile(answers, "answers") as file:
        if answers.endswith(".jsonl") != job.output.endswith(".jsonl") or job.output.endswith(".txt"):
            raise UsageError("this output cannot be compared with that reference", path=answers,
                             hint="compare .jsonl with .jsonl, and binary tokens with binary tokens")  # fmt: skip
        if job.is_binary and file.size % (4 * job.params.max_tokens):
            what = f"the answers have {file.size:,} bytes; a prompt takes {4 * job.params.max_tokens}"
            raise InputError(what, path=answers, hint="--max-tokens says how many tokens a prompt has")


def _check_model(job: GenerateJob, config: GPT2Config, has_tokenizer: bool) -> None:
    """Raises UsageError for what this model cannot do with any prompt."""
    if not has_tokenizer and (job.output.endswith(".txt") or job.params.stop):
        what = "stop has strings" if job.params.stop else "the output is text"
        raise UsageError(f"{what}, and the model has no tokenizer.json", path=job.model,
                         hint="write token ids to a .jsonl file, and stop at token ids")  # fmt: skip
    length = COURSE_PROMPT + job.params.max_tokens
    if job.is_binary and length > config.n_positions:
        raise UsageError(
            f"{COURSE_PROMPT} tokens of a prompt and {job.params.max_tokens} new ones are {length}; the context of the "
            f"model is {config.n_positions}",
            path=job.model,
            hint="ask for fewer --max-tokens",
        )


def _load(job: GenerateJob, report: GenerateReport, say: Say) -> GPT2:
    with phase(report, "load", say, "Loading weights"):
        config, weights = read_weights(job.model)
    with phase(report, "prepare", say, "Preparing model"):
        model = place(config, weights, dtype=job.dtype, device=job.device)
    with phase(report, "compile", say, "Compiling kernels"):  # or fetching them from the disk
        list(model.generate([np.zeros(1, np.int64)], SamplingParams(temperature=0, max_tokens=1)))
    return model


def _writer(job: GenerateJob, file: AtomicFile) -> Any:
    if job.is_binary:
        return TokenWriter(file, job.params.max_tokens)
    return CompletionWriter(file) if job.output.endswith(".jsonl") else TextWriter(file)


def _finish(job: GenerateJob, report: GenerateReport, start: float) -> GenerateReport:
    report.finish(start)
    report.tokens_per_second = report.tokens / max(report.seconds.get("run", 0.0), 1e-9)
    if job.answers:
        if job.is_binary:
            report.validation = validate_tokens(job.output, job.answers, tokens=job.params.max_tokens, prefix=True)
        else:
            report.validation = validate(job.output, job.answers, prefix=job.count is not None)
    return report
