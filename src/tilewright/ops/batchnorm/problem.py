"""batchnorm's problem: what the choice of a rung depends on, cost and error bound."""

from dataclasses import dataclass

import numpy as np

from tilewright.ops.core.problems import DEVICE_DTYPES, EPS32, RowCase, unless
from tilewright.ops.core.problems import RowProblem as Problem
from tilewright.ops.matmul.problem import ACTIVATIONS, STEEPEST

__all__ = ["ACTIVATIONS", "DEVICE_DTYPES", "Case", "Problem", "bound", "cost"]


@dataclass(frozen=True)
class Case(RowCase):
    """Pixels of C channels. offset: the mean of the elements. activation: as for `batchnorm`."""

    offset: float = 0.0
    activation: str | None = None
    eps: float = 1e-5

    def details(self) -> tuple[str, ...]:
        """See `RowCase`."""
        return self.activation or "", unless(0.0, self.offset, "around")


def cost(case: Case) -> tuple[float, float]:
    """(operations: a product and a sum; bytes: in and out once)."""
    return 2.0 * case.elements, (4.0 if case.short else 8.0) * case.elements + 8.0 * case.shape[-1]


def bound(case: Case, inputs: dict, result: np.ndarray, c: float = 1.0) -> np.ndarray:
    """A few roundings of the largest term: with s = |gamma| / sqrt(variance + eps), c * 2 eps32 * (s * (|x| + |mean|) +
    |beta|), and of the result after the activation.

    Scale s and shift beta - s * mean are rounded once each, x * s + shift once more.
    """
    x, gamma, beta, mean, variance = (
        np.abs(inputs[name].astype(np.float64)) for name in ("x", "gamma", "beta", "mean", "variance")
    )
    terms = gamma / np.sqrt(variance + inputs["eps"]) * (x + mean) + beta
    slope = STEEPEST if case.activation else 1.0
    return EPS32 * slope * (2 * c * terms + 4 * np.abs(result)) + np.finfo(np.float32).tiny
