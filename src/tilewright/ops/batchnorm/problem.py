"""batchnorm's problem: what the choice of a rung depends on, cost and error bound."""

import math
from dataclasses import dataclass

import numpy as np

from tilewright.ops.matmul.problem import ACTIVATIONS, EPS32, STEEPEST

__all__ = ["ACTIVATIONS"]

DEVICE_DTYPES = ("float32", "bfloat16", "float16")  # accuracy classes on a GPU


@dataclass(frozen=True)
class Problem:
    """All that the choice of a rung may look at: the number of channels and the device."""

    C: int
    dtype: str = "float32"
    device: str = "cpu"


@dataclass(frozen=True)
class Case:
    """Pixels of C channels: their shape and layout, the mean around which they lie, the activation."""

    shape: tuple[int, ...]
    layout: str = "C"  # "C", "F", "strided": every third number
    offset: float = 0.0
    activation: str | None = None
    eps: float = 1e-5
    dtype: str = "float32"
    label: str = ""
    device: str = "cpu"

    @property
    def name(self) -> str:
        """For test ids and result rows."""
        words = ["x".join(map(str, self.shape)), self.layout if self.layout != "C" else "", self.activation or ""]
        words += [f"around{self.offset:g}" if self.offset else "", self.dtype if self.dtype != "float32" else ""]
        return "-".join(w for w in words if w)

    @property
    def problem(self) -> Problem:
        """What the ladder sees."""
        return Problem(self.shape[-1], self.dtype, self.device)


def cost(case: Case) -> tuple[float, float]:
    """(operations: a product and a sum; bytes: in and out once)."""
    numbers = math.prod(case.shape)
    return 2.0 * numbers, (4.0 if case.dtype.endswith("16") else 8.0) * numbers + 8.0 * case.shape[-1]


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
