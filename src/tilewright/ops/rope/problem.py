"""rope's problem: what the choice of a rung depends on, cost and error bound."""

from dataclasses import dataclass
from functools import cache

import numpy as np

from tilewright.ops.core.problems import DEVICE_DTYPES, EPS32, case_name, unless

__all__ = ["DEVICE_DTYPES", "Case", "Problem", "bound", "cost"]


@dataclass(frozen=True)
class Problem:
    """All that the choice of a rung may depend on. D: elements of a head. R: rotated ones of them."""

    D: int
    R: int
    dtype: str = "float32"
    device: str = "cpu"


problem_of = cache(Problem)  # as Problem, which takes a microsecond to make


@dataclass(frozen=True)
class Case:
    """rows of `heads` heads, each with `pairs` pairs of elements that are rotated and `rest` elements that are not.
    length: positions there are. layout: "C", or "strided", rows that lie apart, as in a row of queries, keys and
    values. dtype: of x."""

    rows: int
    heads: int
    pairs: int
    rest: int = 0
    length: int = 2048
    layout: str = "C"
    dtype: str = "float32"
    label: str = ""
    device: str = "cpu"

    @property
    def D(self) -> int:
        """Elements of a head."""
        return 2 * self.pairs + self.rest

    @property
    def shape(self) -> tuple[int, int]:
        """Of x."""
        return self.rows, self.heads * self.D

    @property
    def name(self) -> str:
        """For test ids and result rows."""
        sizes = f"{self.rows}x{self.heads}x{self.D}"
        words = unless(0, self.rest, "rest"), unless(2048, self.length, "of"), unless("C", self.layout)
        return case_name(sizes, *words, unless("float32", self.dtype))

    @property
    def problem(self) -> Problem:
        """What the ladder sees."""
        return problem_of(self.D, 2 * self.pairs, self.dtype, self.device)


def cost(case: Case) -> tuple[float, float]:
    """(four products and two sums a pair; bytes: x read and written once, positions, and the table of the positions
    that there are)."""
    elements, size = float(case.rows * case.heads * case.D), 2 if case.dtype.endswith("16") else 4
    table = 8.0 * case.pairs * min(case.rows, case.length)
    return 6.0 * case.rows * case.heads * case.pairs, 2.0 * size * elements + 8.0 * case.rows + table


def bound(case: Case, inputs: dict, result: np.ndarray, c: float = 1.0) -> np.ndarray:
    """Two products of a number and a rounded cosine or sine, and a sum: elementwise, c * eps32 * 2 * (|a| + |b|) of the
    pair (a, b), and a rounding of the result. What is not rotated is copied, which is exact."""
    F = case.pairs
    x = np.abs(np.asarray(inputs["x"], np.float64)).reshape(case.rows, case.heads, case.D)
    pair = x[..., :F] + x[..., F : 2 * F]
    size = np.concatenate([pair, pair, np.zeros_like(x[..., 2 * F :])], axis=-1)
    rounding = EPS32 / 2 * np.abs(result).reshape(size.shape) * (size > 0)
    return (c * 2 * EPS32 * size + rounding).reshape(result.shape)
