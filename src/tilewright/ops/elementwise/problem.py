"""elementwise's problem: what the choice of a rung depends on, cost and error bound."""

import math
from dataclasses import dataclass

import numpy as np

from tilewright.ops.core.problems import DEVICE_DTYPES, case_name, unless

__all__ = ["DEVICE_DTYPES", "Case", "Problem", "bound", "cost"]

GELU = {"tanh": "gelu_tanh", "none": "gelu"}  # PyTorch's words for its two forms
WORST_ULP = {"relu": 0.0, "tanh": 1.4, "gelu_tanh": 3.7, "gelu": 6.6}  # README.md; tests hold them
OPERATIONS = {"relu": 1, "gelu_tanh": 45, "gelu": 45, "tanh": 30}  # an addition, product, fma or division counts as 1


@dataclass(frozen=True)
class Problem:
    """All that the choice of a rung may depend on: the function, the accuracy class and the device."""

    function: str
    dtype: str = "float32"
    device: str = "cpu"


@dataclass(frozen=True)
class Case:
    """function: a name of `reference.FUNCTIONS`. shape, spread: of its argument, and the standard deviation of its
    elements. layout: "C", "F", or "strided", every third element."""

    function: str
    shape: tuple[int, ...]
    layout: str = "C"
    spread: float = 3.0
    dtype: str = "float32"
    label: str = ""
    device: str = "cpu"

    @property
    def name(self) -> str:
        """For test ids and result rows."""
        words = unless("C", self.layout), unless(3.0, self.spread, "spread"), unless("float32", self.dtype)
        return case_name(self.function, "x".join(map(str, self.shape)), *words)

    @property
    def problem(self) -> Problem:
        """What the ladder sees."""
        return Problem(self.function, self.dtype, self.device)


def cost(case: Case) -> tuple[float, float]:
    """(operations of our polynomials; bytes: in and out once)."""
    elements = float(math.prod(case.shape))
    return OPERATIONS[case.function] * elements, (4 if case.dtype.endswith("16") else 8) * elements


def bound(case: Case, inputs: dict, result: np.ndarray, c: float = 1.0) -> np.ndarray:
    """The published worst error, in units of the last place of the result as float32."""
    return c * WORST_ULP[case.function] * ulp(result)


def ulp(values: np.ndarray) -> np.ndarray:
    """The distance between neighbouring float32 values around finite float64 ones; 2**-149 below the normal range."""
    _, exponent = np.frexp(values)
    return np.ldexp(1.0, np.maximum(exponent - 24, -149))
