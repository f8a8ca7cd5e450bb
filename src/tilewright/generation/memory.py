"""The memory of an engine on each device, computed from the configuration and the input alone, without a GPU or
PyTorch.

The tests compare these figures with the arrays that engines allocate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from tilewright.backends.footprint import ALWAYS, CONTEXT, RUNNING, Part, element_bytes
from tilewright.errors import ResourceError
from tilewright.generation.decoder import Sizes
from tilewright.generation.engine import LOGITS_BYTES, PENDING_BYTES, SAMPLED_ROWS
from tilewright.generation.sampling import LOGPROB_BYTES
from tilewright.generation.scheduler import MAX_SLOTS, PREFILL_ROWS, WINDOW
from tilewright.ops.attention import bytes_a_sequence
from tilewright.ops.core.ladder import Memory
from tilewright.ops.gemm.operands import PEAK, peaks_of
from tilewright.ops.matmul_argmax.cpu.logits import LOGITS_BYTES as SEARCHED_BYTES

# The same values as in `generation.cuda`, which needs PyTorch: lanes and their sequences; rows of a pass of prompts;
# the number of positions to which a slot is rounded; steps between two copies to the host; bytes of logits at a time,
# if tokens are sampled; the share of free memory for keys and values.
LANES, LANE, PROMPT_ROWS, ROUND, STEPS, DRAWN_BYTES, SHARE = 3, 2560, 1 << 16, 16, 128, 256 << 20, 0.7
SAMPLING = 12 << 20  # bytes of the kernels and workspaces of `sample` on the CPU (measured: Numba 0.68, x86-64)
RECORD, TOKEN = 2048, 64  # bytes of Python objects for a prompt in flight, and for each of its tokens


@dataclass(frozen=True)
class Prompts:
    """How many sequences there are, and the tokens of their prompts: in total, and of the longest one."""

    count: int
    tokens: int
    longest: int

    def first(self, count: int) -> Prompts:
        """The first `count` of them, or all, assumed to have the same mean length."""
        count = min(count, self.count)
        return Prompts(count, -(-self.tokens * count // max(self.count, 1)), self.longest)


class Declaring(Protocol):
    """A model's configuration, which computes the bytes; see `DecoderConfig`."""

    @property
    def sizes(self) -> Sizes: ...
    def memory(self, dtype: str, device: str = "cpu") -> Memory: ...
    def row_bytes(self, dtype: str, device: str = "cpu") -> int: ...
    def operand_bytes(self, dtype: str) -> int: ...
    def searched_by(self, dtype: str) -> str: ...
    def rows_bytes(self, dtype: str) -> int: ...
    def unread_bytes(self, dtype: str, *, drawn: bool) -> int: ...


class Wanted(NamedTuple):
    """What is to be generated. tokens: new ones per sequence. memory: bytes for keys and values on the CPU; on a GPU
    all of its memory. drawn: tokens are sampled. logprobs: how many per token besides the token's own. cached: decode
    steps reuse keys and values; otherwise each step computes the whole prefix again."""

    tokens: int
    dtype: str
    memory: int
    drawn: bool = False
    logprobs: int | None = None
    cached: bool = True


class Declared(NamedTuple):
    """at_once: sequences whose keys and values are cached. steps: of all sequences. parts: of memory, on a CPU without
    the weights and the process. moved: the fewest bytes that move to and from the device's memory: what a step reads
    of the weights, once per step, and on a GPU keys and values once per token."""

    at_once: int
    steps: int
    parts: tuple[Part, ...]
    moved: float


