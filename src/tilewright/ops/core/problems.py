"""The problem and the test cases that all operations on rows share. The choice of a rung depends on the problem."""

import math
from dataclasses import dataclass
from functools import cache

import numpy as np

DEVICE_DTYPES = ("float32", "bfloat16", "float16")  # accuracy classes on a GPU
EPS32 = float(np.finfo(np.float32).eps)


@dataclass(frozen=True)
class RowProblem:
    """All that the choice of a rung may depend on: the elements of a row, the accuracy class and the device."""

    C: int
    dtype: str = "float32"
    device: str = "cpu"


row_problem = cache(RowProblem)  # as RowProblem, which takes a microsecond to make


def case_name(*words: str) -> str:
    """The words that are not empty, joined by dashes: for test ids and result rows."""
    return "-".join(word for word in words if word)


def unless(default, value, text: str = "") -> str:
    """Text and value as a word of `case_name`, or "" for the default value."""
    return "" if value == default else f"{text}{value:g}" if isinstance(value, float) else f"{text}{value}"


@dataclass(frozen=True)
class RowCase:
    """A stack of rows, the last axis of `shape`. layout: "C", "F", or "strided", every third element of a row."""

    shape: tuple[int, ...]
    layout: str = "C"
    dtype: str = "float32"
    label: str = ""
    device: str = "cpu"

    def details(self) -> tuple[str, ...]:
        """Further words of the name, for fields that only this operation has."""
        return ()

    @property
    def name(self) -> str:
        """For test ids and result rows."""
        shape = "x".join(map(str, self.shape))
        return case_name(shape, unless("C", self.layout), *self.details(), unless("float32", self.dtype))

    @property
    def problem(self) -> RowProblem:
        """What the ladder sees."""
        return row_problem(self.shape[-1], self.dtype, self.device)

    @property
    def elements(self) -> float:
        """How many elements x has."""
        return float(math.prod(self.shape))

    @property
    def short(self) -> bool:
        """True if the accuracy class has 16 bits."""
        return self.dtype.endswith("16")
