"""The sizes at which the bench times logprob, their random inputs, and their float64 results."""

import dataclasses
import math

import numpy as np

from tilewright.ops.core.arrays import rounded
from tilewright.ops.logprob.problem import Case, Problem, bound, cost  # noqa: F401 - also for callers


def make(case: Case, rng: np.random.Generator) -> dict:
    """Random arguments of `logprob`. b is the transpose of a row-major matrix, as an embedding is."""
    a = rng.standard_normal((case.M, case.K), dtype=np.float32) * np.float32(case.spread / math.sqrt(case.K))
    b = rng.standard_normal((case.N, case.K), dtype=np.float32)
    bias = rng.standard_normal(case.N, dtype=np.float32) if case.bias else None
    if case.dtype != "float32":
        a, b = rounded(a), rounded(b)
    return {"a": a, "b": b.T, "targets": rng.integers(0, case.N, case.M), "bias": bias}


def rows(case: Case) -> int:
    """The number of rows of the batch."""
    return case.M


def with_rows(case: Case, count: int) -> Case:
    """The same problem with another number of rows."""
    return dataclasses.replace(case, M=count)


def bind(case: Case, inputs: dict):
    """call(out=None) for the chosen rung, its weights prepared. It returns the values."""
    from tilewright.ops.logprob import logprob, prepare

    prepared = prepare(inputs["b"], bias=inputs["bias"], dtype=case.dtype)
    return lambda out=None: logprob(inputs["a"], prepared, inputs["targets"], out)[0]


def reference(case: Case, inputs: dict) -> np.ndarray:
    """The float64 values."""
    from tilewright.ops.logprob.reference import logprob

    return logprob(**inputs)[0]


def sizes() -> list[Case]:
    """Sizes: GPT-2's output matrix with one continuation, a batch, a large batch."""
    return [
        Case(M, 50257, 768, dtype, label=f"gpt2 LM head, {M} rows")
        for dtype in ("float32", "bfloat16")
        for M in (1, 64, 512)
    ]
