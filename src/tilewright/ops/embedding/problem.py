"""embedding's problem: what the choice of a rung depends on, cost and error bound."""

import math
from dataclasses import dataclass

import numpy as np

from tilewright.ops.core.problems import DEVICE_DTYPES, EPS32, case_name, row_problem, unless
from tilewright.ops.core.problems import RowProblem as Problem

__all__ = ["DEVICE_DTYPES", "Case", "Problem", "bound", "cost"]


@dataclass(frozen=True)
class Case:
    """shape: of the ids. V, C: rows and columns of the table. layout: its layout. positions: rows of the position
    table, 0 for none."""

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
        sizes = f"{'x'.join(map(str, self.shape))}-of-{self.V}x{self.C}"
        words = unless(0, self.positions, "positions"), unless("float32", self.dtype)
        return case_name(sizes, unless("C", self.layout), *words)

    @property
    def problem(self) -> Problem:
        """What the ladder sees."""
        return row_problem(self.C, self.dtype, self.device)


def cost(case: Case) -> tuple[float, float]:
    """(an addition where there are positions; bytes: each row read and written once, ids read once).

    Rows of positions are few, so they are read from a cache.
    """
    rows = float(math.prod(case.shape))
    bytes_per_element = 4 if case.dtype.endswith("16") else 8
    row_bytes = bytes_per_element * case.C + (12 if case.positions else 4)
    return (rows * case.C if case.positions else 0.0), rows * row_bytes


def bound(case: Case, inputs: dict, result: np.ndarray, c: float = 1.0) -> np.ndarray:
    """A copy is exact; a sum is rounded once."""
    return c * EPS32 / 2 * np.abs(result) if case.positions else np.zeros_like(result)
