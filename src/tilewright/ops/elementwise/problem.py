"""elementwise's problem: what the choice of a rung depends on, cost and error bound."""

import math
from dataclasses import dataclass

import numpy as np

DEVICE_DTYPES = ("float32", "bfloat16", "float16")  # accuracy classes on a GPU
GELU = {"tanh": "gelu_tanh", "none": "gelu"}  # PyTorch's words
WORST_ULP = {"relu": 0.0, "tanh": 1.4, "gelu_tanh": 3.7, "gelu": 6.6}  # README.md; tests hold them
OPERATIONS = {"relu": 1, "gelu_tanh": 45, "gelu": 45, "tanh": 30}  # additions, multiplications, fma as one; a division


@dataclass(frozen=True)
class Problem:
    """All that the choice of a rung may look at: the function and the device."""

    function: str
    dtype: str = "float32"
    device: str = "cpu"


@dataclass(frozen=True)
class Case:
    """A function, the shape and layout of its argument, the spread of its numbers."""

    function: str
    shape: tuple[int, ...]
    layout: str = "C"  # "C", "F", "strided": every third number
    spread: float = 3.0
    dtype: str = "float32"
    label: str = ""
    device: str = "cpu"

    @property
    def name(self) -> str:
        """For test ids and result rows."""
        words = [self.function, "x".join(map(str, self.shape)), self.layout if self.layout != "C" else ""]
        words += [f"spread{self.spread:g}" if self.spread != 3 else "", self.dtype if self.dtype != "float32" else ""]
        return "-".join(w for w in words if w)

    @property
    def problem(self) -> Problem:
        """What the ladder sees."""
        return Problem(self.function, self.dtype, self.device)


def cost(case: Case) -> tuple[float, float]:
    """(operations of our polynomials, bytes: in and out once)."""
    numbers = float(math.prod(case.shape))
    return OPERATIONS[case.function] * numbers, (4 if case.dtype.endswith("16") else 8) * numbers


def bound(case: Case, inputs: dict, result: np.ndarray, c: float = 1.0) -> np.ndarray:
    """The published worst error, in units of the last place of the result as float32."""
    return c * WORST_ULP[case.function] * ulp(result)


def ulp(values: np.ndarray) -> np.ndarray:
    """The distance of float32 numbers around finite float64 values; 2**-149 below the normal range."""
    _, exponent = np.frexp(values)
    return np.ldexp(1.0, np.maximum(exponent - 24, -149))
