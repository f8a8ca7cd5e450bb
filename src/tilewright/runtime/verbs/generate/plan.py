"""What `tilewright generate` would take; see `plan`. Memory and operations follow from configuration and input alone.

Memory has two peaks. While the weights are prepared, the mapped file and what was made of it are there together; while
the job runs, what was made, keys and values, a step's workspace, and the rows of the embedding that were looked up.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.errors import ResourceError, UsageError
from tilewright.formats.lines import Line
from tilewright.formats.prompts import PromptFile
from tilewright.generation import engine
from tilewright.generation.attention import BATCH_MEMORY
from tilewright.generation.engine import PENDING_BYTES
from tilewright.generation.sampling import LOGPROB_BYTES
from tilewright.generation.scheduler import MAX_SLOTS, PREFILL_ROWS, WINDOW
from tilewright.hardware import gpus
from tilewright.models.gpt2 import GPT2Config
from tilewright.ops import matmul, matmul_argmax
from tilewright.ops.attention import bytes_a_sequence
from tilewright.ops.core.ladder import Memory, Rung
from tilewright.ops.matmul_argmax.cpu.logits import LOGITS_BYTES
from tilewright.runtime.jobs.cut import Cut, Lines, Records, RowGroups
from tilewright.runtime.load import config_of, mapped_weights
from tilewright.runtime.plan import (
    PREPARING,
    PROGRAM,
    RUNNING,
    SAMPLE,
    STRETCHES,
    JobPlan,
    Outputs,
    Part,
    begun_of,
    counted_in,
    is_compiled,
    matrix_memory,
    peak_of,
    plan_of,
    sample_lines,
    share,
)  # fmt: skip
from tilewright.runtime.verbs.generate.job import COURSE_PROMPT, GenerateJob
from tilewright.runtime.verbs.generate.plan_device import DevicePlan, plan_on_gpu
from tilewright.runtime.verbs.generate.prompts import Prompts, flops
from tilewright.runtime.verbs.generate.task import GenerateTask, task_of
from tilewright.runtime.verbs.generate.worker import WRITTEN_VALUES, is_undrawn, parameters_of

COMPILING = 190 << 20  # what LLVM keeps after it has compiled every kernel of the model (measured: Numba 0.68, x86-64)
SAMPLING = 12 << 20  # bytes of the kernels and workspaces of sample (measured)
RECORD = 2048  # bytes of Python objects for a prompt on its way, and 64 a token
SAMPLED = 4096  # rows of Parquet that are looked at
LINE, ID_BYTES, TOKEN_TEXT, LOGPROB = 60, 6, 4.0, 18  # bytes: a line beside its tokens, an id, its text, a logarithm


@dataclass(frozen=True)
class Plan:
    """What the job would take; bytes unless the name says otherwise.

    at_once: sequences in a batch. weights_file: mapped while they are prepared. prepared: weights as the kernels read
    them. copied: a temporary copy of the output matrix while it is prepared, beside both. keys_values: of the sequences
    at once. workspace: of a step, and the records on their way. embedding: mapped rows that may be looked up. program:
    the process without all this. compiling: kernels that this machine has not compiled yet. flops: of all prompts, none
    found equal to another.
    """

    prompts: int
    prompt_tokens: int
    longest: int
    new_tokens: int
    dtype: str
    at_once: int
    weights_file: int
    prepared: int
    copied: int
    keys_values: int
    workspace: int
    embedding: int
    program: int
    compiling: int
    flops: float
    steps: int

    @property
    def parts(self) -> tuple[Part, ...]:
        """The memory by what it is for."""
        return (
            Part("program", self.program),
            Part("weights, prepared", self.prepared),
            Part("weights file, while they are prepared", self.weights_file + self.copied, PREPARING),
            Part("compiling kernels, the first time", self.compiling, RUNNING),
            Part("keys and values", self.keys_values, RUNNING),
            Part("workspace and records", self.workspace, RUNNING),
            Part("embedding rows, mapped", self.embedding, RUNNING),
        )

    @property
    def peak_memory(self) -> int:
        """Bytes: the larger of the two peaks."""
        return peak_of(self.parts)

    @property
    def bytes_read(self) -> int:
        """By all steps, at least: each reads the prepared weights once."""
        return self.steps * self.prepared

    def as_dict(self) -> dict[str, Any]:
        """All figures by name."""
        return {**asdict(self), "peak_memory": self.peak_memory, "bytes_read": self.bytes_read}


def plan(job: GenerateJob, memory: int | None = None) -> tuple[JobPlan, Plan | DevicePlan]:
    """What the job would take, and what the model would. memory: of the GPU, where it is one; None: as it has.

    Raises what `generate` does before its first shard, ResourceError where not one sequence fits.
    """
    elsewhere = job.device == "cuda" and memory is not None and not gpus()
    dtype = "float32" if job.dtype == "float16" else job.dtype
    here = replace(job, settings=replace(job.settings, device="cpu", dtype=dtype)) if elsewhere else job
    task = task_of(here)
    if elsewhere:
        own = replace(task.job.settings, device=job.device, dtype=job.dtype)
        task.job = replace(task.job, settings=own)
    job, config = task.job, task.config
    begun = begun_of(task, job.settings, job.output, here.device)
    mapped_weights(job.model)
    prompts, records, text, noticed = _read(task, begun.cut)
    in_a_shard = noticed.pop("in_a_shard")
    room = config.n_positions - prompts.tokens // max(1, prompts.count)  # behind a prompt as long as most
    job = replace(job, params=replace(job.params, max_tokens=min(job.params.max_tokens, max(1, room))))
    tokens, n = job.params.max_tokens, job.params.n
    part = Prompts(share(prompts.count, begun.workers) * n, share(prompts.tokens, begun.workers) * n, prompts.longest)
    shard = part.first(in_a_shard * n)
    found: Plan | DevicePlan
    if job.device == "cpu":
        allowed = BATCH_MEMORY if job.batch_memory is None else job.batch_memory
        found = _figures(job.model, config, part, shard, tokens=tokens, dtype=job.dtype, batch_memory=allowed)
        if not job.params.greedy:
            found = replace(found, workspace=found.workspace + _sampling(config, found.at_once))
        if (logprobs := job.params.logprobs) is not None:  # a line of them is made of the answer's objects, of a copy
            each = LOGPROB_BYTES * (1 + logprobs) * tokens
            held = min(min(shard.count, WINDOW) * each, PENDING_BYTES) + 2 * WRITTEN_VALUES * LOGPROB_BYTES
            found = replace(found, workspace=found.workspace + held)
    else:
        free = memory or gpus()[0].memory
        what: dict[str, Any] = {"tokens": tokens, "dtype": job.dtype, "sampled": not job.params.greedy}
        found = plan_on_gpu(config, part, memory=free, **what)
    whole = plan_of(
        "generate", task, "prompts", records, found.parts if isinstance(found, Plan) else (),
        _outputs(job, records, text), begun=begun, prompt_tokens=prompts.tokens, longest=prompts.longest,
        new_tokens=tokens, at_once=found.at_once, flops=begun.workers * found.flops, **noticed,
    )  # fmt: skip
    return whole, found


def plan_generate(
    model: str, *, count: int | None = None, length: int = 16, tokens: int = 8, dtype: str = "float32",
    batch_memory: int = BATCH_MEMORY, sampled: bool = False,
) -> Plan:  # fmt: skip
    """The plan for `count` prompts of `length` tokens, or as many as make a full batch. tokens: new ones a prompt.
    batch_memory: bytes allowed for keys and values. sampled: tokens are drawn by chance.

    Raises InputError for a model that cannot be read, UsageError for a length that its context has not, ResourceError
    if the keys and values of one sequence take more than `batch_memory`.
    """
    config, prompts = made_prompts(model, count=count, length=length)
    found = _figures(model, config, prompts, prompts, tokens=tokens, dtype=dtype, batch_memory=batch_memory)
    return replace(found, workspace=found.workspace + _sampling(config, found.at_once)) if sampled else found


def made_prompts(model: str, *, count: int | None, length: int) -> tuple[GPT2Config, Prompts]:
    """The model's configuration, and prompts that are nowhere. Raises InputError, UsageError for too long ones."""
    config: GPT2Config = config_of(model, GPT2Config)
    mapped_weights(model)
    if length >= config.n_positions:
        raise UsageError(f"a prompt has {length} tokens; the context of {config.n_positions} must hold one more")
    return config, Prompts(count or WINDOW, (count or WINDOW) * length, length)


