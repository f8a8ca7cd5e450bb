"""embedding_conv1d's problems, costs, tolerances and sizes."""

import dataclasses
import math
from dataclasses import dataclass

import numpy as np

from tilewright.ops._arrays import rounded
from tilewright.ops.matmul.spec import DTYPES, EPS32


@dataclass(frozen=True)
class Problem:
    """All that the choice of a rung may look at: widths, kernel sizes, accuracy class, device."""

    C: int
    O: int
    kernels: tuple[int, ...]
    dtype: str = "float32"
    device: str = "cpu"


@dataclass(frozen=True)
class Case:
    """B sentences of L tokens out of V, rows of C, branches of `kernels` sizes with O filters each; `memory` bytes
    for the table."""

    B: int
    L: int
    V: int
    C: int
    O: int
    kernels: tuple[int, ...]
    dtype: str = "float32"
    memory: int | None = None
    label: str = ""

    @property
    def name(self) -> str:
        """For test ids and result rows."""
        memory = f"-{self.memory}B" if self.memory else ""
        sizes = "+".join(map(str, self.kernels))
        return f"{self.B}x{self.L}-of-{self.V}x{self.C}-{self.O}x{sizes}-{self.dtype}{memory}"

    @property
    def problem(self) -> Problem:
        """What the ladder sees."""
        return Problem(self.C, self.O, self.kernels, self.dtype)


def make(case: Case, rng: np.random.Generator) -> dict:
    """Random arguments; ids follow Zipf's law as words do. In bfloat16 the operands are representable."""

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape, dtype=np.float32)

    def fit(array: np.ndarray) -> np.ndarray:
        return rounded(array) if case.dtype == "bfloat16" else array

    return {
        "ids": ((rng.zipf(1.3, (case.B, case.L)) - 1) % case.V).astype(np.int32),
        "table": fit(normal(case.V, case.C)),
        "weights": [fit(normal(case.O, case.C, K)) for K in case.kernels],
        "biases": [normal(case.O) for _ in case.kernels],
    }


def rows(case: Case) -> int:
    """How many rows of the batch a case has."""
    return case.B


def with_rows(case: Case, count: int) -> Case:
    """The same problem with another number of rows."""
    return dataclasses.replace(case, B=count)


def bind(case: Case, inputs: dict):
    """call(out=None) for the chosen rung, its weights prepared; a table's rows exist after the first call."""
    from tilewright.ops.embedding_conv1d import embedding_conv1d, prepare

    operands = inputs["table"], inputs["weights"], inputs["biases"]
    prepared = prepare(*operands, length=case.L, dtype=case.dtype, memory=case.memory)
    return lambda out=None: embedding_conv1d(inputs["ids"], prepared, out=out)


def reference(case: Case, inputs: dict) -> np.ndarray:
    """The float64 answer."""
    from tilewright.ops.embedding_conv1d.reference import embedding_conv1d

    return embedding_conv1d(**inputs)


def cost(case: Case) -> tuple[float, float]:
    """(operations of the direct convolution, bytes of the operands and the result): every rung is measured against
    the same."""
    taps = sum(K * (case.L - K + 1) for K in case.kernels)
    weights = case.O * case.C * sum(case.kernels)
    tokens = min(case.V, case.B * case.L)
    return 2.0 * case.B * taps * case.C * case.O, 4.0 * (
        tokens * case.C + weights + case.B * len(case.kernels) * case.O
    )


def bound(case: Case, inputs: dict, result: np.ndarray, c: float = 1.0) -> np.ndarray:
    """c * eps32 * sqrt(C * K) * (sum of |terms|) of the worst position; a maximum's error is at most its inputs'
    largest."""
    x = np.abs(inputs["table"].astype(np.float64))[inputs["ids"]]
    parts = []
    for weight, bias in zip(inputs["weights"], inputs["biases"], strict=True):
        _, C, K = weight.shape
        positions = x.shape[1] - K + 1
        size = sum(x[:, t : t + positions] @ np.abs(weight[:, :, t].astype(np.float64)).T for t in range(K)).max(axis=1)
        parts.append(c * math.sqrt(C * K) * size + (K + 1) * (size / math.sqrt(C) + np.abs(bias)))
    return EPS32 * np.concatenate(parts, axis=1)


def cases() -> list[Case]:
    """One of everything, widths off every vector length, kernels as long as the sentence, a table with room for
    little."""
    found = [
        Case(1, 1, 1, 1, 1, (1,)),
        Case(0, 4, 5, 6, 7, (2,)),
        Case(1, 9, 30, 20, 33, (3, 9)),
        Case(40, 16, 200, 64, 48, (3, 5, 7, 9)),
        Case(17, 8, 50, 31, 160, (2, 4), memory=160 * 4 * 60),
        Case(64, 16, 500, 40, 32, (3, 5), memory=32 * 4 * 150),
    ]
    return found + [Case(**{**vars(case), "dtype": "bfloat16"}) for case in found[2:5]]


def sizes() -> list[Case]:
    """The course's TextCNN at two batch sizes."""
    return [Case(B, 16, 21635, 4096, 1024, (3, 5, 7, 9), dtype, label="textcnn") for dtype in DTYPES for B in (64, 256)]
