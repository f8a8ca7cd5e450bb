"""What conv_transpose2d's problems are: their choice key, costs, tolerances, and the sizes to test and to time."""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tilewright.ops.conv_transpose2d.operands import Axis
from tilewright.ops.conv_transpose2d.tiles import term_sizes
from tilewright.ops.core.arrays import rounded
from tilewright.ops.matmul.spec import ACTIVATIONS, DEVICE_DTYPES, DTYPES, EPS32, STEEPEST

__all__ = ["ACTIVATIONS", "DEVICE_DTYPES", "DTYPES"]

Pair = tuple[int, int]
HALF_ULP16 = 2.0**-9  # the largest relative error of rounding to bfloat16


FITS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "float32": lambda array: array,
    "bfloat16": rounded,
    "float16": lambda array: array.astype(np.float16).astype(np.float32),
    "tf32": lambda array: (array.view(np.uint32) + 0x1000 & 0xFFFFE000).view(np.float32),  # ten bits behind the point
}
PROBE_ROWS = 16  # images that tell whether a slow rung takes too long


class OfTiles(float):
    """The c of a rung that multiplies sums over a tile: see `bound`."""


@dataclass(frozen=True)
class Problem:
    """All that the choice of a rung may look at: channels, both axes, accuracy class, device.

    Neither the batch nor the image's size is in it: `prepare` chooses, and it sees the weights alone.
    """

    O: int
    C: int
    rows: Axis
    columns: Axis
    dtype: str = "float32"
    device: str = "cpu"


@dataclass(frozen=True)
class Case:
    """One transposed convolution to test or to time: sizes, window, and what is special about its operands."""

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


def make(case: Case, rng: np.random.Generator) -> dict:
    """Random arguments of `conv_transpose2d`; in a class of shorter numbers they are such, so rounding them changes
    nothing."""
    fit = FITS[case.dtype]
    values = {
        "x": _laid_out(rng, (case.B, case.H, case.W, case.C), case.layout, fit),
        "weights": _laid_out(rng, (*case.K, case.O, case.C), case.layout, fit),
    }
    if case.bias:
        values["bias"] = rng.standard_normal(case.O, dtype=np.float32)
    return {**values, "stride": case.stride, "padding": case.padding, "activation": case.activation}


def _laid_out(rng, shape: tuple[int, ...], layout: str, fit) -> np.ndarray:
    """Normal numbers through `fit`, with the strides that `layout` names."""
    normal = lambda *sizes: fit(rng.standard_normal(sizes, dtype=np.float32))  # noqa: E731
    if layout == "F":
        return np.moveaxis(normal(shape[0], shape[3], *shape[1:3]), 1, 3)
    if layout == "strided":
        return normal(*(2 * n for n in shape[:3]), 3 * shape[3])[::2, ::2, ::2, ::3]
    if layout == "reversed":
        return normal(*shape)[::-1, ::-1, ::-1, ::-1]
    return normal(*shape)


def rows(case: Case) -> int:
    """How many images a case has."""
    return case.B


def with_rows(case: Case, count: int) -> Case:
    """The same problem with another number of images."""
    return dataclasses.replace(case, B=count)


def bind(case: Case, inputs: dict):
    """call(out=None) for the chosen rung, its weights prepared."""
    if case.device != "cpu":
        from tilewright.ops.conv_transpose2d.device import bind as bind_there

        return bind_there(case, inputs)
    from tilewright.ops.conv_transpose2d import conv_transpose2d, prepare

    rest = {name: value for name, value in inputs.items() if name in ("x", "bias", "activation")}
    packed = prepare(inputs["weights"], stride=case.stride, padding=case.padding, dtype=case.dtype)
    return lambda out=None: conv_transpose2d(weights=packed, out=out, **rest)


def reference(case: Case, inputs: dict) -> np.ndarray:
    """The float64 answer."""
    from tilewright.ops.conv_transpose2d.reference import conv_transpose2d

    return conv_transpose2d(**inputs)


def cost(case: Case) -> tuple[float, float]:
    """(floating-point operations of the products that reach the result, bytes moved if every operand is touched once).

    A rung that multiplies less often is credited with the same operations, so that rates compare.
    """
    pairs = [
        sum(0 <= h * axis.stride + k - axis.first < axis.size(n) for h in range(n) for k in range(axis.K))
        for axis, n in zip(case.axes, (case.H, case.W), strict=True)
    ]
    OH, OW = (axis.size(n) for axis, n in zip(case.axes, (case.H, case.W), strict=True))
    short = 2 if case.dtype.endswith("16") else 4
    word = short if case.device == "cuda" else 4  # of activations
    inputs = case.B * case.H * case.W * case.C * word + case.B * OH * OW * case.O * word
    kernel = math.prod(case.K) * case.C * case.O * short
    return 2.0 * case.B * math.prod(pairs) * case.C * case.O, float(inputs + kernel)


