"""What conv1d's problems are: their choice key, costs, tolerances, and the sizes at which they are tested and timed."""

import dataclasses
import math
from dataclasses import dataclass

import numpy as np

from tilewright.ops.conv1d.operands import Window
from tilewright.ops.core.arrays import rounded
from tilewright.ops.matmul.spec import DTYPES, EPS32

PROBE_ROWS = 16  # sentences that tell whether a rung takes too long

POOLS = (None, "max")


@dataclass(frozen=True)
class Problem:
    """All that the choice of a rung may look at: output channels, input channels, taps, accuracy class, device.

    Neither the batch nor the window is in it: `prepare` chooses, and it sees the weights alone.
    """

    O: int
    C: int
    K: int
    dtype: str = "float32"
    device: str = "cpu"


@dataclass(frozen=True)
class Case:
    """One convolution to test or to time: sizes, window, and what is special about its operands."""

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


def make(case: Case, rng: np.random.Generator) -> dict:
    """Random arguments of `conv1d` for a case; in a class of shorter numbers they are such, as they stay."""

    def fit(array: np.ndarray) -> np.ndarray:
        if case.dtype == "tf32":  # ten bits behind the point
            return (array.view(np.uint32) + 0x1000 & 0xFFFFE000).view(np.float32)
        if case.dtype == "float16":
            return array.astype(np.float16).astype(np.float32)
        return rounded(array) if case.dtype == "bfloat16" else array

    values = {
        "x": _laid_out(rng, (case.B, case.C, case.L), case.layout, fit),
        "weight": _laid_out(rng, (case.O, case.C, case.K), case.layout, fit),
    }
    if case.bias:
        values["bias"] = rng.standard_normal(case.O, dtype=np.float32)
    window = {"stride": case.stride, "padding": case.padding, "dilation": case.dilation}
    return {**values, **window, "activation": case.activation, "pool": case.pool}


def _laid_out(rng, shape: tuple[int, int, int], layout: str, fit) -> np.ndarray:
    """Normal numbers through `fit`, with the strides that `layout` names."""
    first, second, third = shape
    normal = lambda *sizes: fit(rng.standard_normal(sizes, dtype=np.float32))  # noqa: E731
    if layout == "F":
        return normal(first, third, second).swapaxes(1, 2)
    if layout == "strided":
        return normal(2 * first, 2 * second, 3 * third)[::2, ::2, ::3]
    if layout == "reversed":
        return normal(*shape)[::-1, ::-1, ::-1]
    return normal(*shape)


def rows(case: Case) -> int:
    """How many rows of the batch a case has."""
    return case.B


def with_rows(case: Case, count: int) -> Case:
    """The same problem with another number of rows."""
    return dataclasses.replace(case, B=count)


def bind(case: Case, inputs: dict):
    """call(out=None) for the chosen rung, its weights prepared."""
    from tilewright.ops.conv1d import conv1d, prepare

    if case.device != "cpu":
        from tilewright.ops.conv1d.device import bind as bind_there

        return bind_there(case, inputs)
    rest = {name: value for name, value in inputs.items() if name != "weight"}
    packed = prepare(inputs["weight"], dtype=case.dtype)
    return lambda out=None: conv1d(weight=packed, out=out, **rest)


def reference(case: Case, inputs: dict) -> np.ndarray:
    """The float64 answer."""
    from tilewright.ops.conv1d.reference import conv1d

    return conv1d(**inputs)


def cost(case: Case) -> tuple[float, float]:
    """(floating-point operations, bytes moved if every operand is touched once)."""
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


def cases() -> list[Case]:
    """Nothing, one, primes, tiles and their neighbours; windows of every kind; layouts; epilogues."""
    small = [(1, 1, 1, 1, 1), (0, 9, 5, 3, 3), (2, 5, 3, 7, 5), (1, 40, 12, 3, 9), (2, 33, 13, 2, 2), (3, 31, 11, 5, 1)]
    large = [(1, 70, 17, 1, 19), (2, 23, 29, 31, 7), (1, 2500, 5, 1, 3), (4, 16, 35, 67, 5)]
    found = [Case(*size) for size in small + large]
    found += [Case(2, 37, 6, 5, 3, stride=5), Case(2, 41, 14, 3, 4, stride=3), Case(2, 4, 3, 2, 2, stride=100)]
    found += [Case(2, 50, 7, 3, 4, dilation=3), Case(1, 45, 16, 4, 17, dilation=2), Case(1, 5, 3, 2, 1, dilation=9)]
    found += [Case(1, 3, 4, 2, 3, padding=7), Case(1, 1, 2, 3, 9, padding=4)]
    found += [Case(1, 64, 12, 4, 5, stride=2, padding=2), Case(2, 61, 9, 3, 3, stride=4, padding=5, dilation=6)]
    found += [Case(2, 40, 15, 24, 3, padding=1, layout=layout) for layout in ("F", "strided", "reversed")]
    found += [Case(3, 12, 20, 32, 3, layout="F")]  # channels already last: nothing to copy
    epilogues = [(True, None, None), (False, "relu", None), (False, None, "max"), (True, "relu", "max")]
    sizes = [(2, 16, 18, 30, 5), (1, 75, 5, 3, 4), (2, 1100, 3, 1, 2)]
    found += [Case(*size, bias=b, activation=a, pool=p) for size in sizes for b, a, p in epilogues]
    found += [
        Case(2, 50, 19, 40, 3, stride=2, padding=3, dilation=2, bias=True, activation="relu", pool="max", layout="F")
    ]
    found += [Case(1, 30, 33, 420, 3, bias=True)]  # longer than one block of matmul's sum
    # deep and wide enough for matmul in float32
    found += [Case(2, 6, 130, 2731, 3, bias=True, activation="relu", pool="max"), Case(3, 4, 128, 4097, 2, pool="max")]
    found += [Case(1, 7, 128, 1639, 5, padding=1, layout="strided"), Case(2, 8, 140, 2050, 4, layout="F", bias=True)]
    found += [Case(2, 9, 131, 4096, 2, stride=2, padding=2, dilation=3), Case(1, 20, 128, 8192, 1, activation="relu")]
    return found + [dataclasses.replace(case, dtype="bfloat16") for case in found]


def sizes() -> list[Case]:
    """What the bench times: TextCNN's four branches as the model calls them, and few channels over long signals."""
    fused = Case(16, 16, 1024, 4096, 3, bias=True, activation="relu", pool="max", label="textcnn")
    branches = [dataclasses.replace(fused, K=K) for K in (3, 5, 7, 9)]
    few = [Case(1, 4096, 32, 1, 9, label="waveform"), Case(16, 512, 64, 64, 5, padding=2, label="features")]
    return [dataclasses.replace(case, dtype=dtype) for dtype in DTYPES for case in branches + few]


def device_sizes() -> list[Case]:
    """What the bench times on a GPU: TextCNN's narrowest branch in either class, and few channels over long signals."""
    fused = Case(256, 16, 1024, 4096, 3, bias=True, activation="relu", pool="max", label="textcnn")
    few = [Case(64, 4096, 32, 1, 9, label="waveform"), Case(64, 512, 64, 64, 5, padding=2, label="features")]
    cases = [fused, dataclasses.replace(fused, dtype="bfloat16"), *few]
    return [dataclasses.replace(case, device="cuda") for case in cases]
