"""conv3d's problem: what the choice of a rung depends on, cost and error bound."""

import math
from dataclasses import dataclass

import numpy as np

EPS32 = float(np.finfo(np.float32).eps)
MODES = ("reflect", "constant", "nearest", "mirror", "wrap")  # scipy.ndimage's; "valid" stands beside them
SEPARABLE = ("factors", "product", "gaussian")  # kinds of weights in a case


@dataclass(frozen=True)
class Problem:
    """All that the choice of a rung may look at: channels, taps, and what the weights have in common; never the volume.

    separable: the weights are an outer product of three vectors. symmetric: they are the same read backwards along z.
    """

    O: int
    C: int
    KD: int
    KH: int
    KW: int
    separable: bool = False
    symmetric: bool = False
    dtype: str = "float32"
    device: str = "cpu"


@dataclass(frozen=True)
class Case:
    """One convolution to test or to time; without channels O and C are 0.

    kind: of weights: "random", "symmetric" along z, "factors" as `prepare_separable` takes them, "product" of such,
    "gaussian" factors, which end at 4 sigma as scipy's.
    layout: of x: "C", "F", "strided", "reversed".
    """

    D: int
    H: int
    W: int
    KD: int
    KH: int
    KW: int
    O: int = 0
    C: int = 0
    kind: str = "random"
    mode: str = "constant"
    cval: float = 0.0
    origin: int | tuple[int, int, int] = 0
    layout: str = "C"
    dtype: str = "float32"
    label: str = ""
    device: str = "cpu"

    @property
    def name(self) -> str:
        """For test ids and result rows."""
        channels = (f"{self.C}x", f"{self.O}x{self.C}x") if self.C else ("", "")
        size = f"{channels[0]}{self.D}x{self.H}x{self.W}-{channels[1]}{self.KD}x{self.KH}x{self.KW}"
        origin = f"origin{self.origin}".replace(" ", "") if self.origin else ""
        mode = f"{self.mode}{self.cval:g}" if self.cval else self.mode
        words = [size, self.kind if self.kind != "random" else "", mode, origin]
        return "-".join(w for w in [*words, self.layout if self.layout != "C" else ""] if w)

    @property
    def problem(self) -> Problem:
        """What the ladder sees."""
        separable, symmetric = self.kind in SEPARABLE, self.kind in ("symmetric", "gaussian")
        sizes = (max(self.O, 1), max(self.C, 1), self.KD, self.KH, self.KW)
        return Problem(*sizes, separable, symmetric, device=self.device)

    @property
    def taps(self) -> int:
        """Products in a sum."""
        return max(self.C, 1) * self.KD * self.KH * self.KW

    @property
    def outputs(self) -> int:
        """Numbers of the result."""
        shrink = 1 if self.mode == "valid" else 0
        sizes = ((self.D, self.KD), (self.H, self.KH), (self.W, self.KW))
        return max(self.O, 1) * math.prod(n - shrink * (K - 1) for n, K in sizes)


def cost(case: Case) -> tuple[float, float]:
    """(floating-point operations: of three passes where weights are separable; bytes: every operand touched once)."""
    separable = case.kind in SEPARABLE
    taps = case.KD + case.KH + case.KW if separable else case.taps
    volume = max(case.C, 1) * case.D * case.H * case.W
    weights = taps if separable else case.taps * max(case.O, 1)
    return 2.0 * taps * case.outputs, 4.0 * (volume + weights + case.outputs)


def bound(case: Case, inputs: dict, result: np.ndarray, c: float = 1.0) -> np.ndarray:
    """c * eps32 * sqrt(taps) * (|x| conv |weights|), elementwise, taps = C * KD * KH * KW."""
    from tilewright.ops.conv3d.reference import conv3d

    weights = inputs["weights"]
    sizes = tuple(map(np.abs, weights)) if isinstance(weights, tuple) else np.abs(weights)
    border = {"mode": case.mode, "cval": abs(case.cval), "origin": case.origin}
    return c * EPS32 * math.sqrt(case.taps) * conv3d(np.abs(inputs["x"]), sizes, **border) + np.finfo(np.float32).tiny