def on_cpu(config: Declaring, prompts: Prompts, shard: Prompts, wanted: Wanted, results: int) -> Declared:
    """prompts: of a worker. shard: of the largest shard, because slots are empty at the end of each shard. results:
    elements of results that are kept until they are written.

    Raises ResourceError if the keys and values of one sequence take more than `wanted.memory`.
    """
    sizes, tokens = config.sizes, wanted.tokens
    limit = min(prompts.longest + tokens, sizes.context)
    each = sizes.layers * bytes_a_sequence(sizes.heads, limit, sizes.head_size, wanted.dtype)
    if each > wanted.memory:
        raise ResourceError(
            f"the keys and values of {limit} positions take {each:,} bytes; {wanted.memory:,} are allowed",
            remedy="allow more memory (--max-batch-memory) or fewer tokens (--max-tokens)",
        )
    mean = max(1, prompts.tokens // max(1, prompts.count))
    joining = -(-PREFILL_ROWS // mean)  # sequences admitted in a step; each stays one step per token
    at_once = min(wanted.memory // each, MAX_SLOTS, shard.count, joining * tokens)
    rows = min(PREFILL_ROWS + shard.longest + at_once, shard.tokens)
    if not wanted.cached:
        at_once = min(at_once, max(1, PREFILL_ROWS // limit))
        rows = at_once * limit
    workspace = rows * config.row_bytes(wanted.dtype) + 4 * at_once * sizes.width
    if config.searched_by(wanted.dtype) == "cpu.logits":
        workspace += min(SEARCHED_BYTES, 4 * sizes.vocabulary * at_once)
    workspace += min(shard.count, WINDOW) * (RECORD + TOKEN * (shard.longest + tokens))
    if wanted.drawn:  # two blocks of logits: one is computed while the one before still exists
        row = 4 * sizes.vocabulary
        workspace += 2 * min(at_once, max(SAMPLED_ROWS, LOGITS_BYTES // row)) * row + SAMPLING
    if wanted.logprobs is not None:  # a line is written from a copy of the answer's objects
        answers = min(shard.count, WINDOW) * LOGPROB_BYTES * (1 + wanted.logprobs) * tokens
        workspace += min(answers, PENDING_BYTES) + 2 * results * LOGPROB_BYTES
    steps = -(-prompts.count // max(1, at_once)) * tokens
    parts = (
        Part("keys and values", at_once * each, RUNNING),
        Part("workspace and records", workspace, RUNNING),
        Part("embedding and output rows, mapped", config.rows_bytes(wanted.dtype), RUNNING),
    )
    unread = config.unread_bytes(wanted.dtype, drawn=wanted.drawn or wanted.logprobs is not None)
    return Declared(at_once, steps, parts, float(steps * (config.memory(wanted.dtype).prepared - unread)))


def on_gpu(config: Declaring, prompts: Prompts, wanted: Wanted, allowed: int | None = None) -> Declared:
    """As `on_cpu`, with all memory of the GPU. allowed: bytes for keys and values; None: their share of the memory that
    is left beside the weights. Raises ResourceError if the keys and values of one sequence take more."""
    sizes, tokens, itemsize = config.sizes, wanted.tokens, element_bytes(wanted.dtype)
    limit = min(prompts.longest + tokens, sizes.context)
    length = min(-(-limit // ROUND) * ROUND, sizes.context)
    position = 2 * sizes.layers * sizes.heads * sizes.head_size * itemsize
    weights = config.memory(wanted.dtype, "cuda").prepared + 4 * sizes.vocabulary * sizes.width  # the table of tokens
    each = length * position
    if allowed is not None and each > allowed:
        raise ResourceError(
            f"the keys and values of {length} positions take {each:,} bytes; {allowed:,} are allowed",
            remedy="allow more memory (--max-batch-memory) or fewer tokens (--max-tokens)",
        )
    cache_bytes = int(SHARE * max(wanted.memory - CONTEXT - weights, 0)) if allowed is None else allowed
    slots = min(cache_bytes // each, LANES * LANE)
    if not wanted.cached:
        slots = min(slots, max(1, LANES * PROMPT_ROWS // length))
    if slots < 1:
        raise ResourceError(
            f"the GPU has {wanted.memory:,} bytes free, the weights take {weights:,}; {SHARE:.0%} of the rest must "
            f"hold {each:,} bytes of keys and values for {length} positions",
            remedy="ask for fewer tokens (--max-tokens), or run on the CPU",
        )
    lane, mean = -(-slots // LANES), prompts.tokens / max(prompts.count, 1)
    steps = -(-prompts.count // lane) * tokens
    rows = min(PROMPT_ROWS + prompts.longest, lane * prompts.longest, prompts.tokens) + lane
    rows = rows if wanted.cached else lane * limit
    workspace = rows * config.row_bytes(wanted.dtype, "cuda") + 8 * (STEPS + 1) * lane
    workspace += drawing(sizes.vocabulary, lane) if wanted.drawn else 0
    parts = (
        Part("CUDA", CONTEXT, ALWAYS),
        Part("weights", weights, ALWAYS),
        Part("keys and values", slots * each, RUNNING),
        Part("workspace", workspace, RUNNING),
        Part(
            "captured graphs", captured_rows(prompts, slots, rows, lane) * config.operand_bytes(wanted.dtype), RUNNING
        ),
    )
    attended = prompts.count * tokens * (mean + tokens / 2)  # number of keys that decoding reads
    return Declared(min(slots, prompts.count), steps, parts, float(steps * weights + attended * position))


def captured_rows(prompts: Prompts, slots: int, rows: int, lane: int) -> int:
    """Rows of the passes that run as CUDA graphs; a graph has its own memory for split operands.

    rows: of a prefill and a decode step. lane: of a decode step alone. A prefill is captured when a lane gets prompts
    of the same lengths again: here, if all prompts are equally long and outnumber the slots.
    """
    repeats = prompts.tokens == prompts.count * prompts.longest and prompts.count > slots
    return rows if repeats else lane


def drawing(vocabulary: int, lane: int) -> int:
    """Bytes of a lane's rules and random numbers, of the sampled tokens, and of the logits that exist at a time, with
    the largest of each PEAK."""
    groups, rows = peaks_of(vocabulary), min(max(1, DRAWN_BYTES // (4 * vocabulary)), lane)
    return 4 * rows * groups * (PEAK + 1) + lane * (2 * 5 * 8 + 8 * (STEPS + 1) + 8)
