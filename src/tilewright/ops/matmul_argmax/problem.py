"""matmul_argmax's problem: what the choice of a rung depends on, cost and error bound."""

import math
from dataclasses import dataclass

import numpy as np

EPS32 = float(np.finfo(np.float32).eps)
LIMBS = 10.0  # the constant of matmul's rung that splits float32 in limbs, on which cpu.logits may run


@dataclass(frozen=True)
class Problem:
    """All that the choice of a rung may look at; layout: matmul's rung that the weights are laid out for."""

    N: int
    K: int
    dtype: str = "float32"
    layout: str = "cpu.packed"
    device: str = "cpu"


@dataclass(frozen=True)
class Case:
    """M rows of K numbers, N columns. alike: columns that differ by so little that 8 bits cannot tell them apart."""

    M: int
    N: int
    K: int
    dtype: str = "float32"
    alike: bool = False
    label: str = ""
    device: str = "cpu"

    @property
    def name(self) -> str:
        """For test ids and result rows."""
        return f"{self.M}x{self.N}x{self.K}-{self.dtype}{'-alike' if self.alike else ''}"

    @property
    def problem(self) -> Problem:
        """What the ladder sees."""
        from tilewright.ops.matmul import Problem as Product
        from tilewright.ops.matmul import ladder

        layout = ladder.choose(Product(self.N, self.K, self.dtype, self.device)).name
        return Problem(self.N, self.K, self.dtype, layout, self.device)


def cost(case: Case) -> tuple[float, float]:
    """(operations of the whole product, bytes of a and b)."""
    word = 2 if case.dtype.endswith("16") else 4
    activations = case.M * case.K * (word if case.device != "cpu" else 4)
    return 2.0 * case.M * case.N * case.K, float(activations + case.K * case.N * word)


def bound(case: Case, inputs: dict, result: np.ndarray, c: float = 1.0) -> np.ndarray:
    """matmul's, of the column where it is largest: the largest of sums that are each off by so much is off by no
    more."""
    size = np.abs(inputs["a"].astype(np.float64)) @ np.abs(inputs["b"].astype(np.float64))
    return EPS32 * LIMBS * c * math.sqrt(case.K) * size.max(axis=1)