def _figures(
    model: str, config: GPT2Config, prompts: Prompts, shard: Prompts, *, tokens: int, dtype: str, batch_memory: int
) -> Plan:  # fmt: skip
    """shard: the prompts of the largest shard; a worker's slots are empty at the end of each."""
    limit = min(prompts.longest + tokens, config.n_positions)
    each = config.n_layer * bytes_a_sequence(config.n_head, limit, config.n_embd // config.n_head, dtype)
    if each > batch_memory:
        raise ResourceError(
            f"the keys and values of {limit} positions take {each:,} bytes; {batch_memory:,} are allowed",
            remedy="allow more memory (--max-batch-memory) or fewer tokens (--max-tokens)",
        )
    mean = max(1, prompts.tokens // max(1, prompts.count))
    joining = -(-PREFILL_ROWS // mean)  # sequences that begin in a step, and stay for one step a token
    at_once = min(batch_memory // each, MAX_SLOTS, shard.count, joining * tokens)
    prepared, copied, _ = _prepared(config, dtype)
    return Plan(
        prompts=prompts.count, prompt_tokens=prompts.tokens, longest=prompts.longest, new_tokens=tokens, dtype=dtype,
        at_once=at_once, weights_file=_file_bytes(model), prepared=prepared, copied=copied,
        keys_values=at_once * each, workspace=_workspace(config, dtype, shard, tokens, at_once),
        embedding=4 * config.vocab_size * config.n_embd, program=PROGRAM,
        compiling=0 if is_compiled(f"attention.*{dtype}*") else COMPILING,
        flops=flops(config, prompts, tokens), steps=-(-prompts.count // max(1, at_once)) * tokens,
    )  # fmt: skip


def _read(task: GenerateTask, cut: Cut) -> tuple[Prompts, tuple[int, bool], tuple[float, float], dict[str, Any]]:
    """(good prompts of an input, (all its records, whether they were counted), (bytes of an id, of a token's text),
    what the job would notice), by a sample where it is long.

    The last: `bad` records, `first_bad`: what is wrong with the first, `cut`: prompts whose context does not hold all
    new tokens, `undrawn`: prompts at temperature 0 with a field that matters only where tokens are drawn,
    `in_a_shard`: prompts of the largest shard.
    """
    with closing(task.reader()) as reader:
        if isinstance(reader, PromptFile):
            count = counted_in(cut, 0, 1.0)
            room = task.config.n_positions - COURSE_PROMPT
            cut_short = count[0] if task.job.params.max_tokens > room else 0
            noticed: dict[str, Any] = {"bad": 0, "first_bad": None, "cut": cut_short, "undrawn": 0}
            noticed["in_a_shard"] = _in_a_shard(cut, [], 1.0)
            return Prompts(count[0], count[0] * COURSE_PROMPT, COURSE_PROMPT), count, (0.0, TOKEN_TEXT), noticed
        lines, part = sample_lines(reader.file, cut)
        ends: list[int] = []  # of the sample's lines
        if lines is not None:
            reader.only(_noting(lines, ends))
        has = task.tokenizer is not None
        seen = [parameters_of(task.job, prompt, task.config, has)
                for batch in islice(reader.batches(SAMPLED), 1 if lines is None else None)
                for prompt in batch.prompts]  # fmt: skip
    records = counted_in(cut, len(seen), part)
    good = [(params, prompt) for params, prompt in seen if prompt.error is None]
    lengths = [len(prompt.token_ids) for _, prompt in good]
    scale = records[0] / max(len(seen), 1)
    full = sum(len(prompt.token_ids) + params.max_tokens > task.config.n_positions for params, prompt in good)
    first = next((prompt.error for _, prompt in seen if prompt.error is not None), None)
    why = first and ": ".join(filter(None, (first.field, first.message)))  # a sample's lines have other numbers
    undrawn = sum(is_undrawn(params, prompt) for params, prompt in good)
    noticed = {"bad": round((len(seen) - len(good)) * scale), "first_bad": why, "cut": round(full * scale),
               "undrawn": round(undrawn * scale), "in_a_shard": _in_a_shard(cut, ends, part)}  # fmt: skip
    found = Prompts(round(len(good) * scale), round(sum(lengths) * scale), max([1, *lengths]))
    texts = [len(prompt.text) / len(prompt.token_ids) for _, prompt in good if prompt.text]
    ids = [len(str(prompt.id)) + 2 for _, prompt in seen]
    return found, records, (float(np.mean(ids or [8])), float(np.mean(texts or [TOKEN_TEXT]))), noticed


def _noting(lines: Iterator[Line], ends: list[int]) -> Iterator[Line]:
    """The same lines; where they end is noted."""
    for line in lines:
        ends.append(line[2])
        yield line


def _in_a_shard(cut: Cut, ends: list[int], part: float) -> int:
    """Records of the largest shard. ends: in bytes, of the lines of a sample; part: its share of the input."""
    if isinstance(cut, Records):
        return cut.span(0)[1]
    if not isinstance(cut, Lines):
        return max(cut.rows) if isinstance(cut, RowGroups) else 1
    window = cut.per_shard if part >= 1.0 else min(cut.per_shard, SAMPLE // STRETCHES)
    first = most = 0
    for last, end in enumerate(ends):
        while end - ends[first] >= window:
            first += 1
        most = max(most, last + 1 - first)
    return max(-(-most * cut.per_shard // window), 1)


def _outputs(job: GenerateJob, records: tuple[int, bool], text: tuple[float, float]) -> Outputs:
    """Of as many tokens as may come. text: bytes of an id, and of a token's text."""
    (count, counted), (id_bytes, token_text), params = records, text, job.params
    if job.is_binary:
        return Outputs(4 * params.max_tokens * count, counted, 4 * params.max_tokens * count)
    if job.output.endswith(".txt"):
        size = round(count * (params.max_tokens * token_text + 1))
        return Outputs(size, False, size)
    logprobs = 0 if params.logprobs is None else LOGPROB * (1 + params.logprobs)
    size = round(count * (id_bytes + params.n * (LINE + params.max_tokens * (ID_BYTES + token_text + logprobs))))
    return Outputs(size, False, size + 8 * count)


def _prepared(config: GPT2Config, dtype: str) -> Memory:
    """Bytes of all weights. The largest copy is the output matrix's."""
    C, V, W = config.n_embd, config.vocab_size, config.width
    vectors = config.n_layer * (4 * C + 3 * C + 2 * C + W) + 2 * C + config.n_positions * C
    matrices = (C, 3 * C), (C, C), (C, W), (W, C)
    layers = config.n_layer * sum(matrix_memory(K, N, dtype).prepared for K, N in matrices)
    head = matrix_memory(C, V, dtype)
    problem, search = _output(config, dtype)
    screen = search.memory_for(problem).prepared
    return Memory(4 * vectors + layers + head.prepared + screen, head.preparing)


def _output(config: GPT2Config, dtype: str) -> tuple[matmul_argmax.Problem, Rung]:
    """The search of the largest logit, and the rung that runs it."""
    V, C = config.vocab_size, config.n_embd
    layout = matmul.ladder.choose(matmul.Problem(V, C, dtype)).name
    problem = matmul_argmax.Problem(V, C, dtype, layout)
    return problem, matmul_argmax.ladder.choose(problem)


def _workspace(config: GPT2Config, dtype: str, prompts: Prompts, tokens: int, at_once: int) -> int:
    """Rows of a step: x and its sums in float32, h, three of qkv and the layer between in the model's dtype; logits
    where the search writes them; and the records on their way."""
    rows = min(PREFILL_ROWS + prompts.longest + at_once, prompts.tokens)
    fused = _output(config, dtype)[1].name == "cpu.fused"
    logits = 0 if fused else min(LOGITS_BYTES, 4 * config.vocab_size * at_once)
    records = min(prompts.count, WINDOW) * (RECORD + 64 * (prompts.longest + tokens))
    word = 2 if dtype == "bfloat16" else 4
    row = (12 + 4 * word) * config.n_embd + word * config.width
    return rows * row + 4 * at_once * config.n_embd + logits + records


def _sampling(config: GPT2Config, at_once: int) -> int:
    """Bytes for tokens drawn by chance: two blocks of logits, since one is made while the last is still held."""
    rows = min(at_once, max(engine.SAMPLED_ROWS, engine.LOGITS_BYTES // (4 * config.vocab_size)))
    return 2 * rows * 4 * config.vocab_size + SAMPLING


def _file_bytes(model: str) -> int:
    """Of the weights on disk."""
    files = sorted(Path(model).glob("*.safetensors")) if os.path.isdir(model) else [Path(model)]
    return sum(file.stat().st_size for file in files)
