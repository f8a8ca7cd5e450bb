"""The worker of `tilewright generate`: passes the prompts of a shard to the model, and writes the results in the order
of the input."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from tilewright.errors import InputError, UsageError
from tilewright.formats.completions import CompletionWriter, TextWriter
from tilewright.formats.course import TokenWriter
from tilewright.formats.files import Writable
from tilewright.formats.models import eos_token_ids
from tilewright.formats.prompts import PromptFile
from tilewright.formats.records import Prompt, PromptBatch, RecordError
from tilewright.formats.sampling_fields import ALIASES, DRAWING, shown
from tilewright.generation.rules import failed
from tilewright.generation.sampling import ParameterError, SamplingParams
from tilewright.generation.scheduler import WINDOW
from tilewright.generation.sequences import Generated, Request
from tilewright.models.decoder import DecoderModel
from tilewright.models.decoder_config import DecoderConfig
from tilewright.runtime.devices import gpu_faults
from tilewright.runtime.fingerprint import in_force
from tilewright.runtime.jobs import trace
from tilewright.runtime.jobs.cut import Shard
from tilewright.runtime.jobs.directory import Attempt
from tilewright.runtime.jobs.task import FIRST, Beat
from tilewright.runtime.kernel_cache import compiling_told
from tilewright.runtime.load import build, read_weights, tokenizer_of
from tilewright.runtime.reports import Report, Say, phase
from tilewright.runtime.verbs.streams import READ, Stream

if TYPE_CHECKING:
    from tilewright.runtime.verbs.generate.job import GenerateJob
    from tilewright.runtime.verbs.generate.task import GenerateTask

DEFAULTS = SamplingParams()
LOOK_SECONDS = 0.5  # between two reads of the sequences' progress
UNDRAWN = "undrawn"  # figure of a shard: prompts at temperature 0 with fields that matter only for sampling
IDLE = "idle."  # prefix of figures: 1 if no prompt of the shard needed the operation, whose rung is forced
CHOOSING = ("matmul_argmax", "sample")  # operations that choose tokens: each token is chosen by one of them
FIRST_UNDRAWN = f"{FIRST}{UNDRAWN}"  # figure: the number of the first such prompt
PENDING = 2 * WINDOW  # the most prompts that are read and not yet written: the engine's, and bad ones among them


class GenerateWorker:
    """A `Worker`: loads the model, then continues the prompts of shards with it."""

    def __init__(self, task: GenerateTask) -> None:
        self.task, self.job, self.report = task, task.job, Report()
        with ExitStack() as stack:
            stack.enter_context(in_force(task.job.settings))
            if self.job.device != "cpu":
                stack.enter_context(gpu_faults())
            task.tokenizer = task.tokenizer or tokenizer_of(self.job.model)
            self.reader = stack.enter_context(closing(task.reader()))
            with compiling_told(task.say):
                self.model = _load(self.job, self.report, task.say)
            self.model.tokenizer = task.tokenizer
            self.model.stop_ids = eos_token_ids(self.job.model) or task.config.stop_ids
            self.engine = self.model.engine(seed=self.job.seed, memory=self.job.batch_memory)
            self.open = stack.pop_all()

    def run(self, shard: Shard, out: Attempt, beat: Beat) -> int:
        if isinstance(self.reader, PromptFile):
            self.reader.only(shard.rows)
        else:
            self.reader.only(shard.lines(self.reader.file))
        stream = _Stream(self, shard, out, beat)
        stream.run_alone(dict(shard.skip)) if shard.alone else stream.run()
        out.notes += b"".join(hashes.tobytes() for hashes in self.reader.hashes)
        out.figures = self.report.take_seconds() | {
            "tokens": stream.tokens, "prompt_tokens": stream.prompt_tokens, "cut": stream.cut,
        }  # fmt: skip
        out.figures |= {f"{IDLE}{op}": 1 for op in CHOOSING if op in self.job.settings.rungs.keys() - stream.operations}
        if stream.undrawn:
            out.figures |= {UNDRAWN: stream.undrawn, FIRST_UNDRAWN: stream.first_undrawn}
        return stream.records

    def close(self) -> None:
        """Free the model. Called after the last shard."""
        self.open.close()


class _Stream(Stream[Prompt]):
    """Feeds the prompts of a shard to the model."""

    nothing = ()

    def __init__(self, worker: GenerateWorker, shard: Shard, out: Attempt, beat: Beat) -> None:
        super().__init__(worker.reader.located, worker.report, shard, out, beat, _writer(worker.job, out))
        self.job, self.model, self.engine, self.reader = worker.job, worker.model, worker.engine, worker.reader
        self.looked = 0.0  # time of the last update of `share`
        self.share: float | None = None  # the finished fraction of the shard's work at the last update
        self.most_pending = PENDING + 2 * (self.engine.window - WINDOW)
        self.operations: set[str] = set()  # the operations that chose tokens
        self.prompt_tokens = self.undrawn = self.first_undrawn = 0

    def run(self) -> None:
        """Run all prompts of the shard, in batches."""
        self.engine.after_step = self.stepped
        try:
            self.continue_all()
        finally:
            self.engine.after_step = lambda: None
        self.write()

    def continue_all(self) -> None:
        """As `run`, without the last write."""
        found = self.engine.run(self.requests())
        while True:
            with trace.span(trace.COMPUTE), phase(self.report, "run"):
                completions = next(found, None)
            self.tell()
            self.skip_bad()
            if completions is None:
                return
            self.keep(self.pending.popleft(), completions)

    def tell(self) -> None:
        """Report the shard's progress. It always has the finished fraction, as the next report may come much later."""
        self.beat(self.records - len(self.pending), self.share)

    def stepped(self) -> None:
        """Report the shard's progress from time to time.

        Otherwise a shard could seem idle, because the sequences of a batch end at almost the same time.
        """
        now = time.monotonic()
        if now - self.looked >= LOOK_SECONDS and self.expected:
            self.looked = now
            self.share = min((self.records - self.engine.scheduler.unfinished()) / self.expected, 1.0)
            self.tell()

    def run_alone(self, skip: dict[int, str]) -> None:
        """Run one prompt after the other, because one of them may have killed a worker.

        skip: prompts that have killed workers, with the reason.
        """
        first = isinstance(self.reader, PromptFile)  # its rows are numbered from 0, not from 1
        for batch in self.reader.batches(1):
            number = batch.prompts[0].line - first
            if number in skip:
                batch = PromptBatch([self.dead(batch.prompts[0], skip[number])], batch.end)
            else:
                self.beat.at(number)
            for request in self.accepted(batch):
                self.keep(self.pending.popleft(), next(self.engine.run([request])))
            self.skip_bad()
        self.write()

    def dead(self, prompt: Prompt, why: str) -> Prompt:
        """The prompt with the error that it killed its worker. Raises InputError for a binary output."""
        if self.job.is_binary:
            raise InputError(f"prompt {prompt.line} cannot be continued: {why}", path=self.job.input)
        return replace(prompt, error=prompt.error or RecordError(prompt.line, "", why))

    def requests(self) -> Iterator[Request | None]:
        """Yield the good prompts. Bad ones wait in `pending` to be written in order. None: too many prompts wait."""
        for batch in self.reader.batches(READ):
            self.skip_bad()
            while len(self.pending) > self.most_pending:
                yield None
                self.skip_bad()
            self.tell()
            self.expect(len(batch), batch.end)
            yield from self.accepted(batch)

    def accepted(self, batch: PromptBatch) -> Iterator[Request]:
        """Yield the good prompts of a batch, and add all its prompts to `pending`."""
        for prompt in batch.prompts:
            params, prompt = parameters_of(self.job, prompt, self.model.config, self.model.tokenizer is not None)
            self.pending.append(prompt)
            self.records += 1
            if prompt.error is None:
                self.prompt_tokens += len(prompt.token_ids)
                self.operations |= params.choosing_operations
                if is_undrawn(params, prompt):
                    self.first_undrawn = self.first_undrawn or prompt.line
                    self.undrawn += 1
                yield Request(prompt.line if prompt.id is None else prompt.id, prompt.token_ids, params)

    def keep(self, prompt: Prompt, completions: list[Generated]) -> None:
        """Save one prompt's completions, or an error if its logits are not finite."""
        if any(one.failed for one in completions):
            error = RecordError(prompt.line, "", failed(self.params_of(prompt)))
            if self.job.is_binary:
                raise InputError(f"prompt {prompt.line}: {error.message}", path=self.job.input)
            self.fail(replace(prompt, error=error))
            return
        self.tokens += sum(len(one.token_ids) for one in completions)
        self.cut += any(self.is_cut(prompt, one) for one in completions)
        self.results.append((prompt, [self.model.completion(one) for one in completions]))
        self.values += sum(len(one.token_ids) + sum(map(len, one.logprobs or ())) for one in completions)

    def is_cut(self, prompt: Prompt, one: Generated) -> bool:
        """True if the context was full before the completion had all requested tokens."""
        if one.finish_reason != "length" or len(prompt.token_ids) + len(one.token_ids) < self.model.config.context:
            return False
        return len(one.token_ids) < self.params_of(prompt).max_tokens

    def params_of(self, prompt: Prompt) -> SamplingParams:
        """The prompt's own sampling parameters, or else those of the job."""
        return parameters_of(self.job, prompt, self.model.config, self.model.tokenizer is not None)[0]


