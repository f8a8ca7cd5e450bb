"""matmul's problem: what the choice of a rung depends on, cost and error bound."""

import math
from dataclasses import dataclass

import numpy as np

from tilewright.errors import UsageError

ACTIVATIONS = (None, "relu", "gelu_tanh", "gelu", "tanh")
STEEPEST = 1.13  # the largest slope of an activation, GELU's: it may amplify the error of its argument by that
DTYPES = ("float32", "bfloat16")
DEVICE_DTYPES = (*DTYPES, "float16", "tf32")  # accuracy classes on a GPU
EPS32 = float(np.finfo(np.float32).eps)


@dataclass(frozen=True)
class Problem:
    """All that the choice of a rung may look at: columns, depth, accuracy class, device.

    The number of rows is not in it.
    """

    N: int
    K: int
    dtype: str = "float32"
    device: str = "cpu"


@dataclass(frozen=True)
class Case:
    """One product to test or to time: sizes, and what is special about its operands."""

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
    """(floating-point operations, bytes moved if every operand is touched once); see `device.bind` for what activations
    are on a GPU."""
    products = math.prod(case.batch) * case.M
    short = 2 if case.dtype.endswith("16") else 4
    word = short if case.device != "cpu" else 4  # of activations
    activations = products * (case.K + case.N * (2 if case.residual else 1))
    return 2.0 * products * case.N * case.K, float(activations * word + case.K * case.N * short)


def bound(case: Case, inputs: dict, result: np.ndarray, c: float = 1.0) -> np.ndarray:
    """The largest error allowed, elementwise: c * eps32 * sqrt(K) * (|a| @ |b|) and a rounding for each later addition.

    result: the reference's. c: the rung's constant: 1 for scalar chains, blocked sums and 16-bit products of operands
    that are exact in 16 bits; 10 where float32 operands are split in limbs.
    """
    a = inputs["a"][..., inputs["rows"], :] if "rows" in inputs else inputs["a"]
    size = np.abs(a.astype(np.float64)) @ np.abs(inputs["b"].astype(np.float64))
    later = (4 if case.activation else 1) * np.abs(result) + sum(
        np.abs(inputs[x]) for x in ("bias", "residual") if x in inputs
    )
    slope = STEEPEST if case.activation else 1.0
    return EPS32 * slope * (c * math.sqrt(max(case.K, 1)) * size + 2 * later) + np.finfo(np.float32).tiny
