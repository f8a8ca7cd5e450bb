"""pool's problem: what the choice of a rung depends on, cost and error bound."""

from dataclasses import dataclass
from functools import cache

import numpy as np

from tilewright.ops.core.problems import DEVICE_DTYPES, EPS32, RowProblem, case_name, row_problem, unless
from tilewright.ops.core.problems import RowProblem as Problem

__all__ = ["DEVICE_DTYPES", "Case", "Problem", "bound", "cost", "lengths"]
EPS64 = float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class Case:
    """texts of 1 to `longest` rows of C elements; the rows of a text follow those of the text before. gap: rows between
    two texts that belong to none. layout: "C", or "strided", rows that lie apart. dtype: of x."""

    texts: int
    longest: int
    C: int
    gap: int = 0
    layout: str = "C"
    dtype: str = "float32"
    label: str = ""
    device: str = "cpu"

    @property
    def shape(self) -> tuple[int, int]:
        """Of the result."""
        return self.texts, self.C

    @property
    def name(self) -> str:
        """For test ids and result rows."""
        words = unless(0, self.gap, "gap"), unless("C", self.layout), unless("float32", self.dtype)
        return case_name(f"{self.texts}x{self.longest}x{self.C}", *words)

    @property
    def problem(self) -> RowProblem:
        """What the ladder sees."""
        return row_problem(self.C, self.dtype, self.device)


@cache
def lengths(texts: int, longest: int) -> np.ndarray:
    """int64 (texts,): the rows of each text, the shortest first, as an encoder sorts them."""
    return np.sort(np.random.default_rng(texts).integers(1, longest + 1, texts))


def cost(case: Case) -> tuple[float, float]:
    """(a sum for each element, and a division for each one of the result; bytes: x read once, the result written)."""
    rows, size = float(lengths(case.texts, case.longest).sum()), 2 if case.dtype.endswith("16") else 4
    results = float(case.texts * case.C)
    return rows * case.C + results, size * rows * case.C + 4 * results + 16.0 * case.texts


def bound(case: Case, inputs: dict, result: np.ndarray, c: float = 1.0) -> np.ndarray:
    """A float64 sum of T rows, c * eps64 * T * mean(|x|), and the rounding of the result to float32."""
    begin, end = (np.asarray(inputs[name]) for name in ("begin", "end"))
    x = np.abs(np.asarray(inputs["x"], np.float64))
    size = np.stack([x[i:j].sum(axis=0) for i, j in zip(begin, end, strict=True)]) if len(begin) else 0.0 * result
    return c * EPS64 * size + EPS32 / 2 * np.abs(result) + np.finfo(np.float32).tiny
