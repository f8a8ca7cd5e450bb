"""What a generation job would take on a GPU, by the configuration and the input alone; see `plan_generate` for the CPU.

Needs no GPU and no PyTorch.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from tilewright.errors import ResourceError
from tilewright.models.gpt2 import GPT2Config
from tilewright.ops.gemm.memory import rounded, rounded_limbs, tiles
from tilewright.ops.matmul import Problem
from tilewright.ops.matmul.ladder import TILE_LIMB_DEPTH
from tilewright.runtime.verbs.generate.prompts import Prompts, flops

DRIVER = 600 << 20  # CUDA's context, cuBLAS and the kernels (an H200, driver for CUDA 13.0)
LANES, LANE, PROMPT_ROWS, ROUND = 3, 2560, 1 << 16, 16  # as in `generation.cuda`, which needs PyTorch
STEPS = 128  # as in `generation.cuda.decode_state`
DRAWN_BYTES = 256 << 20  # of logits at a time, where tokens are drawn; as in `generation.cuda.drawing`
SHARE = 0.7  # of the GPU's free memory, for keys and values


@dataclass(frozen=True)
class DevicePlan:
    """What the job would take on a GPU; bytes unless the name says otherwise.

    at_once: sequences whose keys and values are kept. weights: as the kernels read them, tables of the embedding among
    them. workspace: of a pass of prompts and of a decode step. program: what CUDA keeps beside all this. flops: of all
    prompts, none found equal to another. moved: to and from the GPU's memory, at least: the weights once a step, keys
    and values once a token.
    """

    dtype: str
    at_once: int
    weights: int
    keys_values: int
    workspace: int
    program: int
    flops: float
    moved: float

    @property
    def peak_memory(self) -> int:
        """Bytes of the GPU's memory."""
        return self.program + self.weights + self.keys_values + self.workspace

    def least_seconds(self, gflops: float, gbytes_s: float) -> float:
        """By a GPU's limits: of its products in this class, and of its memory."""
        return max(self.flops / gflops, self.moved / gbytes_s) / 1e9

    def as_dict(self) -> dict[str, Any]:
        """All figures by name."""
        return {**asdict(self), "peak_memory": self.peak_memory}


def plan_on_gpu(
    config: GPT2Config, prompts: Prompts, *, tokens: int, dtype: str, memory: int, sampled: bool = False
) -> DevicePlan:
    """The plan for prompts of which each gets `tokens` new ones, on a GPU with `memory` bytes free.

    dtype: "float32", "bfloat16" or "float16". sampled: whether tokens are drawn by chance. Raises ResourceError if the
    keys and values of one sequence take more than the share of the memory that they may have.
    """
    word, C = 4 if dtype == "float32" else 2, config.n_embd
    limit = min(prompts.longest + tokens, config.n_positions)
    length = min(-(-limit // ROUND) * ROUND, config.n_positions)
    each = 2 * config.n_layer * length * C * word
    weights = _weights(config, dtype)
    slots = min(int(SHARE * max(memory - DRIVER - weights, 0)) // each, LANES * LANE)
    if slots < 1:
        raise ResourceError(
            f"the GPU has {memory:,} bytes free, the weights take {weights:,}; {SHARE:.0%} of the rest must hold "
            f"{each:,} bytes of keys and values for {length} positions",
            remedy="ask for fewer tokens (--max-tokens), or run on the CPU",
        )
    lane, mean = -(-slots // LANES), prompts.tokens / max(prompts.count, 1)
    steps = -(-prompts.count // lane) * tokens
    seen = prompts.count * tokens * (mean + tokens / 2)  # keys that decoding reads
    workspace = _workspace(config, word, lane, prompts) + (drawing(config, lane) if sampled else 0)
    return DevicePlan(
        dtype=dtype, at_once=min(slots, prompts.count), weights=weights, keys_values=slots * each,
        workspace=workspace, program=DRIVER, flops=flops(config, prompts, tokens),
        moved=float(steps * weights + seen * 2 * config.n_layer * C * word),
    )  # fmt: skip


def matrix_bytes(K: int, N: int, dtype: str) -> int:
    """Bytes of a matrix (K, N) in the layout of matmul's chosen rung on a GPU; there need not be one here."""
    layout = rounded if dtype != "float32" else rounded_limbs if K >= TILE_LIMB_DEPTH else tiles
    return layout(Problem(N, K, dtype, "cuda")).prepared


def _weights(config: GPT2Config, dtype: str) -> int:
    """Matrices in the class, vectors and both tables of the embedding in float32."""
    C, W = config.n_embd, config.width
    layer = sum(matrix_bytes(*sizes, dtype) for sizes in ((C, 3 * C), (C, C), (C, W), (W, C)))
    vectors = config.n_layer * (4 * C + 3 * C + 2 * C + W) + 2 * C + (config.n_positions + config.vocab_size) * C
    return config.n_layer * layer + matrix_bytes(C, config.vocab_size, dtype) + 4 * vectors


def drawing(config: GPT2Config, lane: int) -> int:
    """Rules and random numbers of a lane's rows, the tokens drawn, and as many logits as are held at once."""
    row = 4 * config.vocab_size
    return min(max(1, DRAWN_BYTES // row), lane) * row + lane * (2 * 5 * 8 + 8 * (STEPS + 1) + 8)


def _workspace(config: GPT2Config, word: int, lane: int, prompts: Prompts) -> int:
    """Rows of a pass of prompts, and of a decode step of a lane: x, the norms' results, queries, keys and values,
    attention's result, the layer between; float32's operands as limbs besides; and the tokens of a lane's steps."""
    rows = min(PROMPT_ROWS + prompts.longest, prompts.tokens) + lane
    limbs = 4 * max(config.width, config.n_embd) if word == 4 else 0
    row = 4 * config.n_embd + word * (6 * config.n_embd + config.width) + limbs
    return rows * row + 8 * (STEPS + 1) * lane
