"""The elementwise functions' problems, costs, tolerances and sizes."""

import dataclasses
import math
from dataclasses import dataclass

import numpy as np

from tilewright.ops.core.gpu.rows import shortened
from tilewright.ops.elementwise.reference import FUNCTIONS

DEVICE_DTYPES = ("float32", "bfloat16", "float16")  # accuracy classes on a GPU
PROBE_ROWS = 1 << 14  # rows that fill a GPU
GELU = {"tanh": "gelu_tanh", "none": "gelu"}  # PyTorch's words
WORST_ULP = {"relu": 0.0, "tanh": 1.4, "gelu_tanh": 3.7, "gelu": 6.6}  # README.md; tests hold them
OPERATIONS = {"relu": 1, "gelu_tanh": 45, "gelu": 45, "tanh": 30}  # additions, multiplications, fma as one; a division


@dataclass(frozen=True)
class Problem:
    """All that the choice of a rung may look at: the function and the device."""

    function: str
    dtype: str = "float32"
    device: str = "cpu"


@dataclass(frozen=True)
class Case:
    """A function, the shape and layout of its argument, the spread of its numbers."""

    function: str
    shape: tuple[int, ...]
    layout: str = "C"  # "C", "F", "strided": every third number
    spread: float = 3.0
    dtype: str = "float32"
    label: str = ""
    device: str = "cpu"

    @property
    def name(self) -> str:
        """For test ids and result rows."""
        words = [self.function, "x".join(map(str, self.shape)), self.layout if self.layout != "C" else ""]
        words += [f"spread{self.spread:g}" if self.spread != 3 else "", self.dtype if self.dtype != "float32" else ""]
        return "-".join(w for w in words if w)

    @property
    def problem(self) -> Problem:
        """What the ladder sees."""
        return Problem(self.function, self.dtype, self.device)


def make(case: Case, rng: np.random.Generator) -> dict:
    """Random argument of a function."""
    *outer, C = case.shape
    if case.layout == "F":
        x = np.moveaxis(rng.standard_normal((C, *outer), dtype=np.float32), 0, -1)
    else:
        x = rng.standard_normal((*outer, 3 * C if case.layout == "strided" else C), dtype=np.float32)
        x = x[..., ::3] if case.layout == "strided" else x
    x *= np.float32(case.spread)
    return {"x": shortened(x, case.dtype)}


def rows(case: Case) -> int:
    """How many rows there are."""
    return math.prod(case.shape[:-1])


def with_rows(case: Case, count: int) -> Case:
    """Another number of rows of the same width."""
    return dataclasses.replace(case, shape=(count, case.shape[-1]))


def bind(case: Case, inputs: dict):
    """call(out=None) for the chosen rung."""
    from tilewright.ops import elementwise

    if case.device != "cpu":
        from tilewright.ops.elementwise.device import bind as bind_there

        return bind_there(case, inputs)
    if case.function.startswith("gelu"):
        form = "tanh" if case.function == "gelu_tanh" else "none"
        return lambda out=None: elementwise.gelu(inputs["x"], approximate=form, out=out)
    function = getattr(elementwise, case.function)
    return lambda out=None: function(inputs["x"], out=out)


def reference(case: Case, inputs: dict) -> np.ndarray:
    """The float64 answer."""
    return FUNCTIONS[case.function](inputs["x"])


def cost(case: Case) -> tuple[float, float]:
    """(operations of our polynomials, bytes: in and out once)."""
    numbers = float(math.prod(case.shape))
    return OPERATIONS[case.function] * numbers, (4 if case.dtype.endswith("16") else 8) * numbers


def bound(case: Case, inputs: dict, result: np.ndarray, c: float = 1.0) -> np.ndarray:
    """The published worst error, in units of the last place of the result as float32."""
    return c * WORST_ULP[case.function] * ulp(result)


def ulp(values: np.ndarray) -> np.ndarray:
    """The distance of float32 numbers around finite float64 values; 2**-149 below the normal range."""
    _, exponent = np.frexp(values)
    return np.ldexp(1.0, np.maximum(exponent - 24, -149))


def cases() -> list[Case]:
    """For each function: one number, vectors and their neighbours, several tasks, none; layouts; wide spreads."""
    shapes = [(1,), (5, 7), (2, 3, 15), (4, 16), (7, 17), (3, 8191), (2, 20_011), (0, 5), (700, 129)]
    found = [Case(function, shape) for function in FUNCTIONS for shape in shapes]
    found += [Case(function, (6, 5, 40), layout) for function in FUNCTIONS for layout in ("F", "strided")]
    return found + [Case(function, (40, 100), spread=s) for function in FUNCTIONS for s in (1e-30, 1e30)]


def sizes() -> list[Case]:
    """GPT-2's: the hidden layer of a prefill and of a decoding step; the other functions at the first."""
    return [
        Case("gelu_tanh", (1024, 3072), label="gpt2"),
        Case("gelu_tanh", (64, 3072), label="gpt2 decode"),
        Case("gelu", (1024, 3072), label="exact form"),
        Case("tanh", (1024, 3072)),
        Case("relu", (1024, 3072)),
    ]


def device_sizes() -> list[Case]:
    """What the bench times on a GPU: GPT-2's hidden layer at 16,384 positions."""
    shape = (16384, 3072)
    found = [Case("gelu_tanh", shape, dtype=dtype, label="gpt2 hidden") for dtype in ("float32", "bfloat16")]
    found += [Case("tanh", shape)]
    return [dataclasses.replace(case, device="cuda") for case in found]
