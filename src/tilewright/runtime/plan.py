"""What a generation job would take, computed from the configuration and the input alone: memory, operations.

Memory has two peaks. While the weights are prepared, the mapped file and what was made of it are there together; while
the job runs, what was made, keys and values, a step's workspace, and the rows of the embedding that were looked up.
"""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tilewright.errors import ResourceError, UsageError
from tilewright.formats.prompts import open_prompts
from tilewright.hardware import cpu
from tilewright.models.generation import MAX_SLOTS, PREFILL_ROWS, WINDOW
from tilewright.models.gpt2 import BATCH_MEMORY, GPT2Config
from tilewright.models.sampling import SamplingParams
from tilewright.ops import matmul, matmul_argmax
from tilewright.ops._ladder import Rung
from tilewright.ops.attention import bytes_a_sequence
from tilewright.ops.matmul_argmax.ladder import LOGITS_BYTES
from tilewright.runtime.inputs import cut_lines, cut_rows
from tilewright.runtime.load import config_of, tokenizer_of
from tilewright.simd import cache

PROGRAM = 178 << 20  # Python, NumPy, Numba, LLVM and the kernels (measured: Numba 0.68 on Linux, x86-64)
COMPILING = 190 << 20  # what LLVM keeps after it has compiled every kernel of the model (measured there)
TILE_DEPTH = 32  # bfloat16 that a tile register holds along K: panels of words are padded to it
RECORD = 2048  # bytes of Python objects for a prompt on its way, and 64 a token
READ = 1024  # prompts read at a time


@dataclass(frozen=True)
class Prompts:
    """How many there are, and their tokens: of all together, of the longest one."""

    count: int
    tokens: int
    longest: int


@dataclass(frozen=True)
class Plan:
    """What the job would take; bytes unless the name says otherwise.

    at_once: sequences in a batch. weights_file: mapped while they are prepared. prepared: weights as the kernels read
    them. copied: beside both, while the last is prepared. keys_values: of the sequences at once. workspace: of a step,
    and the records on their way. embedding: mapped rows that may be looked up. program: the process without all this.
    compiling: kernels that this machine has not compiled yet. flops: of all prompts, none found equal to another.
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
    def peak_memory(self) -> int:
        """Bytes: the larger of the two peaks."""
        preparing = self.weights_file + self.copied
        running = self.compiling + self.keys_values + self.workspace + self.embedding
        return self.program + self.prepared + max(preparing, running)

    @property
    def bytes_read(self) -> int:
        """By all steps, at least: each reads the prepared weights once."""
        return self.steps * self.prepared

    def as_dict(self) -> dict[str, Any]:
        """All figures by name."""
        return {**asdict(self), "peak_memory": self.peak_memory, "bytes_read": self.bytes_read}


def plan_generate(
    model: str,
    input: str | None = None,
    *,
    count: int | None = None,
    length: int = 16,
    tokens: int = 8,
    dtype: str = "float32",
    batch_memory: int = BATCH_MEMORY,
) -> Plan:
    """The plan of `tilewright generate` for a model and an input; without one, for `count` prompts of `length` tokens,
    or as many as make a full batch. tokens: new ones a prompt. batch_memory: bytes allowed for keys and values.

    Raises InputError for a model or an input that cannot be read, UsageError for a length that its context has not,
    ResourceError if the keys and values of one sequence take more than `batch_memory`.
    """
    config, prompts = prompts_of(model, input, count=count, length=length)
    limit = min(prompts.longest + tokens, config.n_positions)
    each = config.n_layer * bytes_a_sequence(config.n_head, limit, config.n_embd // config.n_head, dtype)
    if each > batch_memory:
        raise ResourceError(
            f"the keys and values of {limit} positions take {each:,} bytes; {batch_memory:,} are allowed",
            hint="allow more memory (--max-batch-memory) or fewer tokens (--max-tokens)",
        )
    mean = max(1, prompts.tokens // max(1, prompts.count))
    joining = -(-PREFILL_ROWS // mean)  # sequences that begin in a step, and stay for one step a token
    at_once = min(batch_memory // each, MAX_SLOTS, prompts.count, joining * tokens)
    prepared, copied = _prepared(config, dtype)
    return Plan(
        prompts=prompts.count, prompt_tokens=prompts.tokens, longest=prompts.longest, new_tokens=tokens, dtype=dtype,
        at_once=at_once, weights_file=_file_bytes(model, config), prepared=prepared, copied=copied,
        keys_values=at_once * each, workspace=_workspace(config, dtype, prompts, tokens, at_once),
        embedding=4 * config.vocab_size * config.n_embd, program=PROGRAM,
        compiling=0 if _compiled(dtype) else COMPILING,
        flops=flops(config, prompts, tokens), steps=-(-prompts.count // max(1, at_once)) * tokens,
    )  # fmt: skip


def prompts_of(model: str, input: str | None, *, count: int | None, length: int) -> tuple[GPT2Config, Prompts]:
    """The model's configuration, and the prompts as `plan_generate` sees them. Raises InputError and UsageError."""
    config = config_of(model, GPT2Config)
    made = Prompts(count or WINDOW, (count or WINDOW) * length, length)
    prompts = _read(model, input, config, count) if input else made
    if prompts.longest >= config.n_positions:
        raise UsageError(
            f"a prompt has {prompts.longest} tokens; the context of {config.n_positions} must hold one more"
        )
    return config, prompts


