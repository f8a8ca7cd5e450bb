"""matmul's problem: what the choice of a rung depends on, cost and error bound."""

import math
from dataclasses import dataclass

import numpy as np

from tilewright.errors import UsageError

ACTIVATIONS = (None, "relu", "gelu_tanh", "gelu", "tanh")
STEEPEST = 1.13  # the largest slope of an activation, GELU's: it may amplify the error of its argument
DTYPES = ("float32", "bfloat16")
DEVICE_DTYPES = (*DTYPES, "float16", "tf32")  # accuracy classes on a GPU
EPS32 = float(np.finfo(np.float32).eps)


@dataclass(frozen=True)
class Problem:
    """Columns, depth, accuracy class and device: the choice of a rung depends on these alone, not on the rows."""

    N: int
    K: int
    dtype: str = "float32"
    device: str = "cpu"


@dataclass(frozen=True)
class Case:
    """One product to test or to time: its sizes and operands."""

    M: int
    N: int
    K: int
    dtype: str = "float32"
    batch: tuple[int, ...] = ()
    bias: bool = False
    activation: str | None = None
    residual: bool = False
    gathered: bool = False  # a's rows picked by an index
    layout: str = "C"  # of both operands: "C", "F", "strided", "reversed"
    label: str = ""
    device: str = "cpu"

    @property
    def name(self) -> str:
        extras = [x for x in ("bias", "residual", "gathered") if getattr(self, x)] + [self.activation or ""]
        batch = "x".join(map(str, self.batch)) + ":" if self.batch else ""
        words = [f"{batch}{self.M}x{self.N}x{self.K}", self.dtype, self.layout if self.layout != "C" else "", *extras]
        return "-".join(w for w in words if w)

    @property
    def problem(self) -> Problem:
        return Problem(self.N, self.K, self.dtype, self.device)


def check_depth(shape: tuple[int, ...], K: int, N: int) -> None:
    """Raises UsageError unless matrices of a's shape (..., M, K) can be multiplied by b's (K, N)."""
    if len(shape) < 2:
        raise UsageError(f"matmul: a is {shape} and b is {(K, N)}; a has to be (M, K), or (..., M, K)")
    if shape[-1] != K:
        raise UsageError(f"matmul: a is {shape} and b is {(K, N)}: a has {shape[-1]} columns, b has {K} rows")


def cost(case: Case) -> tuple[float, float]:
    """(floating-point operations, bytes moved if every operand is read or written once)."""
    products = math.prod(case.batch) * case.M
    short = 2 if case.dtype.endswith("16") else 4
    word = short if case.device != "cpu" else 4  # bytes of an activation, see `bind_tensors` in bench/sizes/matmul.py
    activations = products * (case.K + case.N * (2 if case.residual else 1))
    return 2.0 * products * case.N * case.K, float(activations * word + case.K * case.N * short)


def bound(case: Case, inputs: dict, result: np.ndarray, c: float = 1.0) -> np.ndarray:
    """The largest allowed error, elementwise: c * eps32 * sqrt(K) * (|a| @ |b|), and a rounding per later addition.

    result: the reference's. c: the rung's constant: 1 for float32 sums of exact products, 10 where float32 operands are
    split in limbs, 8 where matrix units truncate sums.
    """
    a = inputs["a"][..., inputs["rows"], :] if "rows" in inputs else inputs["a"]
    size = np.abs(a.astype(np.float64)) @ np.abs(inputs["b"].astype(np.float64))
    later = (4 if case.activation else 1) * np.abs(result) + sum(
        np.abs(inputs[x]) for x in ("bias", "residual") if x in inputs
    )
    slope = STEEPEST if case.activation else 1.0
    return EPS32 * slope * (c * math.sqrt(max(case.K, 1)) * size + 2 * later) + np.finfo(np.float32).tiny
