"""conv1d's problem: what the choice of a rung depends on, cost and error bound."""

import math
from dataclasses import dataclass

import numpy as np

from tilewright.ops.conv1d.operands import Window
from tilewright.ops.matmul.problem import EPS32

POOLS = (None, "max")


@dataclass(frozen=True)
class Problem:
    """What the choice of a rung depends on: output channels, input channels, taps, accuracy class, device.

    It does not depend on the batch or the window, because `prepare` chooses and sees the weights alone.
    """

    O: int
    C: int
    K: int
    dtype: str = "float32"
    device: str = "cpu"


@dataclass(frozen=True)
class Case:
    """One convolution to test or to time: sizes, window, epilogue, and the layout of its operands."""

    B: int
    L: int
    O: int
    C: int
    K: int
    stride: int = 1
    padding: int = 0
    dilation: int = 1
    dtype: str = "float32"
    bias: bool = False
    activation: str | None = None
    pool: str | None = None
    layout: str = "C"  # of x and weight: "C", "F" (channels last), "strided", "reversed"
    label: str = ""
    device: str = "cpu"

    @property
    def name(self) -> str:
        """For test ids and result rows."""
        window = [
            f"{x}{getattr(self, x)}"
            for x in ("stride", "padding", "dilation")
            if getattr(self, x) != Window.__dict__[x]
        ]
        extras = ["bias" if self.bias else "", self.activation or "", self.pool or ""]
        size = f"{self.B}x{self.C}x{self.L}-{self.O}x{self.C}x{self.K}"
        return "-".join(w for w in [size, *window, self.dtype, self.layout if self.layout != "C" else "", *extras] if w)

    @property
    def problem(self) -> Problem:
        """What the ladder sees."""
        return Problem(self.O, self.C, self.K, self.dtype, self.device)

    @property
    def positions(self) -> int:
        """Output positions."""
        return Window(self.stride, self.padding, self.dilation).positions(self.L, self.K)


def cost(case: Case) -> tuple[float, float]:
    """(floating-point operations, bytes moved if every operand is read or written once)."""
    results = case.B * case.O * (1 if case.pool else case.positions)
    word = 2 if case.dtype.endswith("16") else 4
    moved = case.B * case.C * case.L * 4 + case.O * case.C * case.K * word
    moved += results * (word if case.device != "cpu" else 4)
    return 2.0 * case.B * case.O * case.positions * case.C * case.K, float(moved)


def bound(case: Case, inputs: dict, result: np.ndarray, c: float = 1.0) -> np.ndarray:
    """The largest error allowed, elementwise: c * eps32 * sqrt(C * K) * (sum of |terms|) and a rounding for the bias.

    result: the reference's. c: the rung's constant. A maximum over positions errs by at most the largest error of a
    position.
    """
    from tilewright.ops.conv1d.reference import conv1d

    window = {name: inputs[name] for name in ("stride", "padding", "dilation", "pool")}
    size = conv1d(np.abs(inputs["x"]), np.abs(inputs["weight"]), **window)
    bias = np.abs(inputs["bias"].astype(np.float64)) if "bias" in inputs else np.zeros(case.O)
    later = size + (bias if case.pool else bias[:, None])  # no sum is larger, before or after the activation
    return EPS32 * (c * math.sqrt(case.C * case.K) * size + later) + np.finfo(np.float32).tiny
