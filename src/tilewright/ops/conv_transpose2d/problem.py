"""What the choice of a rung depends on, the cost of a case, and its error bound."""

import math
from dataclasses import dataclass

import numpy as np

from tilewright.ops.conv_transpose2d.operands import Axis
from tilewright.ops.conv_transpose2d.tiles import term_sizes
from tilewright.ops.matmul.problem import ACTIVATIONS, DEVICE_DTYPES, DTYPES, EPS32, STEEPEST

__all__ = ["ACTIVATIONS", "DEVICE_DTYPES", "DTYPES"]

Pair = tuple[int, int]
HALF_ULP16 = 2.0**-8  # the largest relative error of rounding to bfloat16


class OfTiles(float):
    """The constant c of a rung whose outputs share the products of a tile: see `bound`."""


@dataclass(frozen=True)
class Problem:
    """What the choice of a rung depends on: channels, both axes, accuracy class, device.

    `prepare` chooses and sees only the weights, so neither the batch nor the image's size is in it.
    """

    O: int
    C: int
    rows: Axis
    columns: Axis
    dtype: str = "float32"
    device: str = "cpu"


@dataclass(frozen=True)
class Case:
    """One transposed convolution to test or to time: sizes, window, and the form of its operands."""

    B: int
    H: int
    W: int
    C: int
    O: int
    K: Pair = (5, 5)
    stride: Pair = (2, 2)
    padding: tuple[Pair, Pair] = ((1, 2), (1, 2))
    dtype: str = "float32"
    bias: bool = False
    activation: str | None = None
    layout: str = "C"  # of x and weights: "C", "F" (channels first), "strided", "reversed"
    label: str = ""
    device: str = "cpu"

    @property
    def name(self) -> str:
        """For test ids and result rows."""
        (top, bottom), (left, right) = self.padding
        window = f"{self.K[0]}x{self.K[1]}s{self.stride[0]}x{self.stride[1]}p{top}.{bottom}x{left}.{right}"
        extras = ["bias" if self.bias else "", self.activation or "", self.layout if self.layout != "C" else ""]
        size = f"{self.B}x{self.H}x{self.W}x{self.C}-{self.O}"
        return "-".join(w for w in [size, window, self.dtype, *extras] if w)

    @property
    def axes(self) -> tuple[Axis, Axis]:
        """Rows and columns."""
        both = zip(self.K, self.stride, self.padding, strict=True)
        rows, columns = (Axis(K, stride, *crop) for K, stride, crop in both)
        return rows, columns

    @property
    def problem(self) -> Problem:
        """What the ladder sees."""
        return Problem(self.O, self.C, *self.axes, self.dtype, self.device)


def cost(case: Case) -> tuple[float, float]:
    """(floating-point operations of the products that reach the result, bytes of all operands).

    A rung with fewer multiplications counts as many operations, so that rates can be compared.
    """
    pairs = [
        sum(0 <= h * axis.stride + k - axis.first < axis.size(n) for h in range(n) for k in range(axis.K))
        for axis, n in zip(case.axes, (case.H, case.W), strict=True)
    ]
    OH, OW = (axis.size(n) for axis, n in zip(case.axes, (case.H, case.W), strict=True))
    short = 2 if case.dtype.endswith("16") else 4
    word = short if case.device == "cuda" else 4  # bytes of an activation
    inputs = case.B * case.H * case.W * case.C * word + case.B * OH * OW * case.O * word
    kernel = math.prod(case.K) * case.C * case.O * short
    return 2.0 * case.B * math.prod(pairs) * case.C * case.O, float(inputs + kernel)


def bound(case: Case, inputs: dict, result: np.ndarray, c: float = 1.0) -> np.ndarray:
    """The largest error allowed, elementwise. result: of the reference. c: the rung's constant.

    Rungs that sum an output's own products: c * eps32 * sqrt(products) * (sum of |products|), as for a matrix product,
    and one rounding each for bias and activation.

    With c an `OfTiles` the outputs of a tile share their error, since all come from the same sums over its 4 x 4
    inputs. Let u = eps32 / 2, D = |B| |d| |B| the sums of absolute inputs, F = |G| |g| |G| the absolute factors, and
    S = |A| (D F summed over C) |A|, which `term_sizes` returns. The computed sums are within 2u D (two additions in
    sequence), the factors, formed in float64, within u F, the chain over C adds at most c * sqrt(C) * eps32, and the
    outputs are four more additions in sequence. In all this is (c * sqrt(C) + 3.5) * eps32 * S to first order; a 4
    covers the products of two errors. In bfloat16, sums and factors are rounded once more, by up to 2**-8 of each:
    2**-7 * S in addition, and 2**-16 * S for both together.
    """
    from tilewright.ops.conv_transpose2d.reference import conv_transpose2d

    x, weights, (rows, columns) = inputs["x"], inputs["weights"], case.axes
    window = {name: inputs[name] for name in ("stride", "padding")}
    own = conv_transpose2d(np.abs(x), np.abs(weights), **window)
    if isinstance(c, OfTiles):
        shared = term_sizes(x, weights, rows, columns)
        rounding = 2 * HALF_ULP16 + HALF_ULP16**2 if case.dtype == "bfloat16" else 0.0
        error = (EPS32 * (c * math.sqrt(case.C) + 4) + rounding) * shared
    else:
        depth = case.C * -(-rows.K // rows.stride) * -(-columns.K // columns.stride)
        error = EPS32 * c * math.sqrt(depth) * own
    bias = np.abs(inputs["bias"].astype(np.float64)) if "bias" in inputs else 0.0
    later = EPS32 * (2 * bias + own + (4 if case.activation else 1) * np.abs(result))
    slope = STEEPEST if case.activation else 1.0
    return slope * (error + later) + np.finfo(np.float32).tiny
