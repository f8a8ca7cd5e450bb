"""embedding's problems, costs and sizes. It copies, so its bound is zero."""

import dataclasses
import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Problem:
    """All that the choice of a rung may look at: the width of a row and the device."""

    C: int
    dtype: str = "float32"
    device: str = "cpu"


@dataclass(frozen=True)
class Case:
    """One look-up: shape of the ids, rows and width of the table, its layout."""

    shape: tuple[int, ...]
    V: int
    C: int
    layout: str = "C"
    label: str = ""
    dtype: str = "float32"

    @property
    def name(self) -> str:
        """For test ids and result rows."""
        return f"{'x'.join(map(str, self.shape))}-of-{self.V}x{self.C}{'-' + self.layout if self.layout != 'C' else ''}"

    @property
    def problem(self) -> Problem:
        """What the ladder sees."""
        return Problem(self.C, self.dtype)


def make(case: Case, rng: np.random.Generator) -> dict:
    """Random arguments of `embedding`."""
    table = rng.standard_normal((case.V, 2 * case.C), dtype=np.float32)
    table = table[:, ::2] if case.layout == "strided" else np.ascontiguousarray(table[:, : case.C])
    return {"ids": rng.integers(0, case.V, case.shape, dtype=np.int32), "table": table}


def rows(case: Case) -> int:
    """How many rows are looked up."""
    return math.prod(case.shape)


def with_rows(case: Case, count: int) -> Case:
    """The same table with another number of look-ups."""
    return dataclasses.replace(case, shape=(count,))


def bind(case: Case, inputs: dict):
    """call(out=None) for the chosen rung."""
    from tilewright.ops.embedding import embedding

    return lambda out=None: embedding(**inputs, out=out)


def reference(case: Case, inputs: dict) -> np.ndarray:
    """The float64 answer."""
    from tilewright.ops.embedding.reference import embedding

    return embedding(**inputs)


def cost(case: Case) -> tuple[float, float]:
    """(no operations, bytes: each row read and written once)."""
    return 0.0, float(np.prod(case.shape)) * (8 * case.C + 4)


def bound(case: Case, inputs: dict, result: np.ndarray, c: float = 1.0) -> np.ndarray:
    """A copy is exact."""
    return np.zeros_like(result)


def cases() -> list[Case]:
    """Nothing, one, odd widths, many dimensions, a strided table."""
    return [
        Case((1,), 1, 1), Case((0,), 5, 7), Case((3, 5), 11, 17), Case((2, 3, 4), 50, 64), Case((100,), 7, 33),
        Case((9, 4), 30, 16, layout="strided"),
    ]  # fmt: skip


def sizes() -> list[Case]:
    """TextCNN's and GPT-2's look-ups."""
    return [Case((1024, 16), 21635, 4096, label="textcnn"), Case((4096, 16), 50257, 768, label="gpt2")]
