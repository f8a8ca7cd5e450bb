"""The plan of `tilewright generate`: records, memory and disk of a job. See `runtime.plan` and `generation.memory`."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np

from tilewright.backends.footprint import PREPARING, RUNNING, Part
from tilewright.errors import UsageError
from tilewright.formats.prompts import PromptFile
from tilewright.formats.record_fields import kept_bytes
from tilewright.generation import memory as engine
from tilewright.generation.attention import BATCH_MEMORY
from tilewright.generation.memory import Prompts, Wanted
from tilewright.generation.sampling import SamplingParams
from tilewright.generation.scheduler import WINDOW
from tilewright.hardware import gpus
from tilewright.models.decoder_config import DecoderConfig
from tilewright.runtime.begun import Begun
from tilewright.runtime.devices import gpu_elsewhere, place_for
from tilewright.runtime.fingerprint import in_force
from tilewright.runtime.load import config_of, mapped_weights
from tilewright.runtime.plan import (
    Declared,
    JobPlan,
    Outputs,
    Sample,
    file_bytes,
    is_compiled,
    plan_job,
    program,
    share,
    widened,
)
from tilewright.runtime.verbs.generate.job import COURSE_PROMPT, GenerateJob
from tilewright.runtime.verbs.generate.task import GenerateTask, task_of
from tilewright.runtime.verbs.generate.worker import is_undrawn, parameters_of
from tilewright.runtime.verbs.streams import WRITTEN_VALUES
from tilewright.switches import check_switches

COMPILING = 229 << 20  # bytes that Numba and LLVM hold after compiling the kernels (measured: Numba 0.68, x86-64)
SAMPLED = 4096  # the most rows of Parquet that are read
LINE, ID_BYTES, TOKEN_TEXT, LOGPROB = 60, 6, 4.0, 18  # bytes: a line without tokens, a token id, its text, a logprob


@dataclass(frozen=True)
class Seen:
    """The sample of the input.

    prompts: sequences of all good records, n per record. new_tokens: of a sequence, the mean of what the records ask
    for. in_a_shard: sequences of the largest shard. records: good and bad ones, and true if they were counted and not
    estimated. id_bytes: mean bytes of an id and the kept fields. token_text: mean bytes of a token's text. noticed:
    figures by name. `bad`: bad records. `first_bad`: the error of the first. `prompt_tokens`: tokens of all good
    prompts. `cut`: prompts whose context does not hold all new tokens. `undrawn`: prompts at temperature 0 with an
    option that matters only for sampling.
    """

    prompts: Prompts
    new_tokens: int
    in_a_shard: int
    records: tuple[int, bool]
    id_bytes: float
    token_text: float
    noticed: dict[str, Any]


def plan(job: GenerateJob, gpu_memory: int | None = None) -> JobPlan:
    """The plan of the job, see `plan_job`. Also raises ResourceError if the memory cannot hold one sequence."""
    return plan_job("generate", job, gpu_memory, task_of, _of_task)


def _of_task(task: GenerateTask, begun: Begun, gpu_memory: int) -> Declared:
    job, config = task.job, task.config
    seen = _read(task, Sample(begun.cut))
    prompts, (records, counted) = seen.prompts, seen.records
    free = config.context - prompts.tokens // max(1, prompts.count)  # after a prompt of the mean length
    job = replace(job, params=_with(job.params, min(seen.new_tokens, free)))
    part = Prompts(share(prompts.count, begun.workers), share(prompts.tokens, begun.workers), prompts.longest)
    found = _declared(job, config, part, part.first(seen.in_a_shard), gpu_memory)
    return replace(
        found, records=records, counted=counted, flops=begun.workers * found.flops, outputs=_outputs(job, seen),
        figures=found.figures | seen.noticed,
    )  # fmt: skip


def plan_made(job: GenerateJob, length: int = 16, gpu_memory: int | None = None) -> Declared:
    """As `plan`, without an input: for `job.count` prompts of `length` tokens. None: as many as fill a batch.

    Raises InputError for a model that cannot be read, UsageError for a length that exceeds its context, and
    ResourceError if the memory cannot hold one sequence.
    """
    with gpu_elsewhere(job.device == "cuda" and gpu_memory is not None):
        job = replace(job, settings=replace(job.settings, device=place_for(job.device, job.dtype)))
    check_switches("generate", job.settings.without, job.device, job.dtype)
    config: DecoderConfig = config_of(job.model, DecoderConfig)
    if length >= config.context:
        raise UsageError(f"a prompt has {length} tokens; the context of {config.context} must hold one more")
    job = replace(job, params=_with(job.params, min(job.params.max_tokens, config.context - length)))
    count, n = job.count or WINDOW, job.params.n
    prompts = Prompts(count * n, count * n * length, length)
    memory = 0 if job.device == "cpu" else gpu_memory or gpus()[0].memory
    with in_force(job.settings):
        found = _declared(job, config, prompts, prompts, memory)
    return replace(found, records=count, figures=found.figures | {"prompt_tokens": count * length})


def _with(params: SamplingParams, tokens: int) -> SamplingParams:
    """The parameters with this number of new tokens, at least one."""
    most = max(1, tokens)
    return replace(params, max_tokens=most, min_tokens=min(params.min_tokens, most))


def _declared(job: GenerateJob, config: DecoderConfig, prompts: Prompts, shard: Prompts, gpu_memory: int) -> Declared:
    """Declare memory and work. prompts: those of a worker. shard: those of the largest shard."""
    mapped, params = mapped_weights(job.model)[1], job.params
    memory = BATCH_MEMORY if job.batch_memory is None else job.batch_memory
    cached = "kv-cache" not in job.settings.without
    wanted = Wanted(params.max_tokens, job.dtype, memory, not params.greedy, params.logprobs, cached)
    if job.device == "cpu":
        found = engine.on_cpu(config, prompts, shard, wanted, WRITTEN_VALUES)
        weights = config.memory(job.dtype)
        preparing = file_bytes(job.model) + widened(mapped) + weights.preparing
        compiling = 0 if is_compiled(f"attention.*{job.dtype}*") else COMPILING
        parts = (
            program("generate", job.input, job.output, model=job.model),
            Part("weights, prepared", weights.prepared),
            Part("weights file, while they are prepared", preparing, PREPARING),
            Part("compiling kernels, the first time", compiling, RUNNING),
            *found.parts,
        )
    else:
        found = engine.on_gpu(config, prompts, wanted._replace(memory=gpu_memory), job.batch_memory)
        parts = found.parts
    figures = {
        "sequences": prompts.count, "prompt_tokens": prompts.tokens, "longest": prompts.longest,
        "new_tokens": params.max_tokens, "at_once": found.at_once, "steps": found.steps, "bytes_moved": found.moved,
        "worker_flops": config.flops(prompts, params.max_tokens, cached=cached),
        "context": config.context, "sampled": not params.greedy,
    }  # fmt: skip
    return Declared(unit="prompts", records=prompts.count, counted=True, parts=parts, figures=figures,
                    flops=figures["worker_flops"])  # fmt: skip


def _read(task: GenerateTask, sample: Sample) -> Seen:
    """Read the input, or a sample of a long one."""
    job, n, context = task.job, task.job.params.n, task.config.context
    with closing(task.reader()) as reader:
        if isinstance(reader, PromptFile):
            count, _ = records = sample.records(0)
            cut = count if job.params.max_tokens > context - COURSE_PROMPT else 0
            noticed: dict[str, Any] = {"bad": 0, "first_bad": None, "cut": cut, "undrawn": 0}
            prompts = Prompts(count * n, count * n * COURSE_PROMPT, COURSE_PROMPT)
            noticed["prompt_tokens"] = count * COURSE_PROMPT
            return Seen(prompts, job.params.max_tokens, sample.in_a_shard() * n, records, 0.0, TOKEN_TEXT, noticed)
        sample = Sample.of(reader.file, sample.cut)
        if sample.spans:
            reader.only(sample.lines(reader.file))
        has = task.tokenizer is not None
        seen = [parameters_of(job, prompt, task.config, has)
                for batch in islice(reader.batches(SAMPLED), None if sample.spans else 1)
                for prompt in batch.prompts]  # fmt: skip
    records = sample.records(len(seen))
    scale = records[0] / max(len(seen), 1)
    good = [(params, prompt, len(prompt.token_ids)) for params, prompt in seen if prompt.error is None]
    sequences = sum(params.n for params, _, _ in good)  # a record may have its own n
    tokens = sum(params.n * length for params, _, length in good)
    asked = sum(params.n * min(params.max_tokens, context) for params, _, _ in good)
    first = next((prompt.error for _, prompt in seen if prompt.error is not None), None)
    noticed = {
        "bad": round((len(seen) - len(good)) * scale),
        "first_bad": first and ": ".join(filter(None, (first.field, first.message))),  # without line number
        "cut": round(sum(length + params.max_tokens > context for params, _, length in good) * scale),
        "prompt_tokens": round(sum(length for _, _, length in good) * scale),
        "undrawn": round(sum(is_undrawn(params, prompt) for params, prompt, _ in good) * scale),
    }
    texts = [len(prompt.text) / length for _, prompt, length in good if prompt.text]
    ids = [len(str(prompt.id)) + 2 + kept_bytes(prompt.kept) for _, prompt in seen]
    return Seen(
        Prompts(round(sequences * scale), round(tokens * scale), max([1, *(length for _, _, length in good)])),
        -(-asked // sequences) if good else job.params.max_tokens,
        -(-sample.in_a_shard() * sequences // max(len(good), 1)), records,
        float(np.mean(ids or [8])), float(np.mean(texts or [TOKEN_TEXT])), noticed,
    )  # fmt: skip


def _outputs(job: GenerateJob, seen: Seen) -> Outputs:
    """The outputs, if every completion has its largest number of tokens."""
    (count, counted), params = seen.records, job.params
    if job.is_binary:
        size = 4 * params.max_tokens * count
        return Outputs(size, counted, size)
    if job.form == ".txt":
        size = round(count * (params.max_tokens * seen.token_text + 1))
        return Outputs(size, False, size)
    logprobs = 0 if params.logprobs is None else LOGPROB * (1 + params.logprobs)
    token = ID_BYTES + seen.token_text + logprobs
    size = round(count * seen.id_bytes + seen.prompts.count * (LINE + params.max_tokens * token))
    return Outputs(size, False, size + 8 * count)
