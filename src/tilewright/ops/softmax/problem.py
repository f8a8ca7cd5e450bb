"""softmax's problem: what the choice of a rung depends on, cost and error bound."""

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
    """A stack of rows: its shape and layout, the spread of its numbers, the share of them that are -inf."""

    shape: tuple[int, ...]
    layout: str = "C"  # "C", "F", "strided": every third number
    spread: float = 3.0
    masked: float = 0.0
    dtype: str = "float32"
    label: str = ""
    device: str = "cpu"

    @property
    def name(self) -> str:
        """For test ids and result rows."""
        words = ["x".join(map(str, self.shape)), self.layout if self.layout != "C" else ""]
        words += [f"spread{self.spread:g}" if self.spread != 3 else "", f"masked{self.masked:g}" if self.masked else ""]
        return "-".join(w for w in [*words, self.dtype if self.dtype != "float32" else ""] if w)

    @property
    def problem(self) -> Problem:
        """What the ladder sees."""
        return Problem(self.shape[-1], self.dtype, self.device)


def cost(case: Case) -> tuple[float, float]:
    """(operations: maximum, difference, exp of 13, sum, product; bytes: in and out once)."""
    numbers = math.prod(case.shape)
    return 17.0 * numbers, (4.0 if case.dtype.endswith("16") else 8.0) * numbers


def bound(case: Case, inputs: dict, result: np.ndarray, c: float = 1.0) -> np.ndarray:
    """The rounding of x - max and of the sum, elementwise.

    d = x - max is rounded by eps32 / 2 * |d|, which exp makes the relative error of a share p; in the sum each counts
    with its share. So p * eps32 * (|d| / 2 + sum(p * |d|) / 2 + c * sqrt(C) + 8): the sum, then twice exp, the inverse,
    the product. An exp below the normal range may be 0, and a share there is off by that, 2**-126.
    """
    with np.errstate(invalid="ignore"):
        x = inputs["x"].astype(np.float64)
        d = np.abs(x - x.max(axis=-1, keepdims=True))
        moved = np.where(result > 0, d, 0)
        share = EPS32 * (moved / 2 + (result * moved).sum(axis=-1, keepdims=True) / 2 + c * math.sqrt(x.shape[-1]) + 8)
        return np.nan_to_num(result * share) + 2.0**-126
