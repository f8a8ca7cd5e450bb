"""layernorm's problems, costs, tolerances and sizes."""

import dataclasses
import math
from dataclasses import dataclass

import numpy as np

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
    """A stack of rows: its shape, its layout, the size of the numbers around which each row lies.

    In a 16-bit class the result is what has 16 bits; x, which is GPT-2's running sum, is float32 in every class.
    """

    shape: tuple[int, ...]
    layout: str = "C"  # "C", "F", "strided": every third number
    offset: float = 0.0
    eps: float = 1e-5
    dtype: str = "float32"
    label: str = ""
    device: str = "cpu"

    @property
    def name(self) -> str:
        """For test ids and result rows."""
        words = ["x".join(map(str, self.shape)), self.layout if self.layout != "C" else ""]
        words += [f"around{self.offset:g}" if self.offset else "", self.dtype if self.dtype != "float32" else ""]
        return "-".join(w for w in words if w)

    @property
    def problem(self) -> Problem:
        """What the ladder sees."""
        return Problem(self.shape[-1], self.dtype, self.device)


def make(case: Case, rng: np.random.Generator) -> dict:
    """Random arguments of `layernorm`."""
    *outer, C = case.shape
    if case.layout == "F":
        x = rng.standard_normal((C, *outer), dtype=np.float32)
        x = np.moveaxis(x, 0, -1)
    else:
        x = rng.standard_normal((*outer, 3 * C if case.layout == "strided" else C), dtype=np.float32)
        x = x[..., ::3] if case.layout == "strided" else x
    x += np.float32(case.offset)
    weight, bias = rng.standard_normal((2, C), dtype=np.float32)
    return {"x": x, "weight": weight, "bias": bias, "eps": case.eps}


def rows(case: Case) -> int:
    """How many rows there are."""
    return math.prod(case.shape[:-1])


def with_rows(case: Case, count: int) -> Case:
    """Another number of rows of the same width."""
    return dataclasses.replace(case, shape=(count, case.shape[-1]))


def bind(case: Case, inputs: dict):
    """call(out=None) for the chosen rung."""
    from tilewright.ops.layernorm import layernorm

    if case.device != "cpu":
        from tilewright.ops.layernorm.device import bind as bind_there

        return bind_there(case, inputs)
    return lambda out=None: layernorm(**inputs, out=out)


def reference(case: Case, inputs: dict) -> np.ndarray:
    """The float64 answer."""
    from tilewright.ops.layernorm.reference import layernorm

    return layernorm(**inputs)


def cost(case: Case) -> tuple[float, float]:
    """(operations: a sum, a difference with its square summed, and three for the result; bytes: in and out once)."""
    numbers = math.prod(case.shape)
    return 7.0 * numbers, (6.0 if case.dtype.endswith("16") else 8.0) * numbers + 8.0 * case.shape[-1]


def bound(case: Case, inputs: dict, result: np.ndarray, c: float = 1.0) -> np.ndarray:
    """The rounding of two sums and what it does to the result, elementwise.

    The mean is wrong by at most m = eps32 * (c * sqrt(C) + 1) * mean|x|, which every deviation d inherits. The variance
    v is wrong by m**2 and by the share eps32 * (c * sqrt(C) + 4); its inverse root by half of that share. So
    |weight| * (m + |d| * (4 eps32 + half the share)) / sqrt(v + eps), and a rounding of the result.
    """
    x, eps = inputs["x"].astype(np.float64), inputs["eps"]
    weight = np.abs(inputs["weight"].astype(np.float64))
    chain = c * math.sqrt(x.shape[-1])
    mean_error = EPS32 * (chain + 1) * np.abs(x).mean(axis=-1, keepdims=True)
    deviation = np.abs(x - x.mean(axis=-1, keepdims=True))
    variance = (deviation**2).mean(axis=-1, keepdims=True)
    share = (EPS32 * (chain + 4) * variance + mean_error**2) / (variance + eps)
    spread = weight * (mean_error + deviation * (4 * EPS32 + share / 2)) / np.sqrt(variance + eps)
    return spread + EPS32 * np.abs(result) + np.finfo(np.float32).tiny


def cases() -> list[Case]:
    """One number, vectors and their neighbours, long and many rows, none; layouts; rows far from zero."""
    shapes = [
        (1, 1), (3, 2), (5, 7), (2, 3, 15), (4, 16), (7, 17), (3, 63), (2, 64), (5, 65), (1, 768), (130, 768),
        (33, 1600), (2, 10_007), (0, 5), (19,), (700, 129),
    ]  # fmt: skip
    layouts = [Case((6, 5, 40), layout) for layout in ("F", "strided")]
    return [Case(s) for s in shapes] + layouts + [Case((9, 768), offset=100.0), Case((4, 50), eps=0.0)]


def sizes() -> list[Case]:
    """GPT-2's: the positions of a prefill, of a decoding step, one position alone; the widest model."""
    return [
        Case((1024, 768), label="gpt2"),
        Case((64, 768), label="gpt2 decode"),
        Case((1, 768), label="gpt2 one position"),
        Case((1024, 1600), label="gpt2-xl"),
    ]


def device_sizes() -> list[Case]:
    """What the bench times on a GPU: GPT-2's positions of 6,400 prompts of 16, in two classes; the widest model's."""
    found = [
        Case((102400, 768), label="gpt2"),
        Case((102400, 768), dtype="bfloat16", label="gpt2"),
        Case((65536, 1600), dtype="bfloat16", label="gpt2-xl"),
    ]
    return [dataclasses.replace(case, device="cuda") for case in found]
