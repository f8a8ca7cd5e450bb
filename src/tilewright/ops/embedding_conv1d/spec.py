"""embedding_conv1d's problems, costs, tolerances and sizes."""

import dataclasses
import math
from dataclasses import dataclass

import numpy as np

from tilewright.ops.core.arrays import rounded
from tilewright.ops.matmul.spec import DTYPES, EPS32

ROUNDINGS = {"float32": 0.0, "bfloat16": 2.0**-7, "float16": 2.0**-10}  # of the rows of a GPU's table
DRAWN = 4_194_301  # numbers of an array that are drawn before they repeat: 190 million would take seconds; a prime
PROBE_ROWS = 64  # sentences that tell whether a rung takes too long


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
    device: str = "cpu"

    @property
    def name(self) -> str:
        """For test ids and result rows."""
        memory = f"-{self.memory}B" if self.memory else ""
        sizes = "+".join(map(str, self.kernels))
        return f"{self.B}x{self.L}-of-{self.V}x{self.C}-{self.O}x{sizes}-{self.dtype}{memory}"

    @property
    def problem(self) -> Problem:
        """What the ladder sees."""
        return Problem(self.C, self.O, self.kernels, self.dtype, self.device)


def make(case: Case, rng: np.random.Generator) -> dict:
    """Random arguments; ids follow Zipf's law as words do. In a 16-bit class the operands are representable."""

    def normal(*shape: int) -> np.ndarray:
        some = rng.standard_normal(min(math.prod(shape), DRAWN), dtype=np.float32)
        if case.dtype == "float16":
            some = some.astype(np.float16).astype(np.float32)
        return np.resize(rounded(some) if case.dtype == "bfloat16" else some, shape)

    return {
        "ids": ((rng.zipf(1.3, (case.B, case.L)) - 1) % case.V).astype(np.int32),
        "table": normal(case.V, case.C),
        "weights": [normal(case.O, case.C, K) for K in case.kernels],
        "biases": [rng.standard_normal(case.O, dtype=np.float32) for _ in case.kernels],
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

    if case.device != "cpu":
        from tilewright.ops.embedding_conv1d.device import bind as bind_there

        return bind_there(case, inputs)
    operands = inputs["table"], inputs["weights"], inputs["biases"]
    prepared = prepare(*operands, length=case.L, dtype=case.dtype, memory=case.memory)
    return lambda out=None: embedding_conv1d(inputs["ids"], prepared, out=out)


def reference(case: Case, inputs: dict) -> np.ndarray:
    """The float64 answer."""
    from tilewright.ops.embedding_conv1d.reference import embedding_conv1d

    return embedding_conv1d(**inputs)


def cost(case: Case) -> tuple[float, float]:
    """(operations of the direct convolution, bytes of the operands and the result): every rung is measured against
    the same. On a GPU a class of 16 bits has a table, weights and results of 16 bits."""
    taps = sum(K * (case.L - K + 1) for K in case.kernels)
    weights = case.O * case.C * sum(case.kernels)
    tokens = min(case.V, case.B * case.L)
    word = 2.0 if case.device != "cpu" and case.dtype.endswith("16") else 4.0
    return 2.0 * case.B * taps * case.C * case.O, word * (
        tokens * case.C + weights + case.B * len(case.kernels) * case.O
    )


def bound(case: Case, inputs: dict, result: np.ndarray, c: float = 1.0) -> np.ndarray:
    """c * eps32 * sqrt(C * K) * (sum of |terms|) of the worst position; a maximum's error is at most its inputs'
    largest. On a GPU a class of 16 bits keeps its table in them: a rounding of each row that is added."""
    x = inputs["table"].astype(np.float64)[inputs["ids"]]
    rounding = ROUNDINGS[case.dtype] if case.device != "cpu" else 0.0
    parts = []
    for weight, bias in zip(inputs["weights"], inputs["biases"], strict=True):
        _, C, K = weight.shape
        w = weight.astype(np.float64)

        def largest(x: np.ndarray, w: np.ndarray, change=lambda row: row, K: int = K) -> np.ndarray:
            positions = x.shape[1] - K + 1
            return sum(change(x[:, t : t + positions] @ w[:, :, t].T) for t in range(K)).max(axis=1)

        size = largest(np.abs(x), np.abs(w))
        part = c * math.sqrt(C * K) * size + (K + 1) * (size / math.sqrt(C) + np.abs(bias))
        parts.append(EPS32 * part + (rounding * largest(x, w, np.abs) if rounding else 0.0))
    return np.concatenate(parts, axis=1)


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


def device_sizes() -> list[Case]:
    """The course's TextCNN on a GPU, with a quarter of its file's sentences: PyTorch takes a fifth of a second."""
    return [Case(4096, 16, 21635, 4096, 1024, (3, 5, 7, 9), dtype, label="textcnn", device="cuda") for dtype in DTYPES]
