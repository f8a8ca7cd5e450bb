"""The sizes at which the bench times softmax, their random inputs, and their float64 results."""

import dataclasses
import math

import numpy as np

from tilewright.ops.core.gpu.rows import shortened, tensors_of
from tilewright.ops.softmax.problem import Case, Problem, bound, cost  # noqa: F401 - also for callers

PROBE_ROWS = 1 << 14  # rows that are enough to fill a GPU


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
    """The number of rows."""
    return math.prod(case.shape[:-1])


def with_rows(case: Case, count: int) -> Case:
    """The same width with another number of rows."""
    return dataclasses.replace(case, shape=(count, case.shape[-1]))


def bind(case: Case, inputs: dict):
    """call(out=None) for the chosen rung."""
    from tilewright.ops.softmax import softmax

    if case.device != "cpu":
        return bind_tensors(case, inputs)
    return lambda out=None: softmax(**inputs, out=out)


def reference(case: Case, inputs: dict) -> np.ndarray:
    """The float64 answer."""
    from tilewright.ops.softmax.reference import softmax

    return softmax(**inputs)


def sizes() -> list[Case]:
    """GPT-2's sizes: heads and positions of 16 sequences of growing length; the vocabulary."""
    return [
        Case((16 * 12 * 16, 16), label="gpt2 prefill"),
        Case((16 * 12, 128), label="gpt2 decode"),
        Case((16 * 12, 1024), label="gpt2 decode, full context"),
        Case((64, 50257), label="gpt2 vocabulary"),
    ]


def device_sizes() -> list[Case]:
    """Sizes on a GPU: scores of long prompts, in two classes, and GPT-2's vocabulary."""
    found = [
        Case((65536, 1024), label="scores, full context"),
        Case((65536, 1024), dtype="bfloat16", label="scores, full context"),
        Case((1024, 50257), label="gpt2 vocabulary"),
    ]
    return [dataclasses.replace(case, device="cuda") for case in found]


def bind_tensors(case, inputs: dict, device: str = "cuda"):
    """call(out=None) on a tensor made of a case's NumPy input; for the bench and the tests."""
    from tilewright.ops.softmax import softmax

    x = tensors_of(case, inputs, device, "x")["x"]
    return lambda out=None: softmax(x, out=out)
