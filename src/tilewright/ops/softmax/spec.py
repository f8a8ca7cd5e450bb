"""softmax's problems, costs, tolerances and sizes."""

import dataclasses
import math
from dataclasses import dataclass

import numpy as np

from tilewright.ops.core.gpu.rows import shortened

DEVICE_DTYPES = ("float32", "bfloat16", "float16")  # accuracy classes on a GPU
PROBE_ROWS = 1 << 14  # rows that fill a GPU
EPS32 = float(np.finfo(np.float32).eps)


@dataclass(frozen=True)
class Problem:
    """All that the choice of a rung may look at: the width of a row and the device."""

    C: int
    dtype: str = "float32"
    device: str = "cpu"


@dataclass(frozen=True)
class Case:
    """A stack of rows: its shape and layout, the spread of its numbers, the share of them that are -inf."""

    shape: tuple[int, ...]
    layout: str = "C"  # "C", "F", "strided": every third number
    spread: float = 3.0
    masked: float = 0.0
    dtype: str = "float32"
    label: str = ""
    device: str = "cpu"

    @property
    def name(self) -> str:
        """For test ids and result rows."""
        words = ["x".join(map(str, self.shape)), self.layout if self.layout != "C" else ""]
        words += [f"spread{self.spread:g}" if self.spread != 3 else "", f"masked{self.masked:g}" if self.masked else ""]
        return "-".join(w for w in [*words, self.dtype if self.dtype != "float32" else ""] if w)

    @property
    def problem(self) -> Problem:
        """What the ladder sees."""
        return Problem(self.shape[-1], self.dtype, self.device)


def make(case: Case, rng: np.random.Generator) -> dict:
    """Random arguments of `softmax`."""
    *outer, C = case.shape
    if case.layout == "F":
        x = np.moveaxis(rng.standard_normal((C, *outer), dtype=np.float32), 0, -1)
    else:
        x = rng.standard_normal((*outer, 3 * C if case.layout == "strided" else C), dtype=np.float32)
        x = x[..., ::3] if case.layout == "strided" else x
    x *= np.float32(case.spread)
    if case.masked:
        x[rng.random(x.shape) < case.masked] = -np.inf
    return {"x": shortened(x, case.dtype)}


def rows(case: Case) -> int:
    """How many rows there are."""
    return math.prod(case.shape[:-1])


def with_rows(case: Case, count: int) -> Case:
    """Another number of rows of the same width."""
    return dataclasses.replace(case, shape=(count, case.shape[-1]))


def bind(case: Case, inputs: dict):
    """call(out=None) for the chosen rung."""
    from tilewright.ops.softmax import softmax

    if case.device != "cpu":
        from tilewright.ops.softmax.device import bind as bind_there

        return bind_there(case, inputs)
    return lambda out=None: softmax(**inputs, out=out)


def reference(case: Case, inputs: dict) -> np.ndarray:
    """The float64 answer."""
    from tilewright.ops.softmax.reference import softmax

    return softmax(**inputs)


def cost(case: Case) -> tuple[float, float]:
    """(operations: maximum, difference, exp of 13, sum, product; bytes: in and out once)."""
    numbers = math.prod(case.shape)
    return 17.0 * numbers, (4.0 if case.dtype.endswith("16") else 8.0) * numbers


def bound(case: Case, inputs: dict, result: np.ndarray, c: float = 1.0) -> np.ndarray:
    """The rounding of x - max and of the sum, elementwise.

    d = x - max is rounded by eps32 / 2 * |d|, which exp makes the relative error of a share p; in the sum each counts
    with its share. So p * eps32 * (|d| / 2 + sum(p * |d|) / 2 + c * sqrt(C) + 8): the sum, then twice exp, the inverse,
    the product. An exp below the normal range may be 0, and a share there is off by that, 2**-126.
    """
    with np.errstate(invalid="ignore"):
        x = inputs["x"].astype(np.float64)
        d = np.abs(x - x.max(axis=-1, keepdims=True))
        moved = np.where(result > 0, d, 0)
        share = EPS32 * (moved / 2 + (result * moved).sum(axis=-1, keepdims=True) / 2 + c * math.sqrt(x.shape[-1]) + 8)
        return np.nan_to_num(result * share) + 2.0**-126


def cases() -> list[Case]:
    """One number, vectors and their neighbours, long and many rows, none; layouts; masks; shares that underflow."""
    shapes = [
        (1, 1), (3, 2), (5, 7), (2, 3, 15), (4, 16), (7, 17), (3, 63), (2, 64), (5, 65), (2, 20_011), (1, 100_000),
        (0, 5), (19,), (700, 129),
    ]  # fmt: skip
    layouts = [Case((6, 5, 40), layout) for layout in ("F", "strided")]
    masks = [Case((9, 200), masked=0.9), Case((40, 6), masked=0.7), Case((3, 50), masked=1.0)]
    return [Case(s) for s in shapes] + layouts + masks + [Case((8, 300), spread=s) for s in (1e-3, 60.0, 1e30)]


def sizes() -> list[Case]:
    """GPT-2's: heads and positions of 16 sequences of growing length; the vocabulary."""
    return [
        Case((16 * 12 * 16, 16), label="gpt2 prefill"),
        Case((16 * 12, 128), label="gpt2 decode"),
        Case((16 * 12, 1024), label="gpt2 decode, full context"),
        Case((64, 50257), label="gpt2 vocabulary"),
    ]


def device_sizes() -> list[Case]:
    """What the bench times on a GPU: scores of long prompts, in two classes, and GPT-2's vocabulary."""
    found = [
        Case((65536, 1024), label="scores, full context"),
        Case((65536, 1024), dtype="bfloat16", label="scores, full context"),
        Case((1024, 50257), label="gpt2 vocabulary"),
    ]
    return [dataclasses.replace(case, device="cuda") for case in found]