def parameters_of(
    job: GenerateJob, prompt: Prompt, config: DecoderConfig, has_tokenizer: bool
) -> tuple[SamplingParams, Prompt]:
    """(sampling parameters, prompt). If the prompt's own parameters are invalid: the job's, and the prompt's error."""
    if prompt.error is not None or not prompt.sampling:
        return job.params, prompt
    try:
        params = job.params.merged(prompt.sampling)
        params.check_for(vocabulary=config.vocab_size, context=config.context, has_tokenizer=has_tokenizer)
        if beyond := [token for token in params.stop_token_ids if token >= config.vocab_size]:
            rule = f"it is beyond the model's tokens, 0 to {config.vocab_size - 1}"
            raise ParameterError("stop_token_ids", shown(beyond[0]), rule)
        if params.n > 1 and job.form == ".txt":
            raise ParameterError("n", str(params.n), "a text output holds one completion per prompt")
        if params.logprobs is not None and job.form == ".txt":
            raise ParameterError("logprobs", str(params.logprobs), "a text output cannot hold log-probabilities")
        return params, prompt
    except ParameterError as error:
        name = error.parameter
        field = next((given for given in prompt.sampling if name in (given, ALIASES.get(given))), name)
        said = f"is {error.value}; {error.rule}"
    except UsageError as error:
        field, said = "", error.message
    return job.params, replace(prompt, error=RecordError(prompt.line, field, said))


