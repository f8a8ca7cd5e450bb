"""matmul_argmax's problem: what the choice of a rung depends on, cost and error bound."""

import math
from dataclasses import dataclass

import numpy as np

EPS32 = float(np.finfo(np.float32).eps)
LIMBS = 10.0  # constant of the bound of matmul's rungs with limbs, which cpu.logits may run on


@dataclass(frozen=True)
class Problem:
    """The choice of a rung depends on these alone. layout: the rung of matmul whose layout the weights have."""

    N: int
    K: int
    dtype: str = "float32"
    layout: str = "cpu.packed"
    device: str = "cpu"


@dataclass(frozen=True)
class Case:
    """a (M, K), b (K, N). alike: columns differ by less than a step of 8 bits."""

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
    """matmul's bound, largest over the columns: a maximum of sums has at most the largest error of a sum."""
    size = np.abs(inputs["a"].astype(np.float64)) @ np.abs(inputs["b"].astype(np.float64))
    return EPS32 * LIMBS * c * math.sqrt(case.K) * size.max(axis=1)