def bound(case: Case, inputs: dict, result: np.ndarray, c: float = 1.0) -> np.ndarray:
    """The largest error allowed, elementwise. result: the reference's; c: the rung's constant.

    Rungs that sum an output's own products: c * eps32 * sqrt(products) * (sum of |products|), as for a matrix product,
    and a rounding each for bias and activation.

    With c an `OfTiles`: the outputs of a tile share their error, because all come from the same sums over its 4 x 4
    inputs. With u = eps32 / 2 and every term by its size - D = |B| |d| |B| the inputs' sums, F = |G| |g| |G| the
    factors, S = |A| (D F summed over C) |A| what `term_sizes` gives - the computed sums are within 2u D (two additions
    one after the other), the factors, formed in float64, within u F, the chain over C adds at most c * sqrt(C) * eps32
    as elsewhere, and the outputs are four further additions one after the other: in all
    (c * sqrt(C) + 3.5) * eps32 * S to first order, for which 4 leaves room for the products of two errors. In bfloat16
    sums and factors are rounded once more, by 2**-9 of each: 2**-8 * S besides, and (2**-9)**2 of it for both together.
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


def _epilogues(case: Case) -> list[Case]:
    every = [(True, None), (False, "relu"), (True, "tanh"), (True, "gelu"), (False, "gelu_tanh")]
    return [dataclasses.replace(case, bias=bias, activation=name) for bias, name in every]


def cases() -> list[Case]:
    """One of everything, none of images, primes; kernels larger, smaller and as large as the stride; every crop."""
    none, torch = ((0, 0), (0, 0)), ((1, 1), (1, 1))
    found = [Case(1, 1, 1, 1, 1, (1, 1), (1, 1), none), Case(0, 3, 4, 2, 3), Case(2, 4, 4, 9, 7), Case(3, 5, 3, 16, 33)]
    found += [Case(2, 3, 4, 5, 6, K, s, none) for K, s in [((3, 2), (1, 1)), ((1, 4), (2, 3)), ((2, 2), (3, 2))]]
    found += [Case(2, 4, 3, 7, 5, (2, 3), (2, 2), ((1, 0), (0, 1))), Case(1, 2, 2, 3, 2, (3, 3), (100, 7), none)]
    found += [Case(1, 6, 5, 4, 3, (7, 6), (2, 3), ((3, 4), (5, 2))), Case(1, 3, 9, 4, 20, (4, 4), (2, 2), torch)]
    found += [Case(1, 4, 4, 3, 4, (5, 5), (2, 2), ((9, 0), (0, 10))), Case(2, 6, 7, 12, 40, (3, 3), (1, 1), torch)]
    found += [Case(1, 2, 5, 6, 17, (3, 5), (2, 2), ((0, 1), (1, 0))), Case(1, 1, 3, 2, 48, (5, 4), (3, 2), none)]
    found += [Case(3, 7, 5, 33, 65), Case(17, 4, 4, 40, 32), Case(1, 9, 13, 24, 70), Case(5, 3, 1, 20, 12)]
    found += [Case(1, 4, 4, 803, 35), Case(2, 2, 2, 1601, 4), Case(1, 5, 6, 64, 3), Case(2, 18, 17, 8, 3)]
    # channels of one pixel end within a vector that is not their first: 4, 8 and 16 lanes, phases apart and merged
    found += [Case(1, 2, 3, 4, O, (1, 1), (1, 1), none, bias=True) for O in (5, 7, 9, 15, 17, 25, 31)]
    found += [Case(2, 3, 4, 5, O, (2, 3), (1, 2), ((0, 0), (1, 0))) for O in (3, 6, 9, 13, 15)]
    found += _epilogues(Case(2, 3, 5, 18, 34)) + _epilogues(Case(1, 4, 3, 10, 3))
    found += _epilogues(Case(1, 3, 3, 5, 6, (2, 2), (3, 3), none)) + _epilogues(Case(1, 2, 3, 6, 64))
    found += [Case(2, 4, 5, 20, 19, layout=layout, bias=True) for layout in ("F", "strided", "reversed")]
    return found + [dataclasses.replace(case, dtype="bfloat16") for case in found]


def sizes() -> list[Case]:
    """What the bench times: the four layers of the course's DCGAN, 32 images at once."""
    shapes = [(4, 512, 256, "relu"), (8, 256, 128, "relu"), (16, 128, 64, "relu"), (32, 64, 3, "tanh")]
    layers = [Case(32, H, H, C, O, bias=True, activation=name, label=f"dcgan {H}x{H}") for H, C, O, name in shapes]
    return [dataclasses.replace(case, dtype=dtype) for dtype in DTYPES for case in layers]


def device_sizes() -> list[Case]:
    """What the bench times on a GPU: the first, the third and the last of these layers, a batch of which fills it."""
    layers = [case for case in sizes() if case.dtype == "float32" and case.H != 8]
    shown = ("float32", "float16")  # bfloat16's and tf32's kernels are those of float16
    return [dataclasses.replace(case, B=1024, dtype=dtype, device="cuda") for dtype in shown for case in layers]
