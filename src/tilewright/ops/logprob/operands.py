"""The weights of logprob, prepared for a rung, and what a rung receives."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.ops.gemm.operands import Packed

# rung of matmul whose layout the weights have -> kind of product that reads it, see `gemm.cpu.loops.PRODUCTS`
KINDS = {
    "cpu.packed": "float32", "cpu.widened": "widen_b", "cpu.dot_pairs": "dot_pairs", "cpu.amx": "amx",
    "cpu.limbs": "amx",
}  # fmt: skip

# layouts of float32 that are a plain matrix (K, N), or panels of one
FLOAT32 = ("cpu.memory", "cpu.register", "cpu.reordered", "cpu.blocked", "cpu.vectors", "cpu.packed")


@dataclass(frozen=True, eq=False)
class Prepared:
    """The output matrix in the layout of one rung: `weights` for matmul; `b`, plain (K, N), if the rung reads it.

    bias: float32 (N,), or empty; a tensor beside weights on a GPU.
    """

    rung: str
    weights: Packed
    bias: Any
    b: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class Results:
    """What a rung writes. value: float32 (M,), the log-probability of each row's target. best: int64 (M,), the row's
    largest column, the lowest of equals. Tensors on a GPU."""

    value: Any
    best: Any
