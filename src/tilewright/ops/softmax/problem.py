"""softmax's problem: what the choice of a rung depends on, cost and error bound."""

import math
from dataclasses import dataclass

import numpy as np

from tilewright.ops.core.problems import DEVICE_DTYPES, EPS32, RowCase, unless
from tilewright.ops.core.problems import RowProblem as Problem

__all__ = ["DEVICE_DTYPES", "Case", "Problem", "bound", "cost"]


@dataclass(frozen=True)
class Case(RowCase):
    """spread: standard deviation of the elements. masked: the fraction of them that is -inf."""

    spread: float = 3.0
    masked: float = 0.0

    def details(self) -> tuple[str, ...]:
        """See `RowCase`."""
        return unless(3.0, self.spread, "spread"), unless(0.0, self.masked, "masked")


def cost(case: Case) -> tuple[float, float]:
    """(operations: maximum, difference, exp of 13, sum, product; bytes: in and out once)."""
    return 17.0 * case.elements, (4.0 if case.short else 8.0) * case.elements


def bound(case: Case, inputs: dict, result: np.ndarray, c: float = 1.0) -> np.ndarray:
    """The rounding of x - max and of the sum, elementwise.

    d = x - max is rounded by eps32 / 2 * |d|, which exp makes the relative error of a result p. The sum weighs each of
    these errors with its p. So p * eps32 * (|d| / 2 + sum(p * |d|) / 2 + c * sqrt(C) + 8): exp and the sum, then the
    inverse and the product. An exp below the normal range may become 0, which changes the result by 2**-126.
    """
    with np.errstate(invalid="ignore"):
        x = inputs["x"].astype(np.float64)
        d = np.abs(x - x.max(axis=-1, keepdims=True))
        distance = np.where(result > 0, d, 0)
        weighted = (result * distance).sum(axis=-1, keepdims=True)
        relative = EPS32 * (distance / 2 + weighted / 2 + c * math.sqrt(x.shape[-1]) + 8)
        return np.nan_to_num(result * relative) + 2.0**-126
