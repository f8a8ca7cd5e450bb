"""embedding's problems, costs and sizes. It copies, and adds once where there are positions."""

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
    """One look-up: shape of the ids, rows and width of the table, its layout; rows of a table of positions, or 0."""

    shape: tuple[int, ...]
    V: int
    C: int
    layout: str = "C"
    label: str = ""
    dtype: str = "float32"
    positions: int = 0
    device: str = "cpu"

    @property
    def name(self) -> str:
        """For test ids and result rows."""
        words = [f"{'x'.join(map(str, self.shape))}-of-{self.V}x{self.C}", self.layout if self.layout != "C" else ""]
        words += [f"positions{self.positions}" if self.positions else "", self.dtype if self.dtype != "float32" else ""]
        return "-".join(w for w in words if w)

    @property
    def problem(self) -> Problem:
        """What the ladder sees."""
        return Problem(self.C, self.dtype, self.device)


def make(case: Case, rng: np.random.Generator) -> dict:
    """Random arguments of `embedding`."""
    strided = case.layout == "strided"
    table = rng.standard_normal((case.V, 2 * case.C if strided else case.C), dtype=np.float32)
    table = table[:, ::2] if strided else table
    inputs = {"ids": rng.integers(0, case.V, case.shape, dtype=np.int32), "table": shortened(table, case.dtype)}
    if case.positions:
        position_table = rng.standard_normal((case.positions, case.C), dtype=np.float32)
        inputs["positions"] = rng.integers(0, case.positions, case.shape)
        inputs["position_table"] = shortened(position_table, case.dtype)
    return inputs


def rows(case: Case) -> int:
    """How many rows are looked up."""
    return math.prod(case.shape)


def with_rows(case: Case, count: int) -> Case:
    """The same table with another number of look-ups."""
    return dataclasses.replace(case, shape=(count,))


def bind(case: Case, inputs: dict):
    """call(out=None) for the chosen rung."""
    from tilewright.ops.embedding import embedding

    if case.device != "cpu":
        from tilewright.ops.embedding.device import bind as bind_there

        return bind_there(case, inputs)
    return lambda out=None: embedding(**inputs, out=out)


def reference(case: Case, inputs: dict) -> np.ndarray:
    """The float64 answer."""
    from tilewright.ops.embedding.reference import embedding

    return embedding(**inputs)


def cost(case: Case) -> tuple[float, float]:
    """(an addition where there are positions; bytes: each row read and written once, ids read once).

    Rows of positions are read from a cache: there are few.
    """
    numbers = float(math.prod(case.shape))
    word = 4 if case.dtype.endswith("16") else 8
    return (numbers * case.C if case.positions else 0.0), numbers * (word * case.C + (12 if case.positions else 4))


def bound(case: Case, inputs: dict, result: np.ndarray, c: float = 1.0) -> np.ndarray:
    """A copy is exact; a sum is rounded once."""
    return c * EPS32 / 2 * np.abs(result) if case.positions else np.zeros_like(result)


def cases() -> list[Case]:
    """Nothing, one, odd widths, many dimensions, a strided table; with positions."""
    return [
        Case((1,), 1, 1), Case((2, 3), 5, 8), Case((5,), 4, 8, positions=2), Case((0,), 5, 7),
        Case((3, 5), 11, 17), Case((2, 3, 4), 50, 64), Case((100,), 7, 33),
        Case((9, 4), 30, 16, layout="strided"), Case((3, 6), 20, 48, positions=6),
        Case((40,), 9, 17, layout="strided", positions=3), Case((0,), 5, 7, positions=2),
    ]  # fmt: skip


def sizes() -> list[Case]:
    """TextCNN's and GPT-2's look-ups."""
    return [Case((1024, 16), 21635, 4096, label="textcnn"), Case((4096, 16), 50257, 768, label="gpt2")]


def device_sizes() -> list[Case]:
    """What the bench times on a GPU: GPT-2's look-up of 6,400 prompts of 16 tokens, in two classes."""
    found = [
        Case((102400,), 50257, 768, label="gpt2", positions=1024),
        Case((102400,), 50257, 768, label="gpt2", positions=1024, dtype="bfloat16"),
    ]
    return [dataclasses.replace(case, device="cuda") for case in found]