def is_undrawn(params: SamplingParams, prompt: Prompt) -> bool:
    """True if the prompt has a field that has no effect at its temperature of 0, but would have at others."""
    return params.greedy and any(
        name in prompt.sampling and getattr(params, name) != getattr(DEFAULTS, name) for name in DRAWING
    )


def _load(job: GenerateJob, report: Report, say: Say) -> DecoderModel:
    with phase(report, "load", say, "Loading weights"):
        config, weights = read_weights(job.model, DecoderConfig)
    with phase(report, "prepare", say, "Preparing model"):
        model = build(config, weights, dtype=job.dtype, device=job.device, without=job.settings.without)
    with phase(report, "compile", say, "Compiling or loading kernels"):
        prompt = np.zeros(min(2, config.context - 1), np.int64)  # two tokens, so that attention runs
        for temperature in {0.0, float(not job.params.greedy)}:
            params = SamplingParams(temperature=temperature, max_tokens=1)
            list(model.generate([prompt], params, max_batch_memory=job.batch_memory))
    return model


def _writer(job: GenerateJob, file: Writable) -> TokenWriter | TextWriter | CompletionWriter:
    if job.is_binary:
        return TokenWriter(file, job.params.max_tokens)
    return TextWriter(file) if job.form == ".txt" else CompletionWriter(file)
