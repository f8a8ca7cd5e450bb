"""The sizes at which the bench times embedding_conv1d, their random inputs, and their float64 results."""

import dataclasses
import math
from functools import partial

import numpy as np

from tilewright.ops.core.arrays import rounded
from tilewright.ops.embedding_conv1d.problem import Case, Problem, bound, cost  # noqa: F401 - also for callers
from tilewright.ops.matmul.problem import DTYPES

DRAWN = 4_194_301  # random numbers before they repeat: 190 million would take seconds. A prime number
PROBE_ROWS = 64  # sentences with which a rung is tested for being slow


def make(case: Case, rng: np.random.Generator) -> dict:
    """Random arguments. Ids follow Zipf's law, as words do. In a 16-bit class the operands are exactly
    representable."""

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
    """The number of rows of the batch."""
    return case.B


def with_rows(case: Case, count: int) -> Case:
    """The same problem with another number of rows."""
    return dataclasses.replace(case, B=count)


def bind(case: Case, inputs: dict):
    """call(out=None) for the chosen rung, its weights prepared; the first call computes the rows of the table."""
    from tilewright.ops.embedding_conv1d import embedding_conv1d, prepare

    if case.device != "cpu":
        return bind_tensors(case, inputs)
    operands = inputs["table"], inputs["weights"], inputs["biases"]
    prepared = prepare(*operands, length=case.L, dtype=case.dtype, memory=case.memory)
    return lambda out=None: embedding_conv1d(inputs["ids"], prepared, out=out)


def reference(case: Case, inputs: dict) -> np.ndarray:
    """The float64 answer."""
    from tilewright.ops.embedding_conv1d.reference import embedding_conv1d

    return embedding_conv1d(**inputs)


def sizes() -> list[Case]:
    """The course's TextCNN at two batch sizes."""
    return [Case(B, 16, 21635, 4096, 1024, (3, 5, 7, 9), dtype, label="textcnn") for dtype in DTYPES for B in (64, 256)]


def device_sizes() -> list[Case]:
    """Sizes on a GPU: the course's TextCNN with a quarter of its file's sentences, for which PyTorch takes 0.2 s."""
    return [Case(4096, 16, 21635, 4096, 1024, (3, 5, 7, 9), dtype, label="textcnn", device="cuda") for dtype in DTYPES]


def bind_tensors(case, inputs: dict, device: str = "cuda"):
    """call(out=None) on tensors made of a case's NumPy inputs. If the table has all ids, their rows are looked up
    once."""
    import torch

    from tilewright.ops.embedding_conv1d import embedding_conv1d, locate, prepare

    ids, sent = inputs["ids"], partial(torch.as_tensor, device=device)  # a copy if the device is another one
    table, weights, biases = sent(inputs["table"]), *(list(map(sent, inputs[name])) for name in ("weights", "biases"))
    prepared = prepare(table, weights, biases, length=case.L, dtype=case.dtype, memory=case.memory)
    located = locate(ids, prepared) if getattr(prepared.state, "holds_all", False) else ids
    return lambda out=None: embedding_conv1d(located, prepared, out=out)
