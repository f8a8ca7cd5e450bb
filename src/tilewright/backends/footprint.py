"""Bytes of memory that models, engines and verbs need, so that a plan can add them up before anything is loaded.

This needs neither a GPU nor PyTorch. It includes what the CUDA backend itself allocates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tilewright.backends.protocol import Operand
from tilewright.errors import ResourceError
from tilewright.hardware import gpus
from tilewright.hardware.gpu import unavailable
from tilewright.ops import matmul
from tilewright.ops.core.ladder import Ladder, Memory, Rung, forced_for
from tilewright.ops.gemm.memory import LIMB_BLOCK, padded

ALWAYS, PREPARING, RUNNING, MERGING = "always", "preparing", "running", "merging"
# Bytes of a GPU's memory for CUDA, PyTorch and the loaded kernels, measured on an H100 (driver for CUDA 13.0). `draw`,
# `classify` and `generate` capture CUDA graphs and load many Triton kernels; `convolve` does neither.
CONTEXT, CONTEXT_WITHOUT_GRAPHS = 690 << 20, 600 << 20


class Part(NamedTuple):
    """Memory of a worker: bytes that are allocated `when`, ALWAYS or in one of the phases that follow each other."""

    name: str
    bytes: int
    when: str = ALWAYS


def peak_of(parts: Iterable[Part]) -> int:
    """The largest sum of bytes: everything that is always allocated, and the phase that takes most."""
    phases = {ALWAYS: 0}
    for part in parts:
        phases[part.when] = phases.get(part.when, 0) + part.bytes
    always = phases.pop(ALWAYS)
    return always + max(phases.values(), default=0)


def chosen(ladder: Ladder, problem: Any) -> Rung:
    """The rung that runs `problem`. If this machine has no GPU for it, the rung that would run on another machine's
    GPU.

    Weights of rungs that need a Hopper GPU are some KB larger or smaller than those of the rung below. Raises Refused
    as `Ladder.choose`.
    """
    if problem.device == "cuda" and not gpus():
        absent = {unavailable("simt"), unavailable("tile")}
        name = forced_for(ladder.op)
        for rung in (ladder.rungs[name] for name in ((name,) if name else ladder.prefer)):
            if set(rung.unfit(problem)) <= absent:
                return rung
    return ladder.choose(problem)


def weights(ladder: Ladder, problem: Any) -> Memory:
    """Bytes of the weights of `problem`, in the layout of the rung that runs it."""
    return chosen(ladder, problem).memory_for(problem)


def matrix(K: int, N: int, dtype: str, device: str = "cpu") -> Memory:
    """Bytes of a matrix (K, N) for `matmul`."""
    return weights(matmul.ladder, matmul.Problem(N, K, dtype, device))


def total(parts: Iterable[Memory]) -> Memory:
    """Bytes of weights that are prepared one after another, while all unprepared ones exist."""
    every = list(parts)
    ready, most = 0, 0
    for part in every:
        most = max(most, ready + part.prepared + part.preparing)
        ready += part.prepared
    return Memory(ready, max(0, most - ready), sum(part.entry for part in every))


def element_bytes(dtype: str) -> int:
    """Bytes of an element between the layers on a GPU, and of its keys and values."""
    return 2 if dtype in ("bfloat16", "float16") else 4


def limbs(columns: int, dtype: str) -> int:
    """Bytes that a GPU needs to split a row of the left operand into bfloat16 limbs, as products in float32 do."""
    return 4 * padded(columns, LIMB_BLOCK) if dtype == "float32" else 0


def cached(sizes: Iterable[int]) -> int:
    """Bytes that PyTorch's allocator keeps after buffers of these sizes were used one after another.

    A buffer is reused for one that is not larger. A larger one is allocated in addition.
    """
    kept = largest = 0
    for size in sizes:
        if size > largest:
            kept, largest = kept + size, size
    return kept


def record_bytes(operands: Sequence[Operand]) -> int:
    """Bytes of a record's inputs or outputs."""
    return sum(math.prod(operand.shape) * np.dtype(operand.dtype).itemsize for operand in operands)


def halved(peak: Callable[[int], int], batch: int, memory: int) -> int:
    """The batch size that the CUDA backend reaches: it halves the batch each time that its peak exceeds a GPU's
    `memory`.

    Raises ResourceError if memory does not suffice for a batch of 1.
    """
    while peak(batch) > memory:
        if batch == 1:
            raise ResourceError(
                f"a batch of 1 takes {peak(1):,} bytes of a GPU's memory, and it has {memory:,}",
                remedy="use a GPU with more memory, or run on the CPU",
            )
        batch //= 2
    return batch
