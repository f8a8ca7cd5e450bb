"""embedding_conv1d's problem: what the choice of a rung depends on, cost and error bound."""

import math
from dataclasses import dataclass

import numpy as np

from tilewright.ops.matmul.problem import EPS32

ROUNDINGS = {"float32": 0.0, "bfloat16": 2.0**-7, "float16": 2.0**-10}  # rounding error of the rows of a GPU's table


@dataclass(frozen=True)
class Problem:
    """What the choice of a rung depends on: widths, kernel sizes, accuracy class, device."""

    C: int
    O: int
    kernels: tuple[int, ...]
    dtype: str = "float32"
    device: str = "cpu"


@dataclass(frozen=True)
class Case:
    """B sentences of L tokens, V rows of C values, one branch of O filters per size in `kernels`; `memory`: most bytes
    of the table."""

    B: int
    L: int
    V: int
    C: int
    O: int
    kernels: tuple[int, ...]
    dtype: str = "float32"
    memory: int | None = None
    label: str = ""
    device: str = "cpu"

    @property
    def name(self) -> str:
        """For test ids and result rows."""
        memory = f"-{self.memory}B" if self.memory else ""
        sizes = "+".join(map(str, self.kernels))
        return f"{self.B}x{self.L}-of-{self.V}x{self.C}-{self.O}x{sizes}-{self.dtype}{memory}"

    @property
    def problem(self) -> Problem:
        """What the ladder sees."""
        return Problem(self.C, self.O, self.kernels, self.dtype, self.device)


def cost(case: Case) -> tuple[float, float]:
    """(operations of the direct convolution, bytes of the operands and the result), the same for every rung. On a GPU a
    16-bit class has a table, weights and results of 16 bits."""
    taps = sum(K * (case.L - K + 1) for K in case.kernels)
    weights = case.O * case.C * sum(case.kernels)
    tokens = min(case.V, case.B * case.L)
    word = 2.0 if case.device != "cpu" and case.dtype.endswith("16") else 4.0
    return 2.0 * case.B * taps * case.C * case.O, word * (
        tokens * case.C + weights + case.B * len(case.kernels) * case.O
    )


def bound(case: Case, inputs: dict, result: np.ndarray, c: float = 1.0) -> np.ndarray:
    """The largest error, elementwise: c * eps32 * sqrt(C * K) * (sum of |terms|) at the worst position. On a GPU a
    16-bit class stores its table in 16 bits, which adds a rounding per row."""
    x = inputs["table"].astype(np.float64)[inputs["ids"]]
    rounding = ROUNDINGS[case.dtype] if case.device != "cpu" else 0.0
    parts = []
    for weight, bias in zip(inputs["weights"], inputs["biases"], strict=True):
        _, C, K = weight.shape
        w = weight.astype(np.float64)

        def largest(x: np.ndarray, w: np.ndarray, change=lambda row: row, K: int = K) -> np.ndarray:
            positions = x.shape[1] - K + 1
            return sum(change(x[:, t : t + positions] @ w[:, :, t].T) for t in range(K)).max(axis=1)

        size = largest(np.abs(x), np.abs(w))
        part = c * math.sqrt(C * K) * size + (K + 1) * (size / math.sqrt(C) + np.abs(bias))
        parts.append(EPS32 * part + (rounding * largest(x, w, np.abs) if rounding else 0.0))
    return np.concatenate(parts, axis=1)
