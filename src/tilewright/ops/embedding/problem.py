"""embedding's problem: what the choice of a rung depends on, cost and error bound."""

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
    """One look-up: shape of the ids, rows and width of the table, its layout; rows of a table of positions, or 0."""

    shape: tuple[int, ...]
    V: int
    C: int
    layout: str = "C"
    label: str = ""
    dtype: str = "float32"
    positions: int = 0
    device: str = "cpu"

    @property
    def name(self) -> str:
        """For test ids and result rows."""
        words = [f"{'x'.join(map(str, self.shape))}-of-{self.V}x{self.C}", self.layout if self.layout != "C" else ""]
        words += [f"positions{self.positions}" if self.positions else "", self.dtype if self.dtype != "float32" else ""]
        return "-".join(w for w in words if w)

    @property
    def problem(self) -> Problem:
        """What the ladder sees."""
        return Problem(self.C, self.dtype, self.device)


def cost(case: Case) -> tuple[float, float]:
    """(an addition where there are positions; bytes: each row read and written once, ids read once).

    Rows of positions are read from a cache: there are few.
    """
    numbers = float(math.prod(case.shape))
    word = 4 if case.dtype.endswith("16") else 8
    return (numbers * case.C if case.positions else 0.0), numbers * (word * case.C + (12 if case.positions else 4))


def bound(case: Case, inputs: dict, result: np.ndarray, c: float = 1.0) -> np.ndarray:
    """A copy is exact; a sum is rounded once."""
    return c * EPS32 / 2 * np.abs(result) if case.positions else np.zeros_like(result)
