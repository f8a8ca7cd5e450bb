"""matmul_argmax's problems, costs, tolerances and sizes."""

import dataclasses
import math
from dataclasses import dataclass

import numpy as np

from tilewright.ops.core.arrays import rounded
from tilewright.ops.matmul.spec import DEVICE_DTYPES

EPS32 = float(np.finfo(np.float32).eps)
LIMBS = 10.0  # the constant of matmul's rung that splits float32 in limbs, on which cpu.logits may run


@dataclass(frozen=True)
class Problem:
    """All that the choice of a rung may look at; layout: matmul's rung that the weights are laid out for."""

    N: int
    K: int
    dtype: str = "float32"
    layout: str = "cpu.threads"
    device: str = "cpu"


@dataclass(frozen=True)
class Case:
    """M rows of K numbers, N columns. alike: columns that differ by so little that 8 bits cannot tell them apart."""

    M: int
    N: int
    K: int
    dtype: str = "float32"
    alike: bool = False
    label: str = ""
    device: str = "cpu"

    @property
    def name(self) -> str:
        """For test ids and result rows."""
        return f"{self.M}x{self.N}x{self.K}-{self.dtype}{'-alike' if self.alike else ''}"

    @property
    def problem(self) -> Problem:
        """What the ladder sees."""
        from tilewright.ops.matmul import Problem as Product
        from tilewright.ops.matmul import ladder

        layout = ladder.choose(Product(self.N, self.K, self.dtype, self.device)).name
        return Problem(self.N, self.K, self.dtype, layout, self.device)


def make(case: Case, rng: np.random.Generator) -> dict:
    """Random arguments of `matmul_argmax`; b is the transpose of a row-major matrix, as an embedding is."""
    a = rng.standard_normal((case.M, case.K), dtype=np.float32)
    b = rng.standard_normal((case.N, case.K), dtype=np.float32)
    if case.alike:
        b = np.float32(1e-4) * b + b[:1]
    if case.dtype == "float32":
        return {"a": a, "b": b.T}
    return {"a": as_class(a, case.dtype), "b": as_class(b, case.dtype).T}


def as_class(array: np.ndarray, dtype: str) -> np.ndarray:
    """The numbers of a float32 array, rounded to those of a shorter class."""
    if dtype == "tf32":  # ten bits behind the point
        return (array.view(np.uint32) + 0x1000 & 0xFFFFE000).view(np.float32)
    return rounded(array) if dtype == "bfloat16" else array.astype(np.float16).astype(np.float32)


def rows(case: Case) -> int:
    """How many rows of the batch a case has."""
    return case.M


def with_rows(case: Case, count: int) -> Case:
    """The same problem with another number of rows."""
    return dataclasses.replace(case, M=count)


def bind(case: Case, inputs: dict):
    """call(out=None) for the chosen rung, its weights prepared; it gives the values."""
    from tilewright.ops.matmul_argmax import matmul_argmax, prepare

    if case.device != "cpu":
        from tilewright.ops.matmul_argmax.device import bind as bind_there

        return bind_there(case, inputs)
    prepared = prepare(inputs["b"], dtype=case.dtype)

    def call(out=None):
        _, value = matmul_argmax(inputs["a"], prepared)
        if out is None:
            return value
        out[...] = value
        return out

    return call


def reference(case: Case, inputs: dict) -> np.ndarray:
    """The float64 values."""
    from tilewright.ops.matmul_argmax.reference import matmul_argmax

    return matmul_argmax(**inputs)[1]


def cost(case: Case) -> tuple[float, float]:
    """(operations of the whole product, bytes of a and b)."""
    word = 2 if case.dtype.endswith("16") else 4
    activations = case.M * case.K * (word if case.device != "cpu" else 4)
    return 2.0 * case.M * case.N * case.K, float(activations + case.K * case.N * word)


def bound(case: Case, inputs: dict, result: np.ndarray, c: float = 1.0) -> np.ndarray:
    """matmul's, of the column where it is largest: the largest of sums that are each off by so much is off by no
    more."""
    size = np.abs(inputs["a"].astype(np.float64)) @ np.abs(inputs["b"].astype(np.float64))
    return EPS32 * LIMBS * c * math.sqrt(case.K) * size.max(axis=1)


def cases() -> list[Case]:
    """One of everything, a tile and its neighbours, columns alike, more candidates than are kept."""
    sizes = [(1, 1, 16), (3, 5, 7), (13, 33, 48), (30, 1000, 64), (5, 4099, 96), (200, 70, 31), (2, 300, 901)]
    found = [Case(*size) for size in sizes] + [Case(6, 500, 64, alike=True), Case(17, 5000, 32, alike=True)]
    return found + [dataclasses.replace(case, dtype="bfloat16") for case in found]


def sizes() -> list[Case]:
    """GPT-2's LM head: one sequence, a batch, a large batch."""
    return [
        Case(M, 50257, 768, dtype, label=f"gpt2 LM head, {M} rows")
        for dtype in ("float32", "bfloat16")
        for M in (1, 64, 512)
    ]


def device_sizes() -> list[Case]:
    """GPT-2's LM head on a GPU: a batch of generation, and a large one."""
    return [
        Case(M, 50257, 768, dtype, label=f"gpt2 LM head, {M} rows", device="cuda")
        for dtype in DEVICE_DTYPES
        for M in (64, 6400)
    ]
