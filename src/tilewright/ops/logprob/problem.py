"""logprob's problem: what the choice of a rung depends on, cost and error bound."""

import math
from dataclasses import dataclass

import numpy as np

EPS32 = float(np.finfo(np.float32).eps)
LIMBS = 10.0  # constant of the bound of matmul's rungs with limbs, which some rungs run on
EXPS = 16  # roundings of one exp, and of the logarithm of their sum


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
    """a (M, K), b (K, N), one target per row. spread: standard deviation of the logits. bias: there is one."""

    M: int
    N: int
    K: int
    dtype: str = "float32"
    spread: float = 3.0
    bias: bool = False
    label: str = ""
    device: str = "cpu"

    @property
    def name(self) -> str:
        """For test ids and result rows."""
        words = [f"{self.M}x{self.N}x{self.K}", self.dtype, "bias" if self.bias else ""]
        words.append("" if self.spread == 3.0 else f"spread{self.spread:g}")
        return "-".join(word for word in words if word)

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
    return 2.0 * case.M * case.N * case.K, float(4 * case.M * case.K + case.K * case.N * word)


def bound(case: Case, inputs: dict, result: np.ndarray, c: float = 1.0) -> np.ndarray:
    """Twice matmul's bound, largest over the columns, and the roundings of the sum.

    The logarithm of a sum of exps changes by at most the largest change of a logit. The target's logit adds its own.
    """
    size = np.abs(inputs["a"].astype(np.float64)) @ np.abs(inputs["b"].astype(np.float64))
    if inputs["bias"] is not None:
        size = size + np.abs(inputs["bias"])
    logits = EPS32 * LIMBS * c * math.sqrt(case.K) * size.max(axis=1)
    return 2 * logits + EPS32 * (math.sqrt(case.N) + EXPS + np.abs(result))
