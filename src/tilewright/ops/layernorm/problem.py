"""layernorm's problem: what the choice of a rung depends on, cost and error bound."""

import math
from dataclasses import dataclass

import numpy as np

DEVICE_DTYPES = ("float32", "bfloat16", "float16")  # accuracy classes on a GPU
EPS32 = float(np.finfo(np.float32).eps)


@dataclass(frozen=True)
class Problem:
    """All that the choice of a rung may look at: the width of a row and the device."""

    C: int
    dtype: str = "float32"
    device: str = "cpu"


@dataclass(frozen=True)
class Case:
    """A stack of rows: its shape, its layout, the size of the numbers around which each row lies.

    In a 16-bit class the result is what has 16 bits; x, which is GPT-2's running sum, is float32 in every class.
    """

    shape: tuple[int, ...]
    layout: str = "C"  # "C", "F", "strided": every third number
    offset: float = 0.0
    eps: float = 1e-5
    dtype: str = "float32"
    label: str = ""
    device: str = "cpu"

    @property
    def name(self) -> str:
        """For test ids and result rows."""
        words = ["x".join(map(str, self.shape)), self.layout if self.layout != "C" else ""]
        words += [f"around{self.offset:g}" if self.offset else "", self.dtype if self.dtype != "float32" else ""]
        return "-".join(w for w in words if w)

    @property
    def problem(self) -> Problem:
        """What the ladder sees."""
        return Problem(self.shape[-1], self.dtype, self.device)


def cost(case: Case) -> tuple[float, float]:
    """(operations: a sum, a difference with its square summed, and three for the result; bytes: in and out once)."""
    numbers = math.prod(case.shape)
    return 7.0 * numbers, (6.0 if case.dtype.endswith("16") else 8.0) * numbers + 8.0 * case.shape[-1]


def bound(case: Case, inputs: dict, result: np.ndarray, c: float = 1.0) -> np.ndarray:
    """The rounding of two sums and what it does to the result, elementwise.

    The mean is wrong by at most m = eps32 * (c * sqrt(C) + 1) * mean|x|, which every deviation d inherits. The variance
    v is wrong by m**2 and by the share eps32 * (c * sqrt(C) + 4); its inverse root by half of that share. So
    |weight| * (m + |d| * (4 eps32 + half the share)) / sqrt(v + eps), and a rounding of the result.
    """
    x, eps = inputs["x"].astype(np.float64), inputs["eps"]
    weight = np.abs(inputs["weight"].astype(np.float64))
    chain = c * math.sqrt(x.shape[-1])
    mean_error = EPS32 * (chain + 1) * np.abs(x).mean(axis=-1, keepdims=True)
    deviation = np.abs(x - x.mean(axis=-1, keepdims=True))
    variance = (deviation**2).mean(axis=-1, keepdims=True)
    share = (EPS32 * (chain + 4) * variance + mean_error**2) / (variance + eps)
    spread = weight * (mean_error + deviation * (4 * EPS32 + share / 2)) / np.sqrt(variance + eps)
    return spread + EPS32 * np.abs(result) + np.finfo(np.float32).tiny