def shards_of(input: str | None, prompts: Prompts, *, count: int | None, tokens: int, device: str, workers: int) -> int:
    """How many shards `tilewright generate` cuts the input into, unless it is told their size."""
    from tilewright.runtime.generate import TEXT, sizing_for

    sizing = sizing_for(device, SamplingParams(max_tokens=tokens)).for_workers(workers)
    if input and input.endswith(TEXT):
        return cut_lines(input, count, None, sizing).shards
    return cut_rows(prompts.count, 0, None, sizing).shards


def flops(config: GPT2Config, prompts: Prompts, tokens: int) -> float:
    """Operations of all prompts: every position through every layer, the output matrix for the new tokens alone."""
    C, n = config.n_embd, prompts.count
    positions = prompts.tokens + n * (tokens - 1)
    seen = positions * (positions / max(1, n) + 1) / 2  # keys that queries look at, were all prompts of one length
    layers = config.n_layer * (positions * (8 * C * C + 4 * C * config.width) + 4 * C * seen)
    return float(layers + 2 * config.vocab_size * C * n * tokens)


def _read(model: str, path: str, config: GPT2Config, count: int | None) -> Prompts:
    """Of the good prompts of a file."""
    tokenizer = tokenizer_of(model)
    reader = open_prompts(
        path, encode=tokenizer.encode if tokenizer else None, vocabulary=config.vocab_size,
        max_length=config.n_positions - 1, count=count,
    )  # fmt: skip
    found, total, longest = 0, 0, 1
    with closing(reader):
        for batch in reader.batches(READ):
            lengths = [len(prompt.token_ids) for prompt in batch.prompts if prompt.error is None]
            found, total, longest = found + len(lengths), total + sum(lengths), max([longest, *lengths])
    return Prompts(found, total, longest)


def _prepared(config: GPT2Config, dtype: str) -> tuple[int, int]:
    """(bytes of all weights as they are kept, bytes of a copy that preparing the output matrix makes on the way)."""
    C, V, W = config.n_embd, config.vocab_size, config.width
    matrices = (C, 3 * C), (C, C), (C, W), (W, C)
    vectors = config.n_layer * (4 * C + 3 * C + 2 * C + W) + 2 * C + config.n_positions * C
    layers = config.n_layer * sum(_packed(K, N, dtype) for K, N in matrices)
    layout, search = _output(config, dtype)
    screened = search.prepare is not None  # 8 bits a number, and four of 32 bits a column
    copied = 0 if layout == "cpu.threads" else 4 * V * C  # words are made of rows, and the embedding lies in columns
    return 4 * vectors + layers + _packed(C, V, dtype) + screened * _columns(V) * (C + 16), copied


def _output(config: GPT2Config, dtype: str) -> tuple[str, Rung]:
    """(the rung that lays the output matrix out, the rung that searches its products)."""
    V, C = config.vocab_size, config.n_embd
    layout = matmul.ladder.choose(matmul.Problem(V, C, dtype)).name
    return layout, matmul_argmax.ladder.choose(matmul_argmax.Problem(V, C, dtype, layout))


def _packed(K: int, N: int, dtype: str) -> int:
    """Bytes of a matrix in panels: of float32, of two bfloat16 limbs, or of one."""
    if dtype == "float32" and matmul.ladder.choose(matmul.Problem(N, K, dtype)).name != "cpu.limbs":
        return _columns(N) * 4 * K
    deep = -(-K // TILE_DEPTH) * TILE_DEPTH
    return _columns(N) * deep * (4 if dtype == "float32" else 2)


def _columns(N: int) -> int:
    """In whole panels."""
    panel = max(16, 2 * cpu().lanes)
    return -(-N // panel) * panel


def _workspace(config: GPT2Config, dtype: str, prompts: Prompts, tokens: int, at_once: int) -> int:
    """Rows of a step: x, h, three of qkv, its sum with the positions in float32, the layer between in the model's
    dtype; logits where the search writes them; and the records on their way."""
    rows = min(PREFILL_ROWS + prompts.longest + at_once, prompts.tokens)
    fused = _output(config, dtype)[1].name == "cpu.fused"
    logits = 0 if fused else min(LOGITS_BYTES, 4 * config.vocab_size * at_once)
    records = min(prompts.count, WINDOW) * (RECORD + 64 * (prompts.longest + tokens))
    word = 2 if dtype == "bfloat16" else 4
    return rows * (28 * config.n_embd + word * config.width) + 4 * at_once * config.n_embd + logits + records


def _file_bytes(model: str, config: GPT2Config) -> int:
    """Of the weights on disk."""
    files = sorted(Path(model).glob("*.safetensors")) if os.path.isdir(model) else [Path(model)]
    return sum(file.stat().st_size for file in files)


def _compiled(dtype: str) -> bool:
    """Whether this machine has compiled the model's kernels, as far as those of attention tell."""
    return os.environ.get("TILEWRIGHT_CACHE") != "off" and any(cache.directory().glob(f"attention.*{dtype}*"))
