"""layernorm's problem: what the choice of a rung depends on, cost and error bound."""

import math
from dataclasses import dataclass

import numpy as np

from tilewright.ops.core.problems import DEVICE_DTYPES, EPS32, RowCase, unless
from tilewright.ops.core.problems import RowProblem as Problem

__all__ = ["DEVICE_DTYPES", "Case", "Problem", "bound", "cost"]


@dataclass(frozen=True)
class Case(RowCase):
    """offset: the mean of the elements.

    In a 16-bit class only the result has 16 bits: x, the sum that GPT-2's layers add to, is float32 in every class.
    """

    offset: float = 0.0
    eps: float = 1e-5

    def details(self) -> tuple[str, ...]:
        """See `RowCase`."""
        return (unless(0.0, self.offset, "around"),)


def cost(case: Case) -> tuple[float, float]:
    """(operations: a sum, a difference with its square summed, and three for the result; bytes: in and out once)."""
    return 7.0 * case.elements, (6.0 if case.short else 8.0) * case.elements + 8.0 * case.shape[-1]


def bound(case: Case, inputs: dict, result: np.ndarray, c: float = 1.0) -> np.ndarray:
    """The rounding of two sums and what it does to the result, elementwise.

    The mean is wrong by at most m = eps32 * (c * sqrt(C) + 1) * mean|x|, and so is every deviation d. The variance v is
    wrong by m**2 and relatively by eps32 * (c * sqrt(C) + 4), its inverse root by half of that relative error. So
    |weight| * (m + |d| * (4 eps32 + half the relative error)) / sqrt(v + eps), and a rounding of the result.
    """
    x, eps = inputs["x"].astype(np.float64), inputs["eps"]
    weight = np.abs(inputs["weight"].astype(np.float64))
    chain = c * math.sqrt(x.shape[-1])
    mean_error = EPS32 * (chain + 1) * np.abs(x).mean(axis=-1, keepdims=True)
    deviation = np.abs(x - x.mean(axis=-1, keepdims=True))
    variance = (deviation**2).mean(axis=-1, keepdims=True)
    relative = (EPS32 * (chain + 4) * variance + mean_error**2) / (variance + eps)
    spread = weight * (mean_error + deviation * (4 * EPS32 + relative / 2)) / np.sqrt(variance + eps)
    return spread + EPS32 * np.abs(result) + np.finfo(np.float32).tiny
