"""correlate's problem: what the choice of a rung depends on, cost and error bound."""

import math
from dataclasses import dataclass

import numpy as np

EPS32, EPS64 = float(np.finfo(np.float32).eps), float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class Problem:
    """What the choice of a rung depends on: the number of taps, whether they are a mean or pairs, the device."""

    taps: int
    mean: bool = False
    paired: bool = False
    dtype: str = "float64"
    device: str = "cpu"


@dataclass(frozen=True)
class Case:
    """One correlation into float32: the shapes of x and of the kernel.

    form: "dense", or along one axis "line", "even" or "odd" (a symmetric or antisymmetric line), "mean". layout: "C",
    "F", "strided", "reversed". kind: x's dtype. shift: the origin along the axes whose extent allows it.
    """

    shape: tuple[int, ...]
    window: tuple[int, ...]
    form: str = "dense"
    mode: str = "constant"
    kind: str = "float32"
    layout: str = "C"
    shift: int = 0
    cval: float = 0.0
    label: str = ""
    dtype: str = "float64"

    @property
    def name(self) -> str:
        """For test ids and result rows."""
        sizes = ["x".join(map(str, extents)) for extents in (self.shape, self.window)]
        rest = [self.form, self.mode, self.kind, self.layout if self.layout != "C" else ""]
        return "-".join(w for w in [*sizes, *rest, f"shift{self.shift}" if self.shift else ""] if w)

    @property
    def axis(self) -> int:
        """The axis of a kernel with one extent."""
        return max(range(len(self.window)), key=lambda a: self.window[a])

    @property
    def problem(self) -> Problem:
        """What the ladder sees."""
        K = math.prod(self.window)
        paired = self.form in ("even", "odd") and K > 1
        return Problem(K // 2 + 1 if paired else K, self.form == "mean", paired)

    @property
    def origins(self) -> list[int]:
        """`shift` where the kernel allows it."""
        return [min(max(self.shift, -(K // 2)), (K - 1) // 2) for K in self.window]


def cost(case: Case) -> tuple[float, float]:
    """(floating-point operations, bytes): a product and a sum per tap, or two sums and a division for a mean; x and out
    once."""
    outputs = math.prod(case.shape)
    work = 3.0 if case.form == "mean" else 2.0 * math.prod(case.window)
    return work * outputs, float(outputs) * (np.dtype(case.kind).itemsize + 4)


def bound(case: Case, inputs: dict, result: np.ndarray, c: float = 1.0) -> np.ndarray:
    """The largest error, elementwise: a rounding to float32 and c * eps64 * sqrt(taps) * (|x| corr |weights|).

    A running sum has added and subtracted every element of its line, so a mean takes the largest value of all instead.
    """
    from tilewright.ops.correlate.reference import correlate

    if not result.size:
        return np.zeros_like(result)
    sizes = {**inputs, "x": np.abs(inputs["x"].astype(np.float64)), "weights": np.abs(inputs["weights"])}
    size = correlate(**{**sizes, "cval": abs(case.cval)})
    chain = math.prod(case.window)
    if case.form == "mean":
        size, chain = np.full_like(size, size.max()), chain + case.shape[case.axis]
    return EPS32 / 2 * np.abs(result) + EPS64 * c * math.sqrt(chain) * size + 2.0**-149
